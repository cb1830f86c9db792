"""What a step of a dynamic tree costs, also where weights stream in while it is drafted and computed."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.design.adaptive_shaping import StepCosts
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.shaping import ShapeBounds
from sequoia_core.design.step_time import step_parts

STREAMED = HardwareProfile(
    sizes=[1, 32, 64], verify_sec=[1.5, 1.5, 3.0], draft_sec=0.1, overhead_sec=[0.01, 0.02, 0.04],
    growing_sec=[0.03, 0.06],
    meta={"streaming": {"layers": 10, "buffers": 4, "layer_read_sec": 0.15}},
)  # fmt: skip
IN_MEMORY = replace(STREAMED, meta={})


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("profile", [STREAMED, IN_MEMORY], ids=["streamed", "in memory"])
@pytest.mark.parametrize("size, passes", [(1, 0), (8, 3), (8, 12), (40, 3), (64, 3), (64, 12)])
def test_a_step_takes_what_its_prediction_says(size, passes, profile, greedy):
    costs = StepCosts.of_profile(profile, ShapeBounds(max_size=64, max_depth=12, beam=16, branch=8), greedy=greedy)
    widths = [1] * passes
    parts = step_parts(np.array(size), np.array(widths, dtype=int), profile, greedy=greedy, growing=True)
    assert costs.seconds(size, widths) == pytest.approx(float(sum(parts)))


def test_while_weights_stream_in_nodes_cost_what_the_step_takes_without_drafting():
    bounds = ShapeBounds(max_size=64, max_depth=12, beam=16, branch=8)
    costs = StepCosts.of_profile(STREAMED, bounds, greedy=True)
    np.testing.assert_allclose(costs.step_sec[1:], [costs.seconds(size, []) for size in range(1, 65)])
    assert costs.step_sec[30] == costs.step_sec[1] < costs.step_sec[40]  # reading takes longer; computing does
    assert 0.0 < costs.draft_sec[1] < 0.1  # a draft pass hides or it does not
    in_memory = StepCosts.of_profile(IN_MEMORY, bounds, greedy=True)
    assert in_memory.draft_sec[1] == pytest.approx(0.1)
