"""Start a model server on the loopback address for benchmarks, and stop it."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from sequoia_core.files.safe_files import visible
from sequoia_extras.servers.local_server import LOOPBACK, SHOWN_CHARS, ask

START_SEC = 600  # long, because a large model is read from disk
STOP_SEC = 10  # grace period before a server is killed


@contextmanager
def running_server(command: Sequence[str]) -> Iterator[str]:
    """Run a server, with --host and --port added, during the block; yield its address once it answers /health."""
    if os.name == "nt":
        raise ValueError("cannot start servers on Windows, where their processes cannot be stopped together")
    port = _free_port()
    address = f"http://{LOOPBACK}:{port}"
    options = ["--host", LOOPBACK, "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [*command, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise ValueError(f"cannot start {command[0]}: {error.strerror}") from error
        try:
            _await_health(process, address, log)
            yield address
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def _await_health(process: subprocess.Popen, address: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_SEC
    while process.poll() is None and time.monotonic() < deadline:
        try:
            ask(address, "/health", seconds=5)
            return
        except ValueError:
            time.sleep(0.1)
    state = "it is still loading" if process.poll() is None else f"it ended with exit code {process.returncode}"
    log.seek(max(0, log.seek(0, os.SEEK_END) - SHOWN_CHARS))
    last_output = visible(" ".join(log.read().decode(errors="replace").split())) or "none"
    raise ValueError(f"the server did not answer: {state}; last output: {last_output}")


def _stop(process: subprocess.Popen) -> None:
    """Stop a server and every process in its group."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SEC)
