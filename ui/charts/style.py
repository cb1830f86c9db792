"""What every figure shares: colours (told apart with a colour-vision deficiency), axes, frame."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

SERIES = ("#2F84C4", "#D4622A", "#159070", "#B3679F", "#B0841C", "#7D8781")
BLUE, RUST, GREEN, PLUM, OCHRE, GREY = SERIES
BROWN = "#8A5A44"
FAINT = "rgba(125, 135, 129, 0.45)"  # edges, guides: visible on both themes
SCALE = "Viridis"


def figure(
    *traces: object, x: str, y: str, height: int = 380, xaxis: dict | None = None, yaxis: dict | None = None
) -> go.Figure:
    """Draw traces, None left out, in the app's frame, `height` pixels high.

    The layout is handed over whole: plotly checks it once, where each later update would cost milliseconds.

    Args:
        x, y: titles of the axes.
        xaxis, yaxis: further options of the axes.
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
        },
    )


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
