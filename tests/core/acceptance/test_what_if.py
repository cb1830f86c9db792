"""Smoothed, assumed and corrected vectors; the original never changes."""

import numpy as np
import pytest

from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.acceptance.what_if import PRIOR_NODES, corrected, edited, isotonic, power_law, power_law_tail, weaker
from sequoia_core.trees.optimal import is_monotone
from sequoia_core.trees.plain import chain_tree
from sequoia_core.trees.replay import count_ranks
from sequoia_core.trees.tree import TokenTree

NOISY = AcceptanceVector(
    np.array([0.5, 0.1, 0.12, 0.02, 0.03, 0.01, 0.0, 0.005]),
    prompt_sums=np.array([[0.5, 0.1, 0.12, 0.02, 0.03, 0.01, 0.0, 0.005]]) * 40,
    prompt_trials=np.array([40]),
    meta={"target": "big"},
    note="as read",
    holds_for=Conditions("big", "small", 0.0),
)


def test_isotonic_averages_rising_ranks():
    smooth = isotonic(NOISY)
    np.testing.assert_allclose(smooth.probs, [0.5, 0.11, 0.11, 0.025, 0.025, 0.01, 0.0025, 0.0025], atol=1e-12)
    assert is_monotone(smooth) and not is_monotone(NOISY)


def test_derived_vectors_have_a_note_and_no_sample():
    for vector, words, of_the_pair in (
        (isotonic(NOISY), "isotonic", True),  # the same measurement, smoothed
        (power_law_tail(NOISY, start=4), "power law", True),
        (weaker(NOISY, 0.5), "50%", False),
        (edited(NOISY, [0.4, 0.2]), "by hand", False),
    ):
        assert words in vector.note and vector.note.startswith("as read")
        assert vector.trials is None and vector.interval() is None and vector.meta["target"] == "big"
        assert vector.holds_for == (NOISY.holds_for if of_the_pair else None)
        assert AcceptanceVector.loads(vector.to_bytes(), "v.json") == vector
    assert NOISY.trials == 40 and NOISY.note == "as read"


def test_power_law_tail_is_recovered():
    law = power_law(0.6, 0.8, ranks=40)
    np.testing.assert_allclose(1 - np.cumsum(law.probs), 0.4 * np.arange(1, 41) ** -0.8)
    assert power_law(0.3, 0.0, ranks=3).probs.tolist() == [0.3, 0.0, 0.0]
    recovered = power_law_tail(law, start=5)
    np.testing.assert_allclose(recovered.probs, law.probs, atol=1e-12)
    tail = power_law_tail(NOISY, start=4)
    assert np.array_equal(tail.probs[:3], NOISY.probs[:3]) and np.all(np.diff(tail.probs[3:]) <= 0)
    assert recovered.meta["b"] == pytest.approx(0.8) and recovered.meta["r_squared"] == pytest.approx(1.0)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: power_law_tail(NOISY, start=1), "start: found 1"),
        (lambda: power_law(1.2, 1.0), "p1: found 1.2"),
        (lambda: power_law(0.5, -1.0), "b: found -1"),
        (lambda: power_law(0.5, 1.0, ranks=5000), "ranks: found 5000, expected 1 to 4096"),
        (lambda: weaker(NOISY, 2.0), "share: found 2"),
    ],
)
def test_parameters_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


VECTOR = AcceptanceVector(np.array([0.5, 0.2, 0.1, 0.05]))
P = PRIOR_NODES


def test_count_ranks_by_hand():
    tree = TokenTree(np.array([-1, 0, 0, 1, 1, 1, 2]))  # root: 1, 2; node 1: 3, 4, 5; node 2: 6
    drafted, accepted = count_ranks([(tree, (0, 1, 4)), (tree, (0, 2)), (tree, (0,)), (chain_tree(2), (0, 1, 2))])
    # visited: root 4 times (3 with two children), node 1 once, node 2 once, the chain's root and middle
    assert drafted.tolist() == [7, 4, 1] and accepted.tolist() == [3, 2, 0]


def test_corrected_ranks_move_by_their_counts():
    found = corrected(VECTOR, np.array([40, 10]), np.array([10, 5]))
    assert found.probs == pytest.approx([(P * 0.5 + 10) / (P + 40), (P * 0.2 + 5) / (P + 10), 0.1, 0.05])
    assert found.prompt_ranks is None and found.calibration is None and found.trials is None
    assert corrected(VECTOR, *count_ranks([])).probs.tolist() == VECTOR.probs.tolist()  # nothing was observed


def test_corrected_probabilities_sum_to_at_most_1():
    found = corrected(VECTOR, np.array([10_000]), np.array([10_000]))
    assert found.probs.sum() == pytest.approx(1.0) and found.probs[0] > 0.99
    assert found.probs[1:] / found.probs[1] == pytest.approx([1, 0.5, 0.25])  # proportions of the vector are preserved
    longer = corrected(AcceptanceVector(np.array([0.5])), np.array([30, 30]), np.array([18, 6]))
    assert longer.probs == pytest.approx([0.55, 0.1])  # a run may draft ranks that the vector does not have
    crowded = corrected(VECTOR, np.array([9_970, 10]), np.array([8_985, 10]))  # 0.9 and 0.4
    assert crowded.probs == pytest.approx([9 / 13, 4 / 13, 0, 0])
