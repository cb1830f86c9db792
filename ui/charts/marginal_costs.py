"""The figure of what one more node costs: what a dynamic tree weighs each node against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BLUE, RUST, log2_ticks
from ui.charts.style import figure as new_figure

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile


def marginal_cost_figure(profile: HardwareProfile, *, widest: int = 64) -> go.Figure:
    """Draw t(n + 1) - t(n), and what one more node adds to a draft pass over w, in target passes over one token."""
    sizes = np.arange(1, min(profile.max_size, widest))
    widths = sizes[sizes < (profile.draft_widths[-1] if len(profile.draft_widths) else 2)]
    lines = (
        ("verifying one more node", sizes, np.diff(profile.t(np.append(sizes, sizes[-1] + 1))), BLUE),
        (
            "drafting one more node in the same pass",
            widths,
            np.diff(profile.draft_cost(np.append(widths, widths[-1] + 1))),
            RUST,
        ),
    )
    return new_figure(
        *(
            go.Scatter(
                x=x, y=y, name=name, mode="lines", line={"color": colour, "width": 2, "shape": "hv"},
                hovertemplate=f"{name} beside %{{x}}: %{{y:.3f}}<extra></extra>",
            )
            for name, x, y, colour in lines
        ),
        x="nodes there are already (log scale)", y="target passes over one token", height=260,
        xaxis=log2_ticks(int(sizes[-1])), yaxis={"rangemode": "tozero"},
    )  # fmt: skip
