"""Folders of results: older files are read, damaged and foreign ones named, and merging loses nothing."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequoia_extras.sweeps.results import Results, build_vector, extract_profiles, extract_races, read_rows, schema
from tests.extras.sweeps.hand_made import decoded, measured, profile, row, table


def write(folder, rows, *, without=(), **options):
    """Write a results file as another version may have written it."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema()).drop_columns(list(without))
    pq.write_table(table, folder / "rows" / f"{len(list(folder.glob('rows/*')))}.parquet", **options)


def test_folders_merge_by_copying_and_differing_timings_are_kept(tmp_path):
    rows = [measured(prompt, [1, 2]) for prompt in "abc"]
    for device, part in (("here", rows[:2]), ("there", rows[1:])):
        found = row("profile", "", key="timed", result=json.dumps(profile().to_json() | {"device": device}))
        for each in (*part, found):
            Results(tmp_path / device).add([each | {"worker": device}])
    for _ in range(2):  # equal rows count once
        shutil.copytree(tmp_path / "here", tmp_path / "there", dirs_exist_ok=True)
    merged = read_rows(tmp_path / "there")
    assert merged["key"].to_list() == [*(each["key"] for each in rows), "timed", "timed"]
    assert sorted(each.device for each in extract_profiles(merged)) == ["here", "there"]
    assert Results(tmp_path / "there").read_keys() == (set(merged["key"]), {})


def test_a_row_that_failed_only_once_counts_as_measured(tmp_path):
    rows = [measured(prompt, [1]) for prompt in "ab"]
    results = Results(tmp_path)
    failed = [rows[0], row("model", "b", key=rows[1]["key"], fault="no memory")]
    results.add(failed)
    assert results.read_keys() == ({rows[0]["key"]}, {rows[1]["key"]: "no memory"})
    results.add(rows)
    results.add(rows[1:])
    results.add(failed)
    assert results.read_keys() == ({each["key"] for each in rows}, {}) and len(read_rows(tmp_path)) == 2


def test_a_column_missing_in_an_older_file_is_null(tmp_path):
    write(tmp_path, [measured("old", [1, 2])], without=["tokenizer_hash", "threads", "fault"])
    results = Results(tmp_path)
    results.add([measured("new", [1], tokenizer_hash="t")])
    rows = read_rows(tmp_path).set_index("prompt")
    assert rows.loc["old", ["tokenizer_hash", "threads"]].isna().all()
    assert list(rows.loc["old", "ranks"]) == [1, 2]
    assert rows.loc["new", ["tokenizer_hash", "threads"]].to_list() == ["t", 1]
    assert results.read_keys() == (set(rows["key"]), {})


def test_a_prompt_measured_twice_is_refused():
    with pytest.raises(ValueError, match="prompt_hash: found a prompt twice, expected each once"):
        build_vector(table(measured("a", [1, 2]), measured("a", [1, 2], threads=2)))


@pytest.mark.parametrize("content", [b"", {"key": ["k"], "kind": [["model"]]}])
def test_a_file_without_results_is_named(content, tmp_path):
    results = Results(tmp_path / "out")
    path = tmp_path / "out" / "rows" / "bad.parquet"
    with pytest.raises(ValueError, match="found no folder rows"):
        read_rows(results.folder)
    path.parent.mkdir(parents=True)
    path.write_bytes(content) if isinstance(content, bytes) else pq.write_table(pa.table(content), path)
    with pytest.raises(ValueError, match=r"bad.parquet: cannot read a sweep's rows .*delete it"):
        read_rows(results.folder)


def test_flipped_bits_in_a_page_are_detected(tmp_path):
    Results(tmp_path).add([measured(str(prompt), [1, 2, 0] * 20) for prompt in range(3)])
    (path,) = tmp_path.glob("rows/*.parquet")
    data = path.read_bytes()
    for index in (60, len(data) // 4):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(ValueError, match=f"{path.name}: cannot read a sweep's rows .*delete it"):
            read_rows(tmp_path)


GOOD = {
    "settings": {"device": "x", "prompts": 1},
    "autoregressive": {"tokens_per_sec": 2.0},
    "predicted_speedup": 1.5,
    "sequoia": {"tokens_per_sec": 4.0},
}


@pytest.mark.parametrize("change", [{"settings": 3}, {"autoregressive": {}}])
def test_malformed_race_records_are_refused(change):
    for result in ("{", json.dumps(GOOD | change)):
        with pytest.raises(ValueError, match="race of small: found no readable record"):
            extract_races(table(row("race", "", result=result)))
    assert extract_races(table(row("race", "", result=json.dumps(GOOD)))).loc[0, "sequoia"] == 2.0
    assert extract_races(table(decoded("a", [1]))).empty
