"""The row of `server-plan --row`: what is counted, measured or given, and nothing else; the shipped rows."""

import json

import pytest

from sequoia_core.command_line.main import main
from sequoia_core.files.model_names import ASSETS
from sequoia_extras.servers.readings import read_counts
from sequoia_extras.servers.rows import COLUMNS, result_row

SERVERS = ASSETS / "servers"
SOURCE = str(SERVERS / "vllm-demo-pair.jsonl")


@pytest.fixture
def row(capsys):
    def run(*options):
        assert main(["server-plan", "--after", SOURCE, "--row", "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_cells_that_are_not_known_are_empty(row, capsys):
    found = row()
    assert found["model"] == "demo target" and found["k"] == len(found["acceptance"]) == 8
    assert found["tokens_per_step"] == pytest.approx(1 + sum(value for value, *_ in found["acceptance"]), rel=1e-3)
    assert all(low < value < high for value, low, high in found["acceptance"])
    assert [name for name, value in found.items() if value is None] == [
        "version", "hardware", "drafter", "batch", "speedup", "date",
    ]  # fmt: skip
    assert main(["server-plan", "--after", SOURCE, "--row", "--cell", "hardware=a|b"]) == 0
    header, line, cells = capsys.readouterr().out.splitlines()
    assert header.split(" | ")[-1] == "source |" and {text.count("|") for text in (header, line)} == {13}
    assert "| a\\|b |" in cells


def test_cells_can_be_given(row, refusal):
    found = row("--cell", "hardware=2 H100", "--cell", " date = 2026-11-29", "--cell", "model=a=b")
    assert (found["hardware"], found["date"], found["model"]) == ("2 H100", "2026-11-29", "a=b")
    for cell in ("speedup=3", "hardware=", "hardware"):
        said = refusal("server-plan", "--after", SOURCE, "--row", "--cell", cell)
        assert f"--cell: found '{cell}', expected one of model, engine" in said
    assert "without --row" in refusal("server-plan", "--after", SOURCE, "--cell", "hardware=H100")


def test_speeds_are_compared_at_one_load_only(row):
    assert row("--timed", "0=30@4,8=90@2")["speedup"] is None
    found = row("--timed", "0=30@4,8=75@4,8=90@2")
    assert found["speedup"] == 2.5 and found["batch"] == 4


def test_shipped_rows_match_their_sources():
    rows = [json.loads(line) for line in (SERVERS / "rows.jsonl").read_text().splitlines()]
    assert all(list(each) == COLUMNS and each["source"] for each in rows)
    by_model = {each["model"]: each for each in rows}
    for path in SERVERS.glob("*.json"):
        counts = read_counts(path.read_bytes(), path.name)
        assert by_model[counts.model] == result_row(counts, (), {"date": by_model[counts.model]["date"]})
    for each in rows:
        if each["source"].startswith("benchmarks/"):
            record = json.loads((ASSETS.parent / each["source"]).read_text())
            (setting,) = [part for part in record["rows"] if part["k"] == each["k"]]
            assert setting["measured"]["value"] == each["speedup"]
            assert [value for value, *_ in each["acceptance"]] == setting["survival"]
