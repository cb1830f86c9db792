"""Run a function in a child process with limits on memory, time and the size of its answer."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parents[2]
START_SEC = 120  # for importing, from a slow disk too
HEAD_BYTES = 8  # bytes that say how long a message is
TEXT = ("utf-8", "surrogatepass")  # of answers, which may hold half a surrogate pair


class LimitError(Exception):
    """A function exceeded a limit, or its process died; the message continues "found something that"."""


class BoundedProcess:
    """A child process that answers questions with one function, one after the other; it starts at the first.

    Args:
        module, function: of this package; called with bytes, it returns JSON values or raises ValueError.
        memory_bytes: that it may use beyond its imports; enforced on Linux only.
    """

    def __init__(self, module: str, function: str, *, memory_bytes: int, seconds: float, answer_bytes: int) -> None:
        self.command = [sys.executable, "-P", "-m", __name__, module, function, str(memory_bytes), str(seconds)]
        self.memory_bytes, self.seconds, self.answer_bytes = memory_bytes, seconds, answer_bytes
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def ask(self, request: bytes) -> Any:
        """Return the function's answer; LimitError for too much memory, time or answer, and for a process that died."""
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._start()
            return self._answered(self.seconds, request)

    def close(self) -> None:
        """End the child; the next question starts another."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def _start(self) -> None:
        self.close()
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        few = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=os.environ | few,
        )  # fmt: skip
        self._answered(START_SEC)

    def _answered(self, seconds: float, request: bytes | None = None) -> Any:
        """Send a request, if there is one, and wait for the answer; a child that fails is ended."""
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            if request is not None:
                with suppress(BrokenPipeError):  # it has died: there will be no answer
                    _send(child.stdin, request)
            answer = _receive(child.stdout, self.answer_bytes)
            kind, content = ("none", None) if answer is None else json.loads(answer.decode(*TEXT))
        except BaseException:  # too long an answer, or interrupted: the rest must not be read as the next answer
            self.close()
            raise
        finally:
            timer.cancel()
        if late.is_set() or kind not in ("answer", "fault"):
            self.close()
        if kind == "answer":
            return content
        if kind == "fault":
            raise ValueError(content)
        if late.is_set():
            raise LimitError(f"takes more than {seconds:g} s")
        if kind == "memory":
            raise LimitError(f"takes more than {self.memory_bytes >> 20} MiB of memory")
        raise LimitError(f"breaks down the process that runs it (exit code {child.returncode})")


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(HEAD_BYTES, "little") + message)
    stream.flush()


def _receive(stream: IO[bytes], limit: int | None = None) -> bytes | None:
    """Return a message; None where the other side ended first."""
    head = stream.read(HEAD_BYTES)
    length = int.from_bytes(head, "little")
    if limit is not None and length > limit:
        raise LimitError(f"answers with {length:,} bytes, expected at most {limit:,}")
    message = stream.read(length)
    return message if len(head) == HEAD_BYTES and len(message) == length else None


def _serve(module: str, function: str, memory_bytes: str, seconds: str) -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with the answer
    try:
        run = getattr(import_module(module), function)
    except ImportError as error:
        return _send(answers, json.dumps(["fault", str(error)]).encode())
    _limit_memory(int(memory_bytes))
    _send(answers, b'["answer", null]')
    while (request := _receive(requests)) is not None:
        _limit_processor(float(seconds))
        _send(answers, _outcome(run, request))


def _outcome(run: Callable[[bytes], Any], request: bytes) -> bytes:
    try:
        return json.dumps(["answer", run(request)], ensure_ascii=False).encode(*TEXT)
    except MemoryError:
        return b'["memory", null]'
    except ValueError as error:
        return json.dumps(["fault", str(error)]).encode()


def _limit_memory(more: int) -> None:
    try:
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not Linux: only time and the size of the answer are limited
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = taken + more if hard == resource.RLIM_INFINITY else min(taken + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_processor(seconds: float) -> None:
    """Let the system end this process if its parent is gone."""
    with suppress(ImportError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime + seconds) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
