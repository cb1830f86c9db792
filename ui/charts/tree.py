"""Figures of token trees: one tree, and one set against another. n = tree nodes, m = those drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import plotly.graph_objects as go

from sequoia_core.design.node_facts import subtree_sums
from sequoia_core.design.optimal_trees import node_scores
from sequoia_core.design.tree import TokenTree
from ui.charts.style import BLUE, FAINT, RUST, decades
from ui.charts.style import figure as new_figure
from ui.tree_layout import tidy_layout

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector

# Viridis without its ends, which a dark or a light page would swallow
NODE_SCALE = ("#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D", "#A0DA39")
GL_FROM = 1_000  # nodes from which SVG marks get slow
DEEPEST_PATH = 64  # levels a path in a hover text may have
LABELS_UP_TO = 48  # nodes that still leave room for a rank inside each mark
NODE_HOVER = (
    "<b>%{customdata[0]}</b><br>rank %{customdata[1]} · depth %{customdata[2]}"
    "<br>accepted with f(v) = %{customdata[3]}<br>node %{customdata[5]}, %{customdata[4]} hidden below<extra></extra>"
)

ColorBy = Literal["score", "rank", "depth"]


def tree_figure(
    tree: TokenTree,
    acceptance: AcceptanceVector,
    color_by: ColorBy = "score",
    *,
    visible: np.ndarray | None = None,
    selected: int | None = None,
) -> go.Figure:
    """Draw a token tree, root on top: one trace of edges, one of nodes, one more around a selected node.

    Args:
        color_by: "score" colours by log10 f(v), "rank" and "depth" by those numbers. Area grows with f(v) in all three.
        visible: bool [n] from `visible_nodes`; what is hidden below a node is counted beside it.
        selected: node to ring.

    Returns:
        A figure whose node points carry the node's number as the last of their custom data.
    """
    part = _Part.of(tree, visible)
    scores, ranks, depths = node_scores(tree, acceptance)[part.ids], tree.child_ranks[part.ids], tree.depths[part.ids]
    value, scale = _colors(color_by, scores, ranks, depths)
    count = len(part.ids)
    hidden = part.hidden
    labels, counted = count <= LABELS_UP_TO, int((hidden > 0).sum()) <= LABELS_UP_TO
    text = np.where(ranks == 0, "", ranks.astype(str)) if labels else np.full(count, "")
    if counted:  # many folded nodes would write over each other
        text = np.where(hidden > 0, np.char.add(np.char.add(text, " +"), hidden.astype(str)), text)
    texts = labels or (counted and bool(hidden.any()))
    nodes = part.marks(
        mode="markers+text" if texts else "markers",
        marker={
            "size": _sizes(scores, count, labels),
            "color": value,
            "opacity": 1.0,
            "symbol": np.where(part.ids == 0, "square", np.where(hidden > 0, "diamond", "circle")),
            "line": {"width": 1 if labels else 0.4, "color": "rgba(125, 135, 129, 0.9)"},
            **scale,
        },
        text=text if texts else None,
        textposition="middle right" if texts else None,
        textfont={"size": 10},
        customdata=_node_texts(tree, part, scores),
        hovertemplate=NODE_HOVER,
        showlegend=False,
        name="nodes",
        # a click selects; what is not selected stays as it is, the ring below says which one it was
        selected={"marker": {"opacity": 1.0}},
        unselected={"marker": {"opacity": 1.0}},
    )
    ring = None
    if selected is not None and selected in part.ids:
        at = part.xy[np.flatnonzero(part.ids == selected)[0]]
        ring = go.Scatter(
            x=[at[0]],
            y=[at[1]],
            mode="markers",
            hoverinfo="skip",
            showlegend=False,
            name="selected",
            marker={"symbol": "circle-open", "size": 26, "color": RUST, "line": {"width": 2.5, "color": RUST}},
        )
    return _framed(tree, part.edges(), nodes, ring)


def tree_thumbnail(tree: TokenTree, acceptance: AcceptanceVector) -> go.Figure:
    """Draw a tree's shape small: one colour for each depth, neither ranks nor a scale."""
    figure = tree_figure(tree, acceptance, "depth")
    figure.update_traces(
        mode="markers", marker={"size": 7, "showscale": False}, selector=lambda trace: trace.customdata is not None
    )
    return figure.update_layout(height=240, showlegend=False, yaxis={"title": None})


def comparison_figure(tree: TokenTree, acceptance: AcceptanceVector, shared: np.ndarray) -> go.Figure:
    """Draw a token tree with the nodes that another tree lacks set apart by colour and symbol.

    Args:
        shared: bool [n], true where the other tree has a node of the same path.
    """
    part = _Part.of(tree, None)
    scores = node_scores(tree, acceptance)
    texts = _node_texts(tree, part, scores)
    traces = [part.edges()]
    for name, chosen, color, symbol in (
        ("in both", shared, BLUE, "circle"),
        ("only in this tree", ~shared, RUST, "diamond"),
    ):
        if chosen.any():
            traces.append(
                part.marks(
                    chosen,
                    mode="markers",
                    name=f"{name}: {int(chosen.sum())}",
                    marker={"size": _sizes(scores, tree.size, False)[chosen], "color": color, "symbol": symbol},
                    customdata=texts[chosen],
                    hovertemplate=NODE_HOVER,
                )
            )
    return _framed(tree, *traces)


@dataclass(frozen=True, slots=True)
class _Part:
    """The nodes of a tree that are drawn.

    Attributes:
        ids: int64 [m], their numbers in the tree.
        parents: int64 [m], index among the drawn ones of each one's parent.
        xy: float64 [m, 2].
        hidden: int64 [m], nodes hidden below each.
    """

    ids: np.ndarray
    parents: np.ndarray
    xy: np.ndarray
    hidden: np.ndarray

    @classmethod
    def of(cls, tree: TokenTree, visible: np.ndarray | None) -> _Part:
        if visible is None or visible.all():
            every = np.arange(tree.size)
            return cls(every, tree.parents.astype(np.int64), tidy_layout(tree), np.zeros(tree.size, dtype=np.int64))
        ids = np.flatnonzero(visible)  # breadth-first like the tree, so the drawn part is a tree in that order as well
        place = np.full(tree.size, -1)
        place[ids] = np.arange(len(ids))
        parents = np.where(tree.parents[ids] < 0, -1, place[tree.parents[ids]])
        below = subtree_sums(tree, ~visible)[ids]
        # counted once, at the lowest drawn node above what is hidden
        below -= np.bincount(parents[1:], weights=below[1:], minlength=len(ids))
        return cls(ids, parents, tidy_layout(TokenTree(parents)), below.astype(np.int64))

    def marks(self, chosen: np.ndarray | slice = slice(None), **options) -> go.Scatter | go.Scattergl:
        return self._kind()(x=self.xy[chosen, 0], y=self.xy[chosen, 1], **options)

    def edges(self) -> go.Scatter | go.Scattergl:
        links = np.full((len(self.ids) - 1, 3, 2), np.nan)  # parent, child, gap
        links[:, 0], links[:, 1] = self.xy[self.parents[1:]], self.xy[1:]
        return self._kind()(
            x=links[:, :, 0].ravel(),
            y=links[:, :, 1].ravel(),
            mode="lines",
            line={"color": FAINT, "width": 1},
            hoverinfo="skip",
            showlegend=False,
            name="edges",
        )

    def _kind(self) -> type:
        return go.Scattergl if len(self.ids) > GL_FROM else go.Scatter


def _colors(
    color_by: ColorBy, scores: np.ndarray, ranks: np.ndarray, depths: np.ndarray
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the number that colours each node and the marker options of its scale."""
    value, title = {
        "score": (np.log10(np.maximum(scores, 1e-12)), "f(v)"),
        "rank": (ranks.astype(float), "rank"),
        "depth": (depths.astype(float), "depth"),
    }[color_by]
    if color_by == "score":
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


def _sizes(scores: np.ndarray, count: int, labels: bool) -> np.ndarray:
    """Marker sizes whose area grows with f(v), smaller in larger trees; float64 [m]."""
    room = np.clip(260.0 / np.sqrt(count), 5.0, 26.0)
    sizes = 4.0 + (room - 4.0) * np.sqrt(np.clip(scores, 0.0, 1.0))
    return np.maximum(sizes, 13.0) if labels else sizes


def _node_texts(tree: TokenTree, part: _Part, scores: np.ndarray) -> np.ndarray:
    """Hover texts of each drawn node: path, rank, depth, f(v), hidden nodes; and its number, last."""
    if tree.depth > DEEPEST_PATH:  # the texts would grow with the square of the depth
        paths = ["root", *(f"node {node}" for node in range(1, tree.size))]
    else:
        paths = [" → ".join(["root", *map(str, path)]) for path in tree.paths()]
    return np.column_stack(
        [
            np.array(paths)[part.ids],
            tree.child_ranks[part.ids],
            tree.depths[part.ids],
            np.array([f"{score:.3g}" for score in scores]),
            part.hidden,
            part.ids,
        ]
    )


def _framed(tree: TokenTree, *traces: object) -> go.Figure:
    widths = [len(level) for level in tree.levels]
    levels = range(0, len(widths), 1 + len(widths) // 28)
    return new_figure(
        *traces,
        x="",
        y="depth · nodes of the level",
        height=int(np.clip(140 + 60 * tree.depth, 260, 720)),
        xaxis={"visible": False},
        yaxis={
            "autorange": "reversed",
            "showgrid": False,
            "tickvals": list(levels),
            "ticktext": [f"{level} · {widths[level]} node{'s' * (widths[level] > 1)}" for level in levels],
        },
    )
