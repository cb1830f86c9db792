"""The figure of what trees lose where another vector holds. m = vectors."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import figure as new_figure
from ui.markdown import for_chart


def regret_figure(names: Sequence[str], regret: np.ndarray) -> go.Figure:
    """Draw the tokens lost, float64 [m, m], when the tree designed for a row is used where a column's vector holds."""
    names = [for_chart(name) for name in names]
    return new_figure(
        go.Heatmap(
            x=names,
            y=names,
            z=regret,
            text=[[f"{value:.3f}" for value in row] for row in regret],
            texttemplate="%{text}",
            colorscale=[[0.0, "#F2EFE6"], [0.5, "#E39A5C"], [1.0, "#9C3B1B"]],
            zmin=0.0,
            zmax=max(float(regret.max()), 0.01),
            xgap=2,
            ygap=2,
            colorbar={"title": {"text": "tokens lost"}, "thickness": 10, "len": 0.9},
            hovertemplate="tree for %{y}<br>used under %{x}<br>loses %{z:.4f} tokens per step<extra></extra>",
        ),
        x="the vector that holds",
        y="the vector the tree was designed for",
        height=int(np.clip(160 + 56 * len(names), 280, 720)),
        xaxis={"type": "category", "showgrid": False},  # else plotly takes a name such as "1" or "2024" for a number
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )
