"""The expected tokens per step and speedup at the selected settings, or what must be measured first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.models.configured_context import configured_context
from ui.markdown import escaped
from ui.measuring import missing
from ui.phrases import in_parentheses, shape, times
from ui.session import core_cache, predictions, session, tree_choice, tree_in_use, tree_kinds
from ui.session.tree_choice import TreeChoice

if TYPE_CHECKING:
    from sequoia_core.decoding.tree_policy import TreePolicy


def expectation_section(
    choice: TreeChoice,
    vector: AcceptanceVector | None,
    wanted: Conditions,
    tokens: int,
    warnings: DeltaGenerator,
    notes: DeltaGenerator,
) -> tuple[float | None, Estimate | None]:
    """Draw what is missing in `warnings`, and the selected tree and its prediction in `notes`.

    Returns:
        Tokens per step and the speedup for one prompt, or None.
    """
    with warnings.container(horizontal=True, vertical_alignment="center", key="decode_expectation"):
        if choice.tree is None:
            st.warning(choice.origin, icon=":material/account_tree:")
            if tree_choice.needs_measurement(choice, vector):
                missing.measure_button(wanted, vector)
            return None, None
        if isinstance(choice.tree, TokenTree):
            of = shape(choice.tree.size, choice.tree.depth)
            words, expected, speedup = _predict_tree(choice.tree, vector)
        else:
            of = f"up to {shape(choice.tree.max_size, choice.tree.max_depth)}"
            words, expected, speedup = _predict_policy(choice.tree, vector)
        notes.caption(
            f":material/account_tree: Next run: {escaped(choice.origin)}: {of} · {tokens} tokens, "
            f"{escaped(wanted.sampling)} · {words or 'no prediction for these settings yet'}"
        )
        lacking = predictions.prediction_basis().name
        in_bar = lacking == predictions.UNMEASURED or (lacking == predictions.MISSING and wanted.verifier == "sequoia")
        if vector is None and not in_bar and not tree_kinds.looks_up(choice.tree):
            missing.measure_button(wanted)
    with notes:
        _draw_shorter_draft()
    return expected, speedup


def _predict_tree(tree: TokenTree, vector: AcceptanceVector | None) -> tuple[str, float | None, Estimate | None]:
    """Return a tree's prediction in words, its tokens per step and its speedup; "" and None without a vector."""
    if vector is None:
        return "", None, None
    expected = core_cache.tokens_per_step(tree, vector).value
    prediction = predictions.prediction(tree, vector, prompts=1)
    speedup = None if prediction is None else prediction.speedup
    foreign = predictions.profile_mismatches()
    why = "its times were not measured here" if foreign else "its times end at a smaller size"
    return _said(expected, speedup, f": {why}"), expected, speedup


def _predict_policy(policy: TreePolicy, vector: AcceptanceVector | None) -> tuple[str, float | None, Estimate | None]:
    """Return the same as `_predict_tree`, for trees that change from step to step."""
    if tree_kinds.looks_up(policy):
        return "the gain depends on how much the text repeats itself", None, None
    profile = session.profile()
    calibrated = vector is not None and vector.calibration is not None
    if profile is None or not calibrated or policy.max_size > profile.max_size:
        return "no prediction, because the profile ends at a smaller size" if calibrated else "", None, None
    prediction = core_cache.policy_prediction(
        tree_kinds.selected_kind(), *tree_in_use.designed_shape(), vector, profile, 1
    )
    expected = prediction.tokens_per_step.value
    speedup = None if predictions.profile_mismatches() else prediction.speedup
    return _said(expected, speedup), expected, speedup


def _said(expected: float, speedup: Estimate | None, why: str = "") -> str:
    if speedup is None:
        return f"expected {expected:.2f} tokens per step with the {session.pair_name()}, speedup not compared{why}"
    interval = in_parentheses(speedup.low, speedup.high, unit="× for one prompt")
    return f"expected {expected:.2f} tokens per step, predicted {times(speedup.value)}{interval} vs 1.00× plain"


def _draw_shorter_draft() -> None:
    """Show a note before a run if the draft's context is shorter than the target's."""
    spec = session.pair_spec()
    if spec.is_alone:
        return
    target, draft = (configured_context(str(name)) for name in spec.sources)
    if target is not None and draft is not None and draft < target:
        st.caption(
            f":material/info: The draft's context is {draft:,} tokens, the target's {target:,}: beyond {draft:,} "
            f"tokens, the target continues without the draft."
        )
