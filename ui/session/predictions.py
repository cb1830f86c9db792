"""What may be predicted for the pair in use on this machine: do the vector and the profile in use hold for it?"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from sequoia_core.design.conditions import Conditions, measured_as
from sequoia_core.design.planning import pair_mismatches
from sequoia_core.files.gguf_header import is_gguf
from sequoia_core.models.default_dtype import default_dtype
from sequoia_core.models.installation import installation_id
from ui.session import core_cache, machine, session

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
    from sequoia_core.design.prediction import Prediction
    from sequoia_core.models.pair_spec import PairSpec


def conditions(temperature: float = 0.0, top_p: float = 1.0, verifier: str = "sequoia") -> Conditions:
    """Return the conditions of a decode of the pair in use at these settings."""
    names = session.pair_spec().names
    return Conditions(*names, float(temperature), float(top_p), measured_as(verifier))


def vector_for(wanted: Conditions) -> AcceptanceVector | None:
    """Return a vector that holds for these conditions: the one in use, else any of the session's; None without one."""
    return next(
        (vector for vector in (session.acceptance(), *session.vectors().values()) if not vector.differences(wanted)),
        None,
    )


def vector_faults() -> list[str]:
    """Return why the vector in use does not describe the pair in use; empty when measured on it, at any settings."""
    holds_for = session.acceptance().holds_for
    if holds_for is None:
        return session.acceptance().differences(conditions())
    target, draft = session.pair_spec().names
    return holds_for.differences(replace(holds_for, target=target, draft=draft))


def profile_faults() -> list[str]:
    """Return why the profile in use does not describe the pair in use here; empty when measured on both."""
    hardware = session.profile()
    if hardware is None:
        return ["no hardware profile"]
    target, draft = session.pair_spec().names
    dtype = dtype_in_use()
    return hardware.differences(
        target=target, draft=draft, dtype=dtype, device=machine.device_name(), offload=session.pair_spec().offload,
        instructions=None if machine.has_gpu() else machine.instructions(), installation=installation_id(),
    )  # fmt: skip


def vector_of_another_pair() -> bool:
    """Whether the vector in use names other models than those of the pair in use."""
    holds_for = session.acceptance().holds_for
    return holds_for is not None and (holds_for.target, holds_for.draft) != session.pair_spec().names


def profile_of_another_pair() -> bool:
    """Whether the profile in use names other models than those of the pair in use."""
    hardware = session.profile()
    names = (None, None) if hardware is None else (hardware.meta.get("target"), hardware.meta.get("draft"))
    return None not in names and names != session.pair_spec().names


def lacks_measurement() -> bool:
    """Whether the pair in use is planned for, by what was measured for another pair."""
    if session.scenario() is not None or session.pair_spec().is_alone:
        return False
    return vector_of_another_pair() or profile_of_another_pair()


def contradiction() -> str | None:
    """Say how far the passes of the last run are off the profile in use; None unless by more than `WIDE_MARGIN`."""
    run, hardware = session.timed_run(), session.profile()
    if run is None or hardware is None or profile_faults() or not is_of_pair_in_use(run):
        return None
    sizes = [len(step["tokens"]) for step in run["steps"]]
    if not sizes or max(sizes) > hardware.max_size:
        return None
    texts = accumulate((len(step["pieces"]) for step in run["steps"][:-1]), initial=run.get("prompt_tokens") or 0)
    expected = [float(hardware.verify_at(size, text)) for size, text in zip(sizes, texts, strict=True)]
    found = [step["seconds"][1] for step in run["steps"]]
    ratio = median(sec / wanted for sec, wanted in zip(found, expected, strict=True))
    if 1 / WIDE_MARGIN <= ratio <= WIDE_MARGIN:
        return None
    times = f"{ratio:.1f} times as long as" if ratio > 1 else f"{ratio:.0%} of the time that"
    return (
        f"in the last run passes of the target took {1000 * median(found):.3g} ms, {times} the profile says: "
        "measure again while this machine does nothing else"
    )


def faults() -> list[str]:
    """Return why vector or profile in use do not describe the pair in use here, each once: both may name the draft."""
    return list(dict.fromkeys([*vector_faults(), *profile_faults()]))


def pair_in_use() -> dict[str, Any]:
    """Return what a run of the pair in use records of it."""
    spec = session.pair_spec()
    target, draft = spec.names
    return {"target": target, "draft": draft, "dtype": dtype_in_use(), "offload": spec.offload}


def is_of_pair_in_use(run: dict[str, Any]) -> bool:
    """Whether a run's figures may stand for the pair in use; a missing model or format is taken for its."""
    return all(
        run.get(name) == value or (run.get(name) is None and name != "offload") for name, value in pair_in_use().items()
    )


def dtype_in_use() -> str:
    """Return the dtype that the pair in use is loaded in here."""
    return dtype_of(session.pair_spec())


def dtype_of(spec: PairSpec) -> str:
    """Return the dtype that a pair is loaded in here."""
    chosen = None if is_gguf(spec.target or "") else spec.dtype  # a GGUF file has its own
    return str(chosen or default_dtype(spec.target, gpu=machine.has_gpu()).dtype)


MEASURED, ANOTHER, MODELLED, MISSING = "measured here", "from another machine", "modelled", "missing"
OTHERWISE, PLACED = "measured with other settings", "weights elsewhere"  # on this machine
ANOTHER_PAIR, SAME_NAME = "measured for another pair", "from a machine of the same name"
CONTRADICTED = "contradicted by the last run"
WIDE_MARGIN = 2.0  # times as long or as short: no text and no busy moment does that to a median


class State(NamedTuple):
    """What predictions rest on: one of the words above, and why it is not `MEASURED`; safe in no markdown."""

    name: str
    why: str


def state(wanted: Conditions | None = None, vector: AcceptanceVector | None = None) -> State:
    """Say what the predictions of all pages rest on, by the vector and the profile in use.

    Of one decode `wanted`: by the vector that holds for it, None where there is none.
    """
    hardware = session.profile()
    if wanted is not None and vector is None:
        return State(MISSING, f"acceptance was not measured for this at {wanted.sampling}")
    found = faults() if wanted is None else profile_faults()
    if not found:
        against = contradiction()
        return State(MEASURED, "") if against is None else State(CONTRADICTED, against)
    if hardware is None:
        return State(MISSING, "; ".join(found))
    if session.scenario() is None and (apart := pair_mismatches(vector or session.acceptance(), hardware)):
        return State(MISSING, " ".join(apart).rstrip("."))
    return State(_other_than_here(hardware, found), "; ".join(found))


def _other_than_here(hardware: HardwareProfile, found: list[str]) -> str:
    """Name what predictions rest on where something differs from the pair in use on this machine."""
    if lacks_measurement():
        return ANOTHER_PAIR
    if hardware.modelled:
        return MODELLED
    if not hardware.is_of(machine.device_name()):
        return ANOTHER
    if not hardware.measured_by(installation_id()):
        return "shipped, machine of the same name" if session.profile_name() else SAME_NAME
    return PLACED if len(found) == 1 and hardware.offload != session.pair_spec().offload else OTHERWISE


def supposed(tree: TokenTree) -> Prediction | None:
    """Return what is predicted of a tree for the pair and the machine planned for; None where nothing is of both."""
    hardware = session.profile()
    if hardware is None or tree.size > hardware.max_size or state().name in (MISSING, ANOTHER_PAIR):
        return None
    return core_cache.prediction(session.acceptance(), hardware, tree)


def if_of_pair(tree: TokenTree) -> Prediction | None:
    """Return what would be predicted if a vector that does not say what it was measured for were of the pair in use."""
    vector, hardware = session.acceptance(), session.profile()
    if vector.holds_for is not None or hardware is None or tree.size > hardware.max_size:
        return None
    apart = pair_mismatches(replace(vector, holds_for=conditions(*session.sampling())), hardware)
    return None if apart else core_cache.prediction(vector, hardware, tree)


def profiled_machine() -> str:
    """Return "this hardware" where the profile in use was measured on this pair and machine, else what it names."""
    return hardware.device if (hardware := session.profile()) and profile_faults() else "this hardware"


def predicted(tree: TokenTree, vector: AcceptanceVector | None = None) -> float | None:
    """Return the predicted speedup of a tree with the pair in use on this machine, or None: see `no_prediction`.

    The vector holds for the decode in question; None takes the one in use, for its own settings.
    """
    found = prediction(tree, vector)
    return None if found is None else found.speedup.value


def prediction(
    tree: TokenTree, vector: AcceptanceVector | None = None, *, prompts: int | None = None
) -> Prediction | None:
    """Return what is predicted of a tree, with intervals, or None: see `no_prediction`.

    `prompts` is how many will be decoded; None for the average over all text of that kind.
    """
    if no_prediction(tree, vector) is not None:
        return None
    return core_cache.prediction(vector or session.acceptance(), session.profile(), tree, prompts)


def no_prediction(tree: TokenTree, vector: AcceptanceVector | None = None) -> str | None:
    """Say why no speedup can be predicted for a tree; None when it can. Arguments as `predicted`."""
    found = faults() if vector is None else profile_faults()
    profile = session.profile()
    if not found and profile is not None and tree.size > profile.max_size:
        return f"the profile ends at n = {profile.max_size}"
    return "; ".join(found) or None
