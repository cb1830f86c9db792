"""Read `/metrics` from this machine, or from a host that was allowed when the app was started."""

import os
from urllib.parse import urlsplit

from .local_server import ask, checked_address

HOSTS_VARIABLE = "SEQUOIA_METRICS_HOSTS"  # comma-separated host names
TIMEOUT_SEC = 5.0


def allowed_hosts() -> tuple[str, ...]:
    """Return the hosts that the environment allows in addition to this machine."""
    return tuple(host.strip().lower() for host in os.environ.get(HOSTS_VARIABLE, "").split(",") if host.strip())


def read_metrics(address: str, *, allowed: tuple[str, ...] = ()) -> bytes:
    """Return the metrics at an address such as http://127.0.0.1:8000/metrics; `allowed` are additional hosts."""
    address = address.strip()
    try:
        host = urlsplit(address).hostname
    except ValueError:  # `checked_address` rejects it below
        host = None
    others = f"set {HOSTS_VARIABLE} before starting the app to allow others"
    server = checked_address(address, remote=host in allowed, others=others, paths=("", "/", "/metrics"))
    return ask(server, "/metrics", seconds=TIMEOUT_SEC)
