"""Run many sessions at once on one engine, with stops, lost connections and reloads, to detect lost or mixed output.

    python benchmarks/soak.py --sessions 20 --minutes 10          # prints running counts, then one JSON line

Sessions exchange Streamlit's websocket messages, without a browser. Each has a different prompt, so that text from
another session is detected. The server's memory is measured without sessions, after a warm-up and at the end.
"""

import asyncio
import collections
import json
import os
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from benchmarks.common import Options
from tests.served_app import Server
from ui.session import shipped

FORGOTTEN_SEC = 5  # time after which the server drops a disconnected session
QUIET_SEC = 1.0  # time without a message after which the page is considered drawn
ASK_AGAIN_SEC = 5.0
WAIT_SEC = 180  # maximum wait for a result while other sessions are queued
QUERY = "tokens=64"
TREE = "sequoia_token_tree"  # the component that shows the run; others may have no data
OWN = "# session "  # prefix of these sessions' prompts
BUSY = "The engine is busy: "  # the run was not started; queued runs have a different message
ENDS = (BUSY, "Stopped after", "failed")
ACTIONS = ("run", "run", "run", "stop", "disconnect", "reload")


class Tab:
    """One session on the decode page, tracked as by the browser's client."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ids: dict[str, str] = {}
        self.forget()

    def forget(self) -> None:
        """Discard what the page has shown so far."""
        self.code: str | None = None
        self.alerts: list[str] = []
        self.prompt: str | None = None
        self.running = False

    async def open(self) -> None:
        url = self.address.replace("http", "ws") + "/_stcore/stream"
        self.socket = await connect(url, subprotocols=["streamlit"], origin=self.address, max_size=None)
        self.polls: dict[str, asyncio.Task] = {}
        self.heard, self.drawing = time.monotonic(), True
        self.seen: set[str] = set()
        self.reader = asyncio.create_task(self._read())
        await self.rerun()
        if not await self.until(lambda: "decode_start" in self.ids):
            raise TimeoutError(f"found no Start button on the page within {WAIT_SEC} s, expected one")
        await self.settle()

    async def settle(self) -> None:
        """Wait until the page is drawn and has stopped polling, so that later updates belong to the next action."""
        await self.until(lambda: not self.polls and not self.drawing and time.monotonic() - self.heard > QUIET_SEC)

    async def close(self) -> None:
        for task in (*self.polls.values(), self.reader):
            task.cancel()
        await self.socket.close()

    async def until(self, condition) -> bool:
        """Wait until a condition on the page is met; return whether it was met in time."""
        deadline = time.monotonic() + WAIT_SEC
        while not condition():
            if self.reader.done():
                # This raises an exception if the reader failed on an unknown message.
                self.reader.result()
                return False
            if time.monotonic() > deadline:
                return False
            if not self.drawing and not self.polls and time.monotonic() - self.heard > ASK_AGAIN_SEC:
                self.heard = time.monotonic()
                # Do what a user would do if the page is stuck.
                await self.rerun()
            await asyncio.sleep(0.05)
        return True

    async def rerun(self, *states: WidgetState, fragment: str = "") -> None:
        message = BackMsg()
        request = message.rerun_script
        request.query_string, request.page_name = QUERY, "decode"
        request.widget_states.widgets.extend(states)
        if fragment:
            request.fragment_id, request.is_auto_rerun = fragment, True
        await self.socket.send(message.SerializeToString())

    async def press(self, button: str, prompt: str | None = None) -> None:
        states = [WidgetState(id=self.ids[button], trigger_value=True)]
        if prompt is not None:
            states.append(WidgetState(id=self.ids["decode_prompt"], string_value=prompt))
        await self.rerun(*states)

    async def _read(self) -> None:
        with suppress(ConnectionClosedError):
            async for data in self.socket:
                self._hear(ForwardMsg.FromString(data))

    def _hear(self, message: ForwardMsg) -> None:
        self.heard = time.monotonic()
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self.seen, self.drawing = set(), True
        elif kind == "script_finished":
            self.drawing = False
            if message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                # These fragments were removed from the page.
                for fragment in set(self.polls) - self.seen:
                    self.polls.pop(fragment).cancel()
        elif kind == "auto_rerun":
            self._poll(message.auto_rerun.fragment_id, message.auto_rerun.interval)
        elif kind == "delta" and message.delta.WhichOneof("type") == "new_element":
            self._show(message.delta.new_element)

    def _poll(self, fragment: str, interval: float) -> None:
        async def again() -> None:
            while True:
                await asyncio.sleep(interval)
                await self.rerun(fragment=fragment)

        self.seen.add(fragment)
        if fragment not in self.polls:
            self.polls[fragment] = asyncio.create_task(again())

    def _show(self, element) -> None:
        kind = element.WhichOneof("type")
        shown = getattr(element, kind)
        identity = getattr(shown, "id", "")
        if isinstance(identity, str) and identity.startswith("$$ID-"):
            self.ids[identity.split("-", 2)[2]] = identity
        if kind == "code":
            self.code = shown.code_text
        elif kind == "alert":
            self.alerts.append(shown.body)
        elif kind == "bidi_component" and shown.component_name == TREE:
            data = json.loads(shown.json)
            self.running = data["running"]
            if data["about"] is not None:
                self.prompt = data["about"]["prompt"]


class Soak:
    """Counts of sessions' actions and failures."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.counts: collections.Counter[str] = collections.Counter()
        # Text by prompt; decoding is greedy, so all runs of a prompt are equal.
        self.texts: dict[str, str] = {}

    async def session(self, number: int, seconds: float, chance: random.Random) -> None:
        """Perform actions in a session until the time is up."""
        examples = shipped.prompts()
        prompt = f"{OWN}{number}\n{examples[number % len(examples)]}"
        tab = Tab(self.address)
        await tab.open()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            action = chance.choice(ACTIONS)
            self.counts[action] += 1
            await tab.settle()
            tab.forget()
            await tab.press("decode_start", prompt)
            if action in ("disconnect", "reload"):
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                await tab.close()
                if action == "disconnect":
                    await asyncio.sleep(chance.uniform(0.0, 3.0))
                tab = Tab(self.address)
                await tab.open()
                continue
            if action == "stop":
                await tab.until(lambda: tab.running or tab.code is not None or tab.alerts)  # noqa: B023
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                await tab.press("decode_stop")
            await self._outcome(tab, prompt, action)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
        await tab.close()

    async def _outcome(self, tab: Tab, prompt: str, action: str) -> None:
        """Wait for a result and count its type."""

        def over() -> bool:
            return tab.code is not None or any(end in alert for alert in tab.alerts for end in ENDS)

        if not await tab.until(over):
            self.counts["lost"] += 1
            return
        if any(BUSY in alert for alert in tab.alerts):
            self.counts["told busy"] += 1
            return
        if any("failed" in alert for alert in tab.alerts):
            self.counts["failed"] += 1
            return
        await tab.settle()
        # The page may also show a recorded run, whose prompt has no such prefix.
        if tab.prompt is not None and tab.prompt.startswith(OWN) and tab.prompt != prompt:
            self.counts["mixed"] += 1
        if tab.code is None:
            self.counts["stopped before its first step"] += 1
            return
        whole = self.texts.get(prompt)
        if any("Stopped" in alert for alert in tab.alerts):
            self.counts["stopped"] += 1
            self.counts["mixed"] += whole is not None and not whole.startswith(tab.code)
            return
        self.counts["finished"] += 1
        self.counts["mixed"] += whole not in (None, tab.code)
        self.texts[prompt] = tab.code

    async def go(self, sessions: int, seconds: float, seed: int) -> None:
        await asyncio.gather(
            *(self.session(number, seconds, random.Random(seed * 1_000 + number)) for number in range(sessions))
        )


def resident_mb(server: Server, settle_sec: float) -> float:
    """Return the server's memory in MB once all sessions have been dropped."""
    time.sleep(settle_sec)
    return psutil.Process(server.process.pid).memory_info().rss / 1e6


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.set_defaults(warm_sec=20.0, settle_sec=FORGOTTEN_SEC + 15.0)
    options = parser.read(sessions=2, minutes=0.02, warm_sec=0.5, settle_sec=0.5)
    os.environ["STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL"] = str(FORGOTTEN_SEC)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "log", Path(folder))
        try:
            soak = Soak(server.address)
            warm_sec = max(options.warm_sec, 12.0 * options.minutes)
            asyncio.run(soak.go(options.sessions, warm_sec, seed=0))
            before, warm = resident_mb(server, options.settle_sec), dict(soak.counts)
            print(f"warm-up of {warm_sec:.0f} s: {warm}, server {before:.0f} MB")
            asyncio.run(soak.go(options.sessions, 60.0 * options.minutes, seed=1))
            after = resident_mb(server, options.settle_sec)
            print(f"total: {dict(soak.counts)}, server {after:.0f} MB")
        finally:
            server.stop()
    counts = {name: soak.counts[name] for name in ("finished", "stopped", "told busy", "failed", "lost", "mixed")}
    record = counts | {
        "sessions": options.sessions,
        "minutes": options.minutes,
        "disconnected": soak.counts["disconnect"] + soak.counts["reload"],
        "memory_mb": [before, after],
        "memory_growth_share": after / before - 1,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
