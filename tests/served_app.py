"""The app as served by `make run`, and helpers to use it in Chromium."""

import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LONG_MS = 240_000


def run_command(port: int) -> list[str]:
    """Return the command with which `make run` starts the server, using the current interpreter."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", "--dry-run", "run", f"PORT={port}"]
    recipe = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    program, *options = shlex.split(recipe.stdout.splitlines()[-1])
    return [str(Path(sys.executable).parent / Path(program).name), *options]


class Server:
    """The app as served by `make run`, on a free port that survives restarts; results are kept in the folder `data`."""

    def __init__(self, log: Path, data: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address, self.log, self.data = f"http://localhost:{self.port}", log, data
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            run_command(self.port),
            cwd=ROOT,
            env=os.environ
            | {
                "STREAMLIT_SERVER_HEADLESS": "true",  # does not open a browser
                "XDG_DATA_HOME": str(self.data),
            },
            stdout=self.log.open("a"),
            stderr=subprocess.STDOUT,
        )
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{self.address}/_stcore/health", timeout=1)
                return
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.2)

    def stop(self, *, kill: bool = False) -> None:
        self.process.kill() if kill else self.process.terminate()
        self.process.wait(20)

    def cpu_sec(self) -> float:
        """Return the CPU seconds that the server has used so far."""
        return cpu_sec([psutil.Process(self.process.pid)])


def cpu_sec(processes: list[psutil.Process]) -> float:
    """Return the CPU seconds of processes and all their descendants so far."""
    total = 0.0
    for each in {*processes, *(child for process in processes for child in process.children(recursive=True))}:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def settle(page) -> None:
    """Wait until the script has finished and does not restart within 400 ms."""
    page.wait_for_selector('[data-testid="stApp"][data-test-connection-state="CONNECTED"]')
    rests = '[data-testid="stApp"][data-test-script-state="notRunning"]:not(:has([data-stale="true"]))'
    rests += ':has([data-testid="stMainBlockContainer"] [data-testid="stElementContainer"])'  # the script has started
    while True:
        page.wait_for_selector(rests, timeout=LONG_MS)
        page.wait_for_timeout(400)
        if page.locator(rests).count():
            break
    assert page.locator('[data-testid="stException"]').count() == 0, page.locator(
        '[data-testid="stException"]'
    ).inner_text()


def use_pair(page, target: str, draft: str) -> None:
    """Select a pair in the plan bar."""
    page.locator(".st-key-plan_models_open").get_by_test_id("stPopoverButton").first.click()
    page.get_by_label("Target", exact=True).fill(target)
    page.get_by_label("Draft", exact=True).fill(draft)
    page.get_by_role("button", name="Use this pair").click()
    page.get_by_text("target ← draft").first.wait_for()
    page.keyboard.press("Escape")
    settle(page)
