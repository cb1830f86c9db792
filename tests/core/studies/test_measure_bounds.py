from itertools import chain, repeat

import numpy as np
import pytest
import torch

from sequoia_core.design.profile import HardwareProfile
from sequoia_core.studies import measure_bounds as measuring
from sequoia_core.studies.measure_bounds import measure_bounds, with_bound


@pytest.fixture
def clock(monkeypatch):
    """Time as the work itself moves it: a sum reads a gigabyte per second, a product computes at its format's rate."""
    rates = {torch.float32: 8e3, torch.bfloat16: 2e3, torch.float16: 32e3}
    delays = chain([5.0, 0.0, 3.0], repeat(0.0))  # the first is the warm-up, the third is disturbed

    def timed(work, place):
        result = work()
        square = result.ndim == 2
        spent = 2 * len(result) ** 3 / rates[result.dtype] if square else 2**20 / 1e9
        return spent + next(delays)

    monkeypatch.setattr(measuring, "_timed", timed)


@pytest.mark.usefixtures("clock")
def test_the_best_of_the_repeats_counts():
    found = measure_bounds(working_bytes=2**20, sides=[4, 8], seconds=0.003)
    assert found.bytes_per_sec == pytest.approx(1e9)
    assert found.rate("float32") == pytest.approx(8e3) and found.rate("float16") == pytest.approx(32e3)
    assert found.rate("bfloat16") == pytest.approx(8e3)  # widened: never below float32
    assert found.name == "this-machine" and "best of repeats" in found.sources["bytes_per_sec"]
    with pytest.raises(ValueError, match="expected at least 64 bytes and 0 seconds"):
        measure_bounds(working_bytes=8)


def test_the_bound_is_noted_for_every_size_and_survives_the_file(tiny_target):
    profile = HardwareProfile(sizes=[1, 4, 64], verify_sec=[1.0, 1.1, 2.0], draft_sec=0.1, dtype="float32", context=32)
    found = with_bound(profile, tiny_target)
    bound = np.array(found.meta["bound_sec"])
    assert bound.shape == (3,) and (bound > 0).all() and (np.diff(bound) >= 0).all() and bound[0] < 1e-3
    again = HardwareProfile.loads(found.to_bytes(), "p.json")
    assert (
        1e8 < again.meta["bound_device"]["bytes_per_sec"] < 1e13 and again.meta["bound_sec"] == found.meta["bound_sec"]
    )
