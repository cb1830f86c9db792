"""Where the time goes: the last run against its prediction, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from sequoia_core.design.prediction import Measured, Reason, context_reason, reasons
from sequoia_core.design.profile import PLACES
from ui.markdown import escaped
from ui.runs import runs
from ui.session import core_cache, predictions, session

if TYPE_CHECKING:
    from typing import Any

    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree

ADVICE = {
    "acceptance": "Fewer guesses were right than where acceptance was calibrated. Calibrate on text like this prompt, "
    "or take a better draft.",
    "verifying": "Target passes over the tree took longer than in the profile. Measure the machine again while it does "
    "nothing else; a longer context also costs more; a smaller tree needs less.",
    "drafting": "Draft passes took longer than in the profile. Measure again, or take a shallower tree or a smaller "
    "draft.",
    "overhead": "More time went into walking, committing and showing the run than in the profile.",
    "baseline": "Plain decoding was faster or slower beside this run than in the profile: the machine's speed changed.",
}
NAMES = {
    "acceptance": "tokens per step",
    "verifying": "verifying",
    "drafting": "drafting",
    "overhead": "the rest of a step",
    "baseline": "a token without speculation",
    "context": "context",
}


def measured(run: dict[str, Any]) -> Measured | None:
    """Return what a run did on average; None where it has no steps."""
    steps = run["steps"]
    if not steps:
        return None
    draft, verify, *rest = (sum(parts) / len(steps) for parts in zip(*(step["seconds"] for step in steps), strict=True))
    tokens = sum(len(step["pieces"]) for step in steps)
    baseline = run["baseline"]
    alone = baseline["seconds"] / baseline["tokens"] if baseline and baseline["tokens"] else None
    return Measured(tokens / len(steps), verify, draft, sum(rest), alone)


def one_tree(run: dict[str, Any]) -> TokenTree | None:
    """Return the tree of all of a run's steps; None where they differ."""
    from sequoia_core import TokenTree

    return TokenTree(np.array(run["shapes"][0])) if len(run["shapes"]) == 1 else None


def section(vector: AcceptanceVector, profile: HardwareProfile, *, foreign: bool) -> None:
    """Explain the last run of this session; `foreign`: the vector or the profile is of another pair or machine."""
    st.subheader("Where does the time go?")
    run = session.last_run()
    found = None if run is None else measured(run)
    if run is None or found is None:
        st.caption("Decode something first: the run is then taken apart here and set against its prediction.")
        return
    tree = one_tree(run)
    if tree is None or tree.size > profile.max_size:
        st.caption("The last run's trees differ from step to step or are larger than what was profiled.")
        return
    if run.get("offload") != profile.offload:
        there, here = PLACES[run.get("offload")], PLACES[profile.offload]
        st.caption(f"The last run had the target's weights {there}, the profile in use has them {here}: no comparison.")
        return
    if not predictions.is_of_pair_in_use(run):
        st.caption(f"The last run: {escaped(runs.made_with(run))}, not the pair in use: no comparison.")
        return
    if foreign:
        st.caption(
            ":material/info: The vector and the profile in use are not of this pair on this machine: what follows says "
            "how much the two differ."
        )
    prediction = core_cache.prediction(vector, profile, tree)
    why = reasons(prediction, found)
    if run.get("prompt_tokens") is not None:
        at = run["prompt_tokens"] + sum(len(step["pieces"]) for step in run["steps"]) / 2
        own = core_cache.prediction(vector, profile, tree, None, at)
        longer = context_reason(prediction, own, profiled_at=profile.context, run_at=at)
        why = reasons(own, found) + ([] if longer is None else [longer])
        why.sort(key=lambda reason: reason.effect)
    if not why:
        st.markdown("The last run did what was predicted: no part is off by more than 3%.")
        return
    for reason in why:
        st.markdown(sentence(reason))
    if (looping := looping_sentence(run)) is not None:
        st.caption(looping)


def looping_sentence(run: dict[str, Any]) -> str | None:
    """Say how far the text repeats itself, where that is much: such text is easy to draft."""
    from sequoia_core.studies.race import LOOPS_FROM, repeated_share

    share = repeated_share([hash(piece) for step in run["steps"] for piece in step["pieces"]])
    if share <= LOOPS_FROM:
        return None
    return f":material/repeat: {share:.0%} of this text's 4-grams occurred before: it loops, which is easy to draft."


def sentence(reason: Reason) -> str:
    """Say what one part did to the speedup, with the numbers behind it and what to change."""
    in_tokens = reason.part == "acceptance"
    if reason.part == "context":
        words = f"{reason.found:.0f} tokens in the cache on average, the profile had {reason.expected:.0f}"
        return f"- **{NAMES[reason.part].capitalize()}: {reason.effect - 1:+.0%}** speedup, {words}."
    unit = "" if in_tokens else " ms"
    expected, found = (value if in_tokens else 1000 * value for value in (reason.expected, reason.found))
    words = f"{found:.3g}{unit} where {expected:.3g}{unit} was expected"
    advice = f" {ADVICE[reason.part]}" if reason.effect < 1 else ""
    return f"- **{NAMES[reason.part].capitalize()}: {reason.effect - 1:+.0%}** speedup, {words}.{advice}"
