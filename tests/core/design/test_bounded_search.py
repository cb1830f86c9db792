"""Vectors too long to search for large trees are searched for smaller ones; what limits the best shape."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.break_even import step_limit
from sequoia_core.design.optimal_trees import best_value_within_reach, expected_tokens_table, table_within_reach
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.planning import BestShape, plan_tree, surface_within_reach
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.tree_search import REACH

UNEVEN = AcceptanceVector(np.tile([0.02, 0.03], 16))
PROFILE = HardwareProfile(np.array([1, 256, 1024]), np.array([1.0, 2.0, 6.0]), 0.1)


def test_what_can_be_searched_is_the_whole_table():
    found = table_within_reach(UNEVEN, max_size=40, max_depth=4)
    np.testing.assert_array_equal(found, expected_tokens_table(UNEVEN, max_size=40, max_depth=4))
    assert surface_within_reach(UNEVEN, PROFILE, max_size=40).max_size == 40


def test_what_is_too_much_ends_at_the_reach(monkeypatch):
    monkeypatch.setattr("sequoia_core.design.tree_search.MAX_STEPS", 100_000_000)
    table = table_within_reach(UNEVEN, max_size=1024, max_depth=16)
    assert np.isfinite(table[REACH, 16]) and np.isnan(table[REACH + 1 :]).all() and table.shape == (1025, 17)
    assert surface_within_reach(UNEVEN, PROFILE).max_size == REACH
    assert plan_tree(UNEVEN, PROFILE).size <= REACH


def test_what_is_not_even_in_reach_is_an_error(monkeypatch):
    monkeypatch.setattr("sequoia_core.design.tree_search.MAX_STEPS", 10)
    with pytest.raises(ValueError):
        table_within_reach(UNEVEN, max_size=REACH, max_depth=8)
    with pytest.raises(ValueError):
        surface_within_reach(UNEVEN, PROFILE, max_size=40)
    uneven_chain = chain_tree(40)
    assert best_value_within_reach(uneven_chain, UNEVEN) is None


@pytest.mark.parametrize(
    ("verify", "draft", "tokens", "limit"),
    [
        (1.0, 0.01, 1.02, "nothing pays"),
        (1.1, 0.01, 3.0, "acceptance"),
        (1.2, 0.5, 3.0, "drafting"),
        (2.0, 0.1, 3.0, "verifying"),
    ],
)
def test_the_larger_part_of_a_step_is_its_limit(verify, draft, tokens, limit):
    profile = HardwareProfile(np.array([1, 8]), np.array([1.0, verify]), draft)
    cost = verify + draft
    found = step_limit(BestShape(8, 1, tokens / cost, tokens), profile)
    assert found.limit == limit
    assert (found.total, found.verify, found.draft) == (
        pytest.approx(cost), pytest.approx(verify), pytest.approx(draft),
    )  # fmt: skip


def test_no_speculation_never_pays():
    assert step_limit(BestShape(1, 0, 1.0, 1.0), PROFILE).limit == "nothing pays"
