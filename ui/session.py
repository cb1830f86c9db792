"""What one browser session holds, typed, with defaults from `assets/`.

Knows Streamlit's session state, draws nothing. The tree follows the acceptance vector and the profile until the user
fixes a shape or brings a tree.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from sequoia_core.design.conditions import Conditions
from sequoia_core.files.model_names import pair_names
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.device import processor_flags, processor_name
from ui import core_cache, jobs
from ui.literal import safe_name

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
    from sequoia_core.design.planning import BestShape

ASSETS = Path(__file__).resolve().parent.parent / "assets"
DEFAULT_VECTORS = ("demo-t0", "llama3-70b-8b-cnn")
DEFAULT_PROFILES = {"bfloat16": "cpu-2core-bfloat16", None: "cpu-2core"}  # by the dtype that models run in here
FALLBACK_SHAPE = (16, 5)  # only without any hardware profile to choose a shape by
MAX_OWN = 12  # vectors a session keeps of its own
GPU_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/kfd", "/dev/dxg")
JOB_NAMES = ("measure", "profile", "decode", "chain")


def _get(name: str, default: Any = None) -> Any:
    return st.session_state.get(f"studio_{name}", default)


def _set(name: str, value: Any) -> None:
    st.session_state[f"studio_{name}"] = value


# ---- what ships with the app


def shipped(kind: str) -> dict[str, Path]:
    """Return the files of `assets/<kind>` ("acceptance" or "profiles") by name, defaults first."""
    first = (*DEFAULT_VECTORS, DEFAULT_PROFILES[fast_dtype()])
    paths = {path.stem: path for path in sorted((ASSETS / kind).glob("*.json"))}
    return {name: paths[name] for name in sorted(paths, key=lambda n: first.index(n) if n in first else len(first))}


def shipped_acceptance(name: str) -> AcceptanceVector:
    """Load a shipped vector by name."""
    path = shipped("acceptance")[name]
    return core_cache.load_acceptance(str(path), path.stat().st_mtime_ns)


def shipped_profile(name: str) -> HardwareProfile:
    """Load a shipped hardware profile by name."""
    path = shipped("profiles")[name]
    return core_cache.load_profile(str(path), path.stat().st_mtime_ns)


def shipped_prompts() -> list[str]:
    """Return the shipped held-out prompts; empty when there are none."""
    path = ASSETS / "prompts" / "prompts.jsonl"
    return load_prompts(path) if path.is_file() else []


def _acceptance_source(vector: AcceptanceVector) -> str:
    """Say that a vector is a default, and what it was measured on."""
    meta = vector.meta
    pair = meta.get("pair") or " ← ".join(str(meta[role]) for role in ("target", "draft") if role in meta)
    temperature = f"temperature {meta['temperature']:g}" if "temperature" in meta else None
    return "shipped with the app, measured on " + (
        ", ".join(filter(None, (pair, meta.get("data"), temperature))) or "?"
    )


def _profile_source(profile: HardwareProfile) -> str:
    return f"shipped with the app, measured on {profile.device} in {profile.dtype}"


# ---- acceptance, profile, tree


def vectors() -> dict[str, AcceptanceVector]:
    """Return every vector this session can choose from by name: its own, newest first, then the shipped ones."""
    return {**_get("own_vectors", {}), **{name: shipped_acceptance(name) for name in shipped("acceptance")}}


def vector_title(name: str) -> str:
    """Describe one of `vectors()` for a list of choices."""
    own = _get("own_sources", {})
    if name in own:
        return f"{name}: {own[name]}"
    return f"{name}: {_acceptance_source(shipped_acceptance(name)).removeprefix('shipped with the app, measured on ')}"


def acceptance() -> AcceptanceVector:
    """Return the vector in use: the user's own, or a shipped default."""
    if _get("acceptance") is None:
        names = list(shipped("acceptance"))
        if not names:
            st.error(f"No acceptance vector in {ASSETS / 'acceptance'}. Restore the folder from the repository.")
            st.stop()
        return shipped_acceptance(names[0])
    return _get("acceptance")


def acceptance_source() -> str:
    """Say where the vector in use comes from, and whether it is a default of the app or the user's own."""
    if _get("acceptance") is None:
        return _acceptance_source(acceptance())
    return _get("acceptance_source")


def acceptance_name() -> str | None:
    """Return the name among `vectors()` of the vector in use; None when it is a variation of one of them."""
    current = acceptance()
    return next((name for name, vector in vectors().items() if vector == current), None)


def use_vector(name: str) -> None:
    """Use one of `vectors()` on every page."""
    vector = vectors()[name]
    own = _get("own_sources", {}).get(name)
    _use(vector, _acceptance_source(vector) if own is None else own)
    _set("varied", None)


def set_acceptance(vector: AcceptanceVector, source: str, name: str) -> None:
    """Use this vector on every page, and keep it by that name beside the shipped ones.

    Args:
        source: where it comes from, for people.
        name: short; numbered when a different vector has it already.
    """
    kept, sources = _get("own_vectors", {}), _get("own_sources", {})
    unique = next(
        candidate
        for candidate in (name, *(f"{name} ({i})" for i in range(2, MAX_OWN + 3)))
        if kept.get(candidate, vector) == vector and candidate not in shipped("acceptance")
    )
    kept = {unique: vector, **{key: value for key, value in kept.items() if key != unique}}
    names = list(kept)[:MAX_OWN]
    _set("own_vectors", {key: kept[key] for key in names})
    _set("own_sources", {key: source if key == unique else sources[key] for key in names})
    _use(vector, source)
    _set("varied", None)


def vary_acceptance(vector: AcceptanceVector, what: str) -> None:
    """Use a vector derived from the one in use, which `restore_acceptance` brings back."""
    original = _get("varied") or (acceptance(), acceptance_source())
    _use(vector, f"{what}, from: {original[1]}")
    _set("varied", original)


def original_acceptance() -> AcceptanceVector:
    """Return the vector that the one in use was derived from, or the one in use itself."""
    return (_get("varied") or (acceptance(),))[0]


def is_varied() -> bool:
    """Whether the vector in use was derived from another one here."""
    return _get("varied") is not None


def restore_acceptance() -> None:
    """Undo every variation."""
    if _get("varied") is not None:
        _use(*_get("varied"))
        _set("varied", None)


def declare(conditions: Conditions) -> None:
    """Note what the vector in use holds for, as its user says.

    Of the user's own vectors it takes the place of the same one without that; a shipped one stays as it is.
    """
    restore = _get("varied")
    vector, name = acceptance(), acceptance_name()
    own = dict(_get("own_vectors", {}))
    own.pop(name, None)
    _set("own_vectors", own)
    source = acceptance_source().split("; declared for ")[0]
    words = f"{safe_name(conditions.target)} ← {safe_name(conditions.draft)}, {conditions.sampling}"
    set_acceptance(replace(vector, holds_for=conditions), f"{source}; declared for {words}", name or "declared")
    _set("varied", restore)  # a smoothed vector can still be taken back


def conditions(temperature: float = 0.0, top_p: float = 1.0, verifier: str = "sequoia") -> Conditions:
    """Return the conditions of a decode of the pair in use at these settings."""
    return Conditions(*pair_names(*pair_spec()[:2]), float(temperature), float(top_p), verifier)


def vector_for(wanted: Conditions) -> AcceptanceVector | None:
    """Return a vector that holds for these conditions: the one in use, else one of `vectors()`; None without any."""
    return next((vector for vector in (acceptance(), *vectors().values()) if not vector.differences(wanted)), None)


def vector_faults() -> list[str]:
    """Say why the vector in use tells nothing of the pair in use; empty when it was measured on it, at any settings."""
    holds_for = acceptance().holds_for
    if holds_for is None:
        return acceptance().differences(conditions())
    target, draft = pair_names(*pair_spec()[:2])
    return holds_for.differences(replace(holds_for, target=target, draft=draft))


def profile_faults() -> list[str]:
    """Say why the profile in use tells nothing of the pair in use on this machine; empty when it was measured here."""
    hardware = profile()
    if hardware is None:
        return ["no hardware profile"]
    target, draft = pair_names(*pair_spec()[:2])
    dtype = pair_spec().dtype or ("bfloat16" if has_gpu() else "float32")
    return hardware.differences(target=target, draft=draft, dtype=dtype, device=device_name())


def profiled_machine() -> str:
    """Say whose passes the profile in use tells of: this hardware's, or others'."""
    return "the profile in use" if profile_faults() else "this hardware"


def _use(vector: AcceptanceVector, source: str) -> None:
    _set("acceptance", vector)
    _set("acceptance_source", source)
    _follow_best_shape()


def profile() -> HardwareProfile | None:
    """Return the hardware profile in use, or None when none is shipped or measured."""
    if _get("profile") is None:
        names = list(shipped("profiles"))
        return shipped_profile(names[0]) if names else None
    return _get("profile")


def profile_source() -> str:
    """Say where the profile in use comes from; empty without one."""
    if _get("profile") is None:
        hardware = profile()
        return "" if hardware is None else _profile_source(hardware)
    return _get("profile_source")


def profile_name() -> str | None:
    """Return the shipped profile in use, or None when it is the user's own or there is none."""
    current = profile()
    return next((name for name in shipped("profiles") if shipped_profile(name) is current), None)


def use_shipped_profile(name: str) -> None:
    """Use a shipped profile on every page."""
    hardware = shipped_profile(name)
    set_profile(hardware, _profile_source(hardware))


def set_profile(profile: HardwareProfile, source: str) -> None:
    """Use this hardware profile on every page."""
    _set("profile", profile)
    _set("profile_source", source)
    _follow_best_shape()


def best() -> BestShape | None:
    """Return the best (n, d) for the vector and the profile in use; None without a profile."""
    hardware = profile()
    return None if hardware is None else core_cache.planned(acceptance(), hardware)[1]


def predicted(tree: TokenTree, vector: AcceptanceVector | None = None) -> float | None:
    """Return the predicted speedup of a tree with the pair in use on this machine, or None: see `no_prediction`.

    Args:
        vector: one that holds for the decode in question; None takes the one in use, for its own settings.
    """
    from sequoia_core import predicted_speedup

    if no_prediction(tree, vector) is not None:
        return None
    return float(predicted_speedup(tree, vector or acceptance(), profile()))


def no_prediction(tree: TokenTree, vector: AcceptanceVector | None = None) -> str | None:
    """Say why no speedup can be predicted for a tree; None when it can. Arguments as `predicted`."""
    faults = [*(vector_faults() if vector is None else []), *profile_faults()]
    if not faults and tree.size > profile().max_size:
        return f"the profile ends at n = {profile().max_size}"
    return "; ".join(faults) or None


def shape() -> tuple[int, int]:
    """Return (n, d) of the designed tree: as fixed by the user, else the best for this hardware."""
    if _get("shape") is not None:
        return _get("shape")
    plan = best()
    return FALLBACK_SHAPE if plan is None else (max(plan.size, 1), max(plan.depth, 1))


def set_shape(size: int | None, depth: int = 1, *, show: bool = True) -> None:
    """Design the tree at this (n, d), or at the best shape for the hardware with None.

    Args:
        show: let the tree page's sliders jump there; False when they are where the shape comes from.
    """
    _set("shape", None if size is None else (size, max(depth, 1)))
    _set("tree", None)
    _set("shape_to_show", show)


def take_shape_to_show() -> bool:
    """Say once whether the tree page's sliders should jump to `shape()`."""
    wanted = _get("shape_to_show", False)
    _set("shape_to_show", False)
    return wanted


def tree() -> TokenTree:
    """Return the tree in use: the user's own, else the best one of the designed shape for the vector in use."""
    if _get("tree") is not None:
        return _get("tree")
    try:
        return core_cache.best_tree(acceptance(), *shape())
    except ValueError:  # a shape chosen for a wider vector may not exist for this one
        plan = best()
        return core_cache.best_tree(acceptance(), *((plan.size, plan.depth) if plan else (2, 1)))


def tree_is_own() -> bool:
    """Whether the tree in use was brought by the user and not designed here."""
    return _get("tree") is not None


def tree_source() -> str:
    """Say where the tree in use comes from."""
    if _get("tree") is not None:
        return _get("tree_source")
    if _get("shape") is not None:
        return "best tree of the chosen shape"
    if profile() is None:
        return "best tree of a default shape"
    return f"best tree for this acceptance and {profiled_machine().removeprefix('this ')}"


def set_tree(tree: TokenTree, source: str) -> None:
    """Use this very tree on every page, whatever the vector."""
    _set("tree", tree)
    _set("tree_source", source)


def _follow_best_shape() -> None:
    if _get("shape") is None:
        _set("shape_to_show", True)


# ---- model pair, jobs, last run


def pair_spec() -> jobs.PairSpec:
    """Return which models to load, and in which dtype."""
    return _get("pair", jobs.PairSpec(dtype=fast_dtype()))


def set_pair(spec: jobs.PairSpec) -> None:
    """Use this pair of models from now on."""
    _set("pair", spec)


@st.cache_resource(show_spinner=False)
def fast_dtype() -> str | None:
    """Return bfloat16 where the processor multiplies such matrices itself (AMX), else None: what `load_pair` takes."""
    return "bfloat16" if "amx_bf16" in processor_flags().split() else None  # asking torch would cost two seconds


@st.cache_resource(show_spinner=False)
def has_gpu() -> bool:
    """Whether the engine will run on a CUDA device, without paying for torch where there can be none."""
    if sys.platform != "win32" and not any(Path(driver).exists() for driver in GPU_DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


@st.cache_resource(show_spinner=False)
def device_name() -> str:
    """Name the device the engine will use: the GPU, or the processor with its cores."""
    if has_gpu():
        import torch

        return torch.cuda.get_device_name()
    return f"{processor_name()}, {os.cpu_count()} cores"


def pair_name() -> str:
    """Name the pair for people, to follow 'the'."""
    spec = pair_spec()
    if spec.is_demo:
        return "demo pair"
    return f"pair {safe_name(Path(spec.target).name)} ← {safe_name(Path(spec.draft).name)}"


def job(name: str) -> jobs.Job | None:
    """Return this session's job of that name, running or over."""
    return _get("jobs", {}).get(name)


def set_job(name: str, job: jobs.Job) -> None:
    """Remember a job of this session; it is cancelled when the tab goes away."""
    _set("jobs", {**_get("jobs", {}), name: jobs.cancel_with_session(job)})


def current_job() -> jobs.Job | None:
    """Return this session's active job, else the one that ended last."""
    known = list(_get("jobs", {}).values())
    return max(known, key=lambda job: (job.active, job.started or 0.0), default=None)


def take_ended(name: str) -> jobs.Job | None:
    """Return this session's job once after it ended with something to show, done or cancelled; else None."""
    ended = job(name)
    if ended is None or ended.active or ended.state == "failed" or _get(f"taken_{name}") == ended.id:
        return None
    _set(f"taken_{name}", ended.id)
    return ended


def adopt_measurements() -> None:
    """Use what a measurement found, on whichever page the user is when it ends."""
    for name in ("measure", "profile"):
        ended = take_ended(name)
        if ended is None or ended.result is None:
            continue
        if name == "measure":
            set_acceptance(ended.result, *ended.info)
        else:
            set_profile(ended.result, ended.info)
        kept = "in use" if ended.state == "done" else "cancelled, what it had is in use"
        st.toast(f"{ended.label}: {kept}.", icon=":material/check_circle:")


def last_run() -> dict[str, Any] | None:
    """Return what the last decode of this session left behind."""
    return _get("last_run")


def set_last_run(run: dict[str, Any]) -> None:
    """Keep a finished decode for the other pages."""
    _set("last_run", run)
