"""The figure of runs in time. s = steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from ui.charts.style import figure as new_figure


def runs_figure(runs: Sequence[Sequence[dict[str, Any]]], names: Sequence[str]) -> go.Figure:
    """Draw the tokens that each run has committed over the seconds of its steps.

    Args:
        runs: step records of each run [s].
        names: one for each run.
    """
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
