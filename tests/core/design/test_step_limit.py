"""How much arithmetic lies idle in a pass: tokens that are verified almost for free, and what the others cost."""

import numpy as np
import pytest

from sequoia_core.design.break_even import idle_arithmetic, step_limit
from sequoia_core.design.planning import BestShape
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.step_time import reading_ends


def profile(sizes: list[int], times: list[float]) -> HardwareProfile:
    return HardwareProfile(np.array(sizes), 0.01 * np.array(times), 0.001)


def test_a_flat_pass_verifies_everything_for_free():
    assert idle_arithmetic(profile([1, 64, 128], [1.0, 1.02, 1.05])) == (128, 0.0)


def test_beyond_the_kink_each_token_has_its_price():
    found = idle_arithmetic(profile([1, 8, 16, 32], [1.0, 1.0, 1.8, 3.4]))
    assert found.tokens == 9  # t(9) = 1.1
    assert found.further_cost == pytest.approx((3.4 - 1.1) / (32 - 9))


def test_a_pass_bound_by_arithmetic_from_the_start_has_none_idle():
    assert idle_arithmetic(profile([1, 2, 4], [1.0, 2.0, 4.0])) == (1, pytest.approx(1.0))


def test_reading_ends_where_computing_takes_longer():
    meta = {"streaming": {"layers": 4, "buffers": 2, "layer_read_sec": 0.5}}
    times = {"sizes": [1, 8, 16, 32], "draft_sec": 0.1}
    assert reading_ends(HardwareProfile(verify_sec=[1.9, 2.0, 2.2, 4.0], **times)) is None
    assert reading_ends(HardwareProfile(verify_sec=[1.9, 2.0, 2.2, 4.0], meta=meta, **times)) == 16
    assert reading_ends(HardwareProfile(verify_sec=[1.9, 2.0, 2.0, 2.05], meta=meta, **times)) == 32
    assert reading_ends(HardwareProfile(verify_sec=[3.0, 3.1, 3.2, 4.0], meta=meta, **times)) is None


def test_drafting_that_hides_behind_reading_costs_nothing():
    meta = {"streaming": {"layers": 4, "buffers": 2, "layer_read_sec": 0.5}}
    streamed = HardwareProfile([1, 8, 32], [1.9, 2.0, 2.0], 0.1, meta=meta)
    cost = step_limit(BestShape(8, 3, 3.5, 3.5), streamed)  # a step takes as long as one token, t(8) is 1.05
    assert (cost.verify, cost.draft, cost.limit) == (1.0, 0.0, "acceptance")
