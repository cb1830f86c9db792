"""The heat map of a sweep's cells: a row for each drafter, a column for each way of sampling and kind of text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import GREY, SCALE
from ui.charts.style import figure as new_figure
from ui.markdown import for_chart

GAP = "–"
BRIGHT = 0.45  # of the scale: colours above it take black text
MARK = "#E5482D"  # no colour of the scale hides it


def compare_figure(
    drafters: Sequence[str],
    columns: Sequence[tuple[str, str]],
    values: np.ndarray,
    texts: Sequence[Sequence[str]],
    *,
    title: str,
    chosen: tuple[int, int] | None = None,
    best: Sequence[tuple[int, int]] = (),
) -> go.Figure:
    """Draw a value for each cell, written in it; a gap where there is none.

    Clicking takes a cell: invisible points lie over the map, with row and column as `customdata`.

    Args:
        drafters: d of them.
        columns: c of them: the way of sampling, the kind of text.
        values: float64 [d, c], NaN where there is none.
        best: (row, column) of cells to frame beside the chosen one.
        texts: the values as they are written, d of c.
    """
    ways, kinds = zip(*[(for_chart(way), for_chart(kind)) for way, kind in columns], strict=True)
    names = [for_chart(name) for name in drafters]
    cells = [(row, column) for row in range(len(names)) for column in range(len(columns))]

    def over(places: Sequence[tuple[int, int]], **look: Any) -> go.Scatter:
        x = [[ways[column] for _, column in places], [kinds[column] for _, column in places]]
        return go.Scatter(x=x, y=[names[row] for row, _ in places], showlegend=False, **look)

    heat = go.Heatmap(
        x=[list(ways), list(kinds)],
        y=names,
        z=values,
        colorscale=SCALE,
        showscale=False,
        xgap=2,
        ygap=2,
        hoverinfo="skip",
    )
    known = values[~np.isnan(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    bright = values > low + BRIGHT * (high - low)
    colors = [GREY if np.isnan(values[cell]) else "#000000" if bright[cell] else "#FFFFFF" for cell in cells]
    written = over(
        cells,
        mode="markers+text",
        marker={"size": float(np.clip(560 / len(columns), 14, 44)), "symbol": "square", "opacity": 0},
        text=[texts[row][column] for row, column in cells],
        textfont={"color": colors},
        customdata=cells,
        hovertext=[
            f"{names[row]}<br>{ways[column]}, {kinds[column]}<br>{title}: {texts[row][column]}" for row, column in cells
        ],
        hoverinfo="text",
    )
    figure = new_figure(
        heat,
        written,
        x="",
        y="",
        height=int(np.clip(130 + 44 * len(names), 300, 800)),
        xaxis={"showgrid": False, "showdividers": False, "range": [-0.5, len(columns) - 0.5]},
        yaxis={"type": "category", "range": [len(names) - 0.5, -0.5], "showgrid": False},
    )
    framed = [(place, {"color": GREY, "width": 2}) for place in best]
    framed += [] if chosen is None else [(chosen, {"color": MARK, "width": 3})]
    for (row, column), line in framed:
        frame = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
        figure.add_shape(type="rect", **frame, line=line)
    return figure
