"""A plan from three settings predicts the others, on servers whose steps cost what a line says."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.servers.check import (
    REQUEST_SEC,
    Served,
    ask_servers,
    compare,
    counts_of,
    read_answer,
    server_command,
    tokens_per_sec,
)
from sequoia_core.servers.counts import ServerCounts, ServerRequest
from tests.core.servers.samples import step_record, vllm_text
from tests.served import body_of, reply, served

PLAIN_SEC, FIXED_SEC, TOKEN_SEC = 0.010, 0.004, 0.001
TOKENS = 200
SETTINGS = (0, 1, 2, 3, 4, 6, 8)  # lengths of draft


def guesses(requests: int, seed: int = 0) -> list[np.ndarray]:
    """Return for each request whether the draft is right about each token: stretches of easy text, then of hard."""
    generator = np.random.default_rng(seed)
    ease = [np.repeat(generator.choice([0.4, 0.9], TOKENS // 20), 20) for _ in range(requests)]
    return [generator.random(TOKENS) < chances for chances in ease]


def serve(right: np.ndarray, k: int) -> Served:
    """Answer a request with a chain of k."""
    accepted, place = [], 0
    while place < len(right):
        taken = next((i for i in range(k) if place + i >= len(right) or not right[place + i]), k)
        accepted.append(taken)
        place += taken + 1
    sec = (PLAIN_SEC + FIXED_SEC + k * TOKEN_SEC) if k else PLAIN_SEC
    if not k:
        return Served(len(right), len(accepted) * sec, "text")
    request = ServerRequest(tuple(accepted), (k,) * len(accepted), len(right))
    positions = tuple(sum(taken >= place for taken in accepted) for place in range(1, k + 1))
    counts = ServerCounts(
        "vllm", "records by step", len(accepted), k * len(accepted), sum(accepted), positions,
        requests=(request,), ordered=True,
    )  # fmt: skip
    return Served(len(right), len(accepted) * sec, "text", counts)


@pytest.fixture(scope="module")
def settings() -> dict[int, list[Served]]:
    texts = guesses(12)
    return {k: [serve(right, k) for right in texts] for k in SETTINGS}


def test_records_by_step_predict_every_setting(settings):
    found = compare(settings)
    assert [row["k"] for row in found["rows"]] == list(SETTINGS)
    for row in found["rows"]:
        # what follows a whole accepted draft was never guessed, and counts as right
        assert row["error"] == pytest.approx(0, abs=0.02)
        assert row["held"]
        assert row["measured"]["value"] == pytest.approx(
            tokens_per_sec(settings[row["k"]]) / tokens_per_sec(settings[0])
        )
    assert found["chosen"] == found["best"] > 0 and found["chosen_over_best"]["value"] == 1.0
    assert found["same_text"] == 1.0


def test_a_setting_that_behaves_otherwise_does_not_hold(settings):
    slower = settings | {4: [replace(each, seconds=each.seconds * 1.5) for each in settings[4]]}
    found = compare(slower)
    four = next(row for row in found["rows"] if row["k"] == 4)
    assert four["error"] == pytest.approx(0.5, abs=0.02) and not four["held"]
    assert found["chosen"] == 4 and found["best"] != 4 and found["chosen_over_best"]["high"] < 0.95
    assert found["median_abs_error"] < 0.02  # the three others hold
    unseen = compare(slower, planned_from=(0, 4, 8))
    assert unseen["median_abs_error"] > 0.05


@pytest.mark.parametrize(("rate", "same"), [(0.55, True), (0.65, False)])
def test_a_vector_tells_a_server_of_its_rule_from_another(rate, same):
    """False alarm of each k about 5 %; drawn with a fixed seed."""
    draws = np.random.default_rng(1)
    texts = {k: [(draws.random(96) < rate).astype(int) for _ in range(64)] for k in (0, 1, 4)}
    expected = counts_of([serve((draws.random(96) < 0.55).astype(int), 16) for _ in range(64)])
    found = compare(
        {k: [serve(right, k) for right in texts[k]] for k in texts}, planned_from=(0, 1, 4), expected=expected
    )
    assert [row["tokens_per_step_held"] for row in found["rows"]] == [None, same, same]
    assert found["rows"][2]["predicted_tokens_per_step_interval"][0] < 1 + sum(0.55**i for i in range(1, 5))


def test_times_that_no_plan_believes_leave_the_tokens_per_step(settings):
    """A busy machine: steps with drafts took half the time of those without."""
    quick = {k: [replace(each, seconds=each.seconds / (3 if k else 1)) for each in settings[k]] for k in settings}
    found = compare(quick)
    assert found["chosen"] is None and "counts and times are not of one run" in found["notes"][0]
    assert all(row["tokens_per_step_held"] for row in found["rows"] if row["k"])


def test_answers_of_one_token_are_left_out_of_every_setting(settings):
    ended = settings | {4: [replace(settings[4][0], tokens=0, counts=None), *settings[4][1:]]}
    found = compare(ended)
    assert found["rows"] == compare({k: answers[1:] for k, answers in settings.items()})["rows"]


def test_an_answer_without_drafts_adds_no_step_to_those_with_drafts(settings):
    first, *others = settings[4]
    counts = replace(
        first.counts, drafts=0, draft_tokens=0, accepted_tokens=0, positions=(0,) * 4,
        requests=(ServerRequest((), (), first.tokens),),
    )  # fmt: skip
    added = compare(settings | {4: [replace(first, counts=counts), *others]})
    without = compare({k: answers[1:] for k, answers in settings.items()})
    rows = [next(row for row in found["rows"] if row["k"] == 4) for found in (added, without)]
    assert rows[0]["tokens_per_step"] == rows[1]["tokens_per_step"]
    none = compare(settings | {4: [replace(each, counts=counts) for each in settings[4]]})
    row = next(row for row in none["rows"] if row["k"] == 4)
    assert (row["drafts"], row["tokens_per_step"], row["survival"]) == (0, None, [])
    both = counts_of([first, replace(first, counts=None)])  # of the second each token is a step
    assert both.requests_done == 2 and both.all_steps == 2 * first.tokens - first.counts.accepted_tokens


def test_nothing_is_predicted_where_drafts_end_early_or_none_is_made(settings):
    def early(each: Served) -> Served:
        drafted = max(each.counts.drafts, each.counts.draft_tokens * 9 // 10)
        return replace(each, counts=replace(each.counts, draft_tokens=drafted))

    found = compare({k: [early(each) for each in answers] if k else answers for k, answers in settings.items()})
    assert found["chosen"] is None and found["median_abs_error"] is None and found["chosen_over_best"] is None
    assert all(row["predicted"] is None and row["measured"]["value"] > 0 for row in found["rows"])
    assert "nothing is planned" in found["notes"][0]


ANSWER = {"choices": [{"text": "x"}], "usage": {"completion_tokens": 3}}


def test_answers_that_tell_too_little_are_refused():
    for engine, answer in (("vllm", ANSWER), ("llama.cpp", ANSWER | {"timings": {"predicted_ms": -1}})):
        with pytest.raises(ValueError, match="without metrics.generation_time_ms|found 3 tokens in -0.001 s"):
            read_answer(json.dumps(answer).encode(), "http://127.0.0.1:1", engine)
    endless = json.dumps(ANSWER | {"timings": {"predicted_ms": 1000 * REQUEST_SEC}})
    with pytest.raises(ValueError, match=f"found 3 tokens in {REQUEST_SEC:g} s"):
        read_answer(endless.encode(), "http://127.0.0.1:1", "llama.cpp")
    twice = json.dumps(ANSWER | {"timings": {"predicted_ms": 9}})[:-1] + ', "usage": {"completion_tokens": 30}}'
    for content, said in ((twice, "found the key 'usage' twice"), ("<html>", "found no readable JSON")):
        with pytest.raises(ValueError, match=f"^http://127.0.0.1:1: {said}"):
            read_answer(content.encode(), "http://127.0.0.1:1", "llama.cpp")


@contextmanager
def vllm_like(*, detailed: bool):
    """Answer as vLLM does with drafts of 2, of which the first step's is accepted whole and the second's refused."""
    asked = []

    def counts():
        done = sum(isinstance(each, dict) for each in asked)
        return vllm_text(5 + 2 * done, 10 + 4 * done, 4 + 2 * done, (3 + done, 1 + done), 20 + 5 * done, 4 + done)

    def answer():
        metrics = {"generation_time_ms": 40.0, "speculative_decoding": step_record("20", 2) if detailed else None}
        usage = {"completion_tokens": 5}
        return json.dumps({"choices": [{"text": "abcde"}], "usage": usage, "metrics": metrics})

    def respond(handler):
        asked.append(handler.path if handler.command == "GET" else body_of(handler))
        reply(handler, (counts() if handler.command == "GET" else answer()).encode())

    with served(respond) as address:
        yield address, asked


@pytest.mark.parametrize("detailed", [True, False])
def test_a_server_is_asked_and_its_counts_are_read(detailed):
    with vllm_like(detailed=detailed) as (address, asked):
        found = ask_servers({0: address, 2: address}, "vllm", [[5, 6], "text"], 5)
    bodies = [each for each in asked if isinstance(each, dict)]
    assert [body["prompt"] for body in bodies[2:]] == [[5, 6], [5, 6], "text", "text"]  # after the warm-up
    assert all(body["temperature"] == 0 and body["ignore_eos"] and body["max_tokens"] == 5 for body in bodies)
    assert [(each.tokens, each.seconds, each.counts) for each in found[0]] == [(4, 0.04, None)] * 2
    for each in found[2]:
        assert (each.counts.drafts, each.counts.positions, each.counts.ordered) == (2, (1, 1), detailed)
        assert sorted(each.counts.requests[0].accepted) == [0, 2] and each.counts.requests[0].tokens == 4
    assert (counts_of(found[2]).tokens, counts_of(found[2]).requests_done) == (10, 2)


def test_commands_turn_speculation_and_its_records_on():
    head = server_command("vllm", "python -m vllm --dtype float32", "big", "head", 3, method="eagle3")
    assert head[:7] == ["python", "-m", "vllm", "--dtype", "float32", "--model", "big"] and "detailed" in head
    assert json.loads(head[-1]) == {"method": "eagle3", "model": "head", "num_speculative_tokens": 3}
    plain = server_command("vllm", "python -m vllm", "big", "small", 0)
    assert plain[3:] == ["--model", "big", "--enable-per-request-metrics"]
