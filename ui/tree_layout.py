"""Where each node of a tree is drawn, and which are; trees are graphs of `TokenTree.to_networkx`."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

MAX_DRAWN = 4_096  # nodes that a browser still draws


def tidy_layout(graph: nx.DiGraph) -> dict[int, tuple[float, int]]:
    """Return node -> row, from 0 to leaves - 1, and depth.

    The child of rank 1 stands on its parent's row, the others in turn on both sides; no edges cross.
    """
    rows: dict[int, float] = {}
    leaves, waiting = count(), [0]
    while waiting:
        node = waiting.pop()
        first, *others = [*graph.successors(node)] or [None]
        if first is None:
            rows[node] = float(next(leaves))
        else:  # the last one is next
            turn = graph.nodes[node]["depth"] % 2
            waiting += [*reversed(others[turn::2]), first, *others[1 - turn :: 2]]
    for node in sorted(graph, reverse=True):  # children come later
        rows.setdefault(node, rows[next(graph.successors(node), node)])
    return {node: (rows[node], depth) for node, depth in graph.nodes(data="depth")}


def visible_nodes(graph: nx.DiGraph, *, at_least: float = 0.0, collapsed: Collection[int] = ()) -> set[int]:
    """Return the nodes that are drawn: scores f(v) from `at_least`, not below a collapsed node, always the root."""
    import networkx as nx

    scores = graph.nodes(data="score")
    open_edges = [(u, v) for u, v in graph.edges if u not in collapsed and scores[v] >= at_least]
    return {0, *nx.descendants(nx.DiGraph([*open_edges, (0, 0)]), 0)}
