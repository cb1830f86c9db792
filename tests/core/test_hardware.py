import threading

import numpy as np
import pytest

from sequoia_core.hardware import HardwareProfile, measure_profile


def profile(**changes):
    fields = {"sizes": [1, 4, 8], "verify_sec": [0.010, 0.009, 0.020], "draft_sec": 0.001} | changes
    return HardwareProfile(**fields)


def test_times_are_smoothed_to_never_decrease_and_interpolated():
    p = profile()
    assert p.smooth_verify_sec.tolist() == pytest.approx([0.0095, 0.0095, 0.020])
    assert p.t(np.array([1, 4, 6])).tolist() == pytest.approx([1.0, 1.0, (0.0095 + 0.020) / 2 / 0.0095])
    assert p.c == pytest.approx(0.001 / 0.0095) and p.max_size == 8


def test_draft_cost_uses_measured_widths():
    p = profile(draft_widths=[1, 4], draft_width_sec=[0.001, 0.002])
    assert p.draft_cost(2.5) == pytest.approx(0.0015 / 0.0095)
    assert profile().draft_cost(7) == pytest.approx(p.c)


@pytest.mark.parametrize("n", [0, 9])
def test_sizes_beyond_the_profile_are_refused(n):
    with pytest.raises(ValueError, match="expected 1 to 8"):
        profile().t(n)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verify_sec": [0.01, np.nan, 0.02]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.0, 0.02]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.02]}, "2 times"),
        ({"sizes": [2, 4, 8]}, "sizes"),
        ({"sizes": [1, 8, 4]}, "sizes"),
        ({"sizes": [1], "verify_sec": [0.01]}, "sizes"),
        ({"draft_sec": 0.0}, "draft_sec"),
        ({"draft_sec": "fast"}, "draft_sec"),
        ({"draft_widths": [1, 2]}, "draft_width_sec"),
        ({"verify_sec": "abc"}, "verify_sec"),
    ],
)
def test_bad_tables_are_refused_with_the_reason(changes, message):
    with pytest.raises(ValueError, match=message):
        profile(**changes)


def test_file_round_trip(tmp_path):
    path = tmp_path / "p.json"
    written = profile(
        draft_widths=[1, 4], draft_width_sec=[0.001, 0.002], verify_samples=((0.01,), (0.02,), (0.03,)), meta={"a": 1}
    )
    written.save(path)
    assert HardwareProfile.load(path).to_json() == written.to_json()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no readable JSON"),
        (b"[1]", "list"),
        (b'{"format": "sequoia-tree"}', "sequoia-tree"),
        (b'{"format": "sequoia-profile", "version": 9}', "version 9"),
        (b'{"format": "sequoia-profile", "version": 1, "sizes": [1, 2]}', "draft_sec"),
        (b'{"format": "sequoia-profile", "version": 1, "sizes": 3, "verify_sec": [1], "draft_sec": 1}', "sizes"),
        (b"[" * 10_000, "no readable JSON"),
    ],
)
def test_broken_files_are_named(data, message, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        HardwareProfile.load(path)
    assert "broken.json" in str(error.value)


def test_measured_profile_has_every_time_and_its_samples(tiny_target, tiny_draft):
    told = []
    p = measure_profile(
        target=tiny_target, draft=tiny_draft, sizes=[2, 8], context=16, repeats=3, progress=lambda f, m: told.append(f)
    )
    assert p.sizes.tolist() == [1, 2, 8] and [len(row) for row in p.verify_samples] == [3, 3, 3]
    assert p.draft_widths.tolist() == [1, 2, 4, 8] and told[-1] == 1.0
    assert p.meta["target"] == "tiny-1" and p.dtype == "float32"


def test_measuring_refuses_what_the_models_cannot_hold(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="context: found 256"):
        measure_profile(target=tiny_target, draft=tiny_draft, context=256)
    with pytest.raises(ValueError, match="sizes"):
        measure_profile(target=tiny_target, draft=tiny_draft, sizes=[1], context=8)
    stop = threading.Event()
    stop.set()
    with pytest.raises(ValueError, match="cancelled"):
        measure_profile(target=tiny_target, draft=tiny_draft, sizes=[2], context=8, cancel=stop)
