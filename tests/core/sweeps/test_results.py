"""Folders of results: files of older versions are read, damaged and foreign ones named, and joining loses nothing."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequoia_core.sweeps import results as sweep_results
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.results import Results, profiles_of, read_rows, schema, untimed_rows
from sequoia_core.sweeps.run import missing_jobs
from tests.sweep_plans import write_plan

from .hand_made import measured, profile, row


def write(folder, rows, *, without=(), **options):
    """Write a results file as other versions may have written it."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema()).drop_columns(list(without))
    pq.write_table(table, folder / "rows" / f"{len(list(folder.glob('rows/*')))}.parquet", **options)


def test_a_column_that_an_older_file_lacks_is_null(tmp_path):
    write(tmp_path, [measured("old", [1, 2])], without=["tokenizer_hash", "threads"])
    Results(tmp_path).add([measured("new", [1], tokenizer_hash="t")])
    rows = read_rows(tmp_path).set_index("prompt")
    assert rows.loc["old", ["tokenizer_hash", "threads"]].isna().all()
    assert rows.loc["new", ["tokenizer_hash", "threads"]].to_list() == ["t", 1]
    assert list(rows.loc["old", "ranks"]) == [1, 2] and set(rows.columns) | {"prompt"} == set(schema().names)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PAR1 nothing", {"a": [1]}, {"key": ["k"]}, {"key": ["k"], "kind": [["model"]]},
        {"key": ["k"], "kind": ["model"], "seed": ["many"]},
    ],
)  # fmt: skip
def test_a_file_that_is_no_results_file_is_named(content, tmp_path):
    results, path = Results(tmp_path / "out"), tmp_path / "out" / "rows" / "bad.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(content) if isinstance(content, bytes) else pq.write_table(pa.table(content), path)
    with pytest.raises(ValueError, match=r"bad.parquet: found no rows of a sweep .*delete it: its rows are measured"):
        read_rows(results.folder)
    if isinstance(content, bytes):
        with pytest.raises(ValueError, match="bad.parquet: found no rows of a sweep"):
            missing_jobs(read_plan(write_plan(tmp_path)), results)


def test_a_folder_without_rows_is_none(tmp_path):
    with pytest.raises(ValueError, match="found no folder rows"):
        read_rows(tmp_path / "nowhere")


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
    nothing = pa.ListArray.from_arrays(pa.array([0, 100_000]), pa.nulls(100_000, pa.float64()))
    (tmp_path / "nulls" / "rows").mkdir(parents=True)
    table = pa.table({"key": ["k"], "kind": ["model"], "sums": nothing})
    pq.write_table(table, tmp_path / "nulls" / "rows" / "0.parquet", use_dictionary=False)
    assert all(len(read_rows(tmp_path / name)) == count for name, count in (("repeats", 50), ("nulls", 1)))
    monkeypatch.setattr(sweep_results, "MAX_BYTES", 400_000)
    for name in ("plain", "repeats", "nulls"):
        (path,) = (tmp_path / name / "rows").glob("*")
        assert name == "plain" or path.stat().st_size < 100_000
        with pytest.raises(ValueError, match="rows of .* bytes in a file, expected fewer"):
            read_rows(tmp_path / name)


def test_joining_makes_files_that_can_be_read_again(tmp_path, monkeypatch):
    results = Results(tmp_path)
    for prompt in range(5):
        results.add([measured(str(prompt), [1, 2])])
    before, files = untimed_rows(tmp_path), sorted(tmp_path.glob("rows/*"))
    monkeypatch.setattr(sweep_results, "MAX_ROWS", 2)
    with pytest.raises(ValueError, match="found 5 rows .*in a file, expected fewer"):
        results.join()
    assert sorted(tmp_path.glob("rows/*")) == files
    monkeypatch.setattr(sweep_results, "JOINED_ROWS", 2)
    results.join()
    assert untimed_rows(tmp_path).equals(before) and len(list(tmp_path.glob("rows/*"))) == 3


def test_what_two_machines_timed_is_kept_twice_by_merging(tmp_path):
    folders = [tmp_path / "here", tmp_path / "there"]
    times = [profile().to_json() | {"device": device} for device in ("a machine", "another")]
    for folder, found in zip(folders, times, strict=True):
        Results(folder).add([row("profile", "", key="timed", result=json.dumps(found))])
    shutil.copytree(folders[0], folders[1], dirs_exist_ok=True)
    shutil.copytree(folders[0], folders[1], dirs_exist_ok=True)  # again: what is equal is there once
    for _ in range(2):
        assert sorted(each.device for each in profiles_of(read_rows(folders[1]))) == ["a machine", "another"]
        assert Results(folders[1]).keys() == {"timed"}
        Results(folders[1]).join()
    assert len(list(folders[1].glob("rows/*"))) == 1
