"""Folders of results: files of older versions are read, damaged and foreign ones named, and merging loses nothing."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequoia_core.sweeps import results as sweep_results
from sequoia_core.sweeps.results import Results, profiles_of, races_of, read_rows, schema, vector_of

from .hand_made import decoded, measured, profile, row, table


def write(folder, rows, *, without=(), **options):
    """Write a results file as other versions may have written it."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema()).drop_columns(list(without))
    pq.write_table(table, folder / "rows" / f"{len(list(folder.glob('rows/*')))}.parquet", **options)


def test_two_folders_merge_by_copying_and_what_two_machines_timed_is_kept_twice(tmp_path):
    rows = [measured(prompt, [1, 2]) for prompt in "abc"]
    for device, part in (("here", rows[:2]), ("there", rows[1:])):
        found = row("profile", "", key="timed", result=json.dumps(profile().to_json() | {"device": device}))
        for each in (*part, found):
            Results(tmp_path / device).add([each | {"worker": device}])
    for _ in range(2):  # what is equal is there once
        shutil.copytree(tmp_path / "here", tmp_path / "there", dirs_exist_ok=True)
    merged = read_rows(tmp_path / "there")
    assert merged["key"].to_list() == [*(each["key"] for each in rows), "timed", "timed"]
    assert sorted(each.device for each in profiles_of(merged)) == ["here", "there"]
    assert Results(tmp_path / "there").read_keys() == (set(merged["key"]), {})


def test_a_row_that_failed_in_one_folder_and_not_in_the_other_is_measured(tmp_path):
    rows, results = [measured(prompt, [1]) for prompt in "ab"], Results(tmp_path)
    failed = [rows[0], row("model", "b", key=rows[1]["key"], fault="no memory")]
    results.add(failed)
    assert results.read_keys() == ({rows[0]["key"]}, {rows[1]["key"]: "no memory"})
    results.add(rows)
    results.add(rows[1:])
    results.add(failed)
    assert results.read_keys() == ({each["key"] for each in rows}, {}) and len(read_rows(tmp_path)) == 2


def test_a_column_that_an_older_file_lacks_is_null(tmp_path):
    write(tmp_path, [measured("old", [1, 2])], without=["tokenizer_hash", "threads", "fault"])
    results = Results(tmp_path)
    results.add([measured("new", [1], tokenizer_hash="t")])
    rows = read_rows(tmp_path).set_index("prompt")
    assert rows.loc["old", ["tokenizer_hash", "threads"]].isna().all()
    assert list(rows.loc["old", "ranks"]) == [1, 2]
    assert rows.loc["new", ["tokenizer_hash", "threads"]].to_list() == ["t", 1]
    assert results.read_keys() == (set(rows["key"]), {})


def test_a_prompt_that_was_measured_in_two_ways_is_not_counted_twice():
    with pytest.raises(ValueError, match="prompt_hash: found a prompt twice, expected each once"):
        vector_of(table(measured("a", [1, 2]), measured("a", [1, 2], threads=2)))


@pytest.mark.parametrize("content", [b"", {"key": ["k"], "kind": [["model"]]}])
def test_a_file_that_is_no_results_file_is_named(content, tmp_path):
    results, path = Results(tmp_path / "out"), tmp_path / "out" / "rows" / "bad.parquet"
    with pytest.raises(ValueError, match="found no folder rows"):
        read_rows(results.folder)
    path.parent.mkdir(parents=True)
    path.write_bytes(content) if isinstance(content, bytes) else pq.write_table(pa.table(content), path)
    with pytest.raises(ValueError, match=r"bad.parquet: found no rows of a sweep .*delete it: its rows are measured"):
        read_rows(results.folder)


def test_bits_that_flipped_are_found(tmp_path):
    Results(tmp_path).add([measured(str(prompt), [1, 2, 0] * 20) for prompt in range(3)])
    (path,) = tmp_path.glob("rows/*.parquet")
    data = path.read_bytes()
    for place in range(0, len(data), 13):
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
        with pytest.raises(ValueError, match=f"{path.name}: found no rows of a sweep .*damaged.*delete it"):
            read_rows(tmp_path)
    path.write_bytes(data)
    assert len(read_rows(tmp_path)) == 3


def test_a_file_that_unpacks_beyond_its_limit_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    rows = [measured(str(prompt), [1, 2], result="x" * 10_000) for prompt in range(50)]
    write(tmp_path / "plain", rows, use_dictionary=False)
    write(tmp_path / "repeats", rows, use_dictionary=["result"])
    assert len(read_rows(tmp_path / "repeats")) == 50
    monkeypatch.setattr(sweep_results, "MAX_BYTES", 400_000)
    for name in ("plain", "repeats"):
        with pytest.raises(ValueError, match="rows of .* bytes in a file, too many"):
            read_rows(tmp_path / name)


GOOD = {
    "settings": {"device": "x", "prompts": 1}, "autoregressive": {"tokens_per_sec": 2.0}, "predicted_speedup": 1.5,
    "sequoia": {"tokens_per_sec": 4.0},
}  # fmt: skip


@pytest.mark.parametrize("change", [{"settings": 3}, {"autoregressive": {}}])
def test_records_that_are_no_race_are_refused(change):
    for result in ("{", json.dumps(GOOD | change)):
        with pytest.raises(ValueError, match="race of small: found none"):
            races_of(table(row("race", "", result=result)))
    assert races_of(table(row("race", "", result=json.dumps(GOOD)))).loc[0, "sequoia"] == 2.0
    assert races_of(table(decoded("a", [1]))).empty
