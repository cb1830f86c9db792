"""Hostile text in files and text boxes is shown literally, and causes no request to another host.

The `page` fixture fails a test for such requests.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request

import pytest

from tests.e2e.browser import go, in_plan, point_at, settle
from tests.served_app import ROOT
from ui.menu import MENU
from ui.runs.run_files import load_run, run_to_bytes

HOST = "evil.example"
PAYLOADS = (
    f"![i](http://{HOST}/FIELD.png)",
    f"<img src=http://{HOST}/FIELD.png onerror=alert(1)>",
    f"[l](http://{HOST}/FIELD) <a href='http://{HOST}/FIELD'>l</a>",
    f"http://{HOST}/FIELD www.{HOST} a@{HOST} <http://{HOST}>",
    "$$x^2$$ $y$ :material/home: :streamlit: :red[r] **b** `c`",
    f"\n\n# h\n\n[r]: http://{HOST}/FIELD\n\n![r]\n\n```mermaid\ngraph\n```\n\n| a |\n|---|\n| ![i](http://{HOST}) |",
    "\u202eabc\u202c שלום 👩‍👩‍👧 \u0007",
)


def hostile(field: str) -> str:
    return " ".join(PAYLOADS).replace("FIELD", field)


NAME = f"![i](http:{HOST}) <img src=x> $$z$$ www.{HOST} :red[n] `c`"  # of files
VECTOR = {
    "format": "sequoia-acceptance", "version": 2, "probs": [0.6, 0.05, 0.2], "trials": 90,
    "prompt_sums": [[18.0, 1.5, 6.0], [36.0, 3.0, 12.0]], "prompt_trials": [30, 60], "note": hostile("note"),
    "meta": {
        "source": hostile("source"), "pair": hostile("pair"), "target": hostile("target"), "data": hostile("data"),
        hostile("key"): hostile("value"), "prompts": 2, "prompts_wanted": 3,
    },
    "holds_for": {"target": hostile("t")[:400], "draft": hostile("d")[:400], "temperature": 0.0},
}  # fmt: skip
PROFILE = {
    "format": "sequoia-profile", "version": 1, "sizes": [1, 2, 4, 8, 16, 32], "draft_sec": 0.001,
    "verify_sec": [0.010, 0.010, 0.011, 0.012, 0.014, 0.020], "device": hostile("device"), "dtype": hostile("dtype"),
    "meta": {"target": hostile("p-target"), "draft": hostile("p-draft"), "passes_by": hostile("passes")},
}  # fmt: skip
TREE = {"format": "sequoia-tree", "version": 1, "parents": [-1, 0, 0, 1, 1, 2], "acceptance": {"meta": hostile("tree")}}
ROWS = [{"id": 1, hostile("column"): hostile("prompt"), "b": hostile("b")}, {"id": 2, hostile("column"): "x", "b": "y"}]


def put(page, key: str, name: str, content: str) -> None:
    """Upload a file under the given name."""
    upload = {"name": name, "mimeType": "application/octet-stream", "buffer": content.encode()}
    page.locator(f".st-key-{key} input[type=file]").set_input_files(upload)
    page.wait_for_timeout(200)
    settle(page)


def choose(page, key: str, label: str) -> None:
    page.locator(f".st-key-{key}").get_by_text(label, exact=True).click()
    settle(page)


FOUND = """() => {
    const what = 'a[href*="evil"], [src*="evil"], [href*="evil"], .katex, .mermaid, [id^=mermaid], [onerror], ' +
        'img[src="x"], img[alt="Streamlit logo"]'
    const within = root => [...root.querySelectorAll(what),
        ...[...root.querySelectorAll('*')].flatMap(element => element.shadowRoot ? within(element.shadowRoot) : [])]
    return within(document).map(element => element.outerHTML.slice(0, 200))
}"""


def nothing_rendered(page) -> None:
    """Check that no payload became an element, not even a link."""
    assert page.evaluate(FOUND) == []


def shown(page) -> str:
    """Return the visible text of the page without word joiners."""
    return page.locator('[data-testid="stMain"]').inner_text().replace("\u2060", "")


def open_tooltips(page) -> None:
    """Hover every help icon, because tooltips are markdown too."""
    for mark in page.get_by_test_id("stTooltipIcon").all():
        if mark.is_visible():
            mark.hover()
            page.wait_for_timeout(50)
            nothing_rendered(page)
    page.mouse.move(5, 5)


def visit_all(page) -> None:
    for name in (entry.title for entry in reversed(MENU)):
        go(page, name)
        nothing_rendered(page)
        if name in ("Start", "Tree", "Machine"):
            open_tooltips(page)


def hostile_run() -> bytes:
    """Return a valid run with hostile text in every text field."""
    run = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")
    for step in run["steps"]:
        step["tokens"] = [hostile("token")] * len(step["tokens"])
        step["pieces"] = [hostile("piece")] * len(step["pieces"])
        step["bonus"] = step["bonus"] and hostile("bonus")
    named = {name: hostile(name) for name in ("prompt", "tree_source", "target", "draft", "dtype", "device", "text")}
    return run_to_bytes(run | named | {"id": "0" * 12})


@pytest.mark.timeout(600)
def test_hostile_files_are_shown_literally(page, server):
    page.goto(server)
    settle(page)
    go(page, "Draft")
    with in_plan(page, "acceptance"):
        put(page, "acceptance_file", f"{NAME}.json", json.dumps(VECTOR))
        page.get_by_text("is now the current vector (3 ranks)").wait_for()
        nothing_rendered(page)
    text = shown(page)
    for payload in (PAYLOADS[0].replace("FIELD", "note"), PAYLOADS[1].replace("FIELD", "note")):
        assert payload in text
    assert PAYLOADS[0].replace("FIELD", "source") in text and PAYLOADS[0].replace("FIELD", "t") in text
    nothing_rendered(page)
    open_tooltips(page)
    page.locator(".st-key-acceptance_ranks .js-plotly-plot").hover()
    choose(page, "acceptance_smoothing", "Isotonic")
    nothing_rendered(page)
    choose(page, "acceptance_way", "Measure")
    page.get_by_text("Prompts from a file").click()
    put(page, "acceptance_prompts_file", f"{NAME}.jsonl", "\n".join(map(json.dumps, ROWS)))
    page.locator(".st-key-acceptance_column input").click()  # no column has a usual name
    nothing_rendered(page)
    page.get_by_role("option").first.click()
    page.get_by_text("2 prompts. The first prompt begins").wait_for()
    page.locator(".st-key-acceptance_prompt_file code").wait_for()
    assert PAYLOADS[0].replace("FIELD", "prompt") in shown(page)
    nothing_rendered(page)

    go(page, "Machine")
    with in_plan(page, "machine"):
        page.locator(".st-key-plan_profile summary").click()
        put(page, "hardware_file", f"{NAME}.json", json.dumps(PROFILE))
        page.get_by_text("is now the current profile, up to n = 32").wait_for()
        nothing_rendered(page)
    assert PAYLOADS[0].replace("FIELD", "dtype") in shown(page)
    nothing_rendered(page)

    go(page, "Tree", "Import and export")
    put(page, "tree_file", f"{NAME}.json", json.dumps(TREE))
    page.get_by_role("button", name="Use the imported tree").click()
    settle(page)
    nothing_rendered(page)
    go(page, "Race and runs", "Runs")
    put(page, "runs_file", f"{NAME}.jsonl", hostile_run().decode())
    page.get_by_text("Two side by side").wait_for()
    nothing_rendered(page)
    page.get_by_role("link", name="Watch it step by step").click()
    settle(page)
    point_at(page.locator(".st-key-decode_tree"), node=0)
    page.locator(".st-key-decode_tree .details").get_by_text(PAYLOADS[0].replace("FIELD", "token")[:9]).first.wait_for()
    assert "run=000000000000" in page.url
    nothing_rendered(page)
    open_tooltips(page)
    visit_all(page)


BROKEN = {
    "acceptance_file": (f"{NAME}.json", json.dumps(VECTOR | {"holds_for": {hostile("h"): 1}})),
    "acceptance_prompts_file": (f"{NAME}.csv", f'"{PAYLOADS[0]}","{PAYLOADS[3]}"\n1,2,3\n'),
    "tree_file": (f"{NAME}.json", json.dumps([PAYLOADS[0]])),
    "runs_file": (f"{NAME}.jsonl", json.dumps({"format": "sequoia-run", "version": 2, "id": PAYLOADS[1]})),
}


@pytest.mark.timeout(600)
def test_hostile_errors_are_shown_literally(page, server):
    page.goto(server)
    settle(page)
    places = (
        ("Draft", "acceptance_way", "Measure", "acceptance_prompts_file"),
        ("Tree", None, None, "tree_file"),
        ("Race and runs", None, None, "runs_file"),
    )
    with in_plan(page, "acceptance"):
        put(page, "acceptance_file", *BROKEN["acceptance_file"])
        page.get_by_test_id("stAlert").filter(has_text="expected").first.wait_for(timeout=20_000)
        nothing_rendered(page)
    for name, key, way, place in places:
        go(page, name, {"runs_file": "Runs", "tree_file": "Import and export"}.get(place, ""))
        if key:
            choose(page, key, way)
        if place == "acceptance_prompts_file":
            page.get_by_text("Prompts from a file").click()
        put(page, place, *BROKEN[place])
        page.get_by_test_id("stAlert").filter(has_text="expected").first.wait_for(timeout=20_000)
        nothing_rendered(page)
        page.locator(f".st-key-{place}").get_by_role("button", name="Remove").click()
        settle(page)
    page.locator(".st-key-plan_models_open").get_by_test_id("stPopoverButton").first.click()
    page.locator(".st-key-models_target input").fill(PAYLOADS[0] + PAYLOADS[1] + PAYLOADS[3] + "$$x$$")
    page.locator(".st-key-models_draft input").fill("draft")
    page.get_by_role("button", name="Use this pair").click()
    settle(page)
    page.get_by_text("Target: ").first.wait_for()
    nothing_rendered(page)


@pytest.mark.timeout(600)
def test_an_upload_over_the_limit_is_rejected_and_the_server_stays_up(page, server, tmp_path):
    """Both the browser and the server reject files over 20 MB."""
    page.goto(server)
    settle(page)
    page.locator(".st-key-plan_acceptance_open").get_by_test_id("stPopoverButton").first.click()
    sent = []
    page.on("request", lambda request: sent.append(request) if "upload_file" in request.url else None)
    big = tmp_path / "big.csv"
    big.write_bytes(b"0.1\n" * 6_000_000)
    page.locator(".st-key-acceptance_file input[type=file]").set_input_files(big)
    page.get_by_text("20.0MB or smaller").or_(page.get_by_text("20MB or smaller")).first.wait_for()
    put(page, "acceptance_file", "own.csv", "0.7\n0.1\n")
    page.get_by_text("own.csv is now the current vector (2 ranks)").wait_for()
    assert sent, "the small file went through the server"
    again = sent[-1]
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="big.csv"\r\n\r\n'
    body = head + b"0" * (24 * 2**20) + b"\r\n--x--\r\n"
    headers = {key: value for key, value in again.all_headers().items() if not key.startswith(":")}
    headers |= {"content-type": "multipart/form-data; boundary=x", "content-length": str(len(body))}
    forged = urllib.request.Request(again.url, body, headers, method="PUT")
    with pytest.raises((urllib.error.HTTPError, ConnectionError, urllib.error.URLError)):
        urllib.request.urlopen(forged, timeout=30)
    page.reload()
    settle(page)


def opened(server: str, host: str) -> int:
    """Return the status of a websocket handshake from a page on `host`, as with DNS rebinding."""
    port = int(server.rpartition(":")[2])
    connection = http.client.HTTPConnection("localhost", port, timeout=30)
    connection.putrequest("GET", "/_stcore/stream", skip_host=True)
    for name, value in {
        "Host": f"{host}:{port}", "Origin": f"http://{host}:{port}", "Connection": "Upgrade", "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }.items():  # fmt: skip
        connection.putheader(name, value)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_page_on_another_host_name_opens_no_session(server):
    assert [opened(server, host) for host in ("localhost", "127.0.0.1", "[::1]")] == [101] * 3
    assert [opened(server, host) for host in (HOST, "localhost." + HOST, "127.0.0.1.nip.io")] == [403] * 3
