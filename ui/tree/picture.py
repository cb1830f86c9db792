"""The picture of the tree: coloured, folded up where nodes are unlikely; and the arithmetic of one node."""

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.optimal_trees import node_scores
from sequoia_core.design.tree_comparison import node_facts
from ui import charts
from ui.charts.tree import ColorBy
from ui.phrases import count
from ui.tree_layout import visible_nodes

# the labels are what a link carries
COLORS: dict[str, ColorBy] = {"Chance to be accepted": "score", "Rank": "rank", "Depth": "depth"}
THRESHOLDS = {"everything": 0.0, "f(v) ≥ 0.0001": 1e-4, "f(v) ≥ 0.001": 1e-3, "f(v) ≥ 0.01": 1e-2, "f(v) ≥ 0.1": 0.1}
COMMITTED = "the last committed token"  # what the root is
TALLEST = 630  # pixels: below the controls, three quarters of it fit on a screen of 900
MAX_PATH = 26  # ranks of a path that are written out


def look_controls() -> tuple[ColorBy, float]:
    """Draw what the picture shows -> (a value of `COLORS`, the least f(v) that is drawn)."""
    color_by = st.segmented_control(
        "Colour by", list(COLORS), default="Chance to be accepted", required=True, key="tree_color", bind="query-params"
    )
    hide = st.selectbox(
        "Show",
        list(THRESHOLDS),
        key="tree_hide",
        bind="query-params",
        help="Less likely nodes are folded into the node above them, drawn as a diamond with their number.",
    )
    return COLORS[color_by], THRESHOLDS[hide]


def draw(tree: TokenTree, vector: AcceptanceVector, color_by: ColorBy, at_least: float) -> None:
    """Draw the tree, with what is hidden folded up."""
    if st.session_state.get("tree_node", 0) >= tree.size:
        st.session_state["tree_node"] = 0
    node = st.session_state.get("tree_node", 0)  # of the widget below the picture
    graph = tree.to_networkx(score=node_scores(tree, vector))
    visible = visible_nodes(graph, at_least=at_least, collapsed=_folded_nodes(tree))
    figure = charts.tree_figure(graph, color_by, visible=visible, selected=node)
    st.plotly_chart(
        figure,
        width="stretch",
        height=min(figure.layout.height, TALLEST),
        key="tree_picture",
        on_select=_choose_node,
        selection_mode="points",
        alt=f"Token tree of {count(tree.size, 'node')} in {count(tree.depth + 1, 'level')}, {len(visible)} drawn",
    )


def _choose_node() -> None:
    """Show the node that was clicked in the picture."""
    points = st.session_state["tree_picture"].selection.points
    if points and "customdata" in points[0]:
        st.session_state["tree_node"] = int(points[0]["customdata"][-1])


def _folded_nodes(tree: TokenTree) -> set[int]:
    """Return the nodes folded up by hand, in this very tree."""
    held, nodes = st.session_state.get("tree_folds", (None, set()))
    return nodes if held == tree else set()


def details(tree: TokenTree, vector: AcceptanceVector) -> None:
    """Say what one node is and what it is worth; fold or unfold what is below it."""
    left, right = st.columns([1, 5])
    node = left.number_input(
        "Node",
        0,
        tree.size - 1,
        key="tree_node",
        help="Click a node, or give its number, breadth-first from the root 0.",
    )
    facts, folded = node_facts(tree, vector, node), _folded_nodes(tree)
    path = " → ".join(["root", *map(str, facts.ranks)][:MAX_PATH])
    place = f"rank {facts.rank} at depth {facts.depth}, p = {facts.probability:.4g}" if node else COMMITTED
    with right.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**Node {node}** &nbsp; {path} &nbsp;·&nbsp; {place} &nbsp;·&nbsp; f(v) = {facts.score:.4g} &nbsp;·&nbsp; "
            f"{count(facts.children, 'child', 'children')}, {count(facts.below, 'node')} below &nbsp;·&nbsp; "
            f"f(v) with them adds up to {facts.subtree_tokens:.4g}"
        )
        label = "Unfold" if node in folded else "Fold up"
        if st.button(label, key="tree_fold", icon=":material/unfold_less:", disabled=not facts.children):
            st.session_state["tree_folds"] = (tree, folded ^ {node})
            st.rerun()
        if folded and st.button("Unfold all", key="tree_unfold", icon=":material/unfold_more:"):
            st.session_state["tree_folds"] = (tree, set())
            st.rerun()
