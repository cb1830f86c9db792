"""Shared style of all figures: colours suitable for colour-blind users, axes, frame and traces."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sequoia_core.acceptance.bootstrap import Estimate

SERIES = ("#2F84C4", "#D4622A", "#159070", "#B3679F", "#B0841C", "#7D8781")
BLUE, RUST, GREEN, PLUM, OCHRE, GREY = SERIES
FAINT = "rgba(125, 135, 129, 0.45)"  # colour of edges and guides, visible in both themes
SCALE = "Viridis"
COLOUR_BAR = {"title": {"text": "speedup"}, "ticksuffix": "×", "thickness": 10, "len": 0.9}
MARK = "#E5482D"  # colour that stands out from all Viridis colours


def new_figure(
    *traces: object,
    x: str,
    y: str,
    height: int = 380,
    xaxis: dict | None = None,
    yaxis: dict | None = None,
    **more: Any,
) -> go.Figure:
    """Return a figure of traces in the app's style.

    The layout is passed as a whole, because Plotly then validates it once; each later update would take milliseconds.

    Args:
        x, y: axis titles.
        height: height in pixels.
        xaxis, yaxis: further axis options.
        more: further layout options.
    """
    axis = {"zeroline": False, "automargin": True}
    return go.Figure(
        data=traces,
        layout={
            "height": height,
            "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": SERIES,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "hoverlabel": {"align": "left"},
            "xaxis": {"title": {"text": x}, **axis, **(xaxis or {})},
            "yaxis": {"title": {"text": y}, **axis, **(yaxis or {})},
            **more,
        },
    )


def line_trace(
    x: Any, y: Any, name: str, colour: str, *, width: float = 2, dash: str = "solid", hover: str = "", **more: Any
) -> go.Scatter:
    """Return a line; `more` is passed to the trace, for example a `mode` with markers."""
    look = {"mode": "lines", "line": {"color": colour, "width": width, "dash": dash}}
    return go.Scatter(x=x, y=y, name=name, **(look | _hover_options(hover) | more))


def marker_trace(
    x: Any, y: Any, name: str, colour: str, *, size: float = 9, symbol: Any = "circle", hover: str = "", **more: Any
) -> go.Scatter:
    """Return markers; large ones, which highlight single points, have a border."""
    border = {"width": 1.5, "color": "#FFFFFF"} if size > 12 else None
    look = {"mode": "markers", "marker": {"color": colour, "size": size, "symbol": symbol, "line": border}}
    return go.Scatter(x=x, y=y, name=name, **(look | _hover_options(hover) | more))


def _hover_options(hover: str) -> dict[str, str]:
    return {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}


def band_trace(x: Any, low: Any, high: Any, name: str = "", **more: Any) -> go.Scatter:
    """Return the filled area between two curves; `more` is passed to the trace, for example `fillcolor`."""
    around = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([high, low[::-1]]), "fill": "toself"}
    look = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": bool(name)}
    return go.Scatter(name=name, **around, **look, **more)


def heat_map(x: Any, y: Any, z: Any, **more: Any) -> go.Heatmap:
    """Return a heat map with gaps between cells and without a colour bar; `more` is passed to the trace."""
    return go.Heatmap(x=x, y=y, z=z, **({"colorscale": SCALE, "showscale": False, "xgap": 2, "ygap": 2} | more))


def estimate_traces(
    estimates: Mapping[int, Estimate], best: int, name: str, colour: str, *, dash: str, hover: str, **more: Any
) -> list[go.Scatter]:
    """Return a line of estimates over x, with their intervals as a band; a diamond marks the best x."""
    known = [(x, each.low, each.high) for x, each in estimates.items() if each.low is not None]
    traces = []
    if known:
        x, low, high = map(np.array, zip(*known, strict=True))
        traces.append(band_trace(x, low, high, fillcolor=colour, opacity=0.2))
    marker = {
        "symbol": ["diamond" if x == best else "circle" for x in estimates],
        "size": [14 if x == best else 6 for x in estimates],
    }
    values = [each.value for each in estimates.values()]
    more |= {"mode": "lines+markers", "marker": marker}
    return [*traces, line_trace(list(estimates), values, name, colour, width=3, dash=dash, hover=hover, **more)]


def error_bars(middle: Any, low: Any, high: Any, **look: Any) -> dict[str, Any] | None:
    """Return error bars from bounds, float64 [k]; None if no bound is known."""
    middle, low, high = (np.array(part, dtype=float) for part in (middle, low, high))
    if np.isnan(low).all():
        return None
    spread = {"array": np.maximum(high - middle, 0.0), "arrayminus": np.maximum(middle - low, 0.0)}
    return {"type": "data", **spread, "thickness": 1.2, "width": 3, **look}


def log2_ticks(largest: int) -> dict:
    """Return options for a logarithmic axis with ticks at powers of two."""
    values = [2**k for k in range(int(largest).bit_length())]
    return {
        "type": "log",
        "range": [np.log10(0.9), np.log10(1.12 * max(largest, 2))],
        "tickvals": values,
        "ticktext": values,
        "minor": {"showgrid": False},
    }
