"""Where each node of a tree is drawn, and which are; trees are graphs of `TokenTree.to_networkx`."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

MAX_DRAWN = 4_096  # nodes that a browser still draws


def tidy_layout(graph: nx.DiGraph) -> dict[int, tuple[float, int]]:
    """Return node -> across, from 0 to leaves - 1, and depth: parents stand over their children, so no edges cross."""
    import networkx as nx

    across: dict[int, float] = {}
    leaves = count()
    for node in nx.dfs_postorder_nodes(graph, 0):
        children = list(graph.successors(node))
        across[node] = (across[children[0]] + across[children[-1]]) / 2 if children else float(next(leaves))
    return {node: (across[node], depth) for node, depth in graph.nodes(data="depth")}


def visible_nodes(graph: nx.DiGraph, *, at_least: float = 0.0, collapsed: Collection[int] = ()) -> set[int]:
    """Return the nodes that are drawn: scores f(v) from `at_least`, not below a collapsed node, always the root."""
    import networkx as nx

    scores = graph.nodes(data="score")
    open_edges = [(u, v) for u, v in graph.edges if u not in collapsed and scores[v] >= at_least]
    return {0, *nx.descendants(nx.DiGraph([*open_edges, (0, 0)]), 0)}
