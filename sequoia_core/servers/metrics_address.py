"""Read `/metrics`, and nothing else, of this machine or of a host that was allowed when the app was started."""

import os
from urllib.parse import urlsplit

from .local_server import ask, checked_address

VARIABLE = "SEQUOIA_METRICS_HOSTS"  # names separated by commas
TIMEOUT_SEC = 5.0


def allowed_hosts() -> tuple[str, ...]:
    """Return the hosts beside this machine that the environment allows."""
    return tuple(host.strip().lower() for host in os.environ.get(VARIABLE, "").split(",") if host.strip())


def read_metrics(address: str, *, allowed: tuple[str, ...] = ()) -> bytes:
    """Return the metrics at an address such as http://127.0.0.1:8000/metrics; `allowed`: hosts beside this machine."""
    address = address.strip()
    try:
        host = urlsplit(address).hostname
    except ValueError:  # which `checked_address` refuses
        host = None
    others = f"{VARIABLE} allows others at the app's start"
    server = checked_address(address, remote=host in allowed, others=others, paths=("", "/", "/metrics"))
    return ask(server, "/metrics", seconds=TIMEOUT_SEC)
