"""The decode page: its five states, the real engine behind it, and what must never break it."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from sequoia_core.design.tree import TokenTree
from tests.app.conftest import OTHER_DRAFT, metrics, open_page, run_job, settled, vector, wait_for
from ui import token_tree
from ui.jobs import decode_job, engine_queue, jobs
from ui.runs import run_files, runs
from ui.token_tree.steering import Steering

HOSTILE = '<img src=x onerror="alert(1)"> ![](http://x) $$x$$ \u202e שלום 🙂 \x00 :material/home: {braces}'


@pytest.fixture
def released() -> threading.Event:
    """Lets go of held work at the end, so that the next test finds an idle engine."""
    event = threading.Event()
    yield event
    event.set()


def a_record(index: int, tree: TokenTree, piece: str = "x") -> dict:
    size = tree.size
    return {
        "index": index,
        "shape": 0,
        "tokens": [piece] * size,
        "outcomes": "A" + "N" * (size - 1),
        "draft": [0.5] * size,
        "target": [0.5] * size,
        "path": [0],
        "bonus": piece,
        "pieces": [piece],
        "trials": [],
        "seconds": [0.001, 0.002, 0.0001, 0.0001],
        "finished": None,
    }


def held_work(monkeypatch: pytest.MonkeyPatch, released: threading.Event, *, steps: int = 2, error: str = "") -> None:
    """Replace the work: some steps, then wait for the cancel, the release or fail."""

    def decode_work(request: runs.DecodeRequest):
        def perform(context: jobs.JobContext):
            run = request.header() | {"shapes": [request.tree.parents.tolist()]}
            context.keep(run)
            for index in range(steps):
                run["steps"].append(a_record(index, request.tree))
                context.append(run["steps"][-1])
            if error:
                raise FloatingPointError(error)
            while not (released.is_set() or context.cancel.is_set()):
                released.wait(0.01)
            return run

        return perform

    monkeypatch.setattr(decode_job, "decode_work", decode_work)


def payload(page: AppTest) -> dict:
    """Return what the live tree was sent, parsed as strictly as a browser does."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(page.get("bidi_component")[0].proto.json, parse_constant=refuse)


def start(page: AppTest, prompt: str | None = None) -> AppTest:
    if prompt is not None:
        page.text_area(key="decode_prompt").set_value(prompt)
    return settled(page.button(key="decode_start").click().run())


def finish(page: AppTest) -> AppTest:
    job = page.session_state["studio_jobs"]["decode"]
    wait_for(lambda: not job.active)
    return settled(page.run())


def test_before_the_first_run_the_page_invites_and_replays_what_is_recorded(assets) -> None:
    page = open_page("decode")
    assert "Nothing decoded yet" in page.info[0].value
    assert not page.button(key="decode_start").disabled and page.button(key="decode_stop").disabled
    with_a_recorded_run(assets)
    page = open_page("decode")
    assert "A recording (" in words(page)
    sent = payload(page)
    assert sent["shapes"][0]["parents"] == [-1, 0, 0] and len(sent["steps"]) == 3 and not sent["running"]


def test_a_real_run_from_start_to_verdict(assets, tiny_pair) -> None:
    page = open_page("decode", tokens="32")
    page = finish(start(page))
    assert not page.error
    shown = metrics(page)
    assert shown["Tokens per step"][1].startswith("expected")
    assert shown["Tokens per second"][1].startswith("autoregressive")
    assert shown["Speedup"][0].endswith("×") and shown["Speedup"][1].startswith("predicted")
    assert "32 tokens" in shown["Accepted share"][1]
    assert any("a step yielded" in element.value and "prediction" in element.value for element in page.markdown)
    run = page.session_state["studio_last_run"]
    assert run["baseline"]["tokens"] == 32 and page.code[0].value == run["text"]
    assert "".join(piece for step in run["steps"] for piece in step["pieces"]) == run["text"]
    assert payload(page)["total"] == len(run["steps"])
    assert page.button(key="decode_stop").disabled and not page.button(key="decode_start").disabled


def test_hostile_prompts_and_tokens_stay_literal(assets, tiny_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_pair.tokenizer, "decode", lambda ids, skip_special_tokens=False: HOSTILE * len(ids))
    page = open_page("decode", tokens="16")
    page = finish(start(page, HOSTILE))
    assert not page.error and payload(page)["total"] > 0
    for element in [*page.markdown, *page.caption, *page.info, *page.warning]:
        assert "onerror" not in element.value and "http://x" not in element.value


@pytest.mark.parametrize("prompt", ["  \n\t", "x" * 1_048_576])
def test_prompts_that_cannot_be_decoded_get_a_message(prompt: str, assets, tiny_pair) -> None:
    page = start(open_page("decode"), prompt)
    assert len(page.error) == 1 and ("empty" in page.error[0].value or "1,048,576 characters" in page.error[0].value)
    assert "studio_jobs" not in page.session_state


@pytest.mark.parametrize("error", ["", "logits are NaN"])
def test_a_stop_and_a_failure_keep_the_steps_before(error: str, assets, monkeypatch, released) -> None:
    held_work(monkeypatch, released, steps=2, error=error)
    page = start(open_page("decode"))
    job = page.session_state["studio_jobs"]["decode"]
    wait_for(lambda: job.step_count == 2)
    if not error:
        page = settled(page.run())
        assert page.button(key="decode_start").disabled and payload(page)["running"] and not page.metric
        page = settled(page.button(key="decode_stop").click().run())
    page = finish(page)
    (said,) = [element.value for element in [*page.warning, *page.error]]
    assert ("step 2: FloatingPointError: logits are NaN" if error else "Stopped after 2 steps") in said
    assert payload(page)["total"] == 2 and not page.button(key="decode_start").disabled


def test_starting_twice_makes_one_job_and_leaving_the_page_keeps_it(
    assets, monkeypatch: pytest.MonkeyPatch, released
) -> None:
    held_work(monkeypatch, released)
    page = start(open_page("decode"))
    first = page.session_state["studio_jobs"]["decode"]
    page.session_state["decode_start"] = True  # a second click that was already on its way
    page = settled(page.run())
    assert page.session_state["studio_jobs"]["decode"] is first and first.active
    wait_for(lambda: first.step_count == 2)
    again = open_page("decode", {"jobs": {"decode": first}})
    assert payload(again)["total"] == 2 and again.button(key="decode_start").disabled


def test_a_queued_run_shows_its_place_and_a_full_queue_says_busy(
    assets, monkeypatch: pytest.MonkeyPatch, released
) -> None:
    held_work(monkeypatch, released)
    queue = engine_queue.engine_queue()
    others = [queue.submit("other", lambda context: released.wait(30))]
    wait_for(lambda: others[0].state == "running")
    page = start(open_page("decode"))
    assert "number 1 in line" in page.info[0].value
    others += [queue.submit("other", lambda context: None) for _ in range(3)]
    late = start(open_page("decode"))
    assert "busy" in late.warning[0].value and "studio_jobs" not in late.session_state


def test_every_tree_source(assets, tiny_pair) -> None:
    page = open_page("decode", tokens="16")
    page = settled(page.selectbox(key="source").set_value("chain").run())
    assert "chain of 4: n = 5, d = 4" in words(page)
    page = settled(page.selectbox(key="source").set_value("file").run())
    assert "Upload a tree file" in page.warning[0].value and page.button(key="decode_start").disabled
    broken = page.file_uploader(key="decode_tree_file").upload("tree.json", b"<html>")
    page = settled(broken.run())
    assert page.button(key="decode_start").disabled and page.warning


class Mount:
    """Stands in for the component: keeps what it was sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state: dict = {}
        self.sent: list[dict] = []
        monkeypatch.setattr(st, "session_state", self.state)
        monkeypatch.setattr(token_tree, "_COMPONENT", lambda **given: self.sent.append(given["data"]))

    def show(
        self,
        steps: list[dict],
        epoch: str = "run 1",
        verifier: str = "greedy",
        shapes=([-1, 0, 0],),
        lean: bool = False,
    ) -> dict:
        asked = {"temperature": 0.0} if verifier == "greedy" else {"temperature": 1.0, "verifier": verifier}
        run = {"prompt": "p", "shapes": shapes, **asked}
        token_tree.live_tree(key="t", epoch=epoch, run=run, steps=steps, running=True, lean=lean)
        return self.sent[-1]


def resync(mount: Mount, have: int) -> None:
    """Do what the page does when the browser says which step it lacks."""
    mount.state["t"] = {"resync": {"epoch": "run 1", "have": have}}
    token_tree._resync("t")


def test_what_the_browser_has_does_not_travel_again_unless_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    mount, shapes = Mount(monkeypatch), [[-1, 0, 0], [-1, 0, 1, 2], [-1]]
    steps = [
        a_record(index, TokenTree(np.array(shapes[shape]))) | {"shape": shape}
        for index, shape in enumerate((0, 1, 0, 1, 0, 1, 0, 2, 2))
    ]

    def sent(count: int, **options) -> tuple[list[int], list[int]]:
        """Return which shapes and which steps travel with so many steps."""
        told = mount.show(steps[:count], shapes=shapes, **options)
        assert told["total"] == count and told["from"] == told["steps"][0]["index"]
        return [shape["index"] for shape in told["shapes"]], [step["index"] for step in told["steps"]]

    assert sent(1) == ([0], [0]) and mount.sent[-1]["about"]["prompt"] == "p"
    assert mount.sent[-1]["shapes"][0]["across"] == [0.0, 0.0, 1.0]
    assert sent(4) == ([0, 1], [0, 1, 2, 3])  # the first step is sent again, and its shape with it
    assert sent(7) == ([], [2, 3, 4, 5, 6]) and mount.sent[-1]["about"] is None
    assert sent(9) == ([2], [5, 6, 7, 8])
    resync(mount, 3)  # a gap
    assert sent(9)[1][0] <= 3
    resync(mount, 0)  # the component is new on the page
    assert sent(9) == ([0, 1, 2], [*range(9)]) and mount.sent[-1]["about"] is not None
    assert sent(9, epoch="run 2") == ([0, 1, 2], [*range(9)]) and mount.sent[-1]["about"] is not None


def test_a_message_of_a_run_that_goes_on_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables travel with the last step only, and so many nodes at once."""
    mount, tree = Mount(monkeypatch), TokenTree(np.array([-1, 0, 0]))
    steps = [a_record(index, tree) | {"rows": [{"node": 0}], "marginal": {"gains": [1.0]}} for index in range(10)]
    *others, last = mount.show(steps[:5], lean=True)["steps"]
    assert last == steps[4]
    for sent, step in zip(others, steps, strict=False):
        told = {name: value for name, value in step.items() if name not in ("rows", "marginal")}
        assert sent == told | {"lean": True}
    resync(mount, 0)  # once the run has ended
    assert mount.show(steps[:5])["steps"] == steps[:5]
    monkeypatch.setattr(token_tree, "NODES_PER_UPDATE", 12)
    seen = {step["index"] for _ in range(6) for step in mount.show(steps)["steps"]}
    assert all(len(sent["steps"]) <= 4 for sent in mount.sent[2:]) and seen >= {*range(5, 10)}


def words(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.caption])


def test_nothing_is_expected_at_settings_nobody_measured(assets, tiny_pair) -> None:
    page = open_page("decode", tokens="16", temperature="0.6", verifier="Top-k")
    assert "temperature 0.6, topk · no prediction at these settings yet" in words(page)
    page = finish(start(page))
    shown = metrics(page)
    assert not shown["Tokens per step"][1] and not shown["Speedup"][1]
    assert "no speed was predicted" in words(page) and "the prediction" not in words(page)


def test_the_missing_vector_is_measured_where_it_is_missed(assets, tiny_pair) -> None:
    page = run_job(open_page("decode", tokens="16", temperature="0.6"), "measure", "Measure (10 s)")
    assert page.session_state["studio_acceptance"].holds_for.temperature == 0.6
    assert "no prediction" not in words(page) and "tokens per step" in words(page)
    page = settled(page.slider(key="temperature").set_value(0.0).run())  # the shipped one still holds there
    assert "temperature 0 · expected" in words(page)


def test_adaptive_trees_decode_once_a_calibration_was_measured_here(assets, tiny_pair, monkeypatch) -> None:
    growing_tree = "sequoia_core.decoding.growing.growing_tree"
    monkeypatch.setattr(f"{growing_tree}.LEAST_ADVANTAGE", 0.5)  # on this machine growing pays
    page = open_page("decode", {"tree_kind": "adaptive"}, tokens="32", source="Tree page")
    assert "need a vector with a calibration" in page.warning[0].value and page.button(key="decode_start").disabled
    page = run_job(page, "measure", "Measure (10 s)")
    assert not page.warning and "adaptive trees: up to n = 64" in words(page) and "tokens per step" in words(page)
    page = finish(start(page))
    run = page.session_state["studio_last_run"]
    assert len(run["steps"]) > 1 and metrics(page)["Tokens per step"][1].startswith("expected ")
    assert payload(page)["steps"] == run["steps"]


def with_a_recorded_run(assets, **fields) -> dict:
    tree = TokenTree(np.array([-1, 0, 0]))
    run = runs.DecodeRequest("prompt", tree).header() | {"shapes": [[-1, 0, 0]], "text": "xxx"} | fields
    run |= {"steps": [a_record(i, tree) for i in range(3)]}
    (assets / "runs").mkdir()
    (assets / "runs" / "recorded.jsonl").write_bytes(run_files.run_to_bytes(run))
    return run


@pytest.mark.parametrize(
    ("step", "at"),
    [("2", 1), ("4", None), ("²", None)],
)
def test_a_link_names_run_and_step(step: str, at: int | None, assets) -> None:
    run = with_a_recorded_run(assets, id="12e345678901")  # which reads as a number without bounds
    page = open_page("decode", run=run["id"], step=step)
    assert payload(page)["about"]["at"] == at and payload(page)["link"] == run["id"]
    assert not page.warning and page.query_params["run"] in (run["id"], [run["id"]])


def test_a_link_to_a_run_of_this_session_shows_it_and_not_the_last(assets) -> None:
    recorded = with_a_recorded_run(assets)
    own, last = (recorded | {"id": name * 12, "prompt": name} for name in "ab")
    kept = {run["id"]: run for run in (own, last)}
    page = open_page(
        "decode", {"runs": kept, "run_origins": dict.fromkeys(kept, "decoded here"), "last_run": last}, run=own["id"]
    )
    assert payload(page)["about"]["prompt"] == "a"
    page.query_params["run"] = "0123456789ab"  # of a server that is gone
    page = settled(page.run())
    assert "was stopped" in page.warning[0].value and payload(page)["about"]["prompt"] == "b"
    assert "run" not in page.query_params and not settled(page.run()).warning


def pressed(wish: object, steering: Steering) -> None:
    """Do what the page does when the live tree tells what was pressed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(st, "session_state", {"t": {"steer": wish}})
        token_tree._steer("t", steering)


def test_step_by_step_then_planned_from_what_the_run_showed(assets, tiny_pair) -> None:
    tiny_pair.draft = tiny_pair.target  # always right, where the vector says 55 %
    page = open_page("decode", tokens="64", stepwise="true")
    page = settled(page.selectbox(key="source").set_value("chain").run())
    page = start(settled(page.slider(key="chain").set_value(1).run()))
    job = page.session_state["studio_jobs"]["decode"]
    held = job.info.steering
    for steps in range(1, 5):
        wait_for(lambda steps=steps: held.waiting_after == steps)
        page = settled(page.run())
        assert payload(page)["held"] == steps
        pressed({"next": steps}, held)
    wait_for(lambda: held.waiting_after == 5)
    page = settled(page.run())
    assert all(button.key != "decode_plan" for button in page.button)  # of a run that has ended
    pressed({"on": True}, held)
    page = finish(page)
    steps = len(job.result["steps"])
    before = vector().probs
    page = settled(page.button(key="decode_plan").click().run())
    found = page.session_state["studio_acceptance"].probs
    assert found[0] == pytest.approx((30 * before[0] + steps) / (30 + steps), rel=0.02)  # the last step may be cut
    assert found[0] > before[0] and found.sum() <= 1 + 1e-9
    assert "corrected by a run" in page.session_state["studio_acceptance_source"]


def test_a_run_of_another_pair_is_not_shown_as_one_of_the_pair_in_use(assets, tiny_pair) -> None:
    page = finish(start(open_page("decode", tokens="16")))
    assert not page.warning
    page.session_state["studio_pair"] = OTHER_DRAFT
    assert "cpu, temperature 0: not the pair in use" in settled(page.run()).warning[0].value
