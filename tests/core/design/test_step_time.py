"""A step's parts add up, at any context and temperature, for one tree as for many shapes."""

import numpy as np
import pytest

from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.step_time import autoregressive_sec, level_widths, step_seconds, step_time
from sequoia_core.design.tree import TokenTree

TREE = TokenTree(np.array([-1, 0, 0, 0, 1, 2, 4]))
PROFILE = HardwareProfile(
    sizes=[1, 7, 9], verify_sec=[1.0, 2.0, 3.0], draft_sec=0.1, context=100, draft_widths=[1, 3],
    draft_width_sec=[0.1, 0.3], overhead_sec=[0.01, 0.07, 0.09], sampling_sec=[0.0, 0.6, 0.8],
    verify_growth_sec=[0.001, 0.004, 0.004], draft_growth_sec=0.0005,
)  # fmt: skip


def test_a_draft_pass_runs_over_the_nodes_of_its_level_that_have_children():
    assert level_widths(TREE) == [1, 2, 1] and level_widths(TokenTree(np.array([-1]))) == []


def test_parts_add_up():
    found = step_time(TREE, PROFILE)
    assert (found.verify_sec, found.overhead_sec) == (2.0, pytest.approx(0.07))
    assert found.draft_sec == pytest.approx(0.1 + 0.2 + 0.1)
    assert found.total_sec == pytest.approx(2.47) and autoregressive_sec(PROFILE) == pytest.approx(1.01)
    warm = step_time(TREE, PROFILE, greedy=False)
    assert warm.overhead_sec == pytest.approx(0.67) and autoregressive_sec(PROFILE, greedy=False) == pytest.approx(1.01)
    longer = step_time(TREE, PROFILE, context=300)
    assert longer.verify_sec == pytest.approx(2.8) and longer.draft_sec == pytest.approx(0.4 + 3 * 0.1)


def test_many_shapes_are_timed_as_each_alone():
    widths = np.array([[1, 2, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    found = step_seconds(np.array([7, 1, 2]), widths, PROFILE, context=150, greedy=False)
    trees = (TREE, TokenTree(np.array([-1])), TokenTree(np.array([-1, 0])))
    wanted = [step_time(tree, PROFILE, context=150, greedy=False).total_sec for tree in trees]
    np.testing.assert_allclose(found, wanted)


def test_wider_passes_than_were_timed_go_on_as_the_last_stretch_did():
    assert PROFILE.draft_at(5) == pytest.approx(0.5)


def test_a_profile_of_version_1_counts_passes_alone():
    old = HardwareProfile(sizes=[1, 7], verify_sec=[1.0, 2.0], draft_sec=0.1)
    assert step_time(TREE, old, context=900, greedy=False).total_sec == pytest.approx(2.3)
