"""Metrics from an address: only this machine, only `/metrics`; errors in one line."""

import pytest

from sequoia_extras.servers import metrics_address
from sequoia_extras.servers.metrics_address import allowed_hosts, read_metrics
from tests.served import reply, served


def test_metrics_of_this_machine_are_read():
    asked = []
    with served(lambda handler: asked.append(handler.path) or reply(handler, b"# HELP a b\n")) as server:
        for address in (server, f"{server}/", f"{server}/metrics", server.replace("127.0.0.1", "localhost")):
            assert read_metrics(address) == b"# HELP a b\n"
    assert set(asked) == {"/metrics"}


def test_other_addresses_are_refused_without_a_request(monkeypatch):
    monkeypatch.setattr(metrics_address, "ask", lambda *_, **__: pytest.fail("something was asked"))
    for address in ("http://127.0.0.1/shutdown", "http://127.0.0.1/metrics?x=1", "http://example.org/metrics"):
        with pytest.raises(
            ValueError, match="found .*expected an address (such as http://127.0.0.1:8000/metrics|of this machine)"
        ):
            read_metrics(address)


def test_other_hosts_must_be_allowed_at_start(monkeypatch):
    asked = []
    monkeypatch.setattr(metrics_address, "ask", lambda *found, seconds: asked.append(found) or b"")
    assert allowed_hosts() == ()
    monkeypatch.setenv(metrics_address.HOSTS_VARIABLE, "gpu-1, GPU-2,,")
    assert allowed_hosts() == ("gpu-1", "gpu-2")
    read_metrics("http://gpu-2:8000", allowed=allowed_hosts())
    assert asked == [("http://gpu-2:8000", "/metrics")]
    with pytest.raises(ValueError, match="found gpu-3, expected an address of this machine"):
        read_metrics("http://gpu-3:8000", allowed=allowed_hosts())
