"""The replay page: what lookup trees would do for a log, the shipped one and a user's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sequoia_core.files.response_logs import load_responses
from sequoia_core.studies.lookup_replay import encode_requests, replay_log
from tests.app.conftest import ROOT, metrics, open_page, profile, run_job, settled
from ui.jobs import replays

LOG = ROOT / "assets" / "responses" / "demo-greedy.jsonl"


@pytest.fixture
def with_example(assets) -> Path:
    """The first requests of the shipped log in place of all."""
    (assets / "responses").mkdir()
    path = assets / "responses" / LOG.name
    path.write_text("\n".join(LOG.read_text().splitlines()[:6]))
    replays.example.clear()
    yield path
    replays.example.clear()


def test_the_shipped_example_is_shown_as_the_core_counts_it(with_example) -> None:
    page = open_page("draft", draft_section="No draft")
    report = replay_log(encode_requests(load_responses(with_example), list).requests)
    hardware = profile()
    shown, table = metrics(page), page.dataframe[0].value
    for name, lane in (("own text", report.own), ("also earlier", report.shared)):
        best = lane.best_size(hardware)
        tokens = lane.tokens_per_step(best)
        assert shown[f"Best n, {name}"] == (f"{best}", f"{tokens.value:.2f} tokens/step")
        assert f"({tokens.low:.2f} to {tokens.high:.2f})" in " ".join(table["tokens per step"])
        assert shown[f"Speedup, {name}"][0] == f"{lane.predicted_speedup(best, hardware):.2f}×"
    assert "Exact: these token ids" in page.caption[1].value
    own = table[table["looks through"] == "own text"]
    speeds = np.array([report.own.predicted_speedup(int(n), hardware) for n in own["n"]])
    assert list(own["speed ÷ that of the best n"]) == [f"{each:.1%}" for each in speeds / speeds.max()]
    assert [code.value for code in page.code] == list(report.server_settings(hardware).values())
    assert "Decode with lookup trees" in " ".join(each.value for each in page.markdown)
    assert "own text" in page.get("plotly_chart")[0].proto.spec


def test_an_uploaded_log_is_a_job_and_text_is_called_an_estimate(assets) -> None:
    page = open_page("draft", draft_section="No draft", replay_log="Upload")
    assert "Upload a log" in page.info[0].value
    lines = [json.dumps({"prompt": "a b c", "response": "the cat sat on the mat " * 6})] * 3
    page.get("file_uploader")[0].upload("log.jsonl", "\n".join(lines).encode(), "application/jsonl")
    page = run_job(settled(page.run()), "replay")
    assert any("An estimate" in each.value and "3 requests" in each.value for each in page.caption)
    assert page.session_state["studio_replayed"] is page.session_state["studio_jobs"]["replay"].result


def test_a_bad_log_is_refused_in_one_line(assets) -> None:
    page = open_page("draft", draft_section="No draft", replay_log="Upload")
    page.get("file_uploader")[0].upload("log.jsonl", b'{"x": 1}', "application/jsonl")
    page = settled(page.run())
    assert "expected prompt and response" in page.error[0].value
    assert not any(button.key == "replay_start" for button in page.button)
