"""A run saved as a page plays from disk without a network, and its text is never markup."""

import json

from tests.e2e.browser import drawn, point_at
from tests.served_app import ROOT
from ui.runs.run_files import load_run
from ui.token_tree.standalone import run_to_html

FACTS = {"figures": {"Tokens per step": "5.33", "Predicted ×": "–"}, "settings": "greedy"}
HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"> {data}"


def opened(page, tmp_path, run: dict, title: str = "A run", **facts) -> tuple:
    """Open the saved page, and return its tree and its timeline."""
    path = tmp_path / "run.html"
    path.write_bytes(run_to_html(run, title=title, **FACTS | facts))
    page.context.set_offline(True)
    page.goto(path.as_uri())
    return page.locator("#liveTree"), page.locator("#runTimeline")


def test_it_plays_without_a_server_or_a_network(page, tmp_path) -> None:
    run = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")
    page.clock.install(time="2026-01-01T00:00:00Z")
    tree, timeline = opened(page, tmp_path, run)
    steps = len(run["steps"])
    assert tree.locator(".at").inner_text() == f"step 1 of {steps}"
    assert page.locator(".facts dl").inner_text().split("\n") == ["Tokens per step", "5.33", "Predicted ×", "–"]
    assert tree.locator(".tt").bounding_box()["width"] > 0.95 * page.viewport_size["width"]
    assert len([each for each in drawn(tree) if each["node"] != "bonus"]) == len(run["shapes"][0])
    page.clock.run_for(120_000)  # it plays without a click
    assert tree.locator(".at").inner_text() == f"step {steps} of {steps}"
    pieces = [piece for step in run["steps"] for piece in step["pieces"]]
    assert page.locator(".body").text_content() == "".join(pieces)
    timeline.get_by_role("button", name="Next step").click()  # the stage must be visible
    timeline.locator(".tt").press("Home")
    timeline.locator(".tt").press(" ")
    assert timeline.locator(".figures").inner_text().split()[:2] == ["0", "tokens"]
    page.clock.run_for(120_000)
    assert timeline.locator(".figures").inner_text().split()[:3] == [str(len(pieces)), "tokens", str(steps)]
    assert page.get_by_role("button", name="Link").count() == 0


def test_text_of_a_run_never_becomes_markup(page, tmp_path) -> None:
    run = json.loads(json.dumps(load_run(ROOT / "assets" / "runs" / "recorded.jsonl")))
    first = run["steps"][0]
    size = len(first["tokens"])
    row = {"texts": [HOSTILE, "x"], "probs": [0.75, 0.25]}
    rows = [{"node": node, "target": row, "draft": row, "residuals": [row] * 2} for node in first["path"]]
    left_out = [{"parent": 0, "text": HOSTILE, "gain": 0.1}]
    marginal = {"gains": [0.5] * size, "costs": [None] * size, "next_cost": None, "left_out": left_out}
    first |= {"tokens": [HOSTILE] * size, "pieces": [HOSTILE] * len(first["pieces"]), "bonus": HOSTILE}
    found = {"match": 4, "earlier": True, "before": HOSTILE, "after": "went on"}
    first |= {"rows": rows, "marginal": marginal, "found_at": [None, found, *[None] * (size - 2)]}
    sampled = {"temperature": 0.6, "verifier": "specinfer"}
    tree, timeline = opened(
        page,
        tmp_path,
        run | sampled | {"prompt": HOSTILE, "steps": [first]},
        HOSTILE,
        figures={HOSTILE: HOSTILE},
        settings=HOSTILE,
    )
    for place in ("dt", "dd", "p"):
        assert page.locator(f".facts {place}").text_content() == HOSTILE
    assert page.locator(".prompt").text_content() == HOSTILE and page.locator("h1").text_content() == HOSTILE
    details, shown = tree.locator(".details"), HOSTILE.replace(" ", "·")
    point_at(tree, node=1, click=False)
    tip = tree.locator(".tip").inner_text()
    assert "chance by lookup" in tip and "the same 4 tokens in an earlier answer" in tip and shown in tip
    point_at(tree, state="rejected")
    assert shown in details.text_content() and "75%" in details.text_content()
    point_at(tree, state="rejected", click=False)
    page.locator(".left-out summary").click()
    assert shown in page.locator(".left-out").inner_text()
    timeline.scroll_into_view_if_needed()
    timeline.locator(".field[aria-label*=Timeline]").wait_for()
    timeline.locator(".tt").press("End")
    point_at(timeline, state="rejected")
    for part in (".tip", ".details"):
        assert shown in timeline.locator(part).text_content()
    assert page.title() == HOSTILE and page.locator("img").count() == 0 and page.locator("script").count() == 3
