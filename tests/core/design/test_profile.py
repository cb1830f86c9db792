import json

import numpy as np
import pytest

from sequoia_core.design.profile import HardwareProfile


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
        ({"sizes": [1, 4, 10**30]}, "sizes"),
        ({"sizes": [1, 4, 2**63]}, "sizes"),
        ({"sizes": [1, 4, 1_000_001]}, "sizes: .*at most 1,000,000"),
        ({"sizes": [1, 4.5, 8]}, "sizes: .*whole"),
        ({"sizes": [False, True]}, "sizes"),
        ({"verify_sec": [1e-320, 0.01, 0.02]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.02, 1e308]}, "verify_sec"),
        ({"sizes": [[1], [4], [8]]}, "sizes"),
        ({"verify_sec": [0.01, [0.02], 0.03]}, "verify_sec"),
        ({"verify_sec": [0.01, 0.02, 10**400]}, "verify_sec"),
        ({"draft_sec": True}, "draft_sec"),
        ({"draft_sec": 10**400}, "draft_sec"),
        ({"draft_widths": [1, 1], "draft_width_sec": [0.1, 0.1]}, "draft_widths: .*increasing"),
        ({"draft_widths": [4, 1], "draft_width_sec": [0.1, 0.1]}, "draft_widths: .*increasing"),
        ({"verify_samples": ((0.01,),)}, "verify_samples: found 1 rows, expected one for each of 3 sizes"),
        ({"verify_samples": ((0.01,), (-1.0,), (0.01,))}, "verify_samples"),
        ({"verify_samples": ((0.01,), (np.inf,), (0.01,))}, "verify_samples"),
        ({"context": -1}, "context: found -1"),
        ({"meta": [1]}, "meta: found list"),
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
        (b'{"format": "sequoia-profile", "version": 1, "sizes": [1, 2]}', "verify_sec: found nothing"),
        (b'{"format": "sequoia-profile", "version": 1, "sizes": 3, "verify_sec": [1], "draft_sec": 1}', "sizes"),
        (b"[" * 10_000, "nested too deep"),
        (b"\xff\xfe{", "not UTF-8"),
    ],
)
def test_broken_files_are_named(data, message, tmp_path):
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        HardwareProfile.load(path)
    assert "broken.json" in str(error.value)


def nested(levels: int) -> dict:
    found: dict = {}
    for _ in range(levels):
        found = {"a": found}
    return found


MANY = list(range(1, 100_001))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "x" * 10_000_000}, "bytes, expected a profile of at most 1000000"),
        ({"device": "x" * 500_000}, "device: .*at most 4096 characters"),
        ({"dtype": "x" * 500_000}, "dtype: .*at most 4096 characters"),
        ({"sizes": MANY}, "verify_sec: found 3 times, expected one for each of 100000 sizes"),
        ({"sizes": [1, 4, 4]}, "increasing sizes"),
        ({"sizes": [1] * 100_000}, "increasing sizes"),
        ({"sizes": [1, 4, 10**299]}, "at most 1,000,000"),
        ({"draft_widths": MANY, "draft_width_sec": [0.001]}, "draft_width_sec: found 1 times"),
        ({"verify_samples": [[0.01]] * 50_000}, "verify_samples: found 50000 rows, expected one for each of 3 sizes"),
        ({"context": 10**299}, "context: found 1000.*, expected 0 to 1,000,000,000 tokens"),
        ({"version": 10**299}, "version 1000"),
        ({"format": ["x"] * 50_000}, "expected a file with format"),
        ({"meta": nested(65)}, "nested too deep, expected at most 64 levels"),
        ({"meta": nested(500)}, "nested too deep"),  # Streamlit's hashing of it needs more than Python's stack
        ({"meta": {"target": ["x"] * 1000}}, "meta.target"),
        ({"meta": {"draft": "x" * 500_000}}, "meta.draft: .*at most 4096"),
        ({"meta": {"bound_sec": ["x"] * 3}}, "meta.bound_sec.0"),  # it is drawn
        ({"meta": {"bound_sec": [[1.0]] * 3}}, "meta.bound_sec.0"),
    ],
)
def test_a_bomb_is_one_line(changes, message):
    data = json.dumps(GOOD | changes).encode()
    with pytest.raises(ValueError, match=f"^p.json: .*{message}") as caught:
        HardwareProfile.loads(data, "p.json")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_numbers_that_no_float_holds_are_refused():
    data = json.dumps(GOOD).replace('"draft_sec": ', '"draft_sec": 1e999, "x": ').encode()
    with pytest.raises(ValueError, match="p.json: found 1e999, expected numbers that a float64 can hold"):
        HardwareProfile.loads(data, "p.json")


def test_what_else_meta_holds_is_kept():
    meta = {"target": "big", "bound_sec": [0.1, 0.2, 0.3], "versions": {"torch": "2"}, "n": nested(60)}
    assert HardwareProfile.loads(json.dumps(GOOD | {"meta": meta}).encode(), "p.json").meta == meta


@pytest.mark.parametrize("context", [-1, np.nan, np.inf, 1e300])
def test_a_context_that_no_cache_holds_is_refused(context):
    for ask in (profile().verify_at, profile().draft_at):
        with pytest.raises(ValueError, match="context: found .*, expected 0 to 1,000,000,000 tokens"):
            ask(4, context)


GOOD = {
    "format": "sequoia-profile", "version": 1, "sizes": [1, 4, 8], "verify_sec": [0.01, 0.01, 0.02], "draft_sec": 0.001,
    "device": "a GPU", "dtype": "float16", "context": 128, "draft_widths": [1, 4], "draft_width_sec": [0.001, 0.002],
    "verify_samples": [[0.01], [0.01], [0.02]], "meta": {"target": "big"},
}  # fmt: skip
WRONG = (None, True, 3, 0.5, "x", [1], [[1]], ["x"], [None], {"a": 1}, [1, 4, 10**30], [1, 1e308, 1e309], -(10**40))


@pytest.mark.parametrize("field", GOOD)
def test_a_wrong_type_in_any_field_is_refused_by_name_or_means_what_it_says(field):
    HardwareProfile.loads(json.dumps(GOOD).encode(), "p.json")
    refused = 0
    for value in WRONG:
        if json.dumps(value) == json.dumps(GOOD[field]):
            continue
        data = json.dumps(GOOD | {field: value}).replace("Infinity", "1e309").encode()
        try:
            found = HardwareProfile.loads(data, "p.json").to_json()[field]
        except ValueError as error:
            refused += 1
            assert str(error).startswith("p.json: ") and "\n" not in str(error) and len(str(error)) < 250
        else:
            assert found == value and type(found) is type(GOOD[field])
    assert refused >= len(WRONG) - 2


WHOLE = {
    "overhead_sec": [0.001, 0.002, 0.003], "sampling_sec": [0.0, 0.001, 0.002], "verify_growth_sec": [0.0, 1e-6, 2e-6],
    "draft_growth_sec": 1e-7, "draft_widths": [1, 4], "draft_width_sec": [0.001, 0.002],
    "verify_samples": ((0.01, 0.012, 0.011), (0.009, 0.01, 0.009), (0.02, 0.03, 0.02)),
    "draft_samples": ((0.001, 0.001, 0.002), (0.002, 0.002, 0.004)), "overhead_samples": ((0.0, 0.0, 0.001),) * 3,
    "growing_sec": [0.001, 0.002],
}  # fmt: skip


def test_every_field_of_version_2_comes_back_from_the_file():
    written = profile(**WHOLE)
    content = json.loads(written.to_bytes())
    assert content["version"] == 2
    again = HardwareProfile.loads(written.to_bytes(), "p.json")
    assert again.to_json() == written.to_json() and again.overhead_at(4) == pytest.approx(0.002)


def test_version_1_is_read_and_later_ones_are_not():
    content = json.loads(profile().to_bytes())
    later = "overhead_sec sampling_sec verify_growth_sec draft_growth_sec draft_samples growing_sec"
    for name in later.split():
        del content[name]
    old = HardwareProfile.loads(json.dumps(content | {"version": 1}).encode(), "p.json")
    assert old.overhead_at(8) == old.growing_at(greedy=True) == 0.0
    assert old.verify_at(8, context=9_000) == pytest.approx(0.020)
    for version in (0, 3, True, "2", None):
        with pytest.raises(ValueError, match="found version .*, expected 1 to 2"):
            HardwareProfile.loads(json.dumps(content | {"version": version}).encode(), "p.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overhead_sec": [0.1]}, "overhead_sec: found 1 times"),
        ({"overhead_sec": [0.1, -0.1, 0.1]}, "overhead_sec: .*0 or more"),
        ({"verify_growth_sec": [0.1, 0.1]}, "verify_growth_sec: found 2"),
        ({"growing_sec": [0.1]}, "growing_sec: found 1 times, expected 2"),
        ({"growing_sec": [0.1, -0.1]}, "growing_sec: .*0 or more"),
        ({"draft_growth_sec": -1.0}, "draft_growth_sec: found -1.0"),
        ({"draft_samples": ((0.1,),)}, "draft_samples: found 1 rows, expected one for each of 0 widths"),
        ({"overhead_samples": ((0.1,),)}, "overhead_samples: found 1 rows"),
    ],
)
def test_bad_parts_of_version_2_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        profile(**changes)


def test_a_longer_context_costs_what_was_measured():
    p = profile(**WHOLE, context=100)
    assert p.verify_at(8, 1_100) == pytest.approx(0.020 + 1_000 * 2e-6)
    assert p.draft_at(1, 1_100) == pytest.approx(0.001 + 1_000 * 1e-7)
    assert p.overhead_at(8, greedy=False) == pytest.approx(0.005)


def test_resampled_profiles_are_medians_of_whole_rounds():
    p = profile(**WHOLE)
    found = p.resampled(50, np.random.default_rng(0))
    seen = {float(r.verify_sec[0]) for r in found}
    assert seen <= {0.01, 0.011, 0.012} and len(seen) > 1
    slow = next(r for r in found if r.verify_sec[2] == 0.03)  # mostly the second round
    assert slow.verify_sec[0] == 0.012 and slow.draft_sec == 0.001
    assert profile().resampled(5, np.random.default_rng(0)) is None


def test_quartiles_lie_around_the_median():
    low, high = profile(**WHOLE).quartiles
    assert (low <= [0.011, 0.009, 0.020]).all() and (high >= [0.011, 0.009, 0.020]).all()
    assert profile().quartiles is None
