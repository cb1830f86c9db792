"""Figures show the numbers of the core: counts, positions, units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from sequoia_core import AcceptanceVector, speedup_surface
from sequoia_core.planning.plan import best_shape
from tests.app.conftest import profile, vector
from ui.charts.acceptance import acceptance_figure, rejection_figure
from ui.machine.costs import draft_cost_figure, verify_time_figure
from ui.machine.surface import speedup_heatmap


def trace(figure: go.Figure, name: str):
    return next(trace for trace in figure.data if trace.name == name)


def test_acceptance_figure_shows_intervals_and_overlays() -> None:
    one = acceptance_figure({"a": vector()})
    assert one.data[0].error_y.array is not None
    assert list(one.data[0].y) == pytest.approx(vector().probs)
    two = acceptance_figure({"a": vector(), "b": AcceptanceVector(np.array([0.5, 0.0]))})
    assert [data.mode for data in two.data] == ["lines+markers"] * 2
    assert two.data[1].error_y.array is None and list(two.data[1].y) == [0.5, 0.0]


def test_the_current_of_several_vectors_is_emphasised() -> None:
    names = ["current", *(f"{'x' * 40}{number}" for number in range(5))]
    figure = acceptance_figure({name: vector(0.05 * rank) for rank, name in enumerate(names, 1)})
    current, *others = figure.data
    assert all(current.line.width > other.line.width and current.zorder > other.zorder for other in others)
    assert all(current.marker.size > other.marker.size for other in others)
    for look in ("line", "error_y"):
        assert len({getattr(trace, look).color for trace in figure.data}) == 6
    assert max(len(trace.name) for trace in others) == 36 < 40 and current.name == "current"
    alone = acceptance_figure({"current": vector()})
    assert figure.layout.height - alone.layout.height == 5 * 19
    assert rejection_figure({"a": vector(), "b": vector(0.3)}).layout.height == alone.layout.height + 19


def test_verify_times_are_relative_to_one_token() -> None:
    figure = verify_time_figure(profile(), here=8)
    points = trace(figure, "measured, median")
    assert points.y[0] == pytest.approx(1.0)
    assert trace(figure, "best shape, t(8) = 1.14").x == (8,)
    modelled = replace(profile(), meta={"modelled": True})
    figure = verify_time_figure(modelled, here=8)
    names = [t.name for t in figure.data]
    assert trace(figure, "modelled t(n)").line.dash == draft_cost_figure(modelled).data[0].line.dash == "dash"
    assert "measured, median" not in names


def test_heatmap_marks_the_optimum() -> None:
    surface = speedup_surface(vector(), profile(), max_depth=8)
    best = best_shape(surface)
    figure = speedup_heatmap(surface, best, here=(3, 2))
    heat = figure.data[0]
    assert heat.z.shape == (8, 63) and heat.z[best.depth - 1, best.size - 2] == pytest.approx(best.predicted_speedup)
    assert np.nanmax(heat.z) == pytest.approx(best.predicted_speedup)
    star = trace(figure, f"best: n = {best.size}, d = {best.depth}")
    assert (star.x[0], star.y[0]) == (best.size, best.depth) and trace(figure, "current tree").x == (3,)
