"""The table of methods: what each is predicted to yield here, and buttons that select its trees for every page."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from sequoia_core import TokenTree
from sequoia_core.planning.prediction import Prediction
from sequoia_core.trees.plain import best_chains, chain_tree, medusa_tree
from ui.markdown import escaped
from ui.phrases import between, times
from ui.session import core_cache, predictions, session, tree_in_use, tree_kinds
from ui.session.core_cache import EAGLE2, EAGLE2_SHAPE, MAX_TREE_DEPTH
from ui.session.method_search import search_method
from ui.session.predictions import PredictionBasis
from ui.session.tree_kinds import KIND_TITLES, STATIC

FORMATS: Any = {"tokens per step": "{:.2f}", "ms per step": "{:,.1f}", "×": times}
PENDING = "being predicted"
CALIBRATION_NOTE = "predicted only with a calibration, which new measurements of acceptance include"
STATIC_EAGLE_NOTE = "without a calibration, the best static tree of 60 tokens and depth 6"


@dataclass(frozen=True, slots=True)
class TreeMethod:
    """A row of the table.

    Attributes:
        kind: the kind of trees, a key of `KIND_TITLES`.
        tree: the tree of every step; None if trees vary or are still being searched.
        size: number of nodes; None if it varies.
        tokens: tokens per step; None if unknown.
        note: a remark, or why something is unknown.
        use: selects the static tree, unless only the kind of trees changes.
    """

    name: str
    kind: str = STATIC
    tree: TokenTree | None = None
    size: int | None = None
    tokens: float | None = None
    prediction: Prediction | None = None
    note: str = ""
    use: Callable[[], None] = lambda: None

    @property
    def in_use(self) -> bool:
        same_tree = self.kind != STATIC or self.tree == tree_kinds.static_tree()[0]
        return self.kind == tree_kinds.selected_kind() and same_tree

    @property
    def speedup(self) -> float | None:
        return None if self.prediction is None else self.prediction.speedup.value

    def to_row(self) -> dict[str, Any]:
        """Return the row's cells."""
        interval = None if self.prediction is None else self.prediction.speedup.interval
        searching = self.kind == STATIC and self.tree is None
        return {
            "method": self.name,
            "use": "" if searching else ":material/check: In use" if self.in_use else "Use",
            "×": self.speedup,
            "95%": "–" if interval is None else between(*interval, unit="×"),
            "tokens per step": self.tokens,
            "ms per step": None if self.prediction is None else 1e3 * self.prediction.step.total_sec,
            "nodes": "varies" if self.size is None else f"{self.size:,}",
        }


def methods_section() -> None:
    """Draw the table, again every second while predictions are being computed."""
    linked = st.query_params.pop("tree_kind", "")  # of links to the selector that the table replaced
    for kind, title in KIND_TITLES.items():
        if title == linked and kind != tree_kinds.selected_kind():
            tree_kinds.select_kind(kind)
            st.rerun()
    st.subheader("Methods")
    methods = list_methods()
    pending = any(method.note == PENDING for method in methods)
    st.fragment(_draw_table, run_every=1.0 if pending else None)(pending, [methods])


def list_methods() -> list[TreeMethod]:
    """Return the methods for the current vector, profile and sampling, the fastest first."""
    vector = session.acceptance()
    hardware = session.profile()
    basis = predictions.prediction_basis()  # takes milliseconds
    if hardware is None:
        best = core_cache.best_tree(vector, *tree_in_use.FALLBACK_SIZE_AND_DEPTH)
    else:
        best = core_cache.plan(vector, hardware)[2]
    chains = best_chains(vector, size=best.size, depth=MAX_TREE_DEPTH)
    methods = [
        _static(basis, "Best static tree", best, partial(tree_in_use.set_size_and_depth, None)),
        _chain(basis, "chain", chain_tree(best.depth), "Chain of {1}"),
        _chain(basis, "chains", chains, "{0} × {1} chains (SpecInfer)"),
        _static(basis, "Medusa's 64 nodes", medusa_tree()),
        *(_dynamic(basis, kind) for kind in KIND_TITLES if kind not in (STATIC, EAGLE2)),
        _eagle(basis),
    ]
    upload = st.session_state.get("tree_file_read")
    if upload is not None and upload[1].value is not None:
        methods.append(_static(basis, f"Your file {upload[1].name}", upload[1].value))
    tree, source = tree_kinds.static_tree()
    if all(method.tree != tree for method in methods):
        methods.append(_static(basis, source[0].upper() + source[1:], tree, lambda: None))
    return sorted(methods, key=lambda method: (method.speedup or 0.0, method.tokens or 0.0), reverse=True)


def _static(
    basis: PredictionBasis, name: str, tree: TokenTree, use: Callable[[], None] | None = None, note: str = ""
) -> TreeMethod:
    """Return the method that uses one tree at every step."""
    prediction = predictions.planned_prediction(tree, basis)
    tokens = None
    if basis.predicts or session.profile() is None:
        tokens = core_cache.tokens_per_step(tree, session.acceptance()).value
    use = use or partial(tree_in_use.use_tree, tree, name)
    return TreeMethod(name, STATIC, tree, tree.size, tokens, prediction, note or _too_large(tree.size), use)


def _too_large(size: int) -> str:
    hardware = session.profile()
    return f"the times end at n = {hardware.max_size:,}" if hardware and size > hardware.max_size else ""


def _chain(basis: PredictionBasis, name: str, tree: TokenTree, title: str) -> TreeMethod:
    """Return the fastest chain or k chains, or `tree` if nothing is predicted."""
    hardware = session.profile()
    if hardware is not None and basis.predicts:
        search = search_method(name, 0, 0, session.acceptance(), hardware)
        if not search.done():
            return TreeMethod(title.format("k", "l"), note=PENDING)
        tree = search.result()[0] or tree
    return _static(basis, title.format(len(tree.children(0)), tree.depth), tree)


def _dynamic(basis: PredictionBasis, kind: str) -> TreeMethod:
    """Return the method whose trees vary, with its prediction or the reason why there is none."""
    properties = core_cache.KINDS[kind]
    vector = session.acceptance()
    hardware = session.profile()
    size, depth = (0, 0)  # without limits
    if properties.budgeted:
        size, depth = EAGLE2_SHAPE if kind == EAGLE2 else tree_in_use.designed_shape()
    method = partial(TreeMethod, KIND_TITLES[kind], kind, size=size or None)
    if properties.looks_up:
        return method(note="the yield depends on how often the text repeats itself")
    if vector.calibration is None:
        return method(note=CALIBRATION_NOTE)
    if hardware is None or not basis.predicts:
        return method()
    if properties.budgeted and size > hardware.max_size:
        return method(note=_too_large(size))
    if kind == "specexec" and tree_kinds.selected_kind() != kind:
        return method(note="predicted when in use")
    search = search_method(kind, size, depth, vector, hardware)
    if not search.done():
        return method(note=PENDING)
    fixed, prediction = search.result()
    note = "" if fixed is None else "expects one static tree to be faster here than trees that vary"
    return method(tokens=prediction.tokens_per_step.value, prediction=prediction, note=note)


def _eagle(basis: PredictionBasis) -> TreeMethod:
    """Return EAGLE-2's trees, or the best static tree within their limits if the vector has no calibration."""
    vector = session.acceptance()
    if EAGLE2 in KIND_TITLES and vector.calibration is not None:
        return _dynamic(basis, EAGLE2)
    tree = core_cache.best_tree(vector, *EAGLE2_SHAPE) if len(vector) > 1 else chain_tree(EAGLE2_SHAPE[1])
    return _static(basis, "EAGLE-2's 60 tokens", tree, note=STATIC_EAGLE_NOTE)


def _draw_table(pending: bool, listed: list[list[TreeMethod]]) -> None:
    """Draw the table and notes on its gaps; rerun the page when what other parts show has changed.

    `listed`: the methods, which are used once, because a rerun of only this fragment has the same arguments.
    """
    methods = listed.pop() if listed else list_methods()
    finished = pending and all(method.note != PENDING for method in methods)
    if st.session_state.pop("methods_used", False) or finished:
        st.rerun()
    rows = [method.to_row() for method in methods]
    if methods[0].tokens:
        rows[0]["method"] = f"★ {methods[0].name}"
    column = st.column_config.TextColumn
    button = st.column_config.ButtonColumn("", key="methods_use", on_click=_use, args=(methods,), type="tertiary")
    st.dataframe(
        pd.DataFrame(rows).style.format(FORMATS, na_rep="–"),
        hide_index=True,
        height="content",
        placeholder="–",
        alt="Predicted speed of each method, the best one first",
        column_config={"method": column(width=175), "95%": column(width=130), "use": button},
    )
    notes = [
        f"{', '.join(each.name for each in methods if each.note == note)}: {note}."
        for note in dict.fromkeys(method.note for method in methods)
        if note
    ]
    if methods[0].prediction is None:
        notes.insert(0, predictions.prediction_basis().why)
    if notes:
        st.caption(f":material/info: {escaped(' '.join(notes))}")


def _use(methods: list[TreeMethod]) -> None:
    """Use the trees of the clicked row on every page."""
    method = methods[st.session_state["methods_use"].row]
    if method.in_use or (method.kind == STATIC and method.tree is None):
        return
    tree_kinds.select_kind(method.kind)
    method.use()
    st.session_state["methods_used"] = True
