"""Layout of nodes, for graphs from `TokenTree.to_networkx`."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

MAX_DRAWN = 4_096  # number of nodes that a browser can draw


def tidy_layout(graph: nx.DiGraph) -> dict[int, tuple[float, int]]:
    """Return each node's row, from 0 to the number of leaves - 1, and depth.

    The child with rank 1 is in its parent's row, and the others alternate between both sides; no edges cross.
    """
    rows: dict[int, float] = {}
    leaves = count()
    waiting = [0]
    while waiting:
        node = waiting.pop()
        first, *others = [*graph.successors(node)] or [None]
        if first is None:
            rows[node] = float(next(leaves))
        else:  # a stack: the last node is visited next
            turn = graph.nodes[node]["depth"] % 2
            waiting += [*reversed(others[turn::2]), first, *others[1 - turn :: 2]]
    for node in sorted(graph, reverse=True):  # children have larger numbers than their parents
        rows.setdefault(node, rows[next(graph.successors(node), node)])
    return {node: (rows[node], depth) for node, depth in graph.nodes(data="depth")}
