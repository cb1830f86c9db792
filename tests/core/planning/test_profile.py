import json

import numpy as np
import pytest

from sequoia_core.planning.profile import HardwareProfile
from tests.hostile_files import WRONG, checked_line


def profile(**changes):
    fields = {"sizes": [1, 4, 8], "verify_sec": [0.010, 0.009, 0.020], "draft_sec": 0.001} | changes
    return HardwareProfile(**fields)


def test_times_are_smoothed_and_interpolated():
    p = profile()
    assert p.smooth_verify_sec.tolist() == pytest.approx([0.0095, 0.0095, 0.020])
    assert p.t(np.array([1, 4, 6])).tolist() == pytest.approx([1.0, 1.0, (0.0095 + 0.020) / 2 / 0.0095])
    assert p.c == pytest.approx(0.001 / 0.0095) == p.draft_cost(7) and p.max_size == 8
    assert not p.sizes.flags.writeable and not p.verify_sec.flags.writeable
    wide = profile(draft_widths=[1, 4], draft_width_sec=[0.001, 0.002])
    assert wide.draft_cost(2.5) == pytest.approx(0.0015 / 0.0095)


def test_sizes_and_contexts_out_of_range_are_refused():
    for size in (0, 9):
        with pytest.raises(ValueError, match="expected 1 to 8"):
            profile().t(size)
    for context in (-1, np.nan, 1e300):
        for ask in (profile().verify_at, profile().draft_at):
            with pytest.raises(ValueError, match="context: found .*, expected 0 to 1,000,000,000 tokens"):
                ask(4, context)


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verify_sec": [0.01, np.nan, 0.02]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.02]}, "2 times"),
        ({"sizes": [1, 8, 4]}, "increasing sizes"),
        ({"sizes": [1, 4, 1_000_001]}, "sizes: .*at most 1,000,000"),
        ({"draft_widths": [1, 2]}, "draft_width_sec"),
        ({"verify_samples": ((0.01,),)}, "verify_samples: found 1 rows, expected one for each of 3 sizes"),
        ({"overhead_sec": [0.1, -0.1, 0.1]}, "overhead_sec: .*non-negative"),
        ({"growing_sec": [0.1]}, "growing_sec: found 1 times, expected 2"),
        ({"draft_growth_sec": -1.0}, "draft_growth_sec: found -1.0"),
        ({"deeper_draft_share": -0.5}, "deeper_draft_share: found -0.5, expected 0 to"),
    ],
)
def test_invalid_fields_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        profile(**changes)


GOOD = {
    "format": "sequoia-profile", "version": 1, "sizes": [1, 4, 8], "verify_sec": [0.01, 0.01, 0.02], "draft_sec": 0.001,
    "device": "a GPU", "dtype": "float16", "context": 128, "draft_widths": [1, 4], "draft_width_sec": [0.001, 0.002],
    "verify_samples": [[0.01], [0.01], [0.02]], "meta": {"target": "big"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "x" * 10_000_000}, "bytes, expected a profile of at most 1000000"),
        ({"sizes": list(range(1, 100_001))}, "verify_sec: found 3 times, expected one for each of 100000 sizes"),
        ({"meta": {"draft": "x" * 500_000}}, "meta.draft: .*at most 4096"),
    ],
)
def test_oversized_files_are_refused_in_one_line(changes, message):
    data = json.dumps(GOOD | changes).encode()
    with pytest.raises(ValueError, match=f"^p.json: .*{message}") as caught:
        HardwareProfile.loads(data, "p.json")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.sample(12)
@pytest.mark.parametrize("field", GOOD)
def test_wrong_types_are_refused_or_preserved(field):
    for value in (*WRONG, None, [1, 4, 10**30], [1, 1e308, 1e309], -(10**40)):
        data = json.dumps(GOOD | {field: value}).replace("Infinity", "1e309").encode()
        try:
            found = HardwareProfile.loads(data, "p.json").to_json()[field]
        except ValueError as error:
            checked_line(str(error), "p.json")
        else:
            assert found == value and type(found) is type(GOOD[field])


WHOLE = {
    "overhead_sec": [0.001, 0.002, 0.003], "sampling_sec": [0.0, 0.001, 0.002], "verify_growth_sec": [0.0, 1e-6, 2e-6],
    "draft_growth_sec": 1e-7, "draft_widths": [1, 4], "draft_width_sec": [0.001, 0.002],
    "verify_samples": ((0.01, 0.012, 0.011), (0.009, 0.01, 0.009), (0.02, 0.03, 0.02)),
    "draft_samples": ((0.001, 0.001, 0.002), (0.002, 0.002, 0.004)), "overhead_samples": ((0.0, 0.0, 0.001),) * 3,
    "growing_sec": [0.001, 0.002], "deeper_draft_share": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "named"),
    [(b"| test | t/s |\n", "llama-bench output"), (b"x: 1\n", "text")],
)
def test_other_file_formats_are_named(data, named):
    with pytest.raises(
        ValueError, match=f"^p.json: found {named}.*, expected a profile written by the profile command"
    ):
        HardwareProfile.loads(data, "p.json")


def test_profile_round_trip(tmp_path):
    written = profile(**WHOLE, meta={"a": 1})
    written.save(tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_bytes())["version"] == 2
    again = HardwareProfile.load(tmp_path / "p.json")
    assert again.to_json() == written.to_json() and again.overhead_at(4) == pytest.approx(0.002)


def test_version_1_is_read_and_unknown_versions_are_refused():
    content = json.loads(profile().to_bytes())
    later = "overhead_sec sampling_sec verify_growth_sec draft_growth_sec draft_samples growing_sec deeper_draft_share"
    for name in later.split():
        del content[name]
    old = HardwareProfile.loads(json.dumps(content | {"version": 1}).encode(), "p.json")
    assert old.overhead_at(8) == old.growing_at(greedy=True) == 0.0
    assert old.verify_at(8, context=9_000) == pytest.approx(0.020)
    for version in (0, 3, True, None, 10**299):
        with pytest.raises(ValueError, match="found version .*, expected 1 to 2"):
            HardwareProfile.loads(json.dumps(content | {"version": version}).encode(), "p.json")


def test_resampled_profiles_are_medians_over_whole_rounds():
    p = profile(**WHOLE)
    found = p.resampled(50, np.random.default_rng(0))
    seen = {float(r.verify_sec[0]) for r in found}
    assert seen <= {0.01, 0.011, 0.012} and len(seen) > 1
    slow = next(r for r in found if r.verify_sec[2] == 0.03)  # dominated by the second round
    assert slow.verify_sec[0] == 0.012 and slow.draft_sec == 0.001
    assert profile().resampled(5, np.random.default_rng(0)) is None is profile().quartiles
    low, high = p.quartiles
    assert (low <= [0.011, 0.009, 0.020]).all() and (high >= [0.011, 0.009, 0.020]).all()
