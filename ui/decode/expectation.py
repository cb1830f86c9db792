"""What is expected of a tree at the settings chosen, or what has to be measured first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.bootstrap import Estimate
from sequoia_core.design.conditions import Conditions
from sequoia_core.files.written_context import written_context
from ui.markdown import escaped
from ui.measuring import state_chip
from ui.phrases import beside, shape
from ui.session import core_cache, predictions, session, tree_choice, tree_in_use, tree_kinds
from ui.session.tree_choice import TreeChoice

if TYPE_CHECKING:
    from sequoia_core.decoding.tree_policy import TreePolicy


def draw(
    choice: TreeChoice, vector: AcceptanceVector | None, wanted: Conditions, tokens: int
) -> tuple[float | None, Estimate | None]:
    """Say what is decoded with and what is expected of it -> tokens per step, speedup of one prompt, or None."""
    with st.container(horizontal=True, vertical_alignment="center", key="decode_expectation"):
        if choice.tree is None:
            st.warning(choice.origin, icon=":material/account_tree:")
            if tree_choice.needs_vector(choice, vector):
                state_chip.draw(wanted)
            return None, None
        if isinstance(choice.tree, TokenTree):
            of = shape(choice.tree.size, choice.tree.depth)
            words, expected, speedup = _of_tree(choice.tree, vector)
        else:
            of = f"up to {shape(choice.tree.max_size, choice.tree.max_depth)}"
            words, expected, speedup = _of_policy(choice.tree, vector)
        st.caption(
            f":material/account_tree: {escaped(choice.origin)}: {of} · {tokens} tokens, {escaped(wanted.sampling)} · "
            f"{words or 'no prediction at these settings yet'}"
        )
        if not tree_kinds.looks_up(choice.tree):
            state_chip.draw(wanted, vector if words else None)
    _draw_shorter_draft()
    return expected, speedup


def _of_tree(tree: TokenTree, vector: AcceptanceVector | None) -> tuple[str, float | None, Estimate | None]:
    """Return what is to be said of a tree, nothing where a vector is missing, its tokens per step and speedup."""
    if vector is None:
        return "", None, None
    expected, found = core_cache.tokens_per_step(vector, tree).value, predictions.prediction(tree, vector, prompts=1)
    speedup = None if found is None else found.speedup
    why = " for this pair here" if predictions.profile_faults() else f": {predictions.no_prediction(tree, vector)}"
    return _said(expected, speedup, why), expected, speedup


def _of_policy(policy: TreePolicy, vector: AcceptanceVector | None) -> tuple[str, float | None, Estimate | None]:
    """Return the same of trees that change from step to step."""
    if tree_kinds.looks_up(policy):
        return "what they yield depends on how far the text repeats itself", None, None
    profile = session.profile()
    calibrated = vector is not None and vector.calibration is not None
    if profile is None or not calibrated or policy.max_size > profile.max_size:
        return "no prediction: it takes a profile of that size" if calibrated else "", None, None
    found = core_cache.policy_prediction(tree_kinds.current(), *tree_in_use.shape(), vector, profile, 1)
    expected, speedup = found.tokens_per_step.value, None if predictions.profile_faults() else found.speedup
    return _said(expected, speedup), expected, speedup


def _said(expected: float, speedup: Estimate | None, why: str = "") -> str:
    if speedup is None:
        return f"expected {expected:.2f} tokens per step, no speedup predicted{why}"
    sure = beside(speedup.low, speedup.high, unit="× for one prompt")
    return f"expected {expected:.2f} tokens per step, predicted {speedup.value:.2f}×{sure} vs 1.00× autoregressive"


def _draw_shorter_draft() -> None:
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
