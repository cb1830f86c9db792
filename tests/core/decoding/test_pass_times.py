"""Times of a target's passes: taken once and kept."""

import numpy as np
import pytest

from sequoia_core.decoding import pass_times as module
from sequoia_core.decoding.pass_times import PASS_SIZES, pass_times


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module._time_passes, "__defaults__", (PASS_SIZES, 0.01))
    monkeypatch.setattr(module, "CHECK_SEC", 0.0)
    return tmp_path / "sequoia-studio" / "pass-times"


def test_times_are_stored_for_the_next_run_and_a_broken_file_is_timed_again(tiny_target, cache, monkeypatch):
    monkeypatch.setattr(module, "MAX_SLOWDOWN", 1e9)
    found = pass_times(tiny_target)
    assert found.sizes.tolist() == list(PASS_SIZES) and (found.verify_sec > 0).all()
    again = pass_times(tiny_target)
    assert np.array_equal(again.verify_sec, found.verify_sec)  # no clock shows the same times twice
    (kept,) = cache.iterdir()
    kept.write_text("{")
    assert not np.array_equal(pass_times(tiny_target).verify_sec, found.verify_sec)
    assert kept.read_text() != "{"


@pytest.mark.parametrize(("now", "anew"), [(0.4, True), (0.6, False), (30.0, False)])
def test_times_of_a_busy_machine_are_measured_again(tiny_target, cache, monkeypatch, now, anew):
    """Slower passes mean that the machine is busy now, so the stored times stay."""
    times = {"kept": 1.0}
    monkeypatch.setattr(
        module, "_time_passes", lambda target, sizes=PASS_SIZES, *budget: (128, times["kept"] * np.array(sizes))
    )
    found = pass_times(tiny_target)
    (kept,) = cache.iterdir()
    assert found.verify_sec[-1] == 16 and found.meta["kept_in"] == str(kept)
    times["kept"] = now
    again = pass_times(tiny_target)
    assert again.verify_sec[-1] == pytest.approx(16 * now if anew else 16)
    assert (again.meta["timed"] >= found.meta["timed"]) and pass_times(tiny_target).verify_sec[-1] == again.verify_sec[
        -1
    ]


def test_an_unwritable_folder_only_costs_timing_again(tiny_target, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("in the way")
    assert pass_times(tiny_target).max_size == PASS_SIZES[-1]
    assert cache.read_text() == "in the way"
