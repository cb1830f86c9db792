"""The faster number format is found by timing, and kept for this machine and pair."""

import json
import threading

import pytest

from sequoia_core import load_pair
from sequoia_core.files.faults import Cancelled
from sequoia_core.models.number_formats import FormatTimes, keep_times, kept_times
from sequoia_core.studies import number_format
from sequoia_core.studies.number_format import choose_number_format, time_format

ROWS = (
    FormatTimes("bfloat16", 0.001, 0.002, 0.0001, 900.0, "compiled code"),
    FormatTimes("float32", 0.004, 0.006, 0.0002, 300.0, "PyTorch"),
)


def test_the_pair_stays_loaded_in_the_format_that_was_faster(monkeypatch):
    """Times stand in for the machine, which may prefer either; the loading is real."""
    for faster in ("float32", "bfloat16"):

        def time_format(pair, dtype, cancel, faster=faster):
            return FormatTimes(dtype, 1.0, 1.0, 1.0, 2.0 if dtype == faster else 1.0, "")

        monkeypatch.setattr(number_format, "time_format", time_format)
        pair, times = choose_number_format(lambda dtype: load_pair(dtype=dtype))
        assert str(pair.target.dtype) == str(pair.draft.dtype) == f"torch.{faster}"
        assert [row.dtype for row in times] == [faster, ({"float32", "bfloat16"} - {faster}).pop()]


def test_a_format_is_timed_by_its_own_passes():
    found = {dtype: time_format(load_pair(dtype=dtype), dtype) for dtype in ("float32", "bfloat16")}
    for dtype, times in found.items():
        assert times.dtype == dtype and 0 < times.draft_sec < times.one_sec and times.sixteen_sec > 0
        assert times.tokens_per_sec > 0.9 / times.one_sec  # never worse than no tree but for noise
    assert found["float32"].passes_by != found["bfloat16"].passes_by or "PyTorch" in found["float32"].passes_by


def test_cancelling_ends_it():
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        choose_number_format(lambda dtype: load_pair(dtype=dtype), cancel=cancel)


def test_what_was_measured_is_kept_for_this_pair_and_machine_only(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "formats.json"
    assert kept_times(None, None, path) == ()
    keep_times(None, None, ROWS, path)
    keep_times("some/target", "some/draft", ROWS[1:], path)
    assert kept_times(None, None, path) == ROWS and kept_times("some/target", "some/draft", path) == ROWS[1:]
    assert kept_times("other/target", "some/draft", path) == ()
    monkeypatch.setattr("sequoia_core.models.number_formats.processor_name", lambda: "another")
    assert kept_times(None, None, path) == ()


def test_another_file_of_the_models_asks_again(tmp_path):
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"1")
    pair, path = (str(tmp_path / "target"), str(tmp_path / "draft")), tmp_path / "formats.json"
    keep_times(*pair, ROWS, path)
    assert kept_times(*pair, path) == ROWS
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"22")
    assert kept_times(*pair, path) == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"format": "sequoia-number-formats", "version": 1, "pairs": []}', b'{"format": 3}'],
)
def test_a_file_that_is_not_ours_only_costs_measuring_again(content, tmp_path):
    path = tmp_path / "formats.json"
    path.write_bytes(content)
    assert kept_times(None, None, path) == ()
    keep_times(None, None, ROWS, path)
    assert kept_times(None, None, path) == ROWS


@pytest.mark.parametrize("rows", ["x", 3, [3], [{}], [{"dtype": "int8"}], [[1]]])
def test_rows_of_another_version_are_not_taken(rows, tmp_path):
    path = tmp_path / "formats.json"
    keep_times(None, None, ROWS, path)
    whole = json.loads(path.read_text())
    whole["pairs"] = dict.fromkeys(whole["pairs"], rows)
    path.write_text(json.dumps(whole))
    assert kept_times(None, None, path) == ()


def test_only_the_latest_pairs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.number_formats.MAX_KEPT", 3)
    path = tmp_path / "formats.json"
    for number in range(5):
        keep_times(f"target-{number}", "draft", ROWS, path)
    found = [bool(kept_times(f"target-{number}", "draft", path)) for number in range(5)]
    assert found == [False, False, True, True, True]
