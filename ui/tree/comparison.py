"""Two trees side by side: the one in use and another shape, what one adds and what it drops."""

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.optimal_trees import node_scores
from sequoia_core.design.plain_trees import independent_chains
from sequoia_core.design.tree_comparison import NEAREST_SHAPES, compare_trees
from ui import charts
from ui.cards import Card, cards
from ui.markdown import escaped
from ui.phrases import count, shape
from ui.session import core_cache, predictions, session
from ui.session.core_cache import MAX_DEPTH, MAX_SIZE

NOTHING = "Nothing"
OTHER_SHAPE, OTHER_VECTOR, IMPORTED = "Best tree of another shape", "Best tree for another vector", "Imported tree"
PLAIN = {  # label -> (the core's name of the shape, what it is)
    "One chain": ("chain", "as deep as this tree"),
    "Independent chains": ("chains", "SpecInfer's k × l"),
    "Beam": ("beam", "the same number of nodes at every level"),
    "Two children everywhere": ("binary", "the full binary tree that fits"),
    "Best first": ("best first", "grown by the most likely next node, Medusa's rule"),
}


def plain_shape(label: str, tree: TokenTree, vector: AcceptanceVector) -> TokenTree:
    """Return the plain shape of that label nearest to a tree's size and depth."""
    return NEAREST_SHAPES[PLAIN[label][0]](tree, vector)


def section(tree: TokenTree, vector: AcceptanceVector, imported: tuple[TokenTree, str] | None) -> None:
    """Draw the comparison of the tree in use with one that the controls choose."""
    own_name = session.acceptance_name()
    others = [name for name in session.vectors() if name != own_name]
    choices = [NOTHING, OTHER_SHAPE, *PLAIN, *([OTHER_VECTOR] if others else []), *([IMPORTED] if imported else [])]
    left, right = st.columns([1, 1], vertical_alignment="bottom")
    against = left.selectbox(
        "Compare the tree in use with",
        choices,
        key="against",
        bind="query-params",
        help="Plain shapes take the size and depth of the tree in use, as far as they can.",
    )
    if against == NOTHING:
        right.caption("Choose a shape to see both trees, what one adds and what it drops.")
        return
    with right:
        other, name = _chosen(against, tree, vector, others, imported)
    if other is None:
        st.warning(escaped(name), icon=":material/warning:")
        return
    _draw(tree, other, name, vector)


def _chosen(
    against: str,
    tree: TokenTree,
    vector: AcceptanceVector,
    others: list[str],
    imported: tuple[TokenTree, str] | None,
) -> tuple[TokenTree | None, str]:
    """Return the other tree and its name, or None and why there is none; draws the controls it needs."""
    if against == IMPORTED and imported is not None:
        return imported
    if against == OTHER_SHAPE:
        first, second = st.columns(2)
        n = first.number_input(
            "Its size n", 1, MAX_SIZE, min(2 * tree.size, MAX_SIZE), key="against_n", bind="query-params"
        )
        d = second.number_input(
            "Its depth, at most", 1, MAX_DEPTH, max(min(tree.depth, 24), 1), key="against_d", bind="query-params"
        )
        try:
            return core_cache.best_tree(vector, n, d), f"best tree, n = {n}, d ≤ {d}"
        except ValueError as error:
            return None, str(error)
    if against == OTHER_VECTOR:
        name = st.selectbox("That vector", others, key="against_vector", bind="query-params")
        try:
            return core_cache.best_tree(session.vectors()[name], tree.size, max(tree.depth, 1)), f"best tree for {name}"
        except ValueError as error:
            return None, str(error)
    st.caption(PLAIN[against][1])
    other = plain_shape(against, tree, vector)
    if against == "Independent chains":
        first, second = st.columns(2)
        count = first.number_input(
            "Chains, k", 1, 32, None, key="against_k", bind="query-params", placeholder=f"{len(other.levels[1])}"
        )
        length = second.number_input(
            "Tokens of each, l",
            1,
            128,
            None,
            key="against_l",
            bind="query-params",
            placeholder=f"{other.depth}",
            help="Until both are given, as the tree in use has it. Tokens per step are by the rule of the vector in "
            "use; SpecInfer's own rule yields others.",
        )
        if count and length:
            return independent_chains(count, length), f"{count} × {length} chains"
    return other, against.lower()


def _draw(tree: TokenTree, other: TokenTree, name: str, vector: AcceptanceVector) -> None:
    found = compare_trees(tree, other, vector)
    tokens, other_tokens = (core_cache.tokens_per_step(vector, each).value for each in (tree, other))
    gained = other_tokens - tokens
    cards(
        Card("Tree in use", f"{tokens:.2f}", shape(tree.size, tree.depth)),
        Card(
            "The other tree",
            f"{other_tokens:.2f}",
            f"{gained:+.3f}, {shape(other.size, other.depth)}",
            signed=abs(gained) > 1e-9,
        ),
        Card(
            "It adds",
            count(found.added, "node"),
            f"f(v) adds up to {found.added_tokens:.3f}",
            help="Nodes of the other tree that the tree in use lacks, and the sum of their f(v).",
        ),
        Card(
            "It drops",
            count(found.dropped, "node"),
            f"f(v) adds up to {found.dropped_tokens:.3f}",
            help="Nodes of the tree in use that the other one lacks, and the sum of their f(v).",
        ),
    )
    left, right = st.columns(2)
    for place, drawn, shared, title, key in (
        (left, tree, found.shared, "Tree in use", "compare_here"),
        (right, other, found.other_shared, name[0].upper() + name[1:], "compare_there"),
    ):
        place.markdown(f"**{escaped(title)}**")
        place.plotly_chart(
            charts.comparison_figure(drawn.to_networkx(score=node_scores(drawn, vector)), shared),
            width="stretch",
            key=key,
            alt=f"{title}: {count(drawn.size, 'node')}, {int(shared.sum())} of them in both trees",
        )
    pay = [predictions.predicted(one) for one in (tree, other)]
    if None not in pay:
        st.markdown(
            f"On the profiled hardware the tree in use is predicted at {pay[0]:.2f}× and the other at {pay[1]:.2f}× "
            "autoregressive decoding: more tokens per step pay only while the extra nodes are cheap to verify."
        )
