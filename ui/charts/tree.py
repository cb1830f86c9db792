"""A tree as a plotly figure, for notebooks and static export."""

import numpy as np
import plotly.graph_objects as go

from sequoia_core.trees.tree import TokenTree
from ui.charts.style import FAINT, GREEN, line_trace, marker_trace, new_figure
from ui.tree_layout import tidy_layout


def tree_thumbnail(tree: TokenTree, scores: np.ndarray) -> go.Figure:
    """Draw a small static tree, with the root on the left and rank 1 in a straight line.

    The opacity of a node is its score, f(v), float64 [n].
    """
    graph = tree.to_networkx()
    layout = tidy_layout(graph)
    rows, depths = np.array([layout[node] for node in graph], dtype=float).T
    parents, children = np.array(graph.edges, dtype=int).reshape(-1, 2).T
    gap = np.full(len(children), np.nan)  # ends each line
    x, y = (np.column_stack([at[parents], at[children], gap]).ravel() for at in (depths, rows))
    shown = 0.25 + 0.75 * np.sqrt(scores)
    hidden = {"visible": False}
    return new_figure(
        line_trace(x, y, "edges", FAINT, width=1, showlegend=False),
        marker_trace(
            depths, rows, "nodes", GREEN, marker={"color": GREEN, "size": 6, "opacity": shown}, showlegend=False
        ),
        x="",
        y="",
        height=240,
        xaxis=hidden,
        yaxis=hidden | {"autorange": "reversed"},
    )
