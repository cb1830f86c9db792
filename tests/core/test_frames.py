"""What people take into a notebook is a table with the numbers of the core, and only what is known."""

import numpy as np
import pytest

from sequoia_core import AcceptanceVector, HardwareProfile, speedup_surface
from sequoia_core.design.optimal_trees import expected_tokens_table
from sequoia_core.design.tree_comparison import regret_matrix
from sequoia_core.studies.race import Decoded, MethodResult

VECTOR = AcceptanceVector(np.array([0.6, 0.2]), trials=100)
PROFILE = HardwareProfile(sizes=[1, 8], verify_sec=[0.01, 0.02], draft_sec=0.001)


def test_a_vector_has_bounds_where_its_sample_is_known():
    table = VECTOR.to_frame()
    low, high = VECTOR.interval()
    assert list(table["rank"]) == [1, 2] and list(table["probability"]) == [0.6, 0.2]
    assert list(table["low"]) == list(low) and list(table["high"]) == list(high)
    assert list(AcceptanceVector(VECTOR.probs).to_frame()) == ["rank", "probability"]


def test_a_surface_lists_the_shapes_there_are():
    surface = speedup_surface(VECTOR, PROFILE, max_depth=3)
    table = surface.to_frame().set_index(["size", "depth"])
    exist = np.isfinite(expected_tokens_table(VECTOR, max_size=8, max_depth=3))
    assert len(table) == exist.sum() and table.loc[(1, 0), "speedup"] == 1.0
    assert table.loc[(5, 2)].tolist() == [surface.expected_tokens[5, 2], surface.speedup[5, 2]]


def test_a_profile_has_a_row_for_each_pass_timed():
    table = PROFILE.to_frame()
    assert list(table) == ["model", "tokens", "sec"]
    assert table.to_numpy().tolist() == [["target", 1, 0.01], ["target", 8, 0.02], ["draft", 1, 0.001]]
    more = {"draft_widths": [1, 4], "draft_width_sec": [0.001, 0.002], "overhead_sec": [1e-4, 2e-4]}
    fuller = HardwareProfile(sizes=[1, 8], verify_sec=[0.01, 0.02], draft_sec=0.001, **more).to_frame()
    assert list(fuller[fuller["model"] == "draft"]["sec"]) == [0.001, 0.002]
    assert list(fuller["overhead_sec"].dropna()) == [1e-4, 2e-4]


def test_regret_is_named_in_both_directions():
    regret = regret_matrix([VECTOR, AcceptanceVector(np.array([0.3, 0.3]))], size=6, depth=3)
    table = regret.to_frame(["hot", "cold"])
    assert list(table.index) == list(table) == ["hot", "cold"] and table.to_numpy() == pytest.approx(regret.lost)


def test_a_method_of_a_race_has_a_row_for_each_prompt():
    theirs = MethodResult()
    theirs.add(Decoded([1, 2, 3], passes=2, seconds=0.5))
    assert theirs.to_frame().to_dict("records") == [{"tokens": 3, "steps": 2, "seconds": 0.5}]
    ours = MethodResult(tokens=[3], steps=[2], seconds=[0.5], step_sec=[0.4])
    assert ours.to_frame()["step_sec"].tolist() == [0.4]
