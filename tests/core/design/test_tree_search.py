"""The two searches by themselves: however levels are grouped, whatever the rows, the tables are the recurrence's."""

import numpy as np
import pytest

from sequoia_core.design import tree_search as search
from sequoia_core.design.tree_search import best_first, dynamic_program, rebuild


def recurrence(rows: np.ndarray, max_size: int) -> list[np.ndarray]:
    """T[l][m, b] one number at a time, as Algorithm 1 states it."""
    below, tables = {1: 1.0}, []
    for probs in rows:
        table = np.full((max_size + 1, len(probs) + 1), -np.inf)
        table[1, 0] = 1.0
        for b, p in enumerate(probs, start=1):
            for m in range(2, max_size + 1):
                values = [table[y, b - 1] + p * below[m - y] for y in range(1, m) if m - y in below]
                table[m, b] = max(values, default=-np.inf)
        tables.append(table)
        best = table.max(axis=1)
        below = {m: best[m] for m in range(1, max_size + 1) if best[m] > -np.inf}
    return tables


def rows(levels: int, ranks: int, *, zeros: bool) -> np.ndarray:
    found = np.random.default_rng(levels).dirichlet(np.full(ranks + 1, 0.5), size=levels)[:, :ranks]
    if zeros:
        found[::2, 1] = 0.0
    return found


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("cells", [1, 150, 10**6])  # one level at a time, a few, all at once
def test_tables_do_not_depend_on_how_levels_are_grouped(cells, zeros, monkeypatch):
    monkeypatch.setattr(search, "CACHE_CELLS", cells)
    probs = rows(6, 4, zeros=zeros)
    for ours, plain in zip(dynamic_program(probs, 14), recurrence(probs, 14), strict=True):
        assert np.array_equal(np.isneginf(ours), np.isneginf(plain))
        possible = np.isfinite(plain)
        np.testing.assert_allclose(ours[possible], plain[possible], atol=1e-14)


def test_a_rebuilt_tree_is_worth_what_its_table_says():
    probs = rows(5, 3, zeros=True)
    tables = list(dynamic_program(probs, 20))
    for size in range(2, 21):
        parents, ranks = rebuild(probs, tables, size)
        depths, scores = [0], [1.0]
        for parent, rank in zip(parents[1:], ranks[1:], strict=True):
            depths.append(depths[parent] + 1)
            scores.append(scores[parent] * probs[len(probs) - depths[-1], rank - 1])
        assert len(parents) == size and sum(scores) == pytest.approx(tables[-1][size].max(), abs=1e-12)


def test_best_first_takes_nodes_in_falling_order_when_ranks_never_increase():
    probs = -np.sort(-rows(4, 3, zeros=False), axis=1)
    parents, ranks, scores, depths = best_first(probs, 30)
    assert np.all(np.diff(scores) <= 1e-15) and len(parents) == len(ranks) == 30
    assert np.array_equal(depths[1:], depths[parents[1:]] + 1)
    assert best_first(probs[:1], 30).parents.tolist() == [-1, 0, 0, 0]  # one level of three ranks


def test_the_limit_of_work_is_kept_as_it_is_reached(monkeypatch):
    monkeypatch.setattr(search, "CACHE_CELLS", 1)
    monkeypatch.setattr(search, "MAX_STEPS", 3 * 10**2 * 4)
    program = dynamic_program(rows(6, 4, zeros=False), 10)
    assert len([next(program) for _ in range(3)]) == 3
    with pytest.raises(ValueError, match="expected fewer"):
        next(program)
