"""Where the time goes: a comparison of each part of the last run with its prediction."""

import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.planning.reasons import Reason, context_reason, reasons
from ui.markdown import escaped
from ui.phrases import change
from ui.runs import contradictions, runs
from ui.session import core_cache, predictions
from ui.session.state import state

PART_ADVICE = {
    "acceptance": "Fewer guesses were right than during calibration. Calibrate on text like this prompt, or use a "
    "better draft.",
    "verifying": "Target passes over the tree took longer than in the profile. Measure the machine again while it is "
    "idle, or use a smaller tree; a longer context also takes more time.",
    "drafting": "Draft passes took longer than in the profile. Measure again, or use a shallower tree or a smaller "
    "draft.",
    "overhead": "Walking the tree, committing tokens and displaying the run took longer than in the profile.",
    "baseline": "Plain decoding ran at a different speed than in the profile: the machine's speed has changed.",
}
PART_NAMES = {
    "acceptance": "tokens per step",
    "verifying": "verifying",
    "drafting": "drafting",
    "overhead": "the rest of a step",
    "baseline": "a token without speculation",
    "context": "context",
}


def time_section(vector: AcceptanceVector, profile: HardwareProfile, *, foreign: bool) -> None:
    """Explain this session's last run. `foreign`: vector or profile are from a different pair or machine."""
    from sequoia_core.measuring.race import LOOPING_SHARE, repeated_share

    st.subheader("Where does the time go?")
    run = state().last_run
    found = None if run is None else contradictions.average_step(run)
    if run is None or found is None:
        st.caption("Decode something first: each part of the run is then compared with its prediction here.")
        return
    tree = contradictions.single_tree(run)
    if tree is None or tree.size > profile.max_size:
        st.caption("The last run's trees differ between steps or are larger than the profile's largest size.")
        return
    if not predictions.matches_pair_in_use(run):
        st.caption(f"No comparison: the last run used {escaped(runs.describe_settings(run))}, not the current pair.")
        return
    if foreign:
        st.caption(
            ":material/info: The current vector and profile do not belong to this pair on this machine, so the "
            "following shows how much they differ."
        )
    prediction = core_cache.prediction(vector, profile, tree)
    why = reasons(prediction, found)
    if run.get("prompt_tokens") is not None:
        at = run["prompt_tokens"] + sum(len(step["pieces"]) for step in run["steps"]) / 2
        in_context = core_cache.prediction(vector, profile, tree, None, at)
        why = reasons(in_context, found)
        longer = context_reason(prediction, in_context, profiled_at=profile.context, run_at=at)
        if longer is not None:
            why.append(longer)
        why.sort(key=lambda reason: reason.effect)
    if not why:
        st.markdown("The last run matches its prediction: no part is off by more than 3%.")
        return
    for reason in why:
        st.markdown(reason_sentence(reason))
    looping = repeated_share([hash(piece) for step in run["steps"] for piece in step["pieces"]])
    if looping > LOOPING_SHARE:
        st.caption(
            f":material/repeat: {looping:.0%} of this text's 4-grams occurred before: it loops, which is easy to draft."
        )


def reason_sentence(reason: Reason) -> str:
    """Describe one part's effect on the speedup, including its numbers and advice."""
    effect = change(reason.effect)
    what = "speedup" if effect.endswith("%") else "the expected speedup"
    heading = f"**{PART_NAMES[reason.part].capitalize()}: {effect}** {what}"
    in_tokens = reason.part == "acceptance"
    if reason.part == "context":
        words = f"{reason.found:.0f} cached tokens on average, compared with {reason.expected:.0f} in the profile"
        return f"- {heading}, {words}."
    unit = "" if in_tokens else " ms"
    expected, found = (value if in_tokens else 1000 * value for value in (reason.expected, reason.found))
    words = f"{found:.3g}{unit} instead of the expected {expected:.3g}{unit}"
    advice = f" {PART_ADVICE[reason.part]}" if reason.effect < 1 else ""
    return f"- {heading}, {words}.{advice}"
