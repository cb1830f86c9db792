"""Where each node of a tree is drawn, and which are. A tree comes as the graph of `TokenTree.to_networkx`."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

MAX_DRAWN = 4_096  # nodes that a browser still draws


def tidy_layout(graph: nx.DiGraph) -> dict[int, tuple[float, int]]:
    """Place leaves one unit apart and every parent centred over its first and last child.

    Siblings stay in rank order, so no two edges cross; every subtree owns its own interval of the width.

    Returns:
        Node -> across, from 0 to leaves - 1, and the depth in edges.
    """
    import networkx as nx

    across: dict[int, float] = {}
    leaves = count()
    for node in nx.dfs_postorder_nodes(graph, 0):
        children = list(graph.successors(node))
        across[node] = (across[children[0]] + across[children[-1]]) / 2 if children else float(next(leaves))
    return {node: (across[node], depth) for node, depth in graph.nodes(data="depth")}


def visible_nodes(graph: nx.DiGraph, *, at_least: float = 0.0, collapsed: Collection[int] = ()) -> set[int]:
    """Return the nodes that are drawn: those above a score, not below a collapsed node, always the root.

    Args:
        graph: its nodes have a score, f(v).
        at_least: smallest score drawn.
        collapsed: nodes whose descendants are hidden.
    """
    import networkx as nx

    scores = graph.nodes(data="score")
    open_edges = [(u, v) for u, v in graph.edges if u not in collapsed and scores[v] >= at_least]
    return {0, *nx.descendants(nx.DiGraph([*open_edges, (0, 0)]), 0)}
