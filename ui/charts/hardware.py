"""Figures of pass times and of the speedup they predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BLUE, FAINT, GREEN, GREY, PLUM, RUST, SCALE, band, line, log2_ticks, points
from ui.charts.style import figure as new_figure
from ui.phrases import shape

BAND = "rgba(212, 98, 42, 0.20)"  # RUST, seen through
MARK = "#E5482D"  # with a white rim the one colour that no Viridis colour hides
NEAR = {"color": MARK, "width": 1.5, "dash": "dot"}
OVER_MAP = "n = %{{x}}, d = %{{y}}<br>{}× predicted<br>{} tokens per step<extra></extra>"

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile
    from sequoia_core.design.planning import BestShape, SpeedupSurface


def verify_time_figure(
    profile: HardwareProfile,
    *,
    here: int | None = None,
    idle: int | None = None,
    reading_ends: int | None = None,
    other: HardwareProfile | None = None,
) -> go.Figure:
    """Draw t(n), the time to verify n tokens over the time for one.

    Measured times have points and a band between their quartiles, modelled ones a dashed line.

    Args:
        here: a tree size to mark.
        idle: the tokens up to which a pass costs hardly more than one, to mark.
        reading_ends: the tokens up to which a pass waits for weights that stream, to mark, with their reading time.
        other: a second profile to draw beside the first.
    """
    dense = np.unique(np.round(np.geomspace(1, max(int(profile.max_size), 2), 120)).astype(int))
    traces = [*_spread(profile), *_curve(profile, BLUE, RUST, ""), _bound(profile)]
    if other is not None:
        traces += _curve(other, PLUM, PLUM, f", {other.device[:28]}, {other.dtype}")
    traces.append(line(dense, dense, "t(n) = n: no parallel gain", GREY, width=1, dash="dot"))
    shown = [profile] if other is None else [profile, other]
    top = 1.15 * max(float((p.verify_sec / p.smooth_verify_sec[0]).max()) for p in shown)
    if idle is not None:
        words = f"idle arithmetic ends at n = {idle}"
        traces.append(line([idle, idle], [0.0, top], words, FAINT, width=1.5, dash="dash"))
    traces += _reading(profile, reading_ends)
    if here is not None:
        time = float(profile.t(here))
        traces.append(points([here], [time], f"best shape, t({here}) = {time:.2f}", BLUE, size=13, symbol="diamond"))
    figure = new_figure(
        *traces, x="tokens in one target pass n (log scale)", y="t(n), in passes of one token", height=460
    )
    figure.update_xaxes(**log2_ticks(int(dense[-1])))
    figure.update_yaxes(range=[0, top])
    if profile.streaming is not None:  # flat for long and then steep: where it turns would not be seen
        figure.update_yaxes(
            type="log", range=[np.log10(0.5), np.log10(max(top, 2.0))], tickvals=[0.5, 1, 2, 5, 10, 20, 50, 100],
            title="t(n), in passes of one token (log scale)",
        )  # fmt: skip
    return figure


def _curve(profile: HardwareProfile, colour: str, measured: str, name: str) -> list[go.Scatter]:
    """t(n) of one profile: a smoothed line, and the points it was measured at."""
    unit = profile.smooth_verify_sec[0]  # seconds that t = 1 stands for
    dense = np.unique(np.round(np.geomspace(1, max(int(profile.max_size), 2), 120)).astype(int))
    kind, dash = ("modelled", "dash") if profile.modelled else ("smoothed", "solid")
    told = "n = %{x}<br>t(n) = %{y:.2f}"
    smooth = line(dense, profile.t(dense), f"{kind} t(n){name}", colour, width=2.5, dash=dash, hover=told)
    if profile.modelled:
        return [smooth]
    told, ms = "n = %{x}<br>%{customdata:.2f} ms = %{y:.2f} × one token", 1000 * profile.verify_sec
    times = profile.verify_sec / unit
    return [smooth, points(profile.sizes, times, f"measured, median{name}", measured, hover=told, customdata=ms)]


def _spread(profile: HardwareProfile) -> list[go.Scatter]:
    """A band between the quartiles of the samples, where the profile kept them."""
    quartiles = profile.quartiles
    if quartiles is None:
        return []
    low, high = (part / profile.smooth_verify_sec[0] for part in quartiles)
    return [band(profile.sizes, low, high, "middle half of the samples", fillcolor=BAND)]


def _bound(profile: HardwareProfile) -> go.Scatter | None:
    """What the device's bandwidth and arithmetic allow at best, where the profile says so."""
    bound = profile.meta.get("bound_sec")
    if not isinstance(bound, list) or len(bound) != len(profile.sizes):
        return None
    times = np.array(bound, dtype=np.float64) / profile.smooth_verify_sec[0]
    words, told = "bound: reading and computing at the device's peaks", "n = %{x}<br>at best %{y:.2f}"
    return line(profile.sizes, times, words, GREEN, width=1.5, dash="dot", hover=told)


def _reading(profile: HardwareProfile, ends: int | None) -> list[go.Scatter]:
    """How long the weights of a pass take to arrive, and where computing takes longer; nothing where none stream."""
    streaming = profile.streaming
    if streaming is None:
        return []
    level = streaming.pass_sec / profile.smooth_verify_sec[0]
    sec = streaming.pass_sec
    words = "weights arrive in " + (f"{sec:.3g} s" if sec >= 1 else f"{1000 * sec:.3g} ms")
    read = line([1, profile.max_size], [level, level], words, PLUM, dash="dash")
    if ends is None or ends == profile.max_size:
        return [read]
    return [read, points([ends], [level], f"from n = {ends} on computing takes longer", PLUM, size=13, symbol="x")]


def draft_cost_figure(profile: HardwareProfile, *, other: HardwareProfile | None = None) -> go.Figure:
    """Draw c(w), a draft pass over w tokens over a target pass over one token."""
    traces = []
    for shown, colour in ((profile, RUST), (other, PLUM)):
        if shown is None:
            continue
        widths = shown.draft_widths if len(shown.draft_widths) else np.array([1])
        name = "c(w)" if shown is profile else f"{shown.device[:28]}, {shown.dtype}"
        dash = "dash" if shown.modelled else "solid"
        told = "%{x} tokens<br>c = %{y:.3f}"
        cost = line(
            widths, shown.draft_cost(widths), name, colour, width=2.5, dash=dash, hover=told, mode="lines+markers"
        )
        traces.append(cost)
    figure = new_figure(*traces, x="tokens in one draft pass w (log scale)", y="c(w), in target passes", height=260)
    figure.update_xaxes(**log2_ticks(int(max(trace.x[-1] for trace in traces))))
    figure.update_yaxes(rangemode="tozero")
    return figure


def _grid(surface: SpeedupSurface) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sizes [N-1], depths [D] and the two tables transposed to rows of depth, without n < 2 and d < 1."""
    sizes, depths = np.arange(2, surface.speedup.shape[0]), np.arange(1, surface.speedup.shape[1])
    tokens = np.where(np.isfinite(surface.expected_tokens), surface.expected_tokens, np.nan)
    return sizes, depths, surface.speedup[2:, 1:].T, tokens[2:, 1:].T


def speedup_heatmap(
    surface: SpeedupSurface, best: BestShape, *, here: tuple[int, int] | None = None, good: float = 0.98
) -> go.Figure:
    """Draw predicted speedup over (n, d), the best shape starred, lines at break-even and around what is nearly best.

    Clicking takes a shape: invisible points lie over the map; their `customdata` begins with n and d.

    Args:
        here: (n, d) of the tree in use, ringed.
        good: share of the best speedup from which a shape counts as nearly best.
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
        hovertemplate=OVER_MAP.format("%{z:.2f}", "%{customdata:.2f}"),
    )
    best_there = np.nanmax(speedup)
    near = _outline(sizes, depths, speedup, good * best_there, NEAR)
    lines = [
        near,
        go.Scatter(x=[None], y=[None], mode="lines", name=f"dotted: within {1 - good:.0%} of the best", line=NEAR),
    ]
    if np.nanmin(speedup) < 1.0 < best_there:
        # the line itself is white to read on the colours, which a legend on paper cannot show
        key = {"color": FAINT, "width": 1.5}
        lines = [
            _outline(sizes, depths, speedup, 1.0, {"color": "#FFFFFF", "width": 1.5}),
            go.Scatter(x=[None], y=[None], mode="lines", name="white line: break-even, 1×", line=key),
            *lines,
        ]
    figure = new_figure(
        heat, *lines, _targets(sizes, depths, speedup, tokens), x="tree size n (log scale)",
        y="depth d = draft passes per step", height=420,
    )  # fmt: skip
    if here in (None, (best.size, best.depth)):
        here = None
    if here is not None and here[0] <= surface.max_size and here[1] <= surface.max_depth:
        figure.add_trace(_mark(here, "circle-open", "tree in use"))
    figure.add_trace(
        _mark(
            (best.size, best.depth),
            "star",
            "best: no speculation" if best.size < 2 else f"best: {shape(best.size, best.depth)}",
        )
    )
    figure.update_xaxes(**log2_ticks(int(sizes[-1])), showgrid=False)
    figure.update_yaxes(dtick=max(1, len(depths) // 12), showgrid=False)
    return figure


def _outline(sizes: np.ndarray, depths: np.ndarray, speedup: np.ndarray, level: float, line: dict) -> go.Contour:
    """One line over the map where the speedup is `level`."""
    return go.Contour(
        x=sizes,
        y=depths,
        z=speedup,
        showscale=False,
        hoverinfo="skip",
        showlegend=False,
        contours={"start": level, "end": level, "size": 1.0, "coloring": "none"},
        line=line,
    )


def _targets(sizes: np.ndarray, depths: np.ndarray, speedup: np.ndarray, tokens: np.ndarray) -> go.Scatter:
    """Return invisible, small points to click at: a heat map cannot be selected from."""
    wanted = np.unique(np.concatenate([np.arange(2, 33), np.geomspace(32, sizes[-1], 24).round()]).astype(int))
    columns = np.flatnonzero(np.isin(sizes, wanted))
    rows, places = np.nonzero(np.isfinite(speedup[:, columns]))
    x, y = sizes[columns][places], depths[rows]
    told = zip(x.tolist(), y.tolist(), speedup[rows, columns[places]], tokens[rows, columns[places]], strict=True)
    return go.Scatter(
        x=x, y=y, customdata=[list(row) for row in told], mode="markers", showlegend=False,
        hovertemplate=OVER_MAP.format("%{customdata[2]:.2f}", "%{customdata[3]:.2f}"),
        marker={"size": 1, "opacity": 0.0}, selected={"marker": {"opacity": 0.0}},
        unselected={"marker": {"opacity": 0.0}},
    )  # fmt: skip


def _mark(at: tuple[int, int], symbol: str, name: str) -> go.Scatter:
    marker = {"symbol": symbol, "size": 17, "color": MARK, "line": {"color": "#FFFFFF", "width": 1.5}}
    return points([at[0]], [at[1]], name, MARK, marker=marker)


def speedup_surface_3d(surface: SpeedupSurface, best: BestShape) -> go.Figure:
    """Draw the same table as a surface to turn around; needs WebGL in the browser."""
    sizes, depths, speedup, _ = _grid(surface)
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
        name=f"best: {shape(best.size, best.depth)}",
        hoverinfo="skip",
        marker={"symbol": "diamond", "size": 7, "color": MARK, "line": {"color": "#FFFFFF", "width": 1}},
    )
    figure = new_figure(hill, peak, x="", y="", height=560)
    powers = list(range(1, int(np.log2(sizes[-1])) + 1))
    figure.update_scenes(
        xaxis={"title": {"text": "tree size n"}, "tickvals": powers, "ticktext": [str(2**k) for k in powers]},
        yaxis={"title": {"text": "depth d"}},
        zaxis={"title": {"text": "speedup"}, "ticksuffix": "×"},
        camera={"eye": {"x": -1.7, "y": -1.9, "z": 0.9}, "center": {"x": 0, "y": 0, "z": -0.15}},
        aspectmode="cube",
    )
    return figure
