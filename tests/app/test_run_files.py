"""Run files: round trips, older versions, and rejection of invalid files."""

import json
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sequoia_core.decoding import assemble
from sequoia_core.trees.plain import branching_tree, chain_tree
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from tests.app.conftest import ROOT, as_demo_pair
from tests.core.decoding.test_tree_policy import TakingTurns, TurnDrafter
from ui.jobs import jobs
from ui.jobs.decode_job import LEFT_OUT_NODES, record_run
from ui.runs import run_files
from ui.runs.run_files import load_run, run_from_bytes, run_to_bytes
from ui.runs.runs import DecodeRequest

TREES = (branching_tree([2, 1]), chain_tree(3))


@pytest.fixture(scope="module")
def tokenizer() -> SimpleNamespace:
    return SimpleNamespace(
        encode=lambda text: [ord(letter) % 64 for letter in text],
        decode=lambda ids, skip_special_tokens=False: "".join(chr(48 + token) for token in ids),
    )


@pytest.fixture(scope="module")
def recorded(tokenizer: SimpleNamespace, tiny_target, tiny_draft) -> list[dict]:
    turns = DecodeRequest("prompt", TakingTurns(TREES), temperature=0.7, max_new_tokens=16)
    shaped = replace(turns, tree=SpecExecTree(max_size=8, max_depth=3), verifier="topk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "shared_pair", lambda *spec: as_demo_pair(tiny_target, tiny_draft, tokenizer))
        patch.setattr(assemble, "DRAFTERS", (*assemble.DRAFTERS, TurnDrafter))
        return [record_run(each) for each in (turns, shaped, replace(turns, verifier="traversal"))]


@pytest.fixture
def run(recorded: list[dict]) -> dict:
    """Return a run that alternates between two trees."""
    return deepcopy(recorded[0])


def test_a_run_with_two_trees_stores_each_once_and_round_trips(run: dict) -> None:
    assert [TokenTree(np.array(parents)) for parents in run["shapes"]] == list(TREES)
    assert [step["shape"] for step in run["steps"]] == [index % 2 for index in range(len(run["steps"]))]
    data = run_to_bytes(run)
    assert run_from_bytes(data, "run.jsonl") == run and data.count(b"\n") == 1 + len(run["steps"])
    rows = [row for step in run["steps"] for row in step["rows"]]
    assert set(rows[0]["accepted"]) == {"sequoia", "specinfer", "topk", "best"}
    for row in rows:
        del row["accepted"]  # as in older files
    assert run_from_bytes(run_to_bytes(run), "run.jsonl") == run


def test_the_load_is_checked_and_missing_in_older_files(run: dict) -> None:
    run["load"] = {"share": 0.4, "processes": 2}
    assert run_from_bytes(run_to_bytes(run), "a") == run
    run["load"] = {"share": 1.4, "processes": 2}
    with pytest.raises(ValueError, match="a: load"):
        run_from_bytes(run_to_bytes(run), "a")
    del run["load"]
    assert run_from_bytes(run_to_bytes(run), "a")["load"] is None


def test_a_run_of_version_1_is_read(tmp_path) -> None:
    path = ROOT / "tests" / "app" / "data" / "run-version-1.json"
    old = json.loads(path.read_text())
    del old["baseline"]["median_sec"]  # what earlier versions wrote and no longer counts
    run = load_run(path)
    assert run["shapes"] == [old["parents"]] and {step.pop("shape") for step in run["steps"]} == {0}
    assert run["steps"] == old["steps"] and run["version"] == 2
    assert all(run[name] == value for name, value in old.items() if name not in ("version", "parents"))


@pytest.fixture
def shaped(recorded: list[dict]) -> dict:
    """Return a run whose trees are grown in their steps."""
    return deepcopy(recorded[1])


def test_gains_and_costs_of_nodes_round_trip(recorded, run: dict, shaped: dict) -> None:
    for each in recorded:
        assert run_from_bytes(run_to_bytes(each), "run.jsonl") == each
    assert any(step["trials"] for step in recorded[2]["steps"])
    assert not any("marginal" in step for step in run["steps"])  # its trees were not grown
    for step in shaped["steps"]:
        marginal = step["marginal"]
        assert len(marginal["gains"]) == len(step["tokens"]) == 8 and marginal["costs"] == [None] * 8
        assert 0 < len(marginal["left_out"]) <= LEFT_OUT_NODES


FAULTS = {
    "no version": (lambda header, steps: header.pop("version"), "version: found nothing"),
    "a later version": (lambda header, steps: header.update(version=3), "version: found '3'"),
    "an id that is a path": (lambda header, steps: header.update(id="../../etc"), "id: found"),
    "too large a tree": (lambda header, steps: header.update(shapes=[[-1] + [0] * 5000]), "shapes.0: found 'list'"),
    "an unknown shape": (lambda header, steps: steps[0].update(shape=999), "step 0: shape: found 999"),
    "steps out of order": (lambda header, steps: steps.reverse(), "step 0: index: found"),
    "too few tokens": (lambda header, steps: steps[1]["tokens"].pop(), "step 1: tokens: found"),
    "negative times": (lambda header, steps: steps[0].update(seconds=[-1.0] * 4), "step 0: seconds.0"),
    "unknown outcomes": (lambda header, steps: steps[0].update(outcomes="<img"), "step 0: outcomes"),
    "a path outside the tree": (lambda header, steps: steps[0].update(path=[0, 900]), "step 0: path"),
    "a path from below the root": (lambda header, steps: steps[0].update(path=[1], rows=[]), "step 0: path"),
    "more text than the path": (lambda header, steps: steps[0].update(pieces=["x"] * 9), "step 0: pieces: found 9"),
    "a bonus without its text": (lambda header, steps: steps[0].update(bonus=None), "step 0: bonus"),
    "a decision on the root": (lambda header, steps: steps[0].update(trials=[[0, 0, 0, 0]]), "step 0: trials"),
    "rows of other nodes": (lambda header, steps: steps[0]["rows"][0].update(node=9), "step 0: rows: found different"),
    "rows without their tokens": (
        lambda header, steps: steps[0]["rows"][0]["target"]["texts"].pop(),
        "step 0: rows: found 5 probabilities, expected 4",
    ),
    "too few gains": (lambda header, steps: steps[0]["marginal"]["gains"].pop(), "step 0: marginal.gains: found 7"),
    "a parent outside the tree": (
        lambda header, steps: steps[0]["marginal"]["left_out"][0].update(parent=8),
        "step 0: marginal.left_out: found a parent outside the tree, expected 0 to 7",
    ),
    "too many matches": (
        lambda header, steps: steps[0].update(found_at=[None] * 9),
        "step 0: found_at: found 9",
    ),
}


@pytest.mark.sample(len(FAULTS))
@pytest.mark.parametrize(("change", "cause"), FAULTS.values(), ids=FAULTS)
def test_invalid_runs_are_rejected_with_one_line(change, cause: str, shaped: dict) -> None:
    change(shaped, shaped["steps"])
    with pytest.raises(ValueError, match="own.jsonl: ") as caught:
        run_from_bytes(run_to_bytes(shaped), "own.jsonl")
    assert cause in str(caught.value) and "\n" not in str(caught.value)


def test_other_files_are_rejected(run: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"", b"<html>", b"[" * 20_000, b"{}", b'{"format": "sequoia-run", "version": 1}'):
        with pytest.raises(ValueError, match="own.jsonl: .*found"):
            run_from_bytes(data, "own.jsonl")
    header, first, *rest = run_to_bytes(run).splitlines()
    with pytest.raises(ValueError, match="own.jsonl: line 3: found NaN"):
        run_from_bytes(b"\n".join([header, first, b'{"index": NaN}', *rest[1:]]), "own.jsonl")
    monkeypatch.setattr(run_files, "MAX_RUN_STEPS", 2)
    with pytest.raises(ValueError, match="found 3 steps, expected at most 2"):
        run_from_bytes(run_to_bytes(run | {"steps": run["steps"][:3]}), "own.jsonl")


def test_the_walk_of_older_files_is_cut_at_the_end_of_the_text(monkeypatch, tokenizer, tiny_target) -> None:
    """Here the text ended after the first of three accepted tokens."""
    pair = as_demo_pair(tiny_target, tiny_target, tokenizer)
    monkeypatch.setattr(jobs, "shared_pair", lambda *spec: pair)
    run = record_run(DecodeRequest("prompt", chain_tree(3), temperature=0.7, max_new_tokens=4))
    (older,) = run["steps"]
    assert len(older["path"]) == 4 and len(older["trials"]) == 3
    older |= {"pieces": older["pieces"][:1], "bonus": None}
    (read,) = run_from_bytes(run_to_bytes(run), "run.jsonl")["steps"]
    assert read["path"] == [0, 1] and read["outcomes"] == "AANN" and [row["node"] for row in read["rows"]] == [0, 1]
    assert [trial[0] for trial in read["trials"]] == [1]
