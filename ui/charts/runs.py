"""Figures of runs: tokens in time, and how large the trees were. s = steps."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BLUE
from ui.charts.style import figure as new_figure


def runs_figure(runs: Sequence[Sequence[dict[str, Any]]], names: Sequence[str]) -> go.Figure:
    """Draw the tokens that each run has committed over the seconds of its steps, step records [s]."""
    return new_figure(
        *(
            go.Scatter(
                x=[0.0, *accumulate(sum(step["seconds"]) for step in steps)],
                y=[0, *accumulate(len(step["pieces"]) for step in steps)],
                name=name,
                mode="lines",
                line={"shape": "hv", "width": 2},
                hovertemplate=f"{name}: %{{y}} tokens after %{{x:.3f}} s<extra></extra>",
            )
            for steps, name in zip(runs, names, strict=True)
        ),
        x="seconds of steps",
        y="tokens committed",
        height=320,
    )


def sizes_figure(sizes: np.ndarray, steps: np.ndarray) -> go.Figure:
    """Draw how many steps had a tree of each size, both int64 [k]."""
    bars = go.Bar(
        x=sizes.tolist(),
        y=steps.tolist(),
        marker={"color": BLUE},
        hovertemplate="%{y} steps with %{x} nodes<extra></extra>",
    )
    return new_figure(bars, x="nodes of a step's tree, n", y="steps", height=240)
