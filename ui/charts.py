"""Plotly figures of the app's results: plain functions, no streamlit, nothing computed that the core computes.

Colours are mid-tones chosen to be told apart with a colour-vision deficiency and to read on paper and on dark; the
backgrounds stay transparent so that the page's theme shows through. Shapes: n = tree nodes, B = ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import plotly.graph_objects as go

from sequoia_core.construction import node_scores
from ui.layout import tidy_layout

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, SpeedupSurface, TokenTree
    from sequoia_core.planning import BestShape

SERIES = ("#2F84C4", "#D4622A", "#159070", "#B3679F", "#B0841C", "#7D8781")
BLUE, RUST, GREEN, PLUM, OCHRE, GREY = SERIES
FAINT = "rgba(125, 135, 129, 0.45)"  # edges, guides: visible on both themes
SCALE = "Viridis"
NODE_SCALE = (
    "#46327E",
    "#365C8D",
    "#277F8E",
    "#1FA187",
    "#4AC16D",
    "#A0DA39",
)  # Viridis without its ends: seen on both
GL_FROM = 1_000  # nodes from which SVG marks get slow
DEEPEST_PATH = 64  # levels a path in a hover text may have
LABELS_UP_TO = 48  # nodes that still leave room for a rank inside each mark

ColorBy = Literal["score", "rank", "depth"]


def _figure(*traces: go.Figure | object, x: str, y: str, height: int = 380) -> go.Figure:
    figure = go.Figure([trace for trace in traces if trace is not None])
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 28, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        colorway=SERIES,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "title": None},
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(title=x, zeroline=False, automargin=True)
    figure.update_yaxes(title=y, zeroline=False, automargin=True)
    return figure


def _log2_ticks(largest: int) -> dict:
    """Ticks at powers of two: sizes are read as 1, 2, 4, 8 and not as powers of ten."""
    values = [2**k for k in range(int(np.log2(max(largest, 1))) + 1)]
    room = [np.log10(0.9), np.log10(1.12 * max(largest, 2))]
    return {
        "type": "log",
        "range": room,
        "tickvals": values,
        "ticktext": [str(v) for v in values],
        "minor": {"showgrid": False},
    }


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten that span [low, high], for a colour bar over logarithms."""
    return [float(e) for e in range(int(np.floor(low)), int(np.ceil(high)) + 1)]


# ---- the tree


def tree_figure(tree: TokenTree, acceptance: AcceptanceVector, color_by: ColorBy = "score") -> go.Figure:
    """Draw a token tree, root on top: one trace of edges, one of nodes.

    Args:
        color_by: "score" colours by log10 f(v), "rank" and "depth" by those numbers. Area grows with f(v) in all three.
    """
    xy = tidy_layout(tree)
    scores = node_scores(tree, acceptance)
    ranks, depths = tree.child_ranks, tree.depths
    Marks = go.Scattergl if tree.size > GL_FROM else go.Scatter
    links = np.full((tree.size - 1, 3, 2), np.nan)  # parent, child, gap
    links[:, 0], links[:, 1] = xy[tree.parents[1:]], xy[1:]
    edges = Marks(
        x=links[:, :, 0].ravel(),
        y=links[:, :, 1].ravel(),
        mode="lines",
        line={"color": FAINT, "width": 1},
        hoverinfo="skip",
        showlegend=False,
        name="edges",
    )

    value, title = {
        "score": (np.log10(np.maximum(scores, 1e-12)), "f(v)"),
        "rank": (ranks.astype(float), "rank"),
        "depth": (depths.astype(float), "depth"),
    }[color_by]
    if color_by == "score":
        # the last decades of a big tree are all "almost never": clipping keeps the useful ones apart
        value = np.maximum(value, max(value.min(), -5.0))
        ticks = [t for t in _decades(value.min(), 0.0) if t >= value.min() - 1e-9] or [0.0]
        ticktext = [f"{10**t:g}" for t in ticks]
    else:
        # ranks are small but long-tailed: 1 to 4 must differ, 20 and 30 need not
        shown = np.unique(np.round(np.geomspace(1, max(value.max(), 1), 6))) if color_by == "rank" else None
        ticks = shown.tolist() if shown is not None else np.unique(np.linspace(0, value.max(), 6).round()).tolist()
        ticktext = [f"{t:g}" for t in ticks]
        if color_by == "rank":
            value, ticks = np.log2(np.maximum(value, 1)), np.log2(ticks).tolist()

    room = np.clip(260.0 / np.sqrt(tree.size), 5.0, 26.0)
    sizes = 4.0 + (room - 4.0) * np.sqrt(np.clip(scores, 0.0, 1.0))
    labels = tree.size <= LABELS_UP_TO
    nodes = Marks(
        x=xy[:, 0],
        y=xy[:, 1],
        mode="markers+text" if labels else "markers",
        marker={
            "size": np.maximum(sizes, 13.0) if labels else sizes,
            "color": value,
            "opacity": 1.0,
            "colorscale": NODE_SCALE,
            "cmin": min(value.min(), -1.0) if color_by == "score" else 0.0,
            "cmax": 0.0 if color_by == "score" else max(value.max(), 1.0),
            "reversescale": color_by != "score",
            "symbol": np.where(np.arange(tree.size) == 0, "square", "circle"),
            "line": {"width": 1 if labels else 0.4, "color": "rgba(125, 135, 129, 0.9)"},
            "colorbar": {
                "title": {"text": title},
                "tickvals": ticks,
                "ticktext": ticktext,
                "thickness": 10,
                "len": 0.8,
            },
        },
        text=np.where(ranks == 0, "", ranks.astype(str)) if labels else None,
        textposition="middle right" if labels else None,
        textfont={"size": 10},
        customdata=np.column_stack(
            [np.array(_path_texts(tree)), ranks, depths, np.array([f"{score:.3g}" for score in scores])]
        ),
        hovertemplate="<b>%{customdata[0]}</b><br>rank %{customdata[1]} · depth %{customdata[2]}"
        "<br>accepted with f(v) = %{customdata[3]}<extra></extra>",
        showlegend=False,
        name="nodes",
    )
    figure = _figure(
        edges, nodes, x="", y="depth · nodes of the level", height=int(np.clip(140 + 60 * tree.depth, 260, 720))
    )
    figure.update_xaxes(visible=False)
    widths = [len(level) for level in tree.levels]
    levels = range(0, len(widths), 1 + len(widths) // 28)
    figure.update_yaxes(
        autorange="reversed",
        showgrid=False,
        tickvals=list(levels),
        ticktext=[f"{level} · {widths[level]} node{'s' * (widths[level] > 1)}" for level in levels],
    )
    return figure


def _path_texts(tree: TokenTree) -> list[str]:
    if tree.depth > DEEPEST_PATH:  # the texts would grow with the square of the depth
        return ["root", *(f"node {node}" for node in range(1, tree.size))]
    return [" → ".join(["root", *map(str, path)]) for path in tree.paths()]


def growth_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    here: tuple[int, float] | None = None,
    ceiling: float | None = None,
) -> go.Figure:
    """Draw expected tokens per step against tree size.

    Args:
        curves: name -> (sizes int [k], expected tokens float [k]); the first is drawn strongest.
        here: (n, F) of the tree on show, marked.
        ceiling: what no chain can exceed, 1 / (1 - p1), drawn as a guide.
    """
    traces = [
        go.Scatter(
            x=sizes,
            y=tokens,
            mode="lines",
            name=name,
            line={
                "color": SERIES[i % len(SERIES)],
                "width": 3 if i == 0 else 2,
                "dash": ("solid", "dot", "dash", "dashdot", "longdash")[i % 5],
            },
            hovertemplate=f"{name}<br>n = %{{x}}<br>%{{y:.2f}} tokens per step<extra></extra>",
        )
        for i, (name, (sizes, tokens)) in enumerate(curves.items())
    ]
    if here is not None:
        traces.append(
            go.Scatter(
                x=[here[0]],
                y=[here[1]],
                mode="markers",
                name="this tree",
                marker={"color": SERIES[0], "size": 13, "symbol": "diamond", "line": {"width": 1, "color": GREY}},
                hovertemplate="this tree<br>n = %{x}<br>%{y:.2f} tokens per step<extra></extra>",
            )
        )
    figure = _figure(*traces, x="tree size n (log scale)", y="expected tokens per step")
    figure.update_xaxes(**_log2_ticks(max(int(sizes[-1]) for sizes, _ in curves.values())))
    figure.update_yaxes(rangemode="tozero")
    if ceiling is not None and np.isfinite(ceiling):
        figure.add_hline(
            y=ceiling,
            line={"color": GREY, "width": 1, "dash": "dot"},
            annotation={"text": f"no chain passes {ceiling:.2f}", "font": {"color": GREY, "size": 11}},
            annotation_position="top left",
        )
    return figure


# ---- acceptance


def acceptance_figure(vectors: Mapping[str, AcceptanceVector], *, log: bool = False, ranks: int = 32) -> go.Figure:
    """Draw p_k by rank: bars for one vector, points for several, with 95% intervals where trials are known.

    Args:
        log: logarithmic probability axis.
        ranks: how many ranks to show at most.
    """
    traces: list[object] = []
    for i, (name, vector) in enumerate(vectors.items()):
        probs = vector.probs[:ranks]
        rank, color = np.arange(1, len(probs) + 1), SERIES[i % len(SERIES)]
        interval = vector.interval()
        bars = None
        if interval is not None:
            low, high = (np.asarray(bound)[: len(probs)] for bound in interval)
            bars = {
                "type": "data",
                "array": np.maximum(high - probs, 0),
                "arrayminus": np.maximum(probs - low, 0),
                "color": GREY,
                "thickness": 1.2,
                "width": 3,
            }
        shown = np.where(probs > 0, probs, np.nan) if log else probs  # a log axis has no place for 0
        hover = f"{name}<br>rank %{{x}}: %{{y:.4f}}<extra></extra>"
        if len(vectors) == 1:
            traces.append(
                go.Bar(x=rank, y=shown, error_y=bars, marker={"color": color}, name=name, hovertemplate=hover)
            )
        else:
            traces.append(
                go.Scatter(
                    x=rank,
                    y=shown,
                    error_y=bars,
                    mode="lines+markers",
                    name=name,
                    hovertemplate=hover,
                    line={"color": color, "width": 1.5},
                    marker={"color": color, "size": 7, "symbol": i},
                )
            )
    figure = _figure(*traces, x="rank k, in the order drafted", y="probability of acceptance p<sub>k</sub>")
    figure.update_xaxes(tick0=1, dtick=max(1, ranks // 8))
    figure.update_yaxes(rangemode="tozero")
    if log:
        figure.update_yaxes(type="log", dtick=1, exponentformat="power")
    return figure


def rejection_figure(vectors: Mapping[str, AcceptanceVector]) -> go.Figure:
    """Draw on log-log axes the probability that the first k children are all rejected, and the fitted power law."""
    traces: list[object] = []
    for i, (name, vector) in enumerate(vectors.items()):
        rejected = 1.0 - np.cumsum(vector.probs)
        rank = np.arange(1, len(rejected) + 1)
        color = SERIES[i % len(SERIES)]
        traces.append(
            go.Scatter(
                x=rank,
                y=np.where(rejected > 1e-9, rejected, np.nan),
                mode="markers",
                name=name,
                marker={"color": color, "size": 7, "symbol": i},
                hovertemplate=f"{name}<br>first %{{x}} all rejected: %{{y:.4f}}<extra></extra>",
            )
        )
        try:
            fit = vector.fit_power_law()
        except ValueError:
            continue  # too few ranks, or nothing left to reject: the points are still worth showing
        traces.append(
            go.Scatter(
                x=rank,
                y=fit.scale * rank ** (-float(fit.b)),
                mode="lines",
                line={"color": color, "width": 1.5, "dash": "dash"},
                name=f"k<sup>−{fit.b:.2f}</sup> (R² {fit.r_squared:.2f})",
                hoverinfo="skip",
            )
        )
    figure = _figure(*traces, x="children tried k (log scale)", y="P(all k rejected) (log scale)")
    figure.update_xaxes(**_log2_ticks(max(len(vector.probs) for vector in vectors.values())))
    ticks = [digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)]  # plotly's own say only "2" and "5"
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    if not any(np.isfinite(trace.y).any() for trace in traces):
        figure.update_yaxes(showticklabels=False)
        figure.add_annotation(
            text="nothing is ever rejected", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper"
        )
    return figure


# ---- hardware


def verify_time_figure(profile: HardwareProfile, *, here: int | None = None) -> go.Figure:
    """Draw t(n), the time to verify n tokens over the time for one: measured points with their spread, smoothed line.

    Args:
        here: a tree size to mark.
    """
    sizes = profile.sizes
    unit = profile.smooth_verify_sec[0]  # seconds that t = 1 stands for
    measured = profile.verify_sec / unit
    dense = np.unique(np.round(np.geomspace(1, max(int(profile.max_size), 2), 120)).astype(int))
    traces: list[object] = [
        go.Scatter(
            x=dense,
            y=profile.t(dense),
            mode="lines",
            name="smoothed t(n)",
            line={"color": BLUE, "width": 2.5},
            hovertemplate="n = %{x}<br>t(n) = %{y:.2f}<extra></extra>",
        ),
        go.Scatter(
            x=sizes,
            y=measured,
            mode="markers",
            name="measured, median",
            error_y=_spread(profile, unit),
            marker={"color": RUST, "size": 8},
            customdata=1000 * profile.verify_sec,
            hovertemplate="n = %{x}<br>%{customdata:.2f} ms = %{y:.2f} × one token<extra></extra>",
        ),
        go.Scatter(
            x=dense,
            y=dense,
            mode="lines",
            name="t(n) = n: no parallel gain",
            hoverinfo="skip",
            line={"color": GREY, "width": 1, "dash": "dot"},
        ),
    ]
    if here is not None:
        time = float(profile.t(here))
        traces.append(
            go.Scatter(
                x=[here],
                y=[time],
                mode="markers",
                name=f"best shape, t({here}) = {time:.2f}",
                hoverinfo="skip",
                marker={"color": BLUE, "size": 13, "symbol": "diamond", "line": {"width": 1, "color": GREY}},
            )
        )
    figure = _figure(*traces, x="tokens in one target pass n (log scale)", y="t(n), in passes of one token", height=460)
    figure.update_xaxes(**_log2_ticks(int(dense[-1])))
    top = float(max(measured.max(), profile.t(dense).max()))
    figure.update_yaxes(range=[0, 1.15 * top])
    return figure


def _spread(profile: HardwareProfile, unit: float) -> dict | None:
    """Error bars from the fastest to the slowest repeat, where the profile kept its raw samples."""
    samples = profile.verify_samples
    if len(samples) != len(profile.sizes) or not all(samples):
        return None
    middle = profile.verify_sec
    low, high = np.array([min(row) for row in samples]), np.array([max(row) for row in samples])
    return {
        "type": "data",
        "array": np.maximum(high - middle, 0) / unit,
        "arrayminus": np.maximum(middle - low, 0) / unit,
        "color": GREY,
        "thickness": 1.2,
        "width": 3,
    }


def _grid(surface: SpeedupSurface) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sizes [N-1], depths [D] and the two tables transposed to rows of depth, without n < 2 and d < 1."""
    sizes, depths = np.arange(2, surface.speedup.shape[0]), np.arange(1, surface.speedup.shape[1])
    tokens = np.where(np.isfinite(surface.expected_tokens), surface.expected_tokens, np.nan)
    return sizes, depths, surface.speedup[2:, 1:].T, tokens[2:, 1:].T


def speedup_heatmap(surface: SpeedupSurface, best: BestShape, *, here: tuple[int, int] | None = None) -> go.Figure:
    """Draw predicted speedup over (n, d), the best shape starred, the break-even line drawn where there is one.

    Args:
        here: (n, d) of the tree in use, ringed.
    """
    sizes, depths, speedup, tokens = _grid(surface)
    heat = go.Heatmap(
        x=sizes,
        y=depths,
        z=speedup,
        customdata=tokens,
        colorscale=SCALE,
        hoverongaps=False,
        colorbar={"title": {"text": "speedup"}, "ticksuffix": "×", "thickness": 10, "len": 0.9},
        hovertemplate="n = %{x}, d = %{y}<br>%{z:.2f}× predicted<br>%{customdata:.2f} tokens per step<extra></extra>",
    )
    even, key = None, None
    if np.nanmin(speedup) < 1.0 < np.nanmax(speedup):
        even = go.Contour(
            x=sizes,
            y=depths,
            z=speedup,
            showscale=False,
            hoverinfo="skip",
            showlegend=False,
            contours={"start": 1.0, "end": 1.0, "size": 1.0, "coloring": "none"},
            line={"color": "#FFFFFF", "width": 1.5},
        )
        # the line itself is white to read on the colours, which a legend on paper cannot show
        key = go.Scatter(
            x=[None], y=[None], mode="lines", name="white line: break-even, 1×", line={"color": FAINT, "width": 1.5}
        )
    figure = _figure(heat, even, key, x="tree size n (log scale)", y="depth d = draft passes per step", height=420)
    inside = here is not None and here[0] <= surface.max_size and here[1] <= surface.max_depth
    if inside and here != (best.size, best.depth):
        figure.add_trace(_mark(here, "circle-open", "tree in use"))
    figure.add_trace(
        _mark(
            (best.size, best.depth),
            "star",
            "best: no speculation" if best.size < 2 else f"best: n = {best.size}, d = {best.depth}",
        )
    )
    figure.update_xaxes(**_log2_ticks(int(sizes[-1])), showgrid=False)
    figure.update_yaxes(dtick=max(1, len(depths) // 12), showgrid=False)
    return figure


def _mark(at: tuple[int, int], symbol: str, name: str) -> go.Scatter:
    # red-orange with a white rim is the one mark that no Viridis colour hides
    return go.Scatter(
        x=[at[0]],
        y=[at[1]],
        mode="markers",
        name=name,
        hoverinfo="skip",
        marker={"symbol": symbol, "size": 17, "color": "#E5482D", "line": {"color": "#FFFFFF", "width": 1.5}},
    )


def speedup_surface_3d(surface: SpeedupSurface, best: BestShape) -> go.Figure:
    """Draw the same table as a surface to turn around; needs WebGL in the browser."""
    sizes, depths, speedup, tokens = _grid(surface)
    hill = go.Surface(
        x=np.log2(sizes),
        y=depths,
        z=speedup,
        customdata=np.broadcast_to(sizes, speedup.shape),
        colorscale=SCALE,
        colorbar={"title": {"text": "speedup"}, "ticksuffix": "×", "thickness": 10, "len": 0.7},
        hovertemplate="n = %{customdata}, d = %{y}<br>%{z:.2f}× predicted<extra></extra>",
    )
    peak = go.Scatter3d(
        x=[np.log2(best.size)],
        y=[best.depth],
        z=[best.predicted_speedup],
        mode="markers",
        showlegend=True,
        name=f"best: n = {best.size}, d = {best.depth}",
        hoverinfo="skip",
        marker={"symbol": "diamond", "size": 7, "color": "#E5482D", "line": {"color": "#FFFFFF", "width": 1}},
    )
    figure = _figure(hill, peak, x="", y="", height=560)
    powers = list(range(1, int(np.log2(sizes[-1])) + 1))
    figure.update_scenes(
        xaxis={"title": {"text": "tree size n"}, "tickvals": powers, "ticktext": [str(2**k) for k in powers]},
        yaxis={"title": {"text": "depth d"}},
        zaxis={"title": {"text": "speedup"}, "ticksuffix": "×"},
        camera={"eye": {"x": -1.7, "y": -1.9, "z": 0.9}, "center": {"x": 0, "y": 0, "z": -0.15}},
        aspectmode="cube",
    )
    return figure
