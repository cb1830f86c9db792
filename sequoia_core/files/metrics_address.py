"""Read a server's metrics from an address: of this machine, and of hosts that were allowed when the app was started.

Nothing but `/metrics` is asked for, no redirect is followed and no proxy used, so that an address typed by a stranger
reaches nothing else.
"""

from __future__ import annotations

import ipaddress
import os
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from .prometheus_metrics import MAX_METRICS_BYTES
from .safe_files import one_line

VARIABLE = "SEQUOIA_METRICS_HOSTS"  # names separated by commas
TIMEOUT_SEC = 5.0
MAX_ADDRESS = 300  # characters


def allowed_hosts() -> tuple[str, ...]:
    """Return the hosts beside this machine that the environment allows."""
    return tuple(host.strip().lower() for host in os.environ.get(VARIABLE, "").split(",") if host.strip())


def read_metrics(address: str, *, allowed: tuple[str, ...] = ()) -> bytes:
    """Return the metrics at an address such as http://127.0.0.1:8000/metrics.

    Args:
        allowed: hosts beside this machine.

    Raises:
        ValueError: in one line, for another address, or a server that does not answer.
    """
    host, port, secure = _checked(address, allowed)
    connection = (HTTPSConnection if secure else HTTPConnection)(host, port, timeout=TIMEOUT_SEC)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"address: found status {answer.status} at {host}:{port}/metrics, expected 200")
        data = answer.read(MAX_METRICS_BYTES + 1)
    except (OSError, HTTPException) as error:
        reason = one_line(error)
        raise ValueError(f"address: found no metrics at {host}:{port} ({reason}), expected a running server") from error
    finally:
        connection.close()
    if len(data) > MAX_METRICS_BYTES:
        raise ValueError(f"address: found more than {MAX_METRICS_BYTES:,} bytes, expected metrics")
    return data


def _checked(address: str, allowed: tuple[str, ...]) -> tuple[str, int, bool]:
    """Return host, port and whether it is encrypted, or raise ValueError."""
    expected = "expected one like http://127.0.0.1:8000/metrics"
    try:
        parts = urlsplit(address.strip() if len(address) <= MAX_ADDRESS else "")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        host, port = "", None
    if host and parts.username is not None:
        raise ValueError(f"address: found a user name, {expected}")
    if not host or parts.scheme not in ("http", "https") or not address.isprintable():
        raise ValueError(f"address: found {address[:40]!r}, {expected}")
    if parts.path not in ("", "/", "/metrics") or parts.query or parts.fragment:
        raise ValueError(f"address: found the path {parts.path[:40]!r}, {expected}")
    if not (_is_here(host) or host in allowed):
        raise ValueError(
            f"address: found the host {host[:60]!r}, expected this machine, or one that {VARIABLE} named when the app "
            "was started"
        )
    return (
        "127.0.0.1" if host == "localhost" else host,
        port or (443 if parts.scheme == "https" else 80),
        (parts.scheme == "https"),
    )


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
