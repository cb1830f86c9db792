"""Growth curves agree with the trees they describe."""

import numpy as np
import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.trees.optimal import expected_tokens, expected_tokens_table
from sequoia_core.trees.plain import best_chains, independent_chains
from sequoia_extras.evaluation.growth import growth_curves

FALLING = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
UNEVEN = AcceptanceVector(np.array([0.4, 0.05, 0.3]))
TABLE = expected_tokens_table(FALLING, max_size=64, max_depth=8)


def test_no_chains_exceed_the_best_tree():
    curves = growth_curves(FALLING, TABLE, depth=4)
    sizes, best = curves["best tree, d ≤ 4"]
    np.testing.assert_array_equal(best, TABLE[sizes, 4])
    for name in ("k chains, d ≤ 4", "one chain"):
        at, tokens = curves[name]
        assert (np.diff(at) > 0).all() and at[-1] <= 64
        assert (tokens <= TABLE[at, 4] + 1e-9).all(), name
    assert curves["one chain"][1][-1] == pytest.approx(sum(0.6**k for k in range(5)))


@pytest.mark.parametrize("vector", [FALLING, UNEVEN, AcceptanceVector(np.array([1.0]))])
def test_the_best_chains_match_enumeration(vector):
    for size, depth in ((1, 4), (2, 4), (9, 8), (20, 3), (64, 8)):
        shapes = [(k, length) for k in range(1, 4) for length in range(depth + 1) if k * length < size]
        best = max(expected_tokens(independent_chains(*shape), vector) for shape in shapes)
        found = best_chains(vector, size=size, depth=depth)
        assert found.size <= size and expected_tokens(found, vector) == pytest.approx(best)
