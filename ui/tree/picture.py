"""The picture of the tree: coloured, folded up where nodes are unlikely, with the arithmetic of one node."""

from __future__ import annotations

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.node_facts import node_facts
from sequoia_core.design.optimal_trees import node_scores
from ui import charts
from ui.tree_layout import visible_nodes

COLORS = {"Chance to be accepted": "score", "Rank": "rank", "Depth": "depth"}  # the label is what a link carries
THRESHOLDS = {"everything": 0.0, "f(v) ≥ 0.0001": 1e-4, "f(v) ≥ 0.001": 1e-3, "f(v) ≥ 0.01": 1e-2, "f(v) ≥ 0.1": 0.1}
COMMITTED = "the last committed token"  # what the root is
MAX_PATH = 26  # ranks of a path that are written out


def draw(tree: TokenTree, vector: AcceptanceVector) -> None:
    """Draw the tree, with what is hidden folded up, and the arithmetic of one node."""
    folded = _folded_nodes(tree)
    left, middle, right = st.columns([3, 2, 1], vertical_alignment="bottom")
    color_by = left.segmented_control(
        "Colour by", list(COLORS), default="Chance to be accepted", required=True, key="tree_color", bind="query-params"
    )
    hide = middle.selectbox(
        "Show",
        list(THRESHOLDS),
        key="tree_hide",
        bind="query-params",
        help="Less likely nodes are folded into the node above them, drawn as a diamond with their number.",
    )
    if st.session_state.get("tree_node", 0) >= tree.size:
        st.session_state["tree_node"] = 0
    node = right.number_input(
        "Node",
        0,
        tree.size - 1,
        key="tree_node",
        help="Click a node, or give its number, breadth-first from the root 0.",
    )
    graph = tree.to_networkx(score=node_scores(tree, vector))
    visible = visible_nodes(graph, at_least=THRESHOLDS[hide], collapsed=folded)
    st.plotly_chart(
        charts.tree_figure(graph, COLORS[color_by], visible=visible, selected=node),
        width="stretch",
        key="tree_picture",
        on_select=_choose_node,
        selection_mode="points",
        alt=f"Token tree of {tree.size} nodes in {tree.depth + 1} levels, {len(visible)} of them drawn",
    )
    _details(tree, vector, int(node), folded)


def _choose_node() -> None:
    """Show the node that was clicked in the picture."""
    points = st.session_state["tree_picture"].selection.points
    if points and "customdata" in points[0]:
        st.session_state["tree_node"] = int(points[0]["customdata"][-1])


def _folded_nodes(tree: TokenTree) -> set[int]:
    """Return the nodes folded up by hand, in this very tree; another tree starts unfolded."""
    held, nodes = st.session_state.get("tree_folds", (None, set()))
    return nodes if held == tree else set()


def _details(tree: TokenTree, vector: AcceptanceVector, node: int, folded: set[int]) -> None:
    """Say what one node is and what it is worth; fold or unfold what is below it."""
    facts = node_facts(tree, vector, node)
    path = " → ".join(["root", *map(str, facts.ranks)][:MAX_PATH])
    place = f"rank {facts.rank} at depth {facts.depth}, p = {facts.probability:.4g}" if node else COMMITTED
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**Node {node}** &nbsp; {path} &nbsp;·&nbsp; {place} &nbsp;·&nbsp; f(v) = {facts.score:.4g} &nbsp;·&nbsp; "
            f"{facts.children} children, {facts.below} nodes below &nbsp;·&nbsp; with them worth {facts.worth:.4g} "
            "tokens per step"
        )
        label = "Unfold" if node in folded else "Fold up"
        if st.button(label, key="tree_fold", icon=":material/unfold_less:", disabled=not facts.children):
            st.session_state["tree_folds"] = (tree, folded ^ {node})
            st.rerun()
        if folded and st.button("Unfold all", key="tree_unfold", icon=":material/unfold_more:"):
            st.session_state["tree_folds"] = (tree, set())
            st.rerun()
