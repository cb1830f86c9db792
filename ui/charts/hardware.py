"""Figures of pass times and of the speedup they predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BLUE, FAINT, GREY, RUST, SCALE, log2_ticks
from ui.charts.style import figure as new_figure

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile, SpeedupSurface
    from sequoia_core.design.planning import BestShape


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
    figure = new_figure(
        *traces, x="tokens in one target pass n (log scale)", y="t(n), in passes of one token", height=460
    )
    figure.update_xaxes(**log2_ticks(int(dense[-1])))
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
    figure = new_figure(heat, even, key, x="tree size n (log scale)", y="depth d = draft passes per step", height=420)
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
    figure.update_xaxes(**log2_ticks(int(sizes[-1])), showgrid=False)
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
