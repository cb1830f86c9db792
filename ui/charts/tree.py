"""Figures of token trees, as graphs of `TokenTree.to_networkx` with scores f(v). m = nodes drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BLUE, FAINT, RUST, decades
from ui.charts.style import figure as new_figure
from ui.phrases import count
from ui.tree_layout import tidy_layout

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

# Viridis without its ends, which a dark or a light page would swallow
NODE_SCALE = ("#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D", "#A0DA39")
DEEPEST_PATH = 64  # levels a path in a hover text may have
LABELS_UP_TO = 48  # nodes that still leave room for a rank inside each mark
NODE_HOVER = (
    "<b>%{customdata[0]}</b><br>rank %{customdata[1]} · depth %{customdata[2]}"
    "<br>accepted with f(v) = %{customdata[3]}<br>node %{customdata[5]}, %{customdata[4]} hidden below<extra></extra>"
)

ColorBy = Literal["score", "rank", "depth"]


def tree_figure(
    graph: nx.DiGraph,
    color_by: ColorBy = "score",
    *,
    visible: Collection[int] | None = None,
    selected: int | None = None,
) -> go.Figure:
    """Draw a token tree, root on top; a point's custom data ends with its node's number.

    Args:
        color_by: "score" colours by log10 f(v), "rank" and "depth" by those numbers. Area grows with f(v) in all three.
        visible: nodes from `visible_nodes`; what is hidden below a node is counted beside it.
    """
    drawn = graph if visible is None else graph.subgraph(visible)
    nodes = _node_table(graph, drawn)
    value, scale = _colors(color_by, nodes)
    hidden = nodes["hidden"].to_numpy()
    labels, counted = len(nodes) <= LABELS_UP_TO, int((hidden > 0).sum()) <= LABELS_UP_TO
    text = np.where(nodes["rank"] == 0, "", nodes["rank"].astype(str)) if labels else np.full(len(nodes), "")
    if counted:  # many folded nodes would write over each other
        text = np.where(hidden > 0, np.char.add(np.char.add(text.astype(str), " +"), hidden.astype(str)), text)
    texts = labels or (counted and bool(hidden.any()))
    marks = _marks(
        nodes,
        mode="markers+text" if texts else "markers",
        marker={
            "size": _sizes(nodes["score"], len(nodes), labels),
            "color": value,
            "opacity": 1.0,
            "symbol": np.where(nodes.index == 0, "square", np.where(hidden > 0, "diamond", "circle")),
            "line": {"width": 1 if labels else 0.4, "color": "rgba(125, 135, 129, 0.9)"},
            **scale,
        },
        text=text if texts else None,
        textposition="middle right" if texts else None,
        textfont={"size": 10},
        showlegend=False,
        name="nodes",
        # a click selects; what is not selected stays as it is, the ring below says which one it was
        selected={"marker": {"opacity": 1.0}},
        unselected={"marker": {"opacity": 1.0}},
    )
    ring = None
    if selected in drawn:
        ring = go.Scatter(
            x=[nodes["x"][selected]],
            y=[nodes["depth"][selected]],
            mode="markers",
            hoverinfo="skip",
            showlegend=False,
            name="selected",
            marker={"symbol": "circle-open", "size": 26, "color": RUST, "line": {"width": 2.5, "color": RUST}},
        )
    return _framed(graph, _edges(drawn, nodes), marks, ring)


def tree_thumbnail(graph: nx.DiGraph) -> go.Figure:
    """Draw a tree's shape small: one colour for each depth, neither ranks nor a scale."""
    figure = tree_figure(graph, "depth")
    figure.update_traces(
        mode="markers", marker={"size": 7, "showscale": False}, selector=lambda trace: trace.customdata is not None
    )
    return figure.update_layout(height=240, showlegend=False, yaxis={"title": None})


def comparison_figure(graph: nx.DiGraph, shared: np.ndarray) -> go.Figure:
    """Draw a token tree with the nodes set apart that another tree lacks, where `shared`, bool [n], is false."""
    nodes = _node_table(graph, graph)
    traces = [_edges(graph, nodes)]
    for name, chosen, color, symbol in (
        ("in both", nodes[shared], BLUE, "circle"),
        ("only in this tree", nodes[~shared], RUST, "diamond"),
    ):
        if len(chosen):
            marker = {"size": _sizes(chosen["score"], len(nodes), False), "color": color, "symbol": symbol}
            traces.append(_marks(chosen, mode="markers", name=f"{name}: {len(chosen)}", marker=marker))
    return _framed(graph, *traces)


def _node_table(graph: nx.DiGraph, drawn: nx.DiGraph) -> pd.DataFrame:
    """Return a row for each drawn node: rank, depth, score, x, path in words, nodes hidden below it and its number."""
    import pandas as pd

    owner: dict[int | None, int] = {}
    paths: dict[int | None, str] = {}
    for node, facts in graph.nodes(data=True):  # parents come first
        parent = next(graph.predecessors(node), None)
        owner[node] = node if node in drawn else owner[parent]
        paths[node] = "root" if parent is None else f"{paths[parent]} → {facts['rank']}"
        if facts["depth"] > DEEPEST_PATH:  # the texts would grow with the square of the depth
            paths[node] = f"node {node}"
    nodes = pd.DataFrame.from_dict(dict(drawn.nodes(data=True)), orient="index").sort_index()
    below = Counter(owner.values())
    place = tidy_layout(drawn)
    return nodes.assign(
        x=[place[node][0] for node in nodes.index],
        path=[paths[node] for node in nodes.index],
        hidden=[below[node] - 1 for node in nodes.index],
        node=nodes.index,
    )


def _marks(nodes: pd.DataFrame, **options: Any) -> go.Scatter:
    """Return the marks of some drawn nodes."""
    texts = nodes.assign(score=nodes["score"].map("{:.3g}".format))[
        ["path", "rank", "depth", "score", "hidden", "node"]
    ]
    return go.Scatter(
        x=nodes["x"], y=nodes["depth"], customdata=texts.astype(str).to_numpy(), hovertemplate=NODE_HOVER, **options
    )


def _edges(drawn: nx.DiGraph, nodes: pd.DataFrame) -> go.Scatter:
    """Return the edges as SVG: in Streamlit's plotly Scattergl draws those of large trees as one line."""
    links = np.full((drawn.number_of_edges(), 3, 2), np.nan)  # parent, child, gap
    place = nodes[["x", "depth"]]
    for end, ids in enumerate(zip(*drawn.edges, strict=True)):
        links[:, end] = place.loc[list(ids)]
    return go.Scatter(
        x=links[:, :, 0].ravel(),
        y=links[:, :, 1].ravel(),
        mode="lines",
        line={"color": FAINT, "width": 1},
        hoverinfo="skip",
        showlegend=False,
        name="edges",
    )


def _colors(color_by: ColorBy, nodes: pd.DataFrame) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the number that colours each node and the marker options of its scale."""
    value, title = nodes[color_by].to_numpy(float), "f(v)" if color_by == "score" else color_by
    if color_by == "score":
        value = np.log10(np.maximum(value, 1e-12))
        # the last decades of a big tree are all "almost never": clipping keeps the useful ones apart
        value = np.maximum(value, max(value.min(), -5.0))
        ticks = [t for t in decades(value.min(), 0.0) if t >= value.min() - 1e-9] or [0.0]
        ticktext = [f"{10**t:g}" for t in ticks]
    else:
        # ranks are small but long-tailed: 1 to 4 must differ, 20 and 30 need not
        shown = np.unique(np.round(np.geomspace(1, max(value.max(), 1), 6))) if color_by == "rank" else None
        ticks = shown.tolist() if shown is not None else np.unique(np.linspace(0, value.max(), 6).round()).tolist()
        ticktext = [f"{t:g}" for t in ticks]
        if color_by == "rank":
            value, ticks = np.log2(np.maximum(value, 1)), np.log2(ticks).tolist()
    return value, {
        "colorscale": NODE_SCALE,
        "cmin": min(value.min(), -1.0) if color_by == "score" else 0.0,
        "cmax": 0.0 if color_by == "score" else max(value.max(), 1.0),
        "reversescale": color_by != "score",
        "colorbar": {"title": {"text": title}, "tickvals": ticks, "ticktext": ticktext, "thickness": 10, "len": 0.8},
    }


def _sizes(scores: pd.Series, count: int, labels: bool) -> np.ndarray:
    """Marker sizes whose area grows with f(v), smaller in larger trees; float64 [m]."""
    room = np.clip(260.0 / np.sqrt(count), 5.0, 26.0)
    sizes = 4.0 + (room - 4.0) * np.sqrt(np.clip(scores, 0.0, 1.0))
    return np.maximum(sizes, 13.0) if labels else sizes


def _framed(graph: nx.DiGraph, *traces: object) -> go.Figure:
    widths = Counter(depth for _, depth in graph.nodes(data="depth"))
    levels = range(0, len(widths), 1 + len(widths) // 28)
    return new_figure(
        *traces,
        x="",
        y="depth · nodes of the level",
        height=int(np.clip(140 + 60 * (len(widths) - 1), 260, 720)),
        xaxis={"visible": False},
        yaxis={
            "autorange": "reversed",
            "showgrid": False,
            "tickvals": list(levels),
            "ticktext": [f"{level} · {count(widths[level], 'node')}" for level in levels],
        },
    )
