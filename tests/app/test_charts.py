"""Figures say what the core computed: counts, positions, units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from sequoia_core import AcceptanceVector, TokenTree, optimal_tree, speedup_surface
from sequoia_core.design.optimal_trees import node_scores
from sequoia_core.design.planning import best_shape
from tests.app.conftest import profile, vector
from ui import charts
from ui.exact import charts as exact_charts


def scored(tree: TokenTree, acceptance: AcceptanceVector | None = None):
    return tree.to_networkx(score=node_scores(tree, acceptance or vector()))


def trace(figure: go.Figure, name: str):
    return next(trace for trace in figure.data if trace.name == name)


def lines_of(figure: go.Figure, name: str) -> list[np.ndarray]:
    """Return the points of each edge, [p, 2], of the traces of that name."""
    found = []
    for each in figure.data:
        if each.name == name:
            points = np.column_stack([each.x, each.y]).astype(float)
            gaps = np.flatnonzero(np.isnan(points[:, 0]))
            found += [part[~np.isnan(part[:, 0])] for part in np.split(points, gaps)]
    return [line for line in found if len(line)]


@pytest.mark.parametrize("size", [20, 400])
def test_a_tree_is_drawn_from_left_to_right_with_rank_1_straight_on(size: int) -> None:
    tree = optimal_tree(vector(), size=size, depth=4)
    figure = charts.tree_figure(scored(tree))
    nodes, spine, edges = trace(figure, "nodes"), lines_of(figure, "rank 1"), lines_of(figure, "edges")
    assert len(nodes.x) == size and len(spine) == 4 and len(spine) + len(edges) == size - 1
    assert {each.type for each in figure.data} == {"scatter"}, "in WebGL edges of large trees vanish"
    assert list(nodes.x) == tree.depths.tolist()
    assert all((line[:, 1] == nodes.y[0]).all() for line in spine)
    places = {(x, y) for x, y in zip(nodes.x, nodes.y, strict=True)}
    ends = sorted((tuple(line[0]), tuple(line[-1])) for line in [*spine, *edges])
    links = [(tree.parents[node], node) for node in range(1, size)]
    assert ends == sorted(tuple((nodes.x[v], nodes.y[v]) for v in link) for link in links) and len(places) == size
    assert nodes.customdata[0][0] == "root" and nodes.customdata[-1][0].startswith("root → ")
    assert float(nodes.customdata[5][4]) == pytest.approx(node_scores(tree, vector())[5], rel=1e-2)


def test_acceptance_shows_intervals_and_overlays() -> None:
    one = charts.acceptance_figure({"a": vector()})
    assert isinstance(one.data[0], go.Bar) and one.data[0].error_y.array is not None
    assert list(one.data[0].y) == pytest.approx(vector().probs)
    two = charts.acceptance_figure({"a": vector(), "b": AcceptanceVector(np.array([0.5, 0.0]))}, log=True)
    assert [data.mode for data in two.data] == ["lines+markers"] * 2
    assert two.data[1].error_y.array is None and np.isnan(two.data[1].y[1])  # nothing at 0 on a log axis


def test_verify_times_are_in_passes_of_one_token() -> None:
    figure = charts.verify_time_figure(profile(), here=8)
    points = trace(figure, "measured, median")
    assert points.y[0] == pytest.approx(1.0)
    assert trace(figure, "best shape, t(8) = 1.14").x == (8,)
    modelled = replace(profile(), meta={"modelled": True, "bound_sec": [0.001] * len(profile().sizes)})
    figure = charts.verify_time_figure(modelled, other=profile())
    names = [t.name for t in figure.data]
    assert trace(figure, "modelled t(n)").line.dash == charts.draft_cost_figure(modelled).data[0].line.dash == "dash"
    assert "measured, median" not in names and sum(bool(n) and n.startswith("measured, median,") for n in names) == 1
    bound = next(t for t in figure.data if t.name and t.name.startswith("bound"))
    assert bound.y[0] == pytest.approx(0.001 / profile().smooth_verify_sec[0])


def test_the_heatmap_stars_the_optimum() -> None:
    surface = speedup_surface(vector(), profile(), max_depth=8)
    best = best_shape(surface)
    figure = charts.speedup_heatmap(surface, best, here=(3, 2))
    heat = figure.data[0]
    assert heat.z.shape == (8, 63) and heat.z[best.depth - 1, best.size - 2] == pytest.approx(best.predicted_speedup)
    assert np.nanmax(heat.z) == pytest.approx(best.predicted_speedup)
    star = trace(figure, f"best: n = {best.size}, d = {best.depth}")
    assert (star.x[0], star.y[0]) == (best.size, best.depth) and trace(figure, "tree in use").x == (3,)


def test_tokens_per_step_are_drawn_by_verifier_with_intervals_side_by_side() -> None:
    settings = {"top_p": 1.0, "tokens_per_step": 2.0}
    sure, unsure = (
        {"temperature": 1.0, "ci_low": 1.5, "ci_high": 2.5},
        {"temperature": 0.5, "ci_low": None, "ci_high": None},
    )
    rows = [{"verifier": name} | settings | at for name in ("topk", "sequoia") for at in (sure, unsure)]
    ours, theirs = exact_charts.tokens_figure(rows).data
    assert [ours.name, theirs.name] == ["Sequoia", "Top-k"] and ours.x[0] < 0.5 < theirs.x[0] < ours.x[1]
    assert np.isnan(ours.error_y.array[0]) and ours.error_y.array[1] == pytest.approx(0.5)


def test_what_was_not_seen_stays_empty() -> None:
    cells = [
        {"depth": 1, "rank": 1, "acceptance": 0.5, "offered": 10},
        {"depth": 2, "rank": 1, "acceptance": None, "offered": 0},
        {"depth": 1, "rank": 2, "acceptance": 0.1, "offered": 10},
    ]
    heat = exact_charts.level_acceptance_figure(cells).data[0]
    assert heat.z[0].tolist() == [0.5, 0.1] and np.isnan(heat.z[1]).all()
    assert heat.text[0][0] == "0.50<br>of 10" and heat.text[1][0] == ""
    bins = [
        {"draft_from": 0.0, "draft_to": 0.5, "offered": 8, "mean_draft": 0.2, "rate": 0.25}
        | {"ci_low": 0.1, "ci_high": 0.6},
        {"draft_from": 0.5, "draft_to": 1.0, "offered": 0, "mean_draft": None, "rate": None, "ci_low": 0, "ci_high": 1},
    ]
    points = trace(exact_charts.confidence_figure(bins), "measured")
    assert list(points.x) == [0.2] and points.error_y.array[0] == pytest.approx(0.35)
