"""What one browser session works with: the model pair, acceptance vector, hardware profile, and its last run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.runtime.scriptrunner_utils.script_run_context import get_script_run_ctx

from sequoia_core.design.conditions import Conditions
from sequoia_core.design.profile import PLACES
from sequoia_core.models.pair_spec import PairSpec
from ui.markdown import safe_name
from ui.session import shipped
from ui.session.state import get, put

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile

MAX_OWN = 12  # vectors a session keeps of its own
MAX_RUNS = 16  # a race leaves five
SCENARIO_SETS = ("acceptance", "acceptance_source", "profile", "profile_source", "varied")
OTHER_DEMO_DRAFTS = {"demo draft-large": "large draft", "demo head": "head"}  # by their names in records
MAX_NODES = 1_000_000  # of the trees of all kept runs: some 100 MB of records; two of the largest runs


def vectors() -> dict[str, AcceptanceVector]:
    """Return every vector this session can choose from by name: its own, newest first, then the shipped ones."""
    return {**get("own_vectors", {}), **{name: shipped.acceptance(name) for name in shipped.files("acceptance")}}


def vector_title(name: str) -> str:
    """Describe one of `vectors()` for a list of choices."""
    own = get("own_sources", {})
    if name in own:
        return f"{name}: {own[name]}"
    origin = shipped.acceptance_origin(shipped.acceptance(name))
    return f"{name}: {origin.removeprefix('shipped with the app, measured on ')}"


def acceptance() -> AcceptanceVector:
    """Return the vector in use: the user's own, or a shipped default."""
    if get("acceptance") is None:
        names = list(shipped.files("acceptance"))
        if not names:
            folder = shipped.ASSETS / "acceptance"
            st.error(f"No acceptance vector in {folder}. Restore the folder from the repository.")
            st.stop()
        default = shipped.acceptance(names[0])
        pair, every = pair_spec().names, ((vector, vector.holds_for) for vector in map(shipped.acceptance, names))
        of_pair = [(vector, of) for vector, of in every if of is not None and (of.target, of.draft) == pair]
        if default.holds_for is None or not of_pair:
            return default
        at = sampling()
        return next((vector for vector, of in of_pair if (of.temperature, of.top_p) == at), of_pair[0][0])
    return get("acceptance")


def sampling() -> tuple[float, float]:
    """Return the session's temperature and top-p: of its runs, races and measurements."""
    return get("sampling", (0.0, 1.0))


def sampling_of_another_page() -> bool:
    """Whether a page before this one drew the session's sampling last; from now on it is this one."""
    context, before = get_script_run_ctx(), get("sampling_page")
    here = "" if context is None else context.page_script_hash
    put("sampling_page", here)
    return before not in (None, here)


def set_sampling(temperature: float, top_p: float) -> None:
    """Sample so from now on; a shipped vector in use by default gives way to the one measured so."""
    if (temperature, top_p) != sampling():
        put("sampling", (temperature, top_p))
        _follow_best_shape()


def has_own_acceptance() -> bool:
    """Whether the vector in use was chosen, brought or measured, rather than a default of the app."""
    return get("acceptance") is not None


def acceptance_source() -> str:
    """Say where the vector in use comes from, and whether it is a default of the app or the user's own."""
    if get("acceptance") is None:
        return shipped.acceptance_origin(acceptance())
    return get("acceptance_source")


def acceptance_name() -> str | None:
    """Return the name among `vectors()` of the vector in use; None when it is a variation of one of them."""
    current = acceptance()
    return next((name for name, vector in vectors().items() if vector == current), None)


def use_vector(name: str) -> None:
    """Use one of `vectors()` on every page."""
    leave_scenario()
    vector = vectors()[name]
    own = get("own_sources", {}).get(name)
    _use(vector, shipped.acceptance_origin(vector) if own is None else own)
    put("varied", None)


def set_acceptance(vector: AcceptanceVector, source: str, name: str) -> None:
    """Use this vector on every page, and keep it beside the shipped ones by that name, numbered where it is taken."""
    leave_scenario()
    kept, sources = get("own_vectors", {}), get("own_sources", {})
    unique = next(
        candidate
        for candidate in (name, *(f"{name} ({i})" for i in range(2, MAX_OWN + 3)))
        if kept.get(candidate, vector) == vector and candidate not in shipped.files("acceptance")
    )
    kept = {unique: vector, **{key: value for key, value in kept.items() if key != unique}}
    names = list(kept)[:MAX_OWN]
    put("own_vectors", {key: kept[key] for key in names})
    put("own_sources", {key: source if key == unique else sources[key] for key in names})
    _use(vector, source)
    put("varied", None)


def use_scenario(name: str, vector: AcceptanceVector, profile: HardwareProfile, source: str) -> None:
    """Plan for a vector and a profile that belong together, on every page; one's own come back by `leave_scenario`."""
    if scenario() is None:
        put("before_scenario", {kept: get(kept) for kept in SCENARIO_SETS})
    put("scenario", name)
    put("profile", profile)
    put("profile_source", f"{source}: {profile.device} in {profile.dtype}")
    put("varied", None)
    _use(vector, source)


def scenario() -> str | None:
    """Return the name of the scenario that is planned for; None for one's own pair on this machine."""
    return get("scenario")


def leave_scenario() -> None:
    """Plan again for one's own pair on this machine, by what was in use for it."""
    if scenario() is not None:
        put("scenario", None)
        for name, value in get("before_scenario").items():
            put(name, value)
        _follow_best_shape()


def vary_acceptance(vector: AcceptanceVector, what: str) -> None:
    """Use a vector derived from the one in use, which `restore_acceptance` brings back."""
    original = get("varied") or (acceptance(), acceptance_source())
    _use(vector, f"{what}, from: {original[1]}")
    put("varied", original)


def original_acceptance() -> AcceptanceVector:
    """Return the vector that the one in use was derived from, or the one in use itself."""
    return (get("varied") or (acceptance(),))[0]


def is_varied() -> bool:
    """Whether the vector in use was derived from another one here."""
    return get("varied") is not None


def restore_acceptance() -> None:
    """Undo every variation."""
    if get("varied") is not None:
        _use(*get("varied"))
        put("varied", None)


def declare(conditions: Conditions) -> None:
    """Note what the vector in use holds for, as its user says; a shipped one stays as it is."""
    restore = get("varied")
    vector, name = acceptance(), acceptance_name()
    own = dict(get("own_vectors", {}))
    own.pop(name, None)
    put("own_vectors", own)
    source = acceptance_source().split("; declared for ")[0]
    words = f"{safe_name(conditions.target)} ← {safe_name(conditions.draft)}, {conditions.sampling}"
    set_acceptance(replace(vector, holds_for=conditions), f"{source}; declared for {words}", name or "declared")
    put("varied", restore)  # a smoothed vector can still be taken back


def _use(vector: AcceptanceVector, source: str) -> None:
    put("acceptance", vector)
    put("acceptance_source", source)
    _follow_best_shape()


def profile() -> HardwareProfile | None:
    """Return the hardware profile in use, or None when none is shipped or measured."""
    if get("profile") is None:
        names = list(shipped.files("profiles"))
        return shipped.profile(names[0]) if names else None
    return get("profile")


def profile_source() -> str:
    """Say where the profile in use comes from; empty without one."""
    if get("profile") is None:
        hardware = profile()
        return "" if hardware is None else shipped.profile_origin(hardware)
    return get("profile_source")


def profile_name() -> str | None:
    """Return the shipped profile in use; None when it is the user's own or there is none."""
    current = profile()
    return next((name for name in shipped.files("profiles") if shipped.profile(name) is current), None)


def use_shipped_profile(name: str) -> None:
    """Use a shipped profile on every page."""
    hardware = shipped.profile(name)
    set_profile(hardware, shipped.profile_origin(hardware))


def set_measured_profile(profile: HardwareProfile, source: str) -> None:
    """Use a profile that was measured just now: it is newer than every run."""
    put("timed_run", None)
    set_profile(profile, source)


def set_profile(profile: HardwareProfile, source: str) -> None:
    """Use this profile on every page."""
    leave_scenario()
    put("profile", profile)
    put("profile_source", source)
    _follow_best_shape()


def pair_spec() -> PairSpec:
    """Return which models to load, and in which dtype."""
    return get("pair", PairSpec())


def set_pair(spec: PairSpec) -> None:
    put("pair", spec)


def pair_name() -> str:
    """Name the pair for people, to follow 'the': with where its target lives, if that is not in memory."""
    spec = pair_spec()
    if spec.is_alone:
        return models_name() + ("" if spec.offload is None else f", {PLACES[spec.offload]}")
    place = "" if spec.offload is None else f" with its target {PLACES[spec.offload]}"
    if not spec.is_demo:
        return f"pair {models_name()}{place}"
    own = OTHER_DEMO_DRAFTS.get(spec.names[1])
    return f"demo pair{place}" if own is None else f"demo pair with its {own}{place.replace('with', 'and')}"


def models_name() -> str:
    """Name the models of a pair that is not the demo pair, or of one model alone, for people."""
    names = [safe_name(Path(name).name) for name in pair_spec().names]
    return f"{names[0]} without a draft" if pair_spec().is_alone else " ← ".join(names)


def last_run() -> dict[str, Any] | None:
    """Return what the last decode of this session left behind."""
    return get("last_run")


def set_last_run(run: dict[str, Any]) -> None:
    """Keep a finished decode for the other pages."""
    put("last_run", run)
    put("timed_run", run)
    keep_run(run, "decoded here")


def timed_run() -> dict[str, Any] | None:
    """Return the last run where it was decoded after the profile in use was measured, so that it may contradict it."""
    return get("timed_run")


def runs() -> dict[str, dict[str, Any]]:
    """Return the runs that this session decoded or opened by id, newest first."""
    return get("runs", {})


def run_origins() -> dict[str, str]:
    """Return where each of `runs()` comes from, for people."""
    return get("run_origins", {})


def run_times() -> dict[str, str]:
    """Return when each of `runs()` was kept, as a time of the day."""
    return get("run_times", {})


def drafted_nodes(run: dict[str, Any]) -> int:
    """Return the nodes of all trees of a run, which is what its record takes memory for."""
    return sum(len(step["tokens"]) for step in run["steps"])


def keep_run(run: dict[str, Any], origin: str) -> None:
    """Keep a run among `runs()`; the oldest give way past `MAX_RUNS`, and past `MAX_NODES` of all kept trees."""
    kept, nodes = {run["id"]: run}, drafted_nodes(run)
    for key, other in runs().items():
        if key == run["id"]:
            continue
        nodes += drafted_nodes(other)
        if len(kept) == MAX_RUNS or nodes > MAX_NODES:
            break
        kept[key] = other
    times = {run["id"]: time.strftime("%H:%M:%S")} | run_times()
    put("runs", kept)
    put("run_origins", {key: {**run_origins(), run["id"]: origin}[key] for key in kept})
    put("run_times", {key: times[key] for key in kept if key in times})


def rename_run(run_id: str, name: str) -> None:
    """Give one of `runs()` a name in place of its origin."""
    put("run_origins", run_origins() | {run_id: name})


def forget_run(run_id: str) -> None:
    """Drop one of `runs()`."""
    put("runs", {key: run for key, run in runs().items() if key != run_id})


def _follow_best_shape() -> None:
    if get("shape") is None:
        put("shape_to_show", True)
