"""The engine queue: order, limit, cancelling, failures and partial results."""

import json
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from sequoia_core.files.faults import Cancelled
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import ROOT, wait_for
from ui.jobs import engine_queue, job_panel, jobs
from ui.jobs.engine_queue import Busy, EngineQueue
from ui.jobs.jobs import JobContext
from ui.phrases import duration


def waiting_work(release: threading.Event) -> Callable[[JobContext], str]:
    def work(context: JobContext) -> str:
        while not release.wait(0.005):
            if context.cancel.is_set():
                return "stopped"
        return "finished"

    return work


def test_a_job_reports_progress_and_result(queue: EngineQueue) -> None:
    seen = threading.Event()
    go = threading.Event()

    def work(context: JobContext) -> int:
        context.progress(0.1, "begun")
        time.sleep(0.02)
        context.progress(0.5, "halfway")
        seen.set()
        go.wait(5)
        return 42

    job = queue.submit("count", work)
    assert seen.wait(5)
    assert (job.state, job.position, job.fraction, job.message) == ("running", 0, 0.5, "halfway")
    assert job.eta_sec is not None and job.eta_sec >= 0.02
    go.set()
    wait_for(lambda: job.state == "done")
    assert (job.result, job.fraction, job.error, job.eta_sec) == (42, 1.0, None, None)


def test_one_job_runs_four_wait_and_more_are_rejected(queue: EngineQueue) -> None:
    release = threading.Event()
    first = queue.submit("first", waiting_work(release))
    wait_for(lambda: first.state == "running")
    waiting = [queue.submit(f"waiting {i}", waiting_work(release)) for i in range(4)]
    assert [job.position for job in waiting] == [1, 2, 3, 4]
    with pytest.raises(Busy, match="4 are waiting"):
        queue.submit("too many", waiting_work(release))
    waiting[1].cancel()
    assert [job.position for job in waiting] == [1, 0, 2, 3]
    late = queue.submit("late", waiting_work(release))
    assert late.position == 4
    release.set()
    wait_for(lambda: late.state == "done")
    assert [job.state for job in waiting] == ["done", "cancelled", "done", "done"]


def test_close_cancels_all_jobs_and_ends_the_worker() -> None:
    before = set(threading.enumerate())
    engine = EngineQueue()
    jobs = [
        engine.submit("running", waiting_work(threading.Event())),
        engine.submit("waiting", waiting_work(threading.Event())),
    ]
    wait_for(lambda: jobs[0].state == "running")
    (worker,) = set(threading.enumerate()) - before
    engine.close()
    wait_for(lambda: all(job.state == "cancelled" for job in jobs))
    assert [job.position for job in jobs] == [0, 0]
    worker.join(60)
    assert not worker.is_alive()


def panic(context: JobContext) -> None:
    """Cause a real Rust panic: a tokenizer file with pieces of length 0 loads, and panics when used."""
    content = json.loads((ROOT / "assets" / "demo" / "target" / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
    Tokenizer.from_str(json.dumps(content)).encode("def f():")


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException, *, steps: int = 0) -> Callable[[JobContext], None]:
    def work(context: JobContext) -> None:
        context.store_partial(["a part"])
        for index in range(steps):
            context.append_step(index)
        raise error

    return work


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(
    ("work", "words"),
    [
        (panic, "PanicException: chunk size must be non-zero"),
        (raising(Unspeakable()), "Unspeakable"),
        (raising(RuntimeError("logits are\nNaN"), steps=3), "step 3: RuntimeError: logits are NaN"),
    ],
    ids=["panic", "unspeakable", "in a step"],
)
def test_any_exception_ends_only_its_job_and_keeps_partial_results(queue: EngineQueue, work, words) -> None:
    job, after = queue.submit("breaks", work), queue.submit("after", lambda context: "ok")
    wait_for(lambda: not (job.active or after.active))
    assert (job.state, after.state, after.result) == ("failed", "done", "ok")
    assert job.error.startswith(words) and "\n" not in job.error
    assert job.result == (None if work is panic else ["a part"]) and job.steps == [*range(job.step_count)]


def test_a_cancelled_job_keeps_its_result_and_is_no_failure(queue: EngineQueue) -> None:
    def nothing_yet(context: JobContext) -> None:
        context.cancel.wait(5)
        raise Cancelled("cancelled before the first prompt was complete")

    for work, result in ((waiting_work(threading.Event()), "stopped"), (nothing_yet, None)):
        job = queue.submit("long", work)
        wait_for(lambda job=job: job.state == "running")
        job.cancel()
        wait_for(lambda job=job: not job.active)
        assert (job.state, job.error, job.result) == ("cancelled", None, result)


def test_a_failed_allocation_is_reported_as_out_of_memory(queue: EngineQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_queue._LOG, "disabled", True)  # pytest stores log records with their tracebacks
    tensors = []

    def absurd(context: JobContext) -> None:
        context.append_step("a step")
        large = torch.zeros(2**20)
        tensors.append(weakref.ref(large))
        torch.empty(2**47, dtype=torch.float32)

    jobs = [queue.submit("absurd", absurd), queue.submit("next", lambda context: 1)]
    wait_for(lambda: not any(job.active for job in jobs))
    assert jobs[0].error == "step 1: out of memory. Try a smaller tree or a shorter prompt."
    assert jobs[1].state == "done" and tensors[0]() is None


def test_loading_has_a_part_of_the_bar_and_estimates_do_not_rise(queue: EngineQueue, monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(jobs, "shared_pair", lambda spec, cancel, report: report(0.5, "reading half"))
    job = jobs.Job("measure")
    job.future.set_running_or_notify_cancel()
    job.started = 0.0
    context = JobContext(job)
    context.pair(PairSpec())
    assert (job.message, job.fraction, job.eta_sec) == ("reading half", 0.5 * jobs.LOADING_SHARE, None)
    estimates = []
    for clock[0], done in ((100, 0.1), (110, 0.2), (130, 0.3), (150, 0.3), (152, 0.5), (300, 0.52)):
        context.progress(done, "round")
        estimates.append(job.eta_sec)
    assert estimates[1:4] == [80, 80, 80] and estimates[4] < 80
    assert estimates[5] > 2 * estimates[4]  # the work takes much longer than was estimated
    clock[0] = 305.0
    assert job_panel.progress_text(job).startswith("Round · 305 s so far · about ")
    assert [duration(seconds) for seconds in (4.2, 41, 89, 170)] == [
        "about 4 s", "about 40 s", "about 1 min", "about 3 min",
    ]  # fmt: skip
