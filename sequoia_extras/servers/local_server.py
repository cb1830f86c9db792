"""Check a server's address and query it. Answers are limited in size and time."""

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from urllib.parse import urlsplit

from sequoia_core.files.safe_files import visible

LOOPBACK = "127.0.0.1"
MAX_ADDRESS_CHARS = 300
MAX_ANSWER_BYTES = 64 * 2**20
NO_TRUNCATION = {"top_k": -1, "min_p": 0}  # request fields; llama.cpp applies both filters by default
SHOWN_CHARS = 300  # maximum number of characters of a server's log or answer quoted in an error


def checked_address(
    address: str, *, remote: bool = False, others: str = "--remote allows others", paths: Sequence[str] = ("", "/")
) -> str:
    """Return the scheme, host and port of a server, which must be on this machine unless `remote`.

    `others` is the hint in error messages on how to allow other hosts; `paths` are the paths allowed after the port.
    """
    expected = f"expected an address such as http://{LOOPBACK}:8000{paths[-1].rstrip('/')}"
    try:
        parts = urlsplit(address if len(address) <= MAX_ADDRESS_CHARS and address.isprintable() else "")
        host = parts.hostname
        port = parts.port
    except ValueError:
        host = None
        port = None
    if host is None or parts.scheme not in ("http", "https") or parts.username is not None:
        found = "a user name" if host and parts.username is not None else repr(address[:80])
        raise ValueError(f"server: found {found}, {expected}")
    if parts.path not in paths or parts.query or parts.fragment:
        rest = parts._replace(scheme="", netloc="").geturl()
        raise ValueError(f"server: found {rest[:80]!r} after the host and port, {expected}")
    if not (remote or _is_loopback(host)):
        raise ValueError(f"server: found {host[:80]}, expected an address of this machine ({others})")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port is None else f":{port}")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def may_be_same_server(one: str, other: str) -> bool:
    """Return whether two checked addresses may name the same server; this machine has several names."""
    first, second = (
        (_is_loopback(parts.hostname or "") or parts.hostname, parts.port) for parts in map(urlsplit, (one, other))
    )
    return first == second


def ask(address: str, path: str, body: bytes | None = None, *, seconds: float = 60) -> bytes:
    """Return a server's answer to a GET request, or to a POST request with a JSON body; use no proxy or redirect."""
    deadline = time.monotonic() + seconds
    late = threading.Event()
    parts = urlsplit(address)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.connect()
        with _disconnect_at(deadline, connection.sock, late):
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request("GET" if body is None else "POST", path, body, headers)
            with connection.getresponse() as response:
                content = _read_bounded(response)
                status = response.status
        # An answer of unknown length ends when the connection closes, so a late one may be incomplete.
        if late.is_set():
            raise TimeoutError
    except (OSError, HTTPException, ValueError) as error:
        reason = "timed out" if late.is_set() else visible(str(error)[:SHOWN_CHARS])
        raise ValueError(f"{address}{path}: the server did not answer ({reason})") from error
    finally:
        connection.close()
    if status != 200:
        shown = visible(content[:SHOWN_CHARS].decode(errors="replace"))
        raise ValueError(f"{address}{path}: found status {status} ({shown}), expected 200")
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(f"{address}{path}: found more than {MAX_ANSWER_BYTES:,} bytes, expected a shorter answer")
    return content


@contextmanager
def _disconnect_at(deadline: float, connected: socket.socket, late: threading.Event) -> Iterator[None]:
    """Shut a connection down at a deadline; the socket's own timeout applies to each read separately."""

    def shut_down() -> None:
        late.set()
        with suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # bypasses TLS, which would start a handshake

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read_bounded(response: HTTPResponse) -> bytes:
    """Read an answer, but at most one byte more than the limit."""
    content = b""
    while len(content) <= MAX_ANSWER_BYTES and (piece := response.read1(2**20)):
        content += piece
    if response.length and len(content) <= MAX_ANSWER_BYTES:
        raise IncompleteRead(content, response.length)
    return content
