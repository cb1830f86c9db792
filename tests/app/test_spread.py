"""How far figures scatter: by hand, and against draws."""

import numpy as np
import pytest

from ui.exact.spread import count_bounds, decoding_speed, quartile_ratio


def test_the_middle_half_by_hand():
    assert quartile_ratio(np.array([1.0, 2.0, 3.0, 4.0, 100.0])) == pytest.approx(4 / 2)
    assert quartile_ratio(np.full(4, 0.3)) == 1.0


def test_speed_is_all_tokens_over_all_seconds():
    speed, spread = decoding_speed([10, 10, 40], [1.0, 2.0, 1.0])
    assert speed == pytest.approx(15.0) and spread == pytest.approx(0.15 / 0.0625)


def test_bounds_hold_about_95_percent_of_counts():
    """With 4,000 draws of each count, coverage off by more than 2 points would be a false alarm below 1e-6."""
    share = np.array([0.1, 0.3, 0.6])
    drawn = np.random.default_rng(0).multinomial(1000, share, size=4000)
    low, high = count_bounds(1000 * share, 1000)
    inside = ((low <= drawn) & (drawn <= high)).mean(0)
    assert np.abs(inside - 0.95).max() < 0.02
    assert count_bounds(np.array([0.0, 1000.0]), 1000)[0].tolist() == [0.0, 1000.0]
