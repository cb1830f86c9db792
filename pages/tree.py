"""The Tree page: the token tree with the most tokens per target pass, compared with chains and other shapes."""

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.files.extras import has
from sequoia_core.trees.grown import next_node_value
from sequoia_core.trees.optimal import describe_unmeasured_ranks
from sequoia_core.trees.plain import DEFAULT_CHAIN_LENGTH, chain_tree
from ui import controls, menu, page_setup
from ui.cards import Card, cards, number
from ui.markdown import escaped
from ui.phrases import between, count, interval, shape, times
from ui.session import core_cache, predictions, session, tree_in_use
from ui.token_tree import Figure
from ui.tree import files, methods, picture, regret


def size_and_depth_controls(left: DeltaGenerator, right: DeltaGenerator) -> tuple[int, int]:
    """Draw the sliders, which follow a valid ?n=…&depth=… in the URL and shapes selected on other pages."""
    plan = tree_in_use.best_shape()
    default = tree_in_use.FALLBACK_SIZE_AND_DEPTH if plan is None else (plan.size, max(plan.depth, 1))
    linked = {"n", "depth"} & {*st.query_params, *st.session_state}
    if tree_in_use.pop_size_and_depth_to_show() or not linked:
        st.session_state["n"], st.session_state["depth"] = tree_in_use.designed_shape()
    # The keys are URL parameters, so they have no page prefix.
    return controls.size_and_depth_sliders(
        left, right, keys=("n", "depth"), default=default, size_help="including the root: n − 1 are drafted."
    )


def use_size_and_depth(n: int, d: int, table: np.ndarray) -> None:
    """Switch to the sliders' shape once they are moved to a valid one; keep an imported tree until then."""
    moved = (n, d) != st.session_state.get("tree_shown", tree_in_use.designed_shape())
    st.session_state["tree_shown"] = (n, d)
    if moved and (n, d) != tree_in_use.designed_shape() and np.isfinite(table[n, d]):
        tree_in_use.set_size_and_depth(n, d, show=False)


def speedup_figure(tree: TokenTree) -> Figure:
    """Return the tree's predicted speedup, or the reason why there is none."""
    prediction = predictions.planned_prediction(tree)
    if prediction is not None:
        speedup = prediction.speedup
        against = interval(speedup.low, speedup.high, unit="×", none="vs 1.00× for plain decoding")
        return f"predicted speedup, {against}", times(speedup.value), False
    hardware = session.profile()
    basis = predictions.prediction_basis()
    reason = f"times end at n = {hardware.max_size:,}" if hardware and basis.predicts else basis.name
    return f"predicted speedup, {reason}", "–", False


def describe_uncertainty(vector: AcceptanceVector) -> str:
    """Describe the uncertainty of the best shape, given the sample behind the acceptance vector."""
    hardware = session.profile()
    spread = None if hardware is None else core_cache.size_and_depth_spread(vector, hardware)
    if spread is None:
        return "Without times and a sample of several prompts behind the vector, there are no intervals."
    again = f"n = {between(*spread.sizes, '{}')}, d = {between(*spread.depths, '{}')}"
    changes = "hardly change" if spread.worst_loss < 0.05 else f"gain at most {spread.worst_loss:.2f}× over"
    return f"Measuring again would {changes} the best static tree ({again})."


page_setup.setup_page("Tree")
title, left, right = st.columns([1.4, 6, 5], vertical_alignment="center")
title.title("Tree")
vector = session.acceptance()
n, d = size_and_depth_controls(left, right)
table = core_cache.tokens_table(vector, core_cache.table_size(n))
use_size_and_depth(n, d, table)
if np.isnan(table[n, d]):
    st.warning(f"{controls.SEARCH_LIMIT_NOTE} The last tree is kept.", icon=":material/warning:")
elif not np.isfinite(table[n, d]):
    st.warning(
        f"No tree has {count(n, 'node')} within depth {d} when a node has at most "
        f"{count(len(vector), 'child', 'children')}. Increase the depth or reduce the size; the last tree is kept.",
        icon=":material/warning:",
    )
tree = tree_in_use.current_tree()
if (unknown := describe_unmeasured_ranks(tree, vector)) is not None:
    st.warning(unknown, icon=":material/warning:")
tokens, chain = (core_cache.tokens_per_step(each, vector).value for each in (tree, chain_tree(tree.depth)))
unmeasured = predictions.prediction_basis().name == predictions.UNMEASURED
if tree_in_use.is_guessed():
    words = f"Decode with a chain of {DEFAULT_CHAIN_LENGTH}"
    controls.page_link(st.container(), "decode", words, ":material/play_arrow:")
reach = max(tree.depth if tree_in_use.is_imported() else tree_in_use.designed_shape()[1], 1)
next_value = next_node_value(table, size=tree.size, depth=reach)
against = "of other models, as an example" if unmeasured else f"{tokens - 1:+.2f} vs 1.00 autoregressive"
picture.draw_picture(
    tree,
    vector,
    reach,
    figures=[(f"expected tokens per step, {against}", f"{tokens:.2f}", False), speedup_figure(tree)],
    gain=next_value,
    example=not predictions.vector_is_for_another_pair(),
)
st.markdown(
    f":material/account_tree: **Current:** {escaped(tree_in_use.describe_source())}, {shape(tree.size, tree.depth)} "
    f"&nbsp;·&nbsp; acceptance {escaped(session.acceptance_source())}"
)
cards(
    Card(
        "Chain of the same depth",
        f"{chain:.2f}",
        f"the tree yields {tokens / chain - 1:+.0%}" if abs(tokens - chain) > 0.005 else "as much as this tree",
    ),
    Card(
        "The next node adds",
        number(next_value, "{:.3f}"),
        "no larger tree" if next_value is None else f"tokens/step, at n = {tree.size + 1:,}",
        help="G(n + 1, d) − G(n, d): worth it while verifying one more token costs less.",
    ),
)
st.caption(f":material/straighten: {describe_uncertainty(vector)}")

methods.methods_section()


def files_tab() -> None:
    """Draw the import and the export of the tree, and parameters for tools that do not read tree files."""
    left, right = st.columns(2)
    with left:
        files.import_section()
    with right:
        files.export_section(tree, vector)
        if has("dynamic_trees"):
            files.engines_section(vector)


parts = {}
if has("evaluation"):
    from ui.tree import growth

    parts["Growth"] = lambda: growth.growth_section(tree, vector, d)
parts |= {"Import and export": files_tab, "One tree for all?": regret.regret_section}
controls.draw_tabs(parts, key="tree_section")
menu.draw_next_link("Tree")
