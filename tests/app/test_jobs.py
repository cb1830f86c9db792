"""The engine queue: order, bound, cancel, failures that keep earlier steps, and no output mixed between jobs."""

import json
import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer

from sequoia_core.files.faults import Cancelled
from tests.app.conftest import ROOT, wait_for
from ui.jobs import engine_queue
from ui.jobs.engine_queue import Busy, EngineQueue
from ui.jobs.jobs import Job, JobContext


def held(release: threading.Event) -> Callable[[JobContext], str]:
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

    job = queue.submit("count", work, info={"a": 1})
    assert seen.wait(5)
    assert (job.state, job.position, job.fraction, job.message) == ("running", 0, 0.5, "halfway")
    assert job.eta_sec is not None and job.eta_sec >= 0.02
    go.set()
    wait_for(lambda: job.state == "done")
    assert (job.result, job.fraction, job.error, job.info) == (42, 1.0, None, {"a": 1})
    assert job.eta_sec is None


def test_one_runs_four_wait_the_rest_are_told_busy(queue: EngineQueue) -> None:
    release = threading.Event()
    first = queue.submit("first", held(release))
    wait_for(lambda: first.state == "running")
    waiting = [queue.submit(f"waiting {i}", held(release)) for i in range(4)]
    assert [job.position for job in waiting] == [1, 2, 3, 4]
    with pytest.raises(Busy, match="4 wait"):
        queue.submit("too many", held(release))
    waiting[1].cancel()
    assert [job.position for job in waiting] == [1, 0, 2, 3]
    late = queue.submit("late", held(release))
    assert late.position == 4
    release.set()
    wait_for(lambda: late.state == "done")
    assert [job.state for job in waiting] == ["done", "cancelled", "done", "done"]


def test_the_ring_is_bounded_and_indices_stay_true() -> None:
    job = Job("ring")
    context = JobContext(job)
    total = job.ring.maxlen + 10
    for index in range(total):
        context.append(index)
    assert job.steps_since(total - 3) == [total - 3, total - 2, total - 1]
    assert job.steps_since(0)[0] == 10
    assert job.steps_since(total) == []


def test_close_cancels_running_and_waiting_and_ends_the_worker() -> None:
    before = set(threading.enumerate())
    engine = EngineQueue()
    jobs = [engine.submit("running", held(threading.Event())), engine.submit("waiting", held(threading.Event()))]
    wait_for(lambda: jobs[0].state == "running")
    (worker,) = set(threading.enumerate()) - before
    engine.close()
    wait_for(lambda: all(job.state == "cancelled" for job in jobs))
    assert [job.position for job in jobs] == [0, 0]
    worker.join(60)
    assert not worker.is_alive()


def panic(context: JobContext) -> None:
    """Really panic: pieces of length 0 are accepted in a tokenizer file and bring the library down when used."""
    content = json.loads((ROOT / "assets" / "demo" / "target" / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
    Tokenizer.from_str(json.dumps(content)).encode("def f():")


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException, *, steps: int = 0) -> Callable[[JobContext], None]:
    def work(context: JobContext) -> None:
        context.keep(["a part"])
        for index in range(steps):
            context.append(index)
        raise error

    return work


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(
    ("work", "words"),
    [
        (panic, "PanicException: chunk size must be non-zero"),
        (raising(Unspeakable()), "Unspeakable"),
        (raising(ValueError("prompt: found 900 tokens, expected at most 512")), "prompt: found 900 tokens, expected"),
        (raising(RuntimeError("logits are\nNaN"), steps=3), "step 3: RuntimeError: logits are NaN"),
    ],
    ids=["panic", "unspeakable", "mistake", "in a step"],
)
def test_whatever_the_work_raises_ends_that_job_only_and_it_keeps_what_it_had(queue: EngineQueue, work, words) -> None:
    job, after = queue.submit("breaks", work), queue.submit("after", lambda context: "ok")
    wait_for(lambda: not (job.active or after.active))
    assert (job.state, after.state, after.result) == ("failed", "done", "ok")
    assert job.error.startswith(words) and "\n" not in job.error
    assert job.result == (None if work is panic else ["a part"]) and job.steps_since(0) == [*range(job.step_count)]


def test_a_cancel_keeps_what_there_was_and_is_no_failure(queue: EngineQueue) -> None:
    def nothing_yet(context: JobContext) -> None:
        context.cancel.wait(5)
        raise Cancelled("cancelled before the first prompt was complete")

    for work, result in ((held(threading.Event()), "stopped"), (nothing_yet, None)):
        job = queue.submit("long", work)
        wait_for(lambda job=job: job.state == "running")
        job.cancel()
        wait_for(lambda job=job: not job.active)
        assert (job.state, job.error, job.result) == ("cancelled", None, result)


def test_a_real_allocators_refusal_reads_as_out_of_memory(queue: EngineQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_queue._LOG, "disabled", True)  # pytest keeps what is logged, and with it the traceback
    kept = []

    def absurd(context: JobContext) -> None:
        context.append("a step")
        large = torch.zeros(2**20)
        kept.append(weakref.ref(large))
        torch.empty(2**47, dtype=torch.float32)

    def wrapped(context: JobContext) -> None:
        try:
            torch.empty(2**47)
        except RuntimeError as error:  # as loading does, which names the folder
            raise ValueError("folder: found a folder that does not load") from error

    jobs = [queue.submit("absurd", absurd), queue.submit("wrapped", wrapped), queue.submit("next", lambda context: 1)]
    wait_for(lambda: not any(job.active for job in jobs))
    assert jobs[0].error == "step 1: out of memory. Try a smaller tree or a shorter prompt."
    assert jobs[1].error == "out of memory. Try a smaller tree or a shorter prompt."
    assert jobs[2].state == "done" and kept[0]() is None
