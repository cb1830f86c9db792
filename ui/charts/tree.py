"""Figures of token trees, as graphs of `TokenTree.to_networkx` with scores f(v): root left, rank 1 straight on.

m = nodes drawn.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from ui.charts.style import BLUE, FAINT, GREEN, RUST, decades
from ui.charts.style import figure as new_figure
from ui.phrases import count
from ui.tree_layout import tidy_layout

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

# Viridis without its ends, which a dark or a light page would swallow
NODE_SCALE = ("#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D", "#A0DA39")
LEAST_SCORE = 1e-5  # below it all are "almost never": the colours stay for what differs
EDGE_WIDTHS = ((0.3, 5.0), (0.1, 3.5), (0.03, 2.2), (0.01, 1.4), (0.0, 0.8))  # from that chance on, pixels
SPINE_WIDTH = 6.0
CURVED_UP_TO = 256  # nodes whose edges are curves
CURVE = np.linspace(0.0, 1.0, 7)
TOKENS_UP_TO = 64  # nodes that have room for their texts
WIDTH, LETTER = 620, 6.8  # pixels: of the picture beside its details on a laptop, of a letter in a node
ROW, TALLEST = 26, 560  # pixels: of a row with texts; of the picture
COUNTED_UP_TO = 48  # folded nodes whose numbers do not write over each other
DEEPEST_PATH = 64  # levels a path in a hover text may have
NODE_HOVER = (
    "<b>%{customdata[0]}</b><br>%{customdata[1]}rank %{customdata[2]} · depth %{customdata[3]}"
    "<br>accepted with f(v) = %{customdata[4]}<br>node %{customdata[6]}, %{customdata[5]} hidden below<extra></extra>"
)


def tree_figure(
    graph: nx.DiGraph,
    *,
    visible: Collection[int] | None = None,
    selected: int | None = None,
    candidate: tuple[int, float] | None = None,
) -> go.Figure:
    """Draw a token tree; colour and area of a node and the width of its edge grow with f(v).

    A point's custom data ends with its node's number. A node may have a text, `token`, "" where none is known.

    Args:
        visible: nodes from `visible_nodes`; what is hidden below a node is counted beside it.
        candidate: the parent of the node that a larger tree would have first, and what that adds to tokens per step.
    """
    drawn = graph if visible is None else graph.subgraph(visible)
    if candidate is not None and candidate[0] in drawn:
        drawn = drawn.copy()
        drawn.add_node(len(graph), rank=0, depth=graph.nodes[candidate[0]]["depth"] + 1, score=0.0)
        drawn.add_edge(candidate[0], len(graph))
    else:
        candidate = None
    table = _node_table(graph, drawn)
    nodes = table if candidate is None else table.iloc[:-1]
    texts = _texts(nodes)
    colors = np.log10(np.clip(nodes["score"].to_numpy(float), LEAST_SCORE, 1.0))
    low = min(colors.min(), -1.0)
    ticks = [tick for tick in decades(low, 0.0) if tick >= low - 1e-9]
    hidden = nodes["hidden"].to_numpy()
    counted = bool(hidden.any()) and int((hidden > 0).sum()) <= COUNTED_UP_TO
    marks = _marks(
        nodes,
        mode="markers+text" if counted else "markers",
        marker={
            "size": 8 if texts else _sizes(nodes["score"], len(nodes)),
            "color": colors,
            "opacity": 1.0,
            "symbol": np.where(nodes.index == 0, "square", np.where(hidden > 0, "diamond", "circle")),
            "line": {"width": 0.5, "color": "rgba(125, 135, 129, 0.9)"},
            "colorscale": NODE_SCALE,
            "cmin": low,
            "cmax": 0.0,
            "colorbar": {
                "title": {"text": "f(v), the chance to be accepted", "side": "top"},
                "orientation": "h", "thickness": 8, "len": 0.5, "x": 0.0, "xanchor": "left", "y": 0, "yanchor": "top",
                "tickvals": ticks, "ticktext": [f"{10**tick:g}" for tick in ticks],
            },
        },
        text=np.where(hidden > 0, np.char.add("+", hidden.astype(str)), "") if counted else None,
        textposition="middle right",
        textfont={"size": 10},
        name="nodes",
        # a click selects; what is not selected stays as it is, the ring says which one it was
        selected={"marker": {"opacity": 1.0}},
        unselected={"marker": {"opacity": 1.0}},
    )  # fmt: skip
    figure = _framed(
        graph, table, *_edges(drawn, table), marks,
        None if selected not in nodes.index or texts else _ring(nodes.loc[selected]),
        None if candidate is None else _candidate(table.iloc[-1], candidate[1]),
    )  # fmt: skip
    return figure.update_layout(annotations=_pills(nodes, texts, (colors - low) / -low, selected)) if texts else figure


def tree_thumbnail(graph: nx.DiGraph) -> go.Figure:
    """Draw a tree's shape small, without a scale."""
    figure = tree_figure(graph)
    figure.update_traces(marker={"size": 7, "showscale": False}, selector=lambda trace: trace.customdata is not None)
    return figure.update_layout(height=240, xaxis={"title": None})


def comparison_figure(graph: nx.DiGraph, shared: np.ndarray) -> go.Figure:
    """Draw a token tree with the nodes set apart that another tree lacks, where `shared`, bool [n], is false."""
    nodes = _node_table(graph, graph)
    traces = _edges(graph, nodes)
    for name, chosen, color, symbol in (
        ("in both", nodes[shared], BLUE, "circle"),
        ("only in this tree", nodes[~shared], RUST, "diamond"),
    ):
        if len(chosen):
            marker = {"size": _sizes(chosen["score"], len(nodes)), "color": color, "symbol": symbol}
            traces.append(_marks(chosen, mode="markers", name=f"{name}: {len(chosen)}", marker=marker, showlegend=True))
    return _framed(graph, nodes, *traces)


def _node_table(graph: nx.DiGraph, drawn: nx.DiGraph) -> pd.DataFrame:
    """Return a row for each drawn node: what it has, x, y, path in words, nodes hidden below it and its number."""
    import pandas as pd

    owner: dict[int | None, int] = {}
    paths: dict[int | None, str] = {}
    for node, facts in graph.nodes(data=True):  # parents come first
        parent = next(iter(graph.pred[node]), None)
        owner[node] = node if node in drawn else owner[parent]
        paths[node] = "root" if parent is None else f"{paths[parent]} → {facts['rank']}"
        if facts["depth"] > DEEPEST_PATH:  # the texts would grow with the square of the depth
            paths[node] = f"node {node}"
    nodes = pd.DataFrame.from_dict(dict(drawn.nodes(data=True)), orient="index").sort_index()
    below = Counter(owner.values())
    place = tidy_layout(drawn)
    return nodes.assign(
        x=nodes["depth"],
        y=[place[node][0] for node in nodes.index],
        path=[paths.get(node, "") for node in nodes.index],
        hidden=[below[node] - 1 for node in nodes.index],
        node=nodes.index,
    )


def _marks(nodes: pd.DataFrame, **options: Any) -> go.Scatter:
    """Return the marks of some drawn nodes."""
    said = nodes["token"].map(lambda text: f"“{_visible(text)}”, " if text else "") if "token" in nodes else ""
    texts = nodes.assign(score=nodes["score"].map("{:.3g}".format), said=said)[
        ["path", "said", "rank", "depth", "score", "hidden", "node"]
    ]
    return go.Scatter(
        x=nodes["x"], y=nodes["y"], customdata=texts.astype(str).to_numpy(), hovertemplate=NODE_HOVER,
        **{"showlegend": False, **options},
    )  # fmt: skip


def _edges(drawn: nx.DiGraph, nodes: pd.DataFrame) -> list[go.Scatter]:
    """Return the edges by the chance to get there, the path of rank 1 last, over the others.

    SVG: in Streamlit's plotly Scattergl draws those of large trees as one line.
    """
    parents, children = (np.array(ends, dtype=int) for ends in zip(*drawn.edges, strict=True)) if drawn.edges else (
        np.zeros(0, int), np.zeros(0, int)
    )  # fmt: skip
    start, end = (nodes.loc[ends, ["x", "y"]].to_numpy(float) for ends in (parents, children))
    share = CURVE if len(nodes) <= CURVED_UP_TO else np.array([0.0, 1.0])
    across = 1.5 * share - 1.5 * share**2 + share**3 if len(share) > 2 else share  # leaves and arrives level
    down = 3 * share**2 - 2 * share**3
    lines = np.full((len(children), len(share) + 1, 2), np.nan)  # the last is the gap
    for axis, course in enumerate((across, down)):
        lines[:, :-1, axis] = start[:, [axis]] + (end - start)[:, [axis]] * course
    score = nodes.loc[children, "score"].to_numpy(float)
    spine, node = [], 0
    while (node := next(iter(drawn.succ[node]), -1)) >= 0 and drawn.nodes[node]["rank"] == 1:
        spine.append(node)
    on_spine, proposed = np.isin(children, spine), nodes.loc[children, "rank"].to_numpy() == 0
    classes = np.argmax(score[:, None] >= [least for least, _ in EDGE_WIDTHS], axis=1)
    looks = [(classes == place, {"color": FAINT, "width": width}) for place, (_, width) in enumerate(EDGE_WIDTHS)]
    chosen = [(which & ~on_spine & ~proposed, "edges", line) for which, line in reversed(looks)]
    chosen += [(on_spine, "rank 1", {"color": GREEN, "width": SPINE_WIDTH})]
    chosen += [(proposed, "to the next node", {"color": RUST, "width": 1.5, "dash": "dot"})]
    return [
        go.Scatter(
            x=lines[which, :, 0].ravel(), y=lines[which, :, 1].ravel(), mode="lines", line=line, hoverinfo="skip",
            showlegend=False, name=name,
        )
        for which, name, line in chosen
        if which.any()
    ]  # fmt: skip


def _texts(nodes: pd.DataFrame) -> list[str]:
    """Return what stands in each node, "" where none is known; nothing where they do not fit."""
    levels = int(nodes["depth"].max()) + 1
    letters = int((WIDTH / levels - 14) / LETTER)
    if "token" not in nodes or len(nodes) > TOKENS_UP_TO or letters < 3:
        return []
    return [_shortened(text, letters) for text in nodes["token"]]


def _visible(text: str) -> str:
    """Return a token's text with its spaces and line ends seen, safe in a figure."""
    return html.escape(text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥"))


def _shortened(text: str, letters: int) -> str:
    if len(text) <= letters:
        return _visible(text)
    text = text.removeprefix(" ")
    return _visible(text if len(text) <= letters else f"{text[: letters - 1]}…")


def _pills(nodes: pd.DataFrame, texts: list[str], place: np.ndarray, selected: int | None) -> list[dict[str, Any]]:
    """Return the nodes' texts, each on its colour; clicks go through to the mark below."""
    pills = []
    for node, x, y, text, share in zip(nodes.index, nodes["x"], nodes["y"], texts, place, strict=True):
        color = _color(float(share))
        light = sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), color, strict=True)) > 140
        pills.append(
            {
                "x": x, "y": y, "text": text or f"{nodes['rank'][node]}", "showarrow": False, "borderpad": 3,
                "bgcolor": f"rgb{color}", "font": {"size": 11, "color": "#101512" if light else "#FFFFFF",
                "family": "monospace"}, "bordercolor": RUST if node == selected else f"rgb{color}",
                "borderwidth": 3 if node == selected else 1,
            }
        )  # fmt: skip
    return pills


def _color(share: float) -> tuple[int, int, int]:
    """Return the colour at a share of the nodes' scale."""
    place = share * (len(NODE_SCALE) - 1)
    left = min(int(place), len(NODE_SCALE) - 2)
    ends = (hex_to_rgb(NODE_SCALE[left]), hex_to_rgb(NODE_SCALE[left + 1]))
    red, green, blue = (round(a + (b - a) * (place - left)) for a, b in zip(*ends, strict=True))
    return red, green, blue


def _ring(node: pd.Series) -> go.Scatter:
    marker = {"symbol": "circle-open", "size": 26, "color": RUST, "line": {"width": 2.5, "color": RUST}}
    return go.Scatter(
        x=[node["x"]], y=[node["y"]], mode="markers", hoverinfo="skip", showlegend=False, name="selected", marker=marker
    )


def _candidate(node: pd.Series, gain: float) -> go.Scatter:
    return go.Scatter(
        x=[node["x"]], y=[node["y"]], mode="markers+text", text=[f"+{gain:.3g}"], textposition="middle right",
        textfont={"size": 11, "color": RUST}, showlegend=False, name="next node",
        marker={"symbol": "circle-open-dot", "size": 13, "color": RUST, "line": {"width": 2}},
        hovertemplate=f"the next node adds {gain:.3g} tokens per step<extra></extra>",
    )  # fmt: skip


def _sizes(scores: pd.Series, count: int) -> np.ndarray:
    """Marker sizes whose area grows with f(v), smaller in larger trees; float64 [m]."""
    least, room = np.clip(48.0 / np.sqrt(count), 1.5, 6.0), np.clip(260.0 / np.sqrt(count), 7.0, 26.0)
    return least + (room - least) * np.sqrt(np.clip(scores, 0.0, 1.0))


def _framed(graph: nx.DiGraph, nodes: pd.DataFrame, *traces: object) -> go.Figure:
    widths = Counter(depth for _, depth in graph.nodes(data="depth"))
    levels = range(0, len(widths), 1 + len(widths) // 16)
    return new_figure(
        *traces,
        x="",
        y="",
        height=int(np.clip(110 + ROW * (nodes["y"].max() + 1), 320, TALLEST))
        if len(nodes) <= TOKENS_UP_TO
        else TALLEST,
        xaxis={
            "side": "top",
            "showgrid": False,
            "title": {"text": "depth, and nodes of the level"},
            "tickvals": list(levels),
            "ticktext": [
                f"{level}<br>{count(widths[level], 'node') if len(widths) < 9 else widths[level]}" for level in levels
            ],
            "range": [-0.35, len(widths) - 0.35],
        },
        yaxis={"visible": False, "autorange": "reversed"},
    )
