"""What one browser session holds, typed, with defaults from `assets/`; and the frame that every page shares.

Knows Streamlit's session state and the sidebar. The tree follows the acceptance vector and the profile until the user
fixes a shape or brings a tree.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from sequoia_core.prompts import load_prompts
from ui import cached, jobs

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
    from sequoia_core.planning import BestShape

ASSETS = Path(__file__).resolve().parent.parent / "assets"
FAVICON = str(Path(__file__).with_name("icon.svg"))
DEFAULT_VECTORS = ("demo-t0", "llama3-70b-8b-cnn")
DEFAULT_PROFILE = "cpu-2core"
FALLBACK_SHAPE = (16, 5)  # only without any hardware profile to choose a shape by
JOB_NAMES = ("measure", "profile", "decode", "chain")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def _get(name: str, default: Any = None) -> Any:
    return st.session_state.get(f"studio_{name}", default)


def _set(name: str, value: Any) -> None:
    st.session_state[f"studio_{name}"] = value


# ---- what ships with the app


def shipped(kind: str) -> dict[str, Path]:
    """Return the files of `assets/<kind>` ("acceptance" or "profiles") by name, defaults first."""
    first = (*DEFAULT_VECTORS, DEFAULT_PROFILE)
    paths = {path.stem: path for path in sorted((ASSETS / kind).glob("*.json"))}
    return {name: paths[name] for name in sorted(paths, key=lambda n: first.index(n) if n in first else len(first))}


def shipped_acceptance(name: str) -> AcceptanceVector:
    """Load a shipped vector by name."""
    path = shipped("acceptance")[name]
    return cached.load_acceptance(str(path), path.stat().st_mtime_ns)


def shipped_profile(name: str) -> HardwareProfile:
    """Load a shipped hardware profile by name."""
    path = shipped("profiles")[name]
    return cached.load_profile(str(path), path.stat().st_mtime_ns)


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


def acceptance_title(name: str) -> str:
    """Name a shipped vector for a list of choices."""
    return f"{name}: {_acceptance_source(shipped_acceptance(name)).removeprefix('shipped with the app, measured on ')}"


def _profile_source(profile: HardwareProfile) -> str:
    return f"shipped with the app, measured on {profile.device} in {profile.dtype}"


# ---- acceptance, profile, tree


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
    """Return the shipped vector in use, or None when it is the user's own."""
    current = acceptance()
    return next((name for name in shipped("acceptance") if shipped_acceptance(name) == current), None)


def use_shipped_acceptance(name: str) -> None:
    """Use a shipped vector on every page."""
    vector = shipped_acceptance(name)
    set_acceptance(vector, _acceptance_source(vector))


def set_acceptance(vector: AcceptanceVector, source: str) -> None:
    """Use this vector on every page."""
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
    return None if hardware is None else cached.planned(acceptance(), hardware)[1]


def predicted(tree: TokenTree) -> float | None:
    """Return the predicted speedup of a tree with the vector and profile in use; None where the profile ends before."""
    from sequoia_core import predicted_speedup

    hardware = profile()
    if hardware is None or tree.size > hardware.max_size:
        return None
    return float(predicted_speedup(tree, acceptance(), hardware))


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
        return cached.best_tree(acceptance(), *shape())
    except ValueError:  # a shape chosen for a wider vector may not exist for this one
        plan = best()
        return cached.best_tree(acceptance(), plan.size, plan.depth) if plan else cached.best_tree(acceptance(), 2, 1)


def tree_is_own() -> bool:
    """Whether the tree in use was brought by the user and not designed here."""
    return _get("tree") is not None


def tree_source() -> str:
    """Say where the tree in use comes from."""
    if _get("tree") is not None:
        return _get("tree_source")
    if _get("shape") is not None:
        return "best tree of the chosen shape"
    return "best tree for this acceptance and hardware" if profile() is not None else "best tree of a default shape"


def set_tree(tree: TokenTree, source: str) -> None:
    """Use this very tree on every page, whatever the vector."""
    _set("tree", tree)
    _set("tree_source", source)


def _follow_best_shape() -> None:
    if _get("shape") is None:
        _set("shape_to_show", True)


# ---- model pair, jobs, last run


def pair_spec() -> tuple[str | None, str | None]:
    """Return (target, draft) as folders or hub ids; (None, None) = the demo pair."""
    return _get("pair", (None, None))


def pair_name() -> str:
    """Name the pair for people, to follow 'the'."""
    target, draft = pair_spec()
    return "demo pair" if target is None or draft is None else f"pair {Path(target).name} ← {Path(draft).name}"


def job(name: str) -> jobs.Job | None:
    """Return this session's job of that name, running or over."""
    return _get("jobs", {}).get(name)


def set_job(name: str, job: jobs.Job) -> None:
    """Remember a job of this session; it is cancelled when the tab goes away."""
    _set("jobs", {**_get("jobs", {}), name: jobs.cancel_with_session(job)})


def take_ended(name: str) -> jobs.Job | None:
    """Return this session's job once after it ended with something to show, done or cancelled; else None."""
    ended = job(name)
    if ended is None or ended.active or ended.state == "failed" or _get(f"taken_{name}") == ended.id:
        return None
    _set(f"taken_{name}", ended.id)
    return ended


def _adopt_measurements() -> None:
    """Use what a measurement found, on whichever page the user is when it ends."""
    for name, adopt in (("measure", set_acceptance), ("profile", set_profile)):
        ended = take_ended(name)
        if ended is not None and ended.result is not None:
            adopt(ended.result, ended.info)
            kept = "in use" if ended.state == "done" else "cancelled, what it had is in use"
            st.toast(f"{ended.label}: {kept}.", icon=":material/check_circle:")


def last_run() -> dict[str, Any] | None:
    """Return what the last decode of this session left behind."""
    return _get("last_run")


def set_last_run(run: dict[str, Any]) -> None:
    """Keep a finished decode for the other pages."""
    _set("last_run", run)


# ---- the frame of every page


def setup_page(title: str) -> None:
    """Set the page's title and draw the sidebar; the first call of every page, so that each works from a cold link."""
    # a Material favicon would be fetched from a font server: our own keeps the app free of outside requests
    st.set_page_config(page_title=f"{title} · Sequoia Studio", page_icon=FAVICON, layout="wide")
    _adopt_measurements()
    with st.sidebar:
        _pair_control()
        active = _current_job()
        running = active is not None and active.active
        st.fragment(_job_state, run_every=1.0 if running else None)(running)


def _pair_control() -> None:
    target, draft = pair_spec()
    st.markdown(
        f"**Model pair**  \n{'Demo pair, shipped' if target is None else pair_name().removeprefix('pair ')}",
        help="Target: the model whose output is preserved. Draft: the "
        "small model that proposes tokens. They must share a vocabulary.",
    )
    st.caption(f":material/memory: {device_name()}")
    with st.popover("Change pair", icon=":material/swap_horiz:", width="stretch"):
        with st.form("sidebar_pair", border=False):
            new_target = st.text_input(
                "Target",
                value=target or "",
                key="sidebar_target",
                placeholder="folder or hub id",
                help="A local folder with config.json and .safetensors files, or a Hugging Face hub id.",
            )
            new_draft = st.text_input(
                "Draft",
                value=draft or "",
                key="sidebar_draft",
                placeholder="folder or hub id",
                help="Same kinds of names as the target. Leave both empty for the shipped demo pair.",
            )
            if st.form_submit_button("Use this pair", icon=":material/check:", width="stretch"):
                problem = pair_problem(new_target.strip(), new_draft.strip())
                if problem:
                    st.error(problem)
                else:
                    _set("pair", (new_target.strip() or None, new_draft.strip() or None))
                    st.rerun()
        if jobs.loaded_pair() is not None and st.button(
            "Unload from memory", icon=":material/eject:", key="sidebar_unload", width="stretch"
        ):
            jobs.unload_pair()
            st.rerun()


def pair_problem(target: str, draft: str) -> str | None:
    """Say what is wrong with two names of models before anything is loaded; None when they look right."""
    if not target and not draft:
        return None
    for role, name in (("Target", target), ("Draft", draft)):
        if not name:
            return f"{role}: nothing given. Name both models, or neither for the demo pair."
        path = Path(name).expanduser()
        if path.is_dir():
            if not (path / "config.json").is_file():
                return f"{role}: the folder has no config.json."
        elif path.is_absolute() or name.startswith((".", "~")):
            return f"{role}: no such folder."
        elif not HUB_ID.fullmatch(name):
            return f"{role}: found {name!r}, expected a folder or a hub id such as owner/model."
    return None


def _current_job() -> jobs.Job | None:
    """This session's active job, else the one that ended last."""
    known = list(_get("jobs", {}).values())
    return max(known, key=lambda job: (job.active, job.started or 0.0), default=None)


def _job_state(was_running: bool) -> None:
    current = _current_job()
    if current is not None and current.active:
        if current.position:
            st.caption(f":material/hourglass_top: Queued: {current.label} ({current.position} in line)")
        else:
            st.progress(current.fraction, text=f":material/sync: {current.label}")
        return
    if was_running:
        st.rerun()  # the page itself has a result or an error to show
    if current is not None and current.state == "failed":
        st.caption(f":red[:material/error: {current.label} failed]", help=current.error)
    else:
        st.caption(":material/check_circle: Engine idle")


@st.cache_resource(show_spinner=False)
def device_name() -> str:
    """Name the device the engine will use, without paying for torch where there can be no accelerator."""
    if Path("/proc/driver/nvidia/version").exists() or sys.platform in ("darwin", "win32"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    return f"CPU, {os.cpu_count()} cores"
