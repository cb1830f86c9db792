"""The replay section: lookup trees on the shipped log and on an uploaded one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sequoia_core.files.response_logs import load_responses
from sequoia_extras.dynamic_trees.lookup_replay import encode_requests, replay_log
from tests.app.conftest import ROOT, metrics, open_page, profile, run_job, settled, studio
from ui.jobs import replays

LOG = ROOT / "assets" / "responses" / "demo-greedy.jsonl"


@pytest.fixture
def with_example(assets) -> Path:
    """Replace the shipped log by its first requests."""
    (assets / "responses").mkdir()
    path = assets / "responses" / LOG.name
    path.write_text("\n".join(LOG.read_text().splitlines()[:6]))
    replays.example_replay.clear()
    yield path
    replays.example_replay.clear()


def test_the_shipped_example_shows_the_counts_of_the_replay(with_example) -> None:
    page = open_page("draft", draft_section="No draft")
    report = replay_log(encode_requests(load_responses(with_example), list).requests)
    hardware = profile()
    shown = metrics(page)
    for name, replayed in (("this text", report.isolated), ("and earlier answers", report.shared)):
        best = replayed.best_size(hardware)
        tokens = replayed.tokens_per_step(best).value
        speed = replayed.predicted_speedup(best, hardware)
        assert shown[f"Best n, {name}"] == (f"{best}", f"{tokens:.2f} tokens/step, {speed:.2f}× predicted")
    assert "Exact: the log contains" in " ".join(each.value for each in page.caption)
    assert [code.value for code in page.code] == list(report.server_settings(hardware).values())
    assert "Decode with lookup trees" in " ".join(each.value for each in page.markdown)
    assert "this text" in page.get("plotly_chart")[0].proto.spec


def test_an_uploaded_log_is_replayed_by_a_job_as_an_estimate(assets) -> None:
    page = open_page("draft", draft_section="No draft", replay_log="Upload")
    assert "Upload a log" in page.info[0].value
    lines = [json.dumps({"prompt": "a b c", "response": "the cat sat on the mat " * 6})] * 3
    page.file_uploader(key="replay_file").upload("log.jsonl", "\n".join(lines).encode(), "application/jsonl")
    page = run_job(settled(page.run()), "replay")
    assert any("An estimate" in each.value and "3 requests" in each.value for each in page.caption)
    assert studio(page).replay is studio(page).jobs["replay"].result


def test_a_malformed_log_is_refused(assets) -> None:
    page = open_page("draft", draft_section="No draft", replay_log="Upload")
    page.file_uploader(key="replay_file").upload("log.jsonl", b'{"x": 1}', "application/jsonl")
    page = settled(page.run())
    assert "expected prompt and response" in page.error[0].value
    assert not any(button.key == "replay_start" for button in page.button)
