"""The picture of the tree, folded up where nodes are unlikely, and beside it what one node is worth."""

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.optimal_trees import node_scores
from sequoia_core.design.tree_comparison import NodeFacts, node_facts
from ui import charts, controls
from ui.charts.tree import TOKENS_UP_TO
from ui.markdown import escaped
from ui.phrases import count
from ui.session import core_cache, shipped
from ui.tree_layout import visible_nodes

# the labels are what a link carries
THRESHOLDS = {"everything": 0.0, "f(v) ≥ 0.0001": 1e-4, "f(v) ≥ 0.001": 1e-3, "f(v) ≥ 0.01": 1e-2, "f(v) ≥ 0.1": 0.1}
MAX_PATH = 26  # ranks of a path that are written out


def threshold_control() -> float:
    """Draw which nodes the picture shows -> the least f(v) that is drawn."""
    hide = st.selectbox(
        "Show",
        list(THRESHOLDS),
        key="tree_hide",
        bind="query-params",
        help="Less likely nodes are folded into the node above them, drawn as a diamond with their number.",
    )
    return THRESHOLDS[hide]


def next_node(tree: TokenTree, vector: AcceptanceVector, depth: int) -> int | None:
    """Return the parent of the node that the best tree of one more has besides; None where that is another tree."""
    try:
        larger = core_cache.best_tree(vector, tree.size + 1, depth)
    except ValueError:
        return None
    shared = larger.shared_with(tree)
    new = np.flatnonzero(shared < 0)
    return int(shared[larger.parents[new[0]]]) if len(new) == 1 else None


def draw(tree: TokenTree, vector: AcceptanceVector, at_least: float, candidate: tuple[int, float] | None) -> None:
    """Draw the tree, with what is hidden folded up, and beside it the node that was chosen.

    `candidate` is the parent of the next node, and what that adds to the tokens per step.
    """
    if st.session_state.get("tree_node", 0) >= tree.size:
        st.session_state["tree_node"] = 0
    tokens = _tokens(tree)
    named = {"token": tokens} if any(tokens[1:]) else {}
    graph = tree.to_networkx(score=node_scores(tree, vector), **named)
    visible = visible_nodes(graph, at_least=at_least, collapsed=_folded_nodes(tree))
    node = st.session_state.get("tree_node", 0)  # of the widget beside the picture
    left, right = st.columns([3, 1])
    left.plotly_chart(
        charts.tree_figure(graph, visible=visible, selected=node, candidate=candidate),
        width="stretch",
        key="tree_picture",
        on_select=_choose_node,
        selection_mode="points",
        alt=f"Token tree of {count(tree.size, 'node')} in {count(tree.depth + 1, 'level')}, {len(visible)} drawn",
    )
    with right:
        _details(tree, vector, tokens)


def _tokens(tree: TokenTree) -> list[str]:
    """Return what the demo draft would propose after an example prompt at each node; "" where it was not recorded."""
    if tree.size > TOKENS_UP_TO:
        return [""] * tree.size
    known = shipped.example_tokens()
    return [
        known.get(".".join(str(tree.child_ranks[v]) for v in tree.path_to(node)[1:]), "") for node in range(tree.size)
    ]


def _choose_node() -> None:
    """Show the node that was clicked in the picture."""
    if (point := controls.clicked("tree_picture")) is not None:
        st.session_state["tree_node"] = int(point[-1])


def _folded_nodes(tree: TokenTree) -> set[int]:
    """Return the nodes folded up by hand, in this very tree."""
    held, nodes = st.session_state.get("tree_folds", (None, set()))
    return nodes if held == tree else set()


def _details(tree: TokenTree, vector: AcceptanceVector, tokens: list[str]) -> None:
    """Say what one node is and what it is worth; fold or unfold what is below it."""
    node = st.number_input(
        "Node",
        0,
        tree.size - 1,
        key="tree_node",
        help="Click a node, or give its number, breadth-first from the root 0.",
    )
    facts, folded = node_facts(tree, vector, node), _folded_nodes(tree)
    st.markdown(_said(node, facts, tokens[node]))
    label = "Unfold" if node in folded else "Fold up"
    if st.button(label, key="tree_fold", icon=":material/unfold_less:", disabled=not facts.children):
        st.session_state["tree_folds"] = (tree, folded ^ {node})
        st.rerun()
    if folded and st.button("Unfold all", key="tree_unfold", icon=":material/unfold_more:"):
        st.session_state["tree_folds"] = (tree, set())
        st.rerun()


def _said(node: int, facts: NodeFacts, token: str) -> str:
    """Return what a node is, in words."""
    path = " → ".join(["root", *map(str, facts.ranks)][:MAX_PATH])
    place = f"The draft's guess {facts.rank} there, right with p = {facts.probability:.4g}"
    named = f" “{escaped(token)}”" if token else ""
    return (
        f"**Node {node}**{named}  \n{path}\n\n"
        f"{place if node else 'The last committed token'}. Up to it is accepted with **f(v) = {facts.score:.4g}**.\n\n"
        f"{count(facts.children, 'child', 'children')}, {count(facts.below, 'node')} below; f(v) with them "
        f"adds up to {facts.subtree_tokens:.4g}."
    )
