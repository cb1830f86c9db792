"""What is expected of a tree at the settings chosen, or what has to be measured first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.bootstrap import Estimate
from sequoia_core.design.conditions import Conditions
from sequoia_core.files.written_context import written_context
from ui import controls
from ui.jobs import job_panel
from ui.markdown import escaped
from ui.measuring import acceptance as measurement
from ui.phrases import beside, shape
from ui.session import core_cache, predictions, session, tree_in_use, tree_kinds

if TYPE_CHECKING:
    from sequoia_core.decoding.tree_policy import TreePolicy

PROMPTS, NEW_TOKENS = 8, 64  # of the measurement offered here


def draw(
    tree: TokenTree | TreePolicy, origin: str, vector: AcceptanceVector | None, wanted: Conditions
) -> tuple[float | None, Estimate | None]:
    """Say what is expected of a tree -> tokens per step, speedup of one prompt; None where nothing is.

    Without a vector that holds for the conditions its measurement is offered.
    """
    if not isinstance(tree, TokenTree):
        return _draw_dynamic(tree, origin, vector, wanted)
    subject = f":material/account_tree: {escaped(origin)}: {shape(tree.size, tree.depth)}"
    if vector is None:
        st.markdown(f"{subject} &nbsp;·&nbsp; nothing is expected of it at these settings")
        offer_measurement(wanted)
        return None, None
    expected, found = core_cache.tokens_per_step(vector, tree).value, predictions.prediction(tree, vector, prompts=1)
    by = "" if vector == session.acceptance() else f" by the vector measured at {wanted.sampling}"
    speed = "no speedup predicted" if found is None else f"predicted {spoken(found.speedup)}"
    st.markdown(f"{subject} &nbsp;·&nbsp; expected {expected:.2f} tokens per step{by} &nbsp;·&nbsp; {speed}")
    if found is None:
        why = escaped(predictions.no_prediction(tree, vector) or "")
        st.caption(
            f":material/info: No speedup is predicted: {why}. Measure the passes of this pair on the machine page."
        )
    return expected, None if found is None else found.speedup


def draw_shorter_draft() -> None:
    """Say before a run what happens to text that the draft's context does not hold, where the target's holds more."""
    spec = session.pair_spec()
    if spec.is_alone:
        return
    target, draft = (written_context(str(name)) for name in spec.sources)
    if target is not None and draft is not None and draft < target:
        st.caption(
            f":material/info: The draft's context holds {draft:,} tokens, the target's {target:,}: beyond {draft:,} "
            "the target goes on without the draft."
        )


def _draw_dynamic(
    policy: TreePolicy, origin: str, vector: AcceptanceVector | None, wanted: Conditions
) -> tuple[float | None, Estimate | None]:
    subject = f":material/account_tree: {escaped(origin)}: n up to {policy.max_size}, d up to {policy.max_depth}"
    if tree_kinds.looks_up(policy):
        st.markdown(f"{subject} &nbsp;·&nbsp; what they yield depends on how far the text repeats itself")
        controls.page_link(
            st, "draft", "What recorded answers tell of it", ":material/replay:", draft_section="No draft"
        )
        return None, None
    profile = session.profile()
    calibrated = vector is not None and vector.calibration is not None
    if profile is None or not calibrated or policy.max_size > profile.max_size:
        st.markdown(
            f"{subject} &nbsp;·&nbsp; nothing is expected of them: that takes a profile and a calibrated vector"
        )
        if profile is not None and not calibrated:
            offer_measurement(wanted, "acceptance vector with a calibration")
        return None, None
    found = core_cache.policy_prediction(tree_kinds.current(), *tree_in_use.shape(), vector, profile, 1)
    faults = predictions.profile_faults()
    speed = "no speedup predicted" if faults else f"predicted {spoken(found.speedup)}"
    expected = found.tokens_per_step.value
    st.markdown(f"{subject} &nbsp;·&nbsp; expected {expected:.2f} tokens per step &nbsp;·&nbsp; {speed}")
    return expected, None if faults else found.speedup


def spoken(speedup: Estimate) -> str:
    """Write a predicted speedup and between which bounds a single prompt will be."""
    sure = beside(speedup.low, speedup.high, unit="× for one prompt")
    return f"{speedup.value:.2f}×{sure} vs 1.00× autoregressive"


def offer_measurement(wanted: Conditions, missing: str = "acceptance vector") -> None:
    """Say which vector is missing, and offer to measure it here; a new one always has a calibration."""
    if controls.lacks_draft("An expectation"):
        return
    with st.container(border=True):
        st.markdown(
            f":material/checklist: No {missing} was measured for **{escaped(wanted.sampling)}** on the "
            f"{session.pair_name()}. The one in use: {escaped(session.acceptance_source())}."
        )
        if st.button(
            "Measure it",
            icon=":material/speed:",
            key="decode_measure",
            disabled=job_panel.is_active("measure"),
            help=f"On {PROMPTS} shipped prompts, {NEW_TOKENS} new tokens each. The draft page has all settings.",
        ):
            measurement.start_for(wanted, prompts=PROMPTS, tokens=NEW_TOKENS)
        job_panel.draw("measure")
