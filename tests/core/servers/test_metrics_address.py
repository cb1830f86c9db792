"""Metrics from an address: of this machine alone, `/metrics` alone, no redirects; every fault in one line."""

import pytest

from sequoia_core.servers import metrics_address
from sequoia_core.servers.metrics_address import allowed_hosts, read_metrics
from tests.served import reply, served


def test_this_machine_is_read():
    asked = []
    with served(lambda handler: asked.append(handler.path) or reply(handler, b"# HELP a b\n")) as server:
        for address in (server, f"{server}/", f"{server}/metrics", server.replace("127.0.0.1", "localhost")):
            assert read_metrics(address) == b"# HELP a b\n"
    assert set(asked) == {"/metrics"}


def test_redirects_are_not_followed():
    asked = []

    def redirect(handler):
        asked.append(handler.path)
        reply(handler, status=302, Location="http://example.org/")

    with served(redirect) as server, pytest.raises(ValueError, match="/metrics: found status 302"):
        read_metrics(server)
    assert asked == ["/metrics"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "expected one like http"),
        ("127.0.0.1:8000", "expected one like http"),
        ("ftp://127.0.0.1/metrics", "expected an address such as http"),
        ("file:///etc/passwd", "expected one like http"),
        ("file:///metrics", "expected an address such as http"),
        ("http://user:secret@127.0.0.1/metrics", "found a user name, expected an address such as http"),
        ("http://127.0.0.1:999999/metrics", "expected an address such as http"),
        ("http://127.0.0.1\n.example.org/metrics", "expected one like http"),
        ("http://" + "a" * 400, "expected one like http"),
        ("http://127.0.0.1/shutdown", "found 'http://127.0.0.1/shutdown'"),
        ("http://127.0.0.1/metrics?x=1", "expected one like http"),
        (
            "http://example.org/metrics",
            "found example.org, expected an address of this machine .SEQUOIA_METRICS_HOSTS allows others",
        ),
        ("http://127.0.0.1.example.org/metrics", "found 127.0.0.1.example.org"),
        ("http://2130706433/metrics", "found 2130706433"),
        ("http://169.254.169.254/metrics", "found 169.254.169.254"),
        ("http://0.0.0.0/metrics", "found 0.0.0.0"),
    ],
)
def test_other_addresses_are_refused_before_anything_is_asked(address, said, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("something was asked")

    monkeypatch.setattr(metrics_address, "ask", never)
    with pytest.raises(ValueError, match=said) as error:
        read_metrics(address)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_nobody_listening_is_said():
    with pytest.raises(ValueError, match="127.0.0.1:9/metrics: found no answer .* expected a running server"):
        read_metrics("http://127.0.0.1:9/metrics")


def test_other_hosts_have_to_be_named_when_the_app_starts(monkeypatch):
    asked = []
    monkeypatch.setattr(metrics_address, "ask", lambda *found, seconds: asked.append(found) or b"")
    assert allowed_hosts() == ()
    monkeypatch.setenv(metrics_address.VARIABLE, "gpu-1, GPU-2,,")
    assert allowed_hosts() == ("gpu-1", "gpu-2")
    read_metrics("http://gpu-2:8000", allowed=allowed_hosts())
    assert asked == [("http://gpu-2:8000", "/metrics")]
