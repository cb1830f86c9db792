"""Step times by part, for single trees and for many at once."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import autoregressive_sec, level_widths, reading_ends, step_seconds, step_time
from sequoia_core.trees.tree import TokenTree

TREE = TokenTree(np.array([-1, 0, 0, 0, 1, 2, 4]))
PROFILE = HardwareProfile(
    sizes=[1, 7, 9], verify_sec=[1.0, 2.0, 3.0], draft_sec=0.1, context=100, draft_widths=[1, 3],
    draft_width_sec=[0.1, 0.3], overhead_sec=[0.01, 0.07, 0.09], sampling_sec=[0.0, 0.6, 0.8],
    verify_growth_sec=[0.001, 0.004, 0.004], draft_growth_sec=0.0005,
)  # fmt: skip
STREAMING = {"layers": 10, "buffers": 3, "layer_read_sec": 0.15}


def test_level_widths_count_nodes_with_children():
    assert level_widths(TREE) == [1, 2, 1] and level_widths(TokenTree(np.array([-1]))) == []


def test_step_time_is_the_sum_of_its_parts():
    found = step_time(TREE, PROFILE)
    assert (found.verify_sec, found.overhead_sec) == (2.0, pytest.approx(0.07))
    assert found.draft_sec == pytest.approx(0.1 + 0.2 + 0.1)
    assert found.total_sec == pytest.approx(2.47) and autoregressive_sec(PROFILE) == pytest.approx(1.01)
    warm = step_time(TREE, PROFILE, greedy=False)
    assert warm.overhead_sec == pytest.approx(0.67) and autoregressive_sec(PROFILE, greedy=False) == pytest.approx(1.01)
    assert PROFILE.draft_at(5) == pytest.approx(0.5)  # extrapolated beyond the widest pass
    shared = replace(PROFILE, deeper_draft_share=0.5)
    assert step_time(TREE, shared).draft_sec == pytest.approx(0.1 + (0.2 - 0.05) + 0.05)
    assert autoregressive_sec(shared) == pytest.approx(1.01)
    longer = step_time(TREE, PROFILE, context=300)
    assert longer.verify_sec == pytest.approx(2.8) and longer.draft_sec == pytest.approx(0.4 + 3 * 0.1)


def test_step_seconds_of_many_trees_match_single_trees():
    widths = np.array([[1, 2, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    found = step_seconds(np.array([7, 1, 2]), widths, PROFILE, context=150, greedy=False)
    trees = (TREE, TokenTree(np.array([-1])), TokenTree(np.array([-1, 0])))
    wanted = [step_time(tree, PROFILE, context=150, greedy=False).total_sec for tree in trees]
    np.testing.assert_allclose(found, wanted)


def test_drafting_overlaps_with_streaming_up_to_the_buffers():
    flat = HardwareProfile(sizes=[1, 7, 64], verify_sec=[1.5, 1.5, 2.5], draft_sec=0.1, meta={"streaming": STREAMING})
    assert autoregressive_sec(flat) == 1.5
    assert step_time(TREE, flat).total_sec == pytest.approx(1.5)  # three draft passes fit into 0.45 s of reading
    chain = TokenTree(np.array([-1, *range(6)]))
    assert step_time(chain, flat).draft_sec == pytest.approx(6 * 0.1 - 0.45)
    wide = TokenTree(np.array([-1] + [0] * 63))
    assert step_time(wide, flat).total_sec == pytest.approx(2.5 + 0.1)  # computing takes longer than reading
    busy = replace(flat, overhead_sec=[0.2, 0.2, 0.2])
    assert autoregressive_sec(busy) == 1.5 and step_time(wide, busy).total_sec == pytest.approx(2.8)
    assert step_time(chain, busy).total_sec == pytest.approx(1.5 + 0.6 + 0.2 - 0.45)
    assert step_seconds(np.array([7]), np.array([[1] * 6]), flat) == pytest.approx(1.5 + 0.15)


def test_reading_ends_where_computing_takes_longer():
    meta = {"streaming": {"layers": 4, "buffers": 2, "layer_read_sec": 0.5}}
    times = {"sizes": [1, 8, 16, 32], "draft_sec": 0.1}
    assert reading_ends(HardwareProfile(verify_sec=[1.9, 2.0, 2.2, 4.0], **times)) is None
    assert reading_ends(HardwareProfile(verify_sec=[1.9, 2.0, 2.2, 4.0], meta=meta, **times)) == 16
    assert reading_ends(HardwareProfile(verify_sec=[3.0, 3.1, 3.2, 4.0], meta=meta, **times)) is None


@pytest.mark.parametrize("streaming", [{}, STREAMING | {"layers": 0}, STREAMING | {"layers": "x"}])
def test_implausible_streaming_is_ignored(streaming):
    assert HardwareProfile([1, 7], [1.0, 2.0], 0.1, meta={"streaming": streaming}).streaming is None
