"""Lookup trees in the app: decoding, the occurrences of nodes, and earlier answers."""

from __future__ import annotations

import json
from dataclasses import replace

from streamlit.testing.v1 import AppTest

from tests.app.conftest import open_page, run_job, settled, studio, vector
from tests.conftest import calibration_of
from ui.runs.run_files import run_from_bytes, run_to_bytes


def opened(**query: str) -> AppTest:
    page = open_page("decode", tokens="48", source="tree", **query)
    studio(page).tree_kind = "lookup"
    return settled(page.run())


def decoded(page: AppTest, prompt: str = "abcabcab") -> dict:
    page.text_area(key="decode_prompt").set_value(prompt)
    run_job(page, "decode")
    return studio(page).jobs["decode"].result


def paths(run: dict) -> list[list[str]]:
    return [step["tokens"] for step in run["steps"]]


def test_runs_and_run_files_have_the_occurrence_of_each_node(assets, tiny_pair) -> None:
    page = opened(temperature="1")
    assert any("trees from text already seen" in each.value for each in page.caption)
    run = decoded(page)
    assert run["verifier"] == "topk" and len(run["shapes"]) > 1
    found = [each for step in run["steps"] for each in step.get("found_at", ())[1:]]
    assert found and all(each["match"] >= 1 and not each["earlier"] for each in found)
    for step in run["steps"]:
        for token, each in zip(step["tokens"], step.get("found_at", ()), strict=False):
            assert each is None or (each["after"][0] == token and each["before"])
    sent = json.loads(page.get("bidi_component")[0].proto.json)["steps"]
    assert [step.get("found_at") for step in sent] == [step.get("found_at") for step in run["steps"]][-len(sent) :]
    assert run_from_bytes(run_to_bytes(run), "run")["steps"] == run["steps"]


def test_earlier_answers_are_searched_only_on_request(assets, tiny_pair) -> None:
    page = opened()
    assert page.toggle(key="earlier_answers").value is False
    first = decoded(page)
    index = studio(page).earlier_answers["demo target"]
    assert index.texts == 1 and index.tokens == 8 + 48 + 1  # the job has added prompt and answer
    assert paths(decoded(page)) == paths(first)
    assert index.texts == 2
    settled(page.toggle(key="earlier_answers").set_value(True).run())
    faster = decoded(page)
    assert faster["text"] == first["text"] and len(faster["steps"]) < len(first["steps"])
    assert "also in 2 earlier answers" in faster["tree_source"] and index.texts == 3
    assert any(each and each["earlier"] for step in faster["steps"] for each in step.get("found_at", ()))


def test_hybrid_trees_use_text_and_draft(assets, tiny_pair) -> None:
    replace(vector(), calibration=calibration_of(0.7)).save(assets / "acceptance" / "demo-t0.json")
    page = open_page("decode", tokens="48", source="tree")
    studio(page).tree_kind = "hybrid"
    first = decoded(settled(page.run()))
    assert "text already seen and the draft" in first["tree_source"] and len(first["shapes"]) > 1
    nodes = [found for step in first["steps"] for found in step.get("found_at", ())[1:]]
    assert {None if found is None else found["drafted"] for found in nodes} >= {None, True}  # from the draft, from both
