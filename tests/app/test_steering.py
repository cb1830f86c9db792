"""Runs that are told something while they go on: to wait before each step, to run on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sequoia_core.decoding import loop
from sequoia_core.design.plain_trees import chain_tree
from tests.app.conftest import wait_for
from ui.jobs.decode_job import decode_work
from ui.runs.runs import DecodeRequest, summary_of
from ui.token_tree import steering
from ui.token_tree.steering import Steering


def started(queue, held: Steering, tree=None, tokens: int = 40):
    request = DecodeRequest("def f():", tree or chain_tree(3), "a chain", max_new_tokens=tokens, steering=held)
    return queue.submit("Decoding", decode_work(request), info=request)


def waits_after(held: Steering, steps: int) -> None:
    wait_for(lambda: held.waiting_after == steps)


def test_the_engine_waits_for_each_step_and_a_press_counts_once(tiny_pair, queue) -> None:
    held = Steering(stepwise=True)
    job = started(queue, held)
    for steps in (1, 2, 3):
        waits_after(held, steps)
        assert job.step_count == steps
        held.next_step(steps)
        held.next_step(steps)  # a press that comes twice, or too late
    waits_after(held, 4)
    held.run_on()
    wait_for(lambda: not job.active)
    assert job.state == "done" and summary_of(job.result).tokens == 40


def test_the_wait_counts_in_no_time(tiny_pair, queue, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Slow(Steering):
        def wait(self, after, cancel) -> None:
            clock[0] += 1000.0

    job = started(queue, Slow(stepwise=True))
    wait_for(lambda: not job.active)
    assert clock[0] > 0.0 and all(sum(step["seconds"]) == 0.0 for step in job.result["steps"])
    assert job.result["baseline"]["seconds"] == 0.0


def test_a_run_that_nobody_goes_on_with_goes_on_by_itself(tiny_pair, queue, monkeypatch) -> None:
    monkeypatch.setattr(steering, "LONGEST_WAIT_SEC", 0.0)
    held = Steering(stepwise=True)
    job = started(queue, held)
    wait_for(lambda: not job.active)
    assert job.state == "done" and not held.stepwise


@pytest.mark.parametrize(("unloads", "state"), [(False, "cancelled"), (True, "done")])
def test_a_stop_and_unloading_release_a_waiting_run(unloads: bool, state: str, tiny_pair, queue) -> None:
    held = Steering(stepwise=True)
    job = started(queue, held)
    waits_after(held, 1)
    steering.release_all() if unloads else job.cancel()
    wait_for(lambda: not job.active)
    assert job.state == state and (job.step_count > 1) == unloads and held.waiting_after is None
