"""Growth by decoding: points agree with their trees and stop where the trees or the context do."""

import numpy as np
import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.trees.optimal import expected_tokens_table
from sequoia_extras.evaluation.measure_growth import (
    CHAINS,
    GROWTH_KINDS,
    SPECEXEC,
    SPECINFER_CHAINS,
    STATIC,
    growing_trees,
    measure_growth,
)
from tests.conftest import pair_of, tiny_llama

PROMPTS = [[1, 2, 3], [9], [4, 8, 15]]
FALLING = AcceptanceVector(np.array([0.6, 0.2, 0.1]))


@pytest.mark.slow
def test_a_perfect_draft_fills_every_chain(tiny_target):
    pytest.importorskip("sequoia_extras.dynamic_trees")
    vector = AcceptanceVector(np.array([0.99, 0.001]))
    study = measure_growth(
        PROMPTS, pair_of(tiny_target, tiny_llama(1)), acceptance=vector, sizes=(4, 9, 18), depth=10, max_new_tokens=24
    )
    found = {(point.run.verifier, point.size): point.run.tokens_per_step.value for point in study.points}
    assert {kind for kind, _ in found} == set(GROWTH_KINDS)
    assert found[CHAINS, 4] == found[STATIC, 4] == 4.0 and found[CHAINS, 9] == 9.0
    assert found[CHAINS, 11] == 11.0 and found[SPECINFER_CHAINS, 17] == 9.0  # one of 10, 2 × 8
    assert found[SPECEXEC, 18] > found[SPECEXEC, 4] > 3.0
    by_kind = {(point.run.verifier, point.size): point.predicted for point in study.points}
    assert by_kind[STATIC, 18] == pytest.approx(expected_tokens_table(vector, max_size=18, max_depth=10)[18, 10])
    assert by_kind[CHAINS, 4] == pytest.approx(1 + 0.99 + 0.99**2 + 0.99**3)
    assert by_kind[SPECINFER_CHAINS, 9] is None and by_kind[SPECEXEC, 9] is None


def test_a_kind_of_tree_that_stops_growing_has_no_further_points(monkeypatch):
    one = AcceptanceVector(np.array([0.5]))
    found = list(growing_trees(one, (4, 16, 32), 5))
    assert [size for kind, size in found if kind == STATIC] == [4]  # one rank, five levels: six nodes at most
    assert [size for kind, size in found if kind == CHAINS] == [4, 6]
    assert [size for kind, size in found if kind == SPECINFER_CHAINS] == [4, 16, 31]  # 1 × 3, 3 × 5, 6 × 5
    assert [size for kind, size in found if kind == SPECEXEC] == [4, 16, 32] * (SPECEXEC in TREE_KINDS)
    monkeypatch.setattr("sequoia_extras.evaluation.measure_growth.TREE_KINDS", {})
    assert set(growing_trees(FALLING, (41,), 24)) == {(STATIC, 41), (CHAINS, 40), (SPECINFER_CHAINS, 41)}


def test_sizes_are_checked_and_depth_is_limited_by_the_context(tiny_target, tiny_draft):
    options = {"acceptance": FALLING, "max_new_tokens": 6}
    with pytest.raises(ValueError, match=r"found 3 prompts and sizes \[1\], expected"):
        measure_growth(PROMPTS, pair_of(tiny_target, tiny_draft), **options, sizes=[1])
    small = pair_of(tiny_llama(3, context=12), tiny_draft)
    assert measure_growth(PROMPTS, small, **options, sizes=[8]).settings["max_depth"] == 12 - 3 - 6
