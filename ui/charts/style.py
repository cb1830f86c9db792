"""What every figure shares: colours (told apart with a colour-vision deficiency), axes, frame."""

from typing import Any

import numpy as np
import plotly.graph_objects as go

SERIES = ("#2F84C4", "#D4622A", "#159070", "#B3679F", "#B0841C", "#7D8781")
BLUE, RUST, GREEN, PLUM, OCHRE, GREY = SERIES
BROWN = "#8A5A44"
FAINT = "rgba(125, 135, 129, 0.45)"  # edges, guides: visible on both themes
SCALE = "Viridis"


def figure(
    *traces: object,
    x: str,
    y: str,
    height: int = 380,
    xaxis: dict | None = None,
    yaxis: dict | None = None,
    **more: Any,
) -> go.Figure:
    """Draw traces, None left out, in the app's frame, `height` pixels high.

    The layout is handed over whole: plotly checks it once, where each later update would cost milliseconds.

    Args:
        x, y: titles of the axes.
        xaxis, yaxis: further options of the axes; `more` are further ones of the layout.
    """
    axis = {"zeroline": False, "automargin": True}
    return go.Figure(
        data=[trace for trace in traces if trace is not None],
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


def line(
    x: Any, y: Any, name: str, colour: str, *, width: float = 2, dash: str = "solid", hover: str = "", **more: Any
) -> go.Scatter:
    """Draw a line; `more` are options of the trace, of which `mode` may add points."""
    look = {"mode": "lines", "line": {"color": colour, "width": width, "dash": dash}}
    return go.Scatter(x=x, y=y, name=name, **(look | _told(hover) | more))


def points(
    x: Any, y: Any, name: str, colour: str, *, size: float = 9, symbol: Any = "circle", hover: str = "", **more: Any
) -> go.Scatter:
    """Draw points; large ones, which mark one place, have a border."""
    border = {"line": {"width": 1, "color": GREY}} if size > 12 else {}
    marker = {"color": colour, "size": size, "symbol": symbol} | border
    return go.Scatter(x=x, y=y, name=name, mode="markers", **({"marker": marker} | _told(hover) | more))


def _told(hover: str) -> dict[str, str]:
    return {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}


def band(x: Any, low: Any, high: Any, name: str = "", **more: Any) -> go.Scatter:
    """Fill what lies between two curves, in the colour that `more` says."""
    around = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([high, low[::-1]]), "fill": "toself"}
    look = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": bool(name)}
    return go.Scatter(name=name, **around, **look, **more)


def bars(middle: Any, low: Any, high: Any, **look: Any) -> dict[str, Any] | None:
    """Return error bars from bounds, float64 [k]; None where none is known."""
    middle, low, high = (np.array(part, dtype=float) for part in (middle, low, high))
    if np.isnan(low).all():
        return None
    spread = {"array": np.maximum(high - middle, 0.0), "arrayminus": np.maximum(middle - low, 0.0)}
    return {"type": "data", **spread, "thickness": 1.2, "width": 3, **look}


def log2_ticks(largest: int) -> dict:
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


def decades(low: float, high: float) -> list[float]:
    """Powers of ten that span [low, high], for a colour bar over logarithms."""
    return [float(e) for e in range(int(np.floor(low)), int(np.ceil(high)) + 1)]
