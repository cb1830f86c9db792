"""Growth by decoding: its points are those of the trees they name, and stop where trees, context or patience do."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens_table
from sequoia_core.studies.measure_growth import (
    CHAINS,
    KINDS,
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
def test_a_draft_that_is_always_right_fills_every_chain(tiny_target):
    sure = AcceptanceVector(np.array([0.99, 0.001]))
    study = measure_growth(
        PROMPTS, pair_of(tiny_target, tiny_llama(1)), acceptance=sure, sizes=(4, 9, 18), depth=10, max_new_tokens=24
    )  # fmt: skip
    found = {(point.run.verifier, point.size): point.run.tokens_per_step.value for point in study.points}
    assert {kind for kind, _ in found} == set(KINDS)
    assert found[CHAINS, 4] == found[STATIC, 4] == 4.0 and found[CHAINS, 9] == 9.0
    assert found[CHAINS, 11] == 11.0 and found[SPECINFER_CHAINS, 17] == 9.0  # one of 10, 2 × 8
    assert found[SPECEXEC, 18] > found[SPECEXEC, 4] > 3.0
    by_kind = {(point.run.verifier, point.size): point.predicted for point in study.points}
    assert by_kind[STATIC, 18] == pytest.approx(expected_tokens_table(sure, max_size=18, max_depth=10)[18, 10])
    assert by_kind[CHAINS, 4] == pytest.approx(1 + 0.99 + 0.99**2 + 0.99**3)
    assert by_kind[SPECINFER_CHAINS, 9] is None and by_kind[SPECEXEC, 9] is None


def test_a_kind_that_stops_growing_has_no_further_points():
    one = AcceptanceVector(np.array([0.5]))
    found = list(growing_trees(one, (4, 16, 32), 5))
    assert [size for kind, size in found if kind == STATIC] == [4]  # one rank, five levels: six nodes at most
    assert [size for kind, size in found if kind == CHAINS] == [4, 6]
    assert [size for kind, size in found if kind == SPECINFER_CHAINS] == [4, 16, 31]  # 1 × 3, 3 × 5, 6 × 5
    assert [size for kind, size in found if kind == SPECEXEC] == [4, 16, 32]
    assert [size for kind, size in growing_trees(FALLING, (41,), 24) if kind == SPECINFER_CHAINS] == [41]


def test_sizes_are_checked_and_trees_are_no_deeper_than_there_is_room_for(tiny_target, tiny_draft):
    options = {"acceptance": FALLING, "max_new_tokens": 6}
    with pytest.raises(ValueError, match=r"found 3 prompts and sizes \[1\], expected"):
        measure_growth(PROMPTS, pair_of(tiny_target, tiny_draft), **options, sizes=[1])
    small = pair_of(tiny_llama(3, context=12), tiny_draft)
    assert measure_growth(PROMPTS, small, **options, sizes=[8]).settings["max_depth"] == 12 - 3 - 6
