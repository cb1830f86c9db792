"""Read `/metrics`, and nothing else, of this machine or of a host that was allowed when the app was started."""

import os
from urllib.parse import urlsplit

from .local_server import ask, checked_address

VARIABLE = "SEQUOIA_METRICS_HOSTS"  # names separated by commas
TIMEOUT_SEC = 5.0
MAX_ADDRESS = 300  # characters


def allowed_hosts() -> tuple[str, ...]:
    """Return the hosts beside this machine that the environment allows."""
    return tuple(host.strip().lower() for host in os.environ.get(VARIABLE, "").split(",") if host.strip())


def read_metrics(address: str, *, allowed: tuple[str, ...] = ()) -> bytes:
    """Return the metrics at an address such as http://127.0.0.1:8000/metrics; `allowed`: hosts beside this machine."""
    address = address.strip()
    try:
        parts = urlsplit(address if len(address) <= MAX_ADDRESS and address.isprintable() else "")
    except ValueError:
        parts = urlsplit("")
    if parts.path not in ("", "/", "/metrics") or parts.query or parts.fragment or not parts.scheme:
        raise ValueError(f"address: found {address[:40]!r}, expected one like http://127.0.0.1:8000/metrics")
    host = (parts.hostname or "").lower()
    server = checked_address(address, remote=host in allowed, others=f"{VARIABLE} allows others at the app's start")
    return ask(server, "/metrics", seconds=TIMEOUT_SEC)
