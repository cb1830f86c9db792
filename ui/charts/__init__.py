"""Plotly figures of the app's results: plain functions, no streamlit, nothing computed that the core computes."""

from ui.charts.acceptance import acceptance_figure, depth_figure, depth_worth_figure, rejection_figure
from ui.charts.compare import compare_figure
from ui.charts.growth import growth_figure
from ui.charts.hardware import draft_cost_figure, speedup_heatmap, speedup_surface_3d, verify_time_figure
from ui.charts.marginal_costs import marginal_cost_figure
from ui.charts.regret import regret_figure
from ui.charts.replay import replay_figure
from ui.charts.runs import runs_figure, sizes_figure
from ui.charts.server import speed_figure, survival_figure
from ui.charts.tree import comparison_figure, tree_figure, tree_thumbnail

__all__ = [
    "acceptance_figure",
    "compare_figure",
    "comparison_figure",
    "depth_figure",
    "depth_worth_figure",
    "growth_figure",
    "marginal_cost_figure",
    "regret_figure",
    "rejection_figure",
    "replay_figure",
    "runs_figure",
    "sizes_figure",
    "speed_figure",
    "speedup_heatmap",
    "draft_cost_figure",
    "speedup_surface_3d",
    "survival_figure",
    "tree_figure",
    "tree_thumbnail",
    "verify_time_figure",
]
