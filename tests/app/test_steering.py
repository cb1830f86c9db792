"""Steering of active runs: waiting before each step, and resuming."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sequoia_core.decoding import loop
from sequoia_core.trees.plain import chain_tree
from tests.app.conftest import wait_for
from ui.jobs.decode_job import decode_work
from ui.runs.runs import DecodeRequest, summarize
from ui.token_tree import steering
from ui.token_tree.steering import Steering


def started(queue, held: Steering, tree=None, tokens: int = 40):
    request = DecodeRequest("def f():", tree or chain_tree(3), "a chain", max_new_tokens=tokens, steering=held)
    return queue.submit("Decoding", decode_work(request), info=request)


def wait_for_pause(held: Steering, steps: int) -> None:
    wait_for(lambda: held.waiting_after == steps)


def test_the_engine_waits_before_each_step_and_a_press_counts_once(tiny_pair, queue) -> None:
    held = Steering(stepwise=True)
    job = started(queue, held)
    for steps in (1, 2, 3):
        wait_for_pause(held, steps)
        assert job.step_count == steps
        held.next_step(steps)
        held.next_step(steps)  # a repeated or late press
    wait_for_pause(held, 4)
    held.run_on()
    wait_for(lambda: not job.active)
    assert job.state == "done" and summarize(job.result).tokens == 40


def test_waiting_is_not_timed(tiny_pair, queue, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Slow(Steering):
        def wait(self, after, cancel) -> None:
            clock[0] += 1000.0

    job = started(queue, Slow(stepwise=True))
    wait_for(lambda: not job.active)
    assert clock[0] > 0.0 and all(sum(step["seconds"]) == 0.0 for step in job.result["steps"])
    assert job.result["baseline"]["seconds"] == 0.0


def test_an_abandoned_run_resumes_after_the_longest_wait(tiny_pair, queue, monkeypatch) -> None:
    monkeypatch.setattr(steering, "MAX_WAIT_SEC", 0.0)
    held = Steering(stepwise=True)
    job = started(queue, held)
    wait_for(lambda: not job.active)
    assert job.state == "done" and not held.stepwise


@pytest.mark.parametrize(("unloads", "state"), [(False, "cancelled"), (True, "done")])
def test_stopping_and_unloading_release_a_waiting_run(unloads: bool, state: str, tiny_pair, queue) -> None:
    held = Steering(stepwise=True)
    job = started(queue, held)
    wait_for_pause(held, 1)
    steering.release_all() if unloads else job.cancel()
    wait_for(lambda: not job.active)
    assert job.state == state and (job.step_count > 1) == unloads and held.waiting_after is None
