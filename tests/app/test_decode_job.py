"""The job of one decode run on tiny models: its settings reach the engine, and its baseline is correct."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import sequoia_core
from sequoia_core import SamplingConfig, decode
from sequoia_core.models.chat import Turn
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.processor import usable_cores
from sequoia_core.models.threads import TimedLoad
from sequoia_core.trees.plain import branching_tree
from tests.app.conftest import REAL_RECORD, as_demo_pair
from tests.chat_pair import chat_tokenizer
from tests.conftest import tiny_llama, tokens_of
from ui.jobs.decode_job import decode_beside_baseline, record_run
from ui.jobs.jobs import Job, JobContext
from ui.runs.runs import DecodeRequest, summarize

PROMPT = "def f():"
TREE = branching_tree([2, 2])
ASKED = {"temperature": 0.9, "top_p": 0.6, "seed": 5, "verifier": "specinfer"}


def text_of(pair: SimpleNamespace, **asked) -> str:
    """Return the text decoded without the job."""
    asked = ASKED | asked
    steps = decode(
        pair.tokenizer.encode(PROMPT),
        pair,
        tree=TREE,
        max_new_tokens=32,
        sampling=SamplingConfig(temperature=asked["temperature"], top_p=asked["top_p"]),
        verifier=asked["verifier"],
        generator=torch.Generator().manual_seed(asked["seed"]),
    )
    return pair.tokenizer.decode(tokens_of(steps))


def test_every_setting_reaches_the_engine(tiny_pair) -> None:
    run = record_run(DecodeRequest(PROMPT, TREE, max_new_tokens=32, **ASKED))
    others = {"temperature": 0.5, "top_p": 1.0, "seed": 0, "verifier": "sequoia"}
    assert all(text_of(tiny_pair) != text_of(tiny_pair, **{name: value}) for name, value in others.items())
    assert run["text"] == text_of(tiny_pair)


def test_a_busy_process_is_recorded(tiny_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedLoad, "record", REAL_RECORD)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        load = record_run(DecodeRequest(PROMPT, TREE, max_new_tokens=128))["load"]
    finally:
        busy.kill()
        busy.wait()
    assert load["processes"] >= 1 and 0.3 / len(usable_cores()) < load["share"] <= 1.0


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step with the tree take 4 s, and one without it 1 s, except for 100 s for the first."""

    def lasting(steps, seconds):
        for step in steps:
            yield replace(step, draft_sec=0.0, verify_sec=seconds(step.index), walk_sec=0.0, commit_sec=0.0)

    with_tree = sequoia_core.decode
    alone = sequoia_core.autoregressive
    monkeypatch.setitem(vars(sequoia_core), "decode", lambda *a, **k: lasting(with_tree(*a, **k), lambda index: 4.0))
    monkeypatch.setitem(
        vars(sequoia_core),
        "autoregressive",
        lambda *a, **k: lasting(alone(*a, **k), lambda index: 1.0 if index else 100.0),
    )


@pytest.fixture
def context() -> JobContext:
    return JobContext(Job("decode"))


def test_the_baseline_alternates_and_all_its_seconds_count(tiny_pair, timed, context) -> None:
    request = DecodeRequest(PROMPT, TREE, max_new_tokens=32)
    seen = []

    def keep(run) -> None:
        context.append = lambda record: seen.append(
            (sum(len(s["pieces"]) for s in run["steps"]), dict(run["baseline"]))
        )

    run = decode_beside_baseline(context, tiny_pair, request, store=keep, progress=lambda share, words: None)
    assert [baseline["tokens"] for _, baseline in seen] == [tokens for tokens, _ in seen]
    assert run["baseline"] == {"tokens": 32, "seconds": 131.0}
    assert summarize(run).speedup == pytest.approx(131.0 / sum(sum(step["seconds"]) for step in run["steps"]))


def test_the_read_rate_covers_steps_with_and_without_the_tree(tiny_pair, timed, context) -> None:
    def progress(share: float, words: str) -> None:
        tiny_pair.target.bytes_read = 501_000 if share else 1_000  # 1,000 before the first step

    request = DecodeRequest(PROMPT, TREE, max_new_tokens=32, models=PairSpec(offload="disk"))
    run = decode_beside_baseline(context, tiny_pair, request, store=lambda run: None, progress=progress)
    assert run["read_bytes_per_sec"] == pytest.approx(500_000 / (131.0 + 4.0 * len(run["steps"])))


def test_a_conversation_must_leave_room_for_one_token(context) -> None:
    """The target's context is the limit, not a smaller one of the draft."""
    request = DecodeRequest("", TREE, max_new_tokens=8, turns=(Turn("user", "Hello"),))

    def decoded(room: int) -> dict:
        models = [tiny_llama(seed, vocab=258, layers=1, context=size) for seed, size in ((1, room), (2, 16))]
        pair = as_demo_pair(*models, chat_tokenizer())
        return decode_beside_baseline(context, pair, request, store=lambda run: None, progress=lambda *told: None)

    length = decoded(512)["prompt_tokens"]
    assert len(decoded(length + 1)["steps"]) == 1
    with pytest.raises(ValueError, match=f"conversation: found {length} tokens, expected at most {length - 1}"):
        decoded(length)
