"""Started servers answer and are always stopped; answers are bounded."""

import os
import sys
import time

import psutil
import pytest

from benchmarks import running_server as servers
from benchmarks.running_server import running_server
from sequoia_extras.servers import local_server
from sequoia_extras.servers.local_server import ask, checked_address, may_be_same_server
from tests.served import reply, served

# a server with a child process; argv: --deaf ignores SIGTERM, --host H --port P
SERVER = """
import http.server, signal, subprocess, sys
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *words): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def command(*options: str) -> list[str]:
    return [sys.executable, "-c", SERVER, *options]


def started_here() -> set[int]:
    """Return the processes of this test, those of ended parents too: their environment tells."""
    found = set()
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if process.environ().get("SERVER_OF") == str(os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def gone_within(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while started_here():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    monkeypatch.setenv("SERVER_OF", str(os.getpid()))


def test_a_server_is_stopped_with_its_children():
    with pytest.raises(ZeroDivisionError), running_server(command()) as address:
        assert ask(address, "/metrics") == b"ok"
        assert len(started_here()) == 2
        1 / 0  # noqa: B018
    assert gone_within(5)


def test_a_server_that_ignores_the_signal_is_killed(monkeypatch):
    monkeypatch.setattr(servers, "STOP_SEC", 0.3)
    with running_server(command("--deaf")):
        pass
    assert gone_within(5)


def test_a_failed_start_shows_the_log(monkeypatch):
    with (
        pytest.raises(ValueError, match=r"exit code 3; last output: no such model$"),
        running_server([sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]),
    ):
        pass
    with (
        pytest.raises(ValueError, match="last output: \ufffd.2Jno such model$"),
        running_server([sys.executable, "-c", r"import sys; print('\x1b[2Jno such model'); sys.exit(3)"]),
    ):
        pass
    monkeypatch.setattr(servers, "START_SEC", 0.5)
    with (
        pytest.raises(ValueError, match="it is still loading"),
        running_server([sys.executable, "-c", "import time; time.sleep(60)"]),
    ):
        pass
    assert gone_within(5)


@pytest.mark.parametrize(
    ("respond", "message"),
    [
        (lambda handler: reply(handler, b"\x1b]0;pwned\x07\x1b[2J\x1b[31mLossless\n\xe2\x80\xae", 500), "Lossless"),
        (lambda handler: handler.wfile.write(b"SSH-2.0-\x1b[2J\r\r\n\n"), "SSH-2.0"),
    ],
)
def test_errors_escape_control_characters(respond, message):
    with served(respond) as address, pytest.raises(ValueError, match=message) as refusal:
        ask(address, "/metrics")
    assert str(refusal.value).isprintable()


def test_redirects_and_proxies_are_not_followed(monkeypatch):
    asked = []

    def redirect(handler):
        asked.append(handler.path)
        reply(handler, status=302, Location="/elsewhere")

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with served(redirect) as address, pytest.raises(ValueError, match="found status 302"):
        ask(address, "/metrics")
    assert asked == ["/metrics"]


def test_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(local_server, "MAX_ANSWER_BYTES", 100)

    def drips_headers(handler):
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
        for number in range(20):
            handler.wfile.write(b"X-%d: 1\r\n" % number)
            time.sleep(0.1)
        handler.end_headers()

    with served(lambda handler: reply(handler, b"x" * 101)) as address:
        with pytest.raises(ValueError, match="found more than 100 bytes"):
            ask(address, "/metrics")
    with served(drips_headers) as address, pytest.raises(ValueError, match="did not answer .*timed out"):
        ask(address, "/metrics", seconds=0.3)


def test_an_incomplete_answer_is_refused():
    def short(handler):
        reply(handler, b"vllm:spec_decode_num_drafts_total 1\n", Content_Length=100)

    with served(short) as address, pytest.raises(ValueError, match="did not answer"):
        ask(address, "/metrics")


def test_only_loopback_addresses_are_accepted_by_default():
    for address in ("http://127.0.0.1:8000", "http://localhost:1", "https://[::1]:9", "http://127.9.9.9"):
        assert checked_address(address + "/") == address
    for address in ("http://10.0.0.1:80", "http://127.0.0.1.example.org", "http://2130706433", "http://0.0.0.0"):
        with pytest.raises(ValueError, match="expected an address of this machine"):
            checked_address(address)
        assert checked_address(address, remote=True) == address
    with pytest.raises(ValueError, match="found a user name, expected an address such as"):
        checked_address("http://me:secret@127.0.0.1")
    for rest in ("/v1", "/metrics", "/?model=a", "#a", "//"):
        with pytest.raises(ValueError, match="found .* after the host and port, expected an address such as"):
            checked_address(f"http://127.0.0.1:8080{rest}")
    with pytest.raises(ValueError, match=r"found 'http://127.0.0.1:80\\x1b\[2J'"):
        checked_address("http://127.0.0.1:80\x1b[2J")


def test_a_server_is_recognised_by_other_names():
    assert may_be_same_server("http://127.0.0.1:8000", "http://localhost:8000")
    assert may_be_same_server("http://[::1]:8000", "http://127.0.0.1:8000")
    assert not may_be_same_server("http://127.0.0.1:8000", "http://127.0.0.1:8001")
    assert not may_be_same_server("http://gpu-1:8000", "http://gpu-2:8000")
