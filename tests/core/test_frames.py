"""Data frames for notebooks contain the numbers of the core, and only what is known."""

import numpy as np

from sequoia_core import AcceptanceVector, HardwareProfile, speedup_surface
from sequoia_core.trees.optimal import expected_tokens_table

VECTOR = AcceptanceVector(np.array([0.6, 0.2]), trials=100)
PROFILE = HardwareProfile(sizes=[1, 8], verify_sec=[0.01, 0.02], draft_sec=0.001)


def test_vector_frames_have_bounds_if_the_sample_is_known():
    table = VECTOR.to_frame()
    low, high = VECTOR.interval()
    assert list(table["rank"]) == [1, 2] and list(table["probability"]) == [0.6, 0.2]
    assert list(table["low"]) == list(low) and list(table["high"]) == list(high)
    assert list(AcceptanceVector(VECTOR.probs).to_frame()) == ["rank", "probability"]


def test_surface_frames_list_existing_shapes():
    surface = speedup_surface(VECTOR, PROFILE, max_depth=3)
    table = surface.to_frame().set_index(["size", "depth"])
    exist = np.isfinite(expected_tokens_table(VECTOR, max_size=8, max_depth=3))
    assert len(table) == exist.sum() and table.loc[(1, 0), "speedup"] == 1.0
    assert table.loc[(5, 2)].tolist() == [surface.expected_tokens[5, 2], surface.speedup[5, 2]]


def test_profile_frames_have_a_row_per_pass():
    table = PROFILE.to_frame()
    assert list(table) == ["model", "tokens", "sec"]
    assert table.to_numpy().tolist() == [["target", 1, 0.01], ["target", 8, 0.02], ["draft", 1, 0.001]]
