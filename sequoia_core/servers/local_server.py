"""Start a model server on the loopback address, ask it, and leave none behind. Answers are bounded in size and time."""

import ipaddress
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import IO
from urllib.parse import urlsplit

from ..files.safe_files import visible

LOOPBACK = "127.0.0.1"
MAX_ADDRESS = 300  # characters
MAX_ANSWER_BYTES = 64 * 2**20
START_SEC = 600  # a large model is read from disk
END_SEC = 10  # to end by itself before it is killed
UNCUT = {"top_k": -1, "min_p": 0}  # of requests: llama.cpp cuts by both unless told
LAST_WORDS = 300  # characters of a server's log that a fault shows


def checked_address(
    address: str, *, remote: bool = False, others: str = "--remote allows others", paths: Sequence[str] = ("", "/")
) -> str:
    """Return the scheme, host and port of a server, which is on this machine unless `remote`.

    `others` says in errors how that is allowed; `paths` may follow the port.
    """
    expected = f"expected an address such as http://{LOOPBACK}:8000{paths[-1].rstrip('/')}"
    try:
        parts = urlsplit(address if len(address) <= MAX_ADDRESS and address.isprintable() else "")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https") or parts.username is not None:
        named = "a user name" if host and parts.username is not None else repr(address[:80])
        raise ValueError(f"server: found {named}, {expected}")
    if parts.path not in paths or parts.query or parts.fragment:
        rest = parts._replace(scheme="", netloc="").geturl()
        raise ValueError(f"server: found {rest[:80]!r} after the host and port, {expected}")
    if not (remote or _is_loopback(host)):
        raise ValueError(f"server: found {host[:80]}, expected an address of this machine ({others})")
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}" + ("" if port is None else f":{port}")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def same_server(one: str, other: str) -> bool:
    """Return whether two checked addresses may name one server: this machine has several names."""
    places = [(_is_loopback(each.hostname or "") or each.hostname, each.port) for each in map(urlsplit, (one, other))]
    return places[0] == places[1]


def ask(address: str, path: str, body: bytes | None = None, *, seconds: float = 60) -> bytes:
    """Return a server's answer to GET, or to POST of a JSON body. No proxy and no redirect is followed."""
    deadline, late = time.monotonic() + seconds, threading.Event()
    parts = urlsplit(address)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.connect()
        with _ended_at(deadline, connection.sock, late):
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request("GET" if body is None else "POST", path, body, headers)
            with connection.getresponse() as response:
                content = _read(response)
                status = response.status
    except (OSError, HTTPException, ValueError) as error:
        reason = "timed out" if late.is_set() else visible(str(error)[:LAST_WORDS])
        raise ValueError(f"{address}{path}: found no answer ({reason}), expected a running server") from error
    finally:
        connection.close()
    if late.is_set():  # an answer without a length ends where the connection does
        raise ValueError(f"{address}{path}: found no answer (timed out), expected a running server")
    if status != 200:
        said = visible(content[:LAST_WORDS].decode(errors="replace"))
        raise ValueError(f"{address}{path}: found status {status} ({said}), expected 200")
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(f"{address}{path}: found more than {MAX_ANSWER_BYTES:,} bytes, expected a shorter answer")
    return content


@contextmanager
def _ended_at(deadline: float, connected: socket.socket, late: threading.Event) -> Iterator[None]:
    """End a connection at a time: its own limit is for each piece only."""

    def end() -> None:
        late.set()
        with suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # below TLS, which would begin to talk

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read(response: HTTPResponse) -> bytes:
    """Read up to one byte more than an answer may have."""
    content = b""
    while len(content) <= MAX_ANSWER_BYTES and (piece := response.read1(2**20)):
        content += piece
    if response.length and len(content) <= MAX_ANSWER_BYTES:
        raise IncompleteRead(content, response.length)
    return content


@contextmanager
def running_server(command: Sequence[str]) -> Iterator[str]:
    """Run a server in the block; yields its address once it answers /health. --host and --port are added."""
    if os.name == "nt":
        raise ValueError("found Windows, where the servers' processes cannot be ended together: start them yourself")
    port = _free_port()
    address = f"http://{LOOPBACK}:{port}"
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [*command, "--host", LOOPBACK, "--port", str(port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ValueError(f"{command[0]}: cannot be started ({error.strerror}), expected a program") from error
        try:
            _await_health(process, address, log)
            yield address
        finally:
            _end(process)


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
    how = "still loading" if process.poll() is None else f"ended with exit code {process.returncode}"
    log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS))
    words = visible(" ".join(log.read().decode(errors="replace").split())) or "nothing"
    raise ValueError(f"server: found it {how}, expected it to answer; it last wrote: {words}")


def _end(process: subprocess.Popen) -> None:
    """End a server and every process that it started (its group)."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SEC)
    # children of a killed leader are reaped by init; its own exit is waited for above
