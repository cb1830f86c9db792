"""The row of `server-plan --row`: what is counted, what is measured, and nothing else."""

import json

import pytest

from sequoia_core.command_line.main import main
from sequoia_core.files.model_names import ASSETS

SOURCE = str(ASSETS / "servers" / "vllm-demo-pair.jsonl")


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
    assert main(["server-plan", "--after", SOURCE, "--row"]) == 0
    header, line, cells = capsys.readouterr().out.splitlines()
    assert header.split(" | ")[-1] == "date |" and {text.count("|") for text in (header, line, cells)} == {12}


def test_speeds_are_compared_at_one_load_only(row):
    assert row("--timed", "0=30@4,8=90@2")["speedup"] is None
    found = row("--timed", "0=30@4,8=75@4,8=90@2")
    assert found["speedup"] == 2.5 and found["batch"] == 4
