"""A run saved as a page: opened from disk with the network off it plays, and foreign text stays text."""

import json

from tests.served_app import ROOT
from ui.runs.run_files import load_run
from ui.token_tree.standalone import run_to_html

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"> {data}"


def opened(page, tmp_path, run: dict, title: str = "A run", **options) -> None:
    path = tmp_path / "run.html"
    path.write_bytes(run_to_html(run, title=title, **options))
    page.context.set_offline(True)
    page.goto(path.as_uri())


def test_it_plays_without_a_server_or_a_network(page, tmp_path) -> None:
    run = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")
    page.clock.install(time="2026-01-01T00:00:00Z")
    opened(page, tmp_path, run)
    steps = len(run["steps"])
    assert page.locator(".at").inner_text() == f"step {steps} of {steps}"
    assert page.locator(".nodes .node:not(.bonus)").count() == len(run["shapes"][0])
    page.clock.pause_at("2026-01-02T00:00:00Z")  # from here on time passes only as told
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(2_000)
    assert page.locator(".at").inner_text() == f"step 5 of {steps}"
    assert page.locator(".body").text_content() == "".join(piece for step in run["steps"] for piece in step["pieces"])
    assert page.get_by_role("button", name="Link").count() == 0  # there is no app to come back to


def test_text_of_a_run_never_becomes_markup(page, tmp_path) -> None:
    run = json.loads(json.dumps(load_run(ROOT / "assets" / "runs" / "recorded.jsonl")))
    first = run["steps"][0]
    size = len(first["tokens"])
    row = {"texts": [HOSTILE, "x"], "probs": [0.75, 0.25]}
    accepted = {"sequoia": 0.875, "specinfer": 0.75, "topk": 0.625, "best": 0.9375}
    rows = [{"node": node, "target": row, "draft": row, "residuals": [row] * 2} for node in first["path"]]
    left_out = [{"parent": 0, "text": HOSTILE, "gain": 0.1}]
    marginal = {"gains": [0.5] * size, "costs": [None] * size, "next_cost": None, "left_out": left_out}
    first |= {"tokens": [HOSTILE] * size, "pieces": [HOSTILE] * len(first["pieces"]), "bonus": HOSTILE}
    first |= {"rows": [each | {"accepted": accepted} for each in rows], "marginal": marginal}
    sampled = {"temperature": 0.6, "verifier": "specinfer"}
    opened(page, tmp_path, run | sampled | {"prompt": HOSTILE, "steps": [first]}, title=HOSTILE)
    assert page.locator(".prompt").text_content() == HOSTILE and page.locator("h1").text_content() == HOSTILE
    details, told = page.locator(".details"), HOSTILE.replace(" ", "·")
    shares = details.locator(".shares tr").all()
    assert [share.locator("th, td").all_text_contents() for share in shares] == [
        ["Sequoia", "SpecInfer, as here", "Top-k", "best possible"], ["88%", "75%", "63%", "94%"],
    ]  # fmt: skip
    page.locator(".nodes .rejected").first.click()
    assert told in details.text_content() and "75%" in details.text_content()
    page.locator(".nodes .rejected").first.hover()
    page.locator(".left-out summary").click()
    assert told in page.locator(".left-out").inner_text()
    assert page.title() == HOSTILE and page.locator("img").count() == 0 and page.locator("script").count() == 2


def test_a_looked_up_node_says_where_it_was_found(page, tmp_path) -> None:
    run = load_run(ROOT / "assets" / "runs" / "recorded.jsonl")
    first = run["steps"][0]
    found = {"match": 4, "earlier": True, "before": HOSTILE, "after": "went on"}
    both = found | {"drafted": True}
    step = first | {"found_at": [None, found, None, both] + [None] * (len(first["tokens"]) - 4)}
    opened(page, tmp_path, run | {"steps": [step]})
    page.locator(".nodes .node").nth(1).hover()
    tip = page.locator(".tip").inner_text()
    assert (
        "chance by lookup" in tip
        and "the same 4 tokens in an earlier answer" in tip
        and HOSTILE.replace(" ", "·") in tip
    )
    page.locator(".nodes .node").nth(3).hover()
    assert "Drafted and looked up: it followed" in page.locator(".tip").inner_text() and page.title() != "taken"
