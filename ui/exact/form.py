"""What a part of the page asks of the pair: its folded settings, and the job that they start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.files.prompt_files import check_text
from ui import controls, prompts
from ui.exact.measurements import Subject, Work
from ui.jobs import job_panel
from ui.session import core_cache, predictions, session, tree_in_use
from ui.session.evidence import job_name
from ui.verifier_names import BESIDE

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector

LENGTHS = (16, 32, 48, 64, 128)
SHAPE = (32, 6)  # wide and deep enough for verifiers to differ; trees planned for a small CPU are not
SMALL_BRANCHING = (3, 2)
TREES = {
    "shape": f"Best of n = {SHAPE[0]}, d = {SHAPE[1]}",
    "small": f"Branching {' × '.join(map(str, SMALL_BRANCHING))}",
    "use": "The tree in use",
} | BESIDE


def folded(part: str, what: str) -> DeltaGenerator:
    """Open the folded settings of a part: the evidence comes first."""
    label = f"Run this {what} on the {session.pair_name()}"
    return st.expander(label, icon=":material/play_circle:", key=f"robustness_{part}_settings")


def start_button(part: str) -> bool:
    blocked = controls.lacks_draft("This evidence") or job_panel.is_active(job_name(part))
    return controls.primary_button(
        "Start",
        draw=st.form_submit_button,
        icon=":material/play_arrow:",
        key=f"robustness_{part}_start",
        disabled=blocked,
    )


def start(part: str, label: str, work: Work) -> None:
    job_panel.start(job_name(part), label, work)


def text_controls(part: str, usual: int) -> tuple[list[str], int]:
    """Draw how much text to decode -> (prompts, new tokens of each)."""
    left, right = st.columns(2)
    chosen = prompts.several(left, f"robustness_{part}", usual=usual)
    return chosen, prompts.new_tokens(right, f"robustness_{part}", LENGTHS, 48)


def sampling_controls(part: str, temperature: float) -> tuple[float, float]:
    """Draw one way of sampling -> (temperature, top-p)."""
    return controls.sampling(*st.columns(2), apart=f"robustness_{part}_", default=temperature)


def tree_control(part: str, kinds: Sequence[str]) -> str:
    """Draw the choice of a tree -> its kind, one of `TREES`."""
    return st.segmented_control(
        "Tree",
        kinds,
        default=kinds[0],
        required=True,
        key=f"robustness_{part}_tree",
        bind="query-params",
        format_func=TREES.__getitem__,
        help="The tree in use is that of the Tree page. Trees planned for a small CPU have few nodes, where verifiers "
        "hardly differ; the best tree of a fixed shape is planned for the acceptance vector in use.",
    )


def beside_control(part: str) -> list[str]:
    """Draw which other trees to decode beside a tree -> their kinds, of `BESIDE`."""
    return st.pills(
        "Beside it",
        BESIDE,
        selection_mode="multi",
        default=list(BESIDE),
        key=f"robustness_{part}_beside",
        bind="query-params",
        format_func=BESIDE.__getitem__,
        help="SpecInfer's own shape, five chains of eight tokens, judged by SpecInfer's own rule. Lookup trees are "
        "made of the text under way at no cost, hybrid trees of it and of the draft; both are no larger or deeper than "
        "the tree on the left. Hybrid trees need a vector with a calibration at each temperature.",
    )


def calibrated(samplings: Iterable[tuple[float, float]]) -> dict[tuple[float, float], AcceptanceVector]:
    """Return (temperature, top-p) -> a vector with a calibration that holds there, where there is one."""
    found = {each: predictions.vector_for(predictions.conditions(*each)) for each in samplings}
    return {each: vector for each, vector in found.items() if vector is not None and vector.calibration is not None}


def subject(
    kind: str,
    texts: Sequence[str],
    tokens: int = 0,
    *,
    least: int = 1,
    samplings: Iterable[tuple[float, float]] = (),
) -> Subject:
    """Collect everything that a job needs: it never looks at the session."""
    if len(texts) < least:
        raise ValueError(f"prompts: found {len(texts)}, expected at least {least}")
    for text in texts:
        check_text(text)
    length = sum(map(len, texts))
    if length > prompts.MAX_CHARS:
        raise ValueError(f"prompts: found {length:,} characters, expected at most {prompts.MAX_CHARS:,}")
    known = calibrated(samplings)
    if kind in TREE_KINDS and TREE_KINDS[kind].calibrated and not known:
        raise ValueError(
            f"{kind} trees: found no acceptance vector with a calibration at this temperature and top-p, expected one: "
            "measure it on the draft page"
        )
    if kind == "specinfer_tree":
        from sequoia_core.decoding.tree_policy import SPECINFER_TREE

        tree, source = SPECINFER_TREE.fixed, "SpecInfer's own, five chains of eight"
    elif kind in ("small", *BESIDE):
        from sequoia_core.design.plain_trees import branching_tree

        tree, small = branching_tree(SMALL_BRANCHING), TREES["small"].lower()
        source = f"{TREES[kind].lower()} no larger than {small}" if kind in BESIDE else small
    elif kind == "use":
        tree, source = tree_in_use.current(), tree_in_use.source()
    else:
        tree = core_cache.best_tree(session.acceptance(), *SHAPE)
        source = f"best of its shape for {session.acceptance_name() or 'the vector in use'}"
    return Subject(session.pair_name(), tree, source, tuple(texts), tokens, session.pair_spec(), known)
