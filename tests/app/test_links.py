"""Invalid values of any link parameter leave every page at its defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.runtime.state.query_params import QueryParams
from streamlit.testing.v1 import AppTest

from tests.app.conftest import PAGES, ROOT, TIMEOUT_SEC, settled
from tests.app.test_run_comparison import a_run
from ui.session import session
from ui.session.state import KEY, SessionState, StoredRun

JUNK = {
    "empty": "", "spaces": "   ", "overflowing": "1e999", "negative": "-1e999", "nan": "nan", "inf": "inf",
    "zeros": "000000001" + "0" * 5_000, "long integer": "7" * 400, "hexadecimal": "0x10", "path": "../../etc/passwd",
    "markup": "<img src=x>", "NUL": "\0", "surrogate": b"\xed\xa0\x80", "repeated": ["1e999", "<img src=x>"],
    "twice empty": ["", ""], "beyond any index": "1" + "0" * 12, "long text": "long " * 4_000,
}  # fmt: skip
JUNK_PARTS = 6  # each is used with some state of every page
RUNS = {run["id"]: run for run in (a_run([["a"]]), a_run([["b"]]))}
State = dict[str, str]
KNOWN: dict[Path, dict[str, State]] = {}


def opened(path: Path, query: dict) -> AppTest:
    page = AppTest.from_file(str(path), default_timeout=TIMEOUT_SEC)
    page.session_state[KEY] = SessionState(runs={name: StoredRun(run, "recorded") for name, run in RUNS.items()})
    page.query_params |= query
    return page.run()


def bound(page: AppTest) -> dict[str, list[str]]:
    """Return the parameters that widgets are bound to, with their choices."""
    found = {}
    for element in page:
        proto = getattr(element, "proto", None)
        if element.type == "tab_container":
            found[proto.tab_container.query_param_key] = [tab.label for tab in element.children.values()]
        elif getattr(proto, "query_param_key", ""):
            found[proto.query_param_key] = list(getattr(element, "options", []))
    return found


def texts(page: AppTest) -> set[str]:
    """Return the parameters of text widgets, for which any value is valid."""
    return {element.key for kind in ("text_input", "text_area") for element in page.get(kind)}


@pytest.fixture
def states(assets: Path, monkeypatch: pytest.MonkeyPatch, full: bool):
    """Return a function from a page to its parameters, each with the choices that make it appear.

    Parameters that depend on choices, such as a chain's length, are searched only in the full test run.
    """
    for kind in ("runs", "sweeps"):
        (assets / kind).symlink_to(ROOT / "assets" / kind)
    monkeypatch.setattr(session, "has_chat", lambda: True)
    read: set[str] = set()
    value_of = QueryParams.__getitem__
    monkeypatch.setattr(QueryParams, "__getitem__", lambda self, key: read.add(key) or value_of(self, key))

    def found(path: Path) -> dict[str, State]:
        if path in KNOWN:
            return KNOWN[path]
        read.clear()
        first = bound(settled(opened(path, {})))
        known: dict[str, State] = dict.fromkeys([*first, *read], {})
        waiting = [{name: choice} for name, choices in first.items() for choice in choices]
        while full and waiting:
            state = waiting.pop(0)
            for name, choices in bound(settled(opened(path, state))).items():
                if name not in known:
                    known[name] = state
                    waiting += [{**state, name: choice} for choice in choices]
        return KNOWN.setdefault(path, known)

    return found


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_invalid_parameters_break_no_page_and_move_no_widget(path: Path, states, full: bool) -> None:
    """Use a part of the junk with each state of a page, and all of it with the first state in the full run."""
    found = states(path)
    for number, state in enumerate({tuple(state.items()): state for state in found.values()}.values()):
        usual = opened(path, state)
        names = [name for name, choices in found.items() if choices in ({}, state) and name not in state]
        shown = {name: usual.session_state[name] for name in set(bound(usual)) & set(names) - texts(usual)}
        part = list(JUNK)[(PAGES.index(path) + number) % JUNK_PARTS :: JUNK_PARTS]
        for kind in JUNK if full and not state else part:
            page = opened(path, state | dict.fromkeys(names, JUNK[kind]))
            assert not page.exception, (kind, state, [error.value for error in page.exception])
            assert {name: page.session_state[name] for name in shown} == shown, (kind, state)
