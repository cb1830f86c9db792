"""Many sessions at once on one engine: starts, stops, lost connections and reloads; is any output lost or mixed up?

Sessions speak Streamlit's own websocket messages, without a browser. Each has a prompt of its own, so that a text that
belongs to another session shows. Memory is that of the server when all have gone, after a warm-up and at the end.

python benchmarks/soak.py --sessions 20 --minutes 10          # counts as it goes, one JSON line last
"""

import argparse
import asyncio
import collections
import json
import os
import random
import tempfile
import time
from pathlib import Path

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import connect

from tests.served_app import Server
from ui.session import shipped

FORGOTTEN_SEC = 5  # after which the server forgets a session that went away
SETTLE_SEC = 15
QUIET_SEC = 1.0  # without a message
ASK_AGAIN_SEC = 5.0
WAIT_SEC = 180  # for a result, with others in line
QUERY = "tokens=64"
OWN = "# session "  # how the prompts of these sessions begin
BUSY = "The engine is busy: "  # nothing was started; one that waits is told so in other words
ENDS = (BUSY, "Stopped after", "failed")
ACTIONS = ("run", "run", "run", "stop", "disconnect", "reload")


class Tab:
    """One session on the decode page, as the browser's client would keep it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ids: dict[str, str] = {}
        self.forget()

    def forget(self) -> None:
        """Forget what the page has shown so far."""
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
        await self.until(lambda: "decode_start" in self.ids)
        await self.settle()

    async def settle(self) -> None:
        """Wait until the page is drawn and polls no more: what comes later belongs to what is pressed next."""
        await self.until(lambda: not self.polls and not self.drawing and time.monotonic() - self.heard > QUIET_SEC)

    async def close(self) -> None:
        for task in (*self.polls.values(), self.reader):
            task.cancel()
        await self.socket.close()

    async def until(self, condition) -> bool:
        """Wait for something that the page shows -> whether it came in time."""
        deadline = time.monotonic() + WAIT_SEC
        while not condition():
            if time.monotonic() > deadline or self.reader.done():
                return False
            if not self.drawing and not self.polls and time.monotonic() - self.heard > ASK_AGAIN_SEC:
                self.heard = time.monotonic()
                await self.rerun()  # as a person does who sees that nothing moves
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
        async for data in self.socket:
            self.heard = time.monotonic()
            message = ForwardMsg.FromString(data)
            kind = message.WhichOneof("type")
            if kind == "new_session":
                self.seen, self.drawing = set(), True
            elif kind == "script_finished":
                self.drawing = False
                if message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                    for fragment in set(self.polls) - self.seen:  # no longer on the page
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
        elif kind == "bidi_component":
            data = json.loads(shown.json)
            self.running = data["running"]
            if data["about"] is not None:
                self.prompt = data["about"]["prompt"]


class Soak:
    """What the sessions did, and what went wrong."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.counts: collections.Counter[str] = collections.Counter()
        self.texts: dict[str, str] = {}  # by prompt; greedy, so every run of one writes the same

    async def session(self, number: int, until: float, chance: random.Random) -> None:
        """Do one thing after the other in a session until the time is up."""
        examples = shipped.prompts()
        prompt = f"{OWN}{number}\n{examples[number % len(examples)]}"
        tab = Tab(self.address)
        await tab.open()
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
        """Wait for a result and count what it is."""

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
        if tab.prompt is not None and tab.prompt.startswith(OWN) and tab.prompt != prompt:  # a recorded run may show
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
        until = time.monotonic() + seconds
        await asyncio.gather(
            *(self.session(number, until, random.Random(seed * 1_000 + number)) for number in range(sessions))
        )


def resident_mb(server: Server) -> float:
    """Return the server's memory in MB once all sessions are forgotten."""
    time.sleep(FORGOTTEN_SEC + SETTLE_SEC)
    return psutil.Process(server.process.pid).memory_info().rss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    os.environ["STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL"] = str(FORGOTTEN_SEC)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "log")
        try:
            soak = Soak(server.address)
            warm_sec = max(20.0, 12.0 * options.minutes)
            asyncio.run(soak.go(options.sessions, warm_sec, seed=0))
            before, warm = resident_mb(server), dict(soak.counts)
            print(f"warm-up of {warm_sec:.0f} s: {warm}, server {before:.0f} MB")
            asyncio.run(soak.go(options.sessions, 60.0 * options.minutes, seed=1))
            after = resident_mb(server)
            print(f"in all: {dict(soak.counts)}, server {after:.0f} MB")
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
