"""The decode page: its states, runs with the real engine, and hostile input."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from sequoia_core.models.threads import TimedLoad
from sequoia_core.trees.tree import TokenTree
from tests.app.conftest import OTHER_DRAFT, open_page, settled, studio, vector, wait_for
from ui import token_tree
from ui.jobs import decode_job, engine_queue, jobs
from ui.runs import run_files, runs
from ui.session.state import StoredRun
from ui.token_tree.steering import Steering

HOSTILE = '<img src=x onerror="alert(1)"> ![](http://x) $$x$$ \u202e שלום 🙂 \x00 :material/home: {braces}'


@pytest.fixture
def released() -> threading.Event:
    """Release blocking work after the test, so that the engine is idle for the next one."""
    event = threading.Event()
    yield event
    event.set()


def make_record(index: int, tree: TokenTree, piece: str = "x") -> dict:
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


def blocking_work(
    monkeypatch: pytest.MonkeyPatch, released: threading.Event, *, steps: int = 2, error: str = ""
) -> None:
    """Replace the work: some steps, then wait for the cancel, the release or fail."""

    def decode_work(request: runs.DecodeRequest):
        def perform(context: jobs.JobContext):
            run = request.header() | {"shapes": [request.tree.parents.tolist()]}
            context.store_partial(run)
            for index in range(steps):
                run["steps"].append(make_record(index, request.tree))
                context.append_step(run["steps"][-1])
            if error:
                raise FloatingPointError(error)
            while not (released.is_set() or context.cancel.is_set()):
                released.wait(0.01)
            return run

        return perform

    monkeypatch.setattr(decode_job, "decode_work", decode_work)


def payload(page: AppTest) -> dict:
    """Return the data sent to the live tree, parsed as strictly as by a browser."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(page.get("bidi_component")[0].proto.json, parse_constant=refuse)


def start(page: AppTest, prompt: str | None = None) -> AppTest:
    if prompt is not None:
        page.text_area(key="decode_prompt").set_value(prompt)
    return settled(page.button(key="decode_start").click().run())


def finish(page: AppTest) -> AppTest:
    job = studio(page).jobs["decode"]
    wait_for(lambda: not job.active)
    return settled(page.run())


def test_the_page_shows_a_recording_before_the_first_run(assets) -> None:
    page = open_page("decode")
    assert "Nothing decoded yet" in page.info[0].value
    assert not page.button(key="decode_start").disabled and page.button(key="decode_stop").disabled
    save_recorded_run(assets)
    page = open_page("decode")
    sent = payload(page)
    assert sent["figures"][0] == ["your first run replaces it", "Recording", False]
    assert sent["shapes"][0]["parents"] == [-1, 0, 0] and len(sent["steps"]) == 3 and not sent["running"]


def test_a_real_run_from_start_to_summary(assets, tiny_pair) -> None:
    page = open_page("decode", tokens="32")
    page = finish(start(page))
    assert not page.error
    step, second, faster = (label for label, *_ in payload(page)["figures"])
    assert step.endswith("expected") and second.endswith("without the tree") and faster.endswith("predicted")
    assert any("a step yielded" in element.value and "prediction" in element.value for element in page.markdown)
    run = studio(page).last_run
    assert run["baseline"]["tokens"] == 32 and page.code[0].value == run["text"]
    assert "".join(piece for step in run["steps"] for piece in step["pieces"]) == run["text"]
    assert payload(page)["total"] == len(run["steps"])
    (timeline,) = json.loads(page.get("bidi_component")[1].proto.json)["runs"]
    assert timeline["total"] == len(run["steps"]) and timeline["baseline"] == run["baseline"]
    assert page.button(key="decode_stop").disabled and not page.button(key="decode_start").disabled


def test_hostile_prompts_and_tokens_are_shown_literally(assets, tiny_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_pair.tokenizer, "decode", lambda ids, skip_special_tokens=False: HOSTILE * len(ids))
    page = open_page("decode", tokens="16")
    page = finish(start(page, HOSTILE))
    assert not page.error and payload(page)["total"] > 0
    for element in [*page.markdown, *page.caption, *page.info, *page.warning]:
        assert "onerror" not in element.value and "http://x" not in element.value


@pytest.mark.parametrize("prompt", ["  \n\t", "x" * 1_048_576])
def test_invalid_prompts_are_explained(prompt: str, assets, tiny_pair) -> None:
    page = start(open_page("decode"), prompt)
    assert len(page.error) == 1 and ("empty" in page.error[0].value or "1,048,576 characters" in page.error[0].value)
    assert not studio(page).jobs


@pytest.mark.parametrize("error", ["", "logits are NaN"])
def test_steps_before_a_stop_or_failure_remain(error: str, assets, monkeypatch, released) -> None:
    blocking_work(monkeypatch, released, steps=2, error=error)
    page = start(open_page("decode"))
    job = studio(page).jobs["decode"]
    wait_for(lambda: job.step_count == 2)
    if not error:
        page = settled(page.run())
        assert page.button(key="decode_start").disabled and payload(page)["running"] and not page.metric
        page = settled(page.button(key="decode_stop").click().run())
    page = finish(page)
    (said,) = [element.value for element in [*page.warning, *page.error]]
    assert ("step 2: FloatingPointError: logits are NaN" if error else "Stopped after 2 steps") in said
    assert payload(page)["total"] == 2 and not page.button(key="decode_start").disabled


def test_starting_twice_runs_one_job_that_survives_leaving_the_page(
    assets, monkeypatch: pytest.MonkeyPatch, released
) -> None:
    blocking_work(monkeypatch, released)
    page = start(open_page("decode"))
    first = studio(page).jobs["decode"]
    page.session_state["decode_start"] = True  # a second click before the rerun
    page = settled(page.run())
    assert studio(page).jobs["decode"] is first and first.active
    wait_for(lambda: first.step_count == 2)
    again = open_page("decode", {"jobs": {"decode": first}})
    assert payload(again)["total"] == 2 and again.button(key="decode_start").disabled


def test_a_queued_run_shows_its_position_and_a_full_queue_is_busy(
    assets, monkeypatch: pytest.MonkeyPatch, released
) -> None:
    blocking_work(monkeypatch, released)
    queue = engine_queue.engine_queue()
    others = [queue.submit("other", lambda context: released.wait(30))]
    wait_for(lambda: others[0].state == "running")
    page = start(open_page("decode"))
    assert "number 1 in the queue" in page.info[0].value
    others += [queue.submit("other", lambda context: None) for _ in range(3)]
    late = start(open_page("decode"))
    assert "busy" in late.warning[0].value and not studio(late).jobs


class Mount:
    """A stand-in for the component that records the data sent to it."""

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
        stepwise: bool = True,
    ) -> dict:
        asked = {"temperature": 0.0} if verifier == "greedy" else {"temperature": 1.0, "verifier": verifier}
        run = {"prompt": "p", "shapes": shapes, **asked}
        token_tree.live_tree(
            key="t", epoch=epoch, run=run, steps=steps, running=True, steering=Steering(stepwise=stepwise)
        )
        return self.sent[-1]


def resync(mount: Mount, have: int) -> None:
    """Simulate a browser that requests missing steps."""
    mount.state["t"] = {"resync": {"epoch": "run 1", "have": have}}
    token_tree._resync("t")


def test_steps_are_resent_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    mount = Mount(monkeypatch)
    shapes = [[-1, 0, 0], [-1, 0, 1, 2], [-1]]
    steps = [
        make_record(index, TokenTree(np.array(shapes[shape]))) | {"shape": shape}
        for index, shape in enumerate((0, 1, 0, 1, 0, 1, 0, 2, 2))
    ]

    def sent(count: int, **options) -> tuple[list[int], list[int]]:
        """Return the shapes and steps that are sent for the first `count` steps."""
        told = mount.show(steps[:count], shapes=shapes, **options)
        assert told["total"] == count and told["from"] == told["steps"][0]["index"]
        return [shape["index"] for shape in told["shapes"]], [step["index"] for step in told["steps"]]

    assert sent(1) == ([0], [0]) and mount.sent[-1]["about"]["prompt"] == "p"
    assert mount.sent[-1]["shapes"][0]["across"] == [0.0, 0.0, 1.0]
    assert sent(4) == ([0, 1], [0, 1, 2, 3])  # the first step and its shape are resent
    assert sent(7) == ([], [2, 3, 4, 5, 6]) and mount.sent[-1]["about"] is None
    assert sent(9) == ([2], [5, 6, 7, 8])
    resync(mount, 3)  # a gap
    assert sent(9)[1][0] <= 3
    resync(mount, 0)  # the component was remounted
    assert sent(9) == ([0, 1, 2], [*range(9)]) and mount.sent[-1]["about"] is not None
    assert sent(9, epoch="run 2") == ([0, 1, 2], [*range(9)]) and mount.sent[-1]["about"] is not None


def test_messages_of_a_live_run_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last step has tables, and each message has a limited number of nodes."""
    mount = Mount(monkeypatch)
    tree = TokenTree(np.array([-1, 0, 0]))
    steps = [make_record(index, tree) | {"rows": [{"node": 0}], "marginal": {"gains": [1.0]}} for index in range(10)]
    *others, last = mount.show(steps[:5], stepwise=False)["steps"]
    assert last == steps[4]
    for sent, step in zip(others, steps, strict=False):
        told = {name: value for name, value in step.items() if name not in ("rows", "marginal")}
        assert sent == told | {"lean": True}
    resync(mount, 0)  # after the run
    assert mount.show(steps[:5])["steps"] == steps[:5]
    monkeypatch.setattr(token_tree, "NODES_PER_UPDATE", 12)
    seen = {step["index"] for _ in range(6) for step in mount.show(steps)["steps"]}
    assert all(len(sent["steps"]) <= 4 for sent in mount.sent[2:]) and seen >= {*range(5, 10)}


def test_start_is_disabled_without_a_valid_tree_file(assets, tiny_pair) -> None:
    page = open_page("decode", tokens="16")
    page = settled(page.selectbox(key="source").set_value("file").run())
    assert "Upload a tree file" in page.warning[0].value and page.button(key="decode_start").disabled
    page = settled(page.file_uploader(key="decode_tree_file").upload("tree.json", b"<html>").run())
    assert page.button(key="decode_start").disabled and page.warning


def words(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.caption])


def save_recorded_run(assets, **fields) -> dict:
    tree = TokenTree(np.array([-1, 0, 0]))
    run = runs.DecodeRequest("prompt", tree).header() | {"shapes": [[-1, 0, 0]], "text": "xxx"} | fields
    run |= {"steps": [make_record(i, tree) for i in range(3)]}
    (assets / "runs").mkdir()
    (assets / "runs" / "recorded.jsonl").write_bytes(run_files.run_to_bytes(run))
    return run


@pytest.mark.parametrize(
    ("step", "at"),
    [("2", 1), ("4", None), ("²", None)],
)
def test_a_link_selects_run_and_step(step: str, at: int | None, assets) -> None:
    run = save_recorded_run(assets, id="12e345678901")  # looks like a huge number
    page = open_page("decode", run=run["id"], step=step)
    assert payload(page)["about"]["at"] == at and payload(page)["link"] == run["id"]
    assert not page.warning and page.query_params["run"] in (run["id"], [run["id"]])


def test_a_link_to_a_run_of_this_session_shows_that_run(assets) -> None:
    recorded = save_recorded_run(assets)
    own, last = (recorded | {"id": name * 12, "prompt": name} for name in "ab")
    kept = {run["id"]: StoredRun(run, "decoded here") for run in (own, last)}
    page = open_page("decode", {"runs": kept, "last_run": last}, run=own["id"])
    assert payload(page)["about"]["prompt"] == "a"
    page.query_params["run"] = "0123456789ab"  # stopped before its first step
    page = settled(page.run())
    assert "not kept" in page.warning[0].value and payload(page)["about"]["prompt"] == "b"
    assert "run" not in page.query_params and not settled(page.run()).warning


def pressed(wish: object, steering: Steering) -> None:
    """Simulate a press of a button in the live tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(st, "session_state", {"t": {"steer": wish}})
        token_tree._steer("t", steering)


def test_a_stepwise_run_corrects_the_vector(assets, tiny_pair) -> None:
    tiny_pair.draft = tiny_pair.target  # always accepted, while the vector predicts 55 %
    page = open_page("decode", tokens="64", stepwise="true")
    page = settled(page.selectbox(key="source").set_value("chain").run())
    page = start(settled(page.slider(key="chain").set_value(1).run()))
    job = studio(page).jobs["decode"]
    held = job.info.steering
    for steps in range(1, 5):
        wait_for(lambda steps=steps: held.waiting_after == steps)
        page = settled(page.run())
        assert payload(page)["held"] == steps
        pressed({"next": steps}, held)
    wait_for(lambda: held.waiting_after == 5)
    page = settled(page.run())
    assert all(button.key != "decode_plan" for button in page.button)  # only offered after the run
    pressed({"on": True}, held)
    page = finish(page)
    steps = len(job.result["steps"])
    before = vector().probs
    page = settled(page.button(key="decode_plan").click().run())
    found = studio(page).acceptance.value.probs
    assert found[0] == pytest.approx((30 * before[0] + steps) / (30 + steps), rel=0.02)  # the last step may be cut
    assert found[0] > before[0] and found.sum() <= 1 + 1e-9
    assert "corrected by a run" in studio(page).acceptance.source


def test_a_run_on_a_busy_machine_is_marked(assets, tiny_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedLoad, "record", lambda load: {"share": 0.25, "processes": 0})
    page = finish(start(open_page("decode", tokens="16")))
    (said,) = page.warning
    assert said.value.startswith("Other processes or virtual machines used 25% of the machine")


def test_a_run_of_another_pair_is_marked(assets, tiny_pair) -> None:
    page = finish(start(open_page("decode", tokens="16")))
    assert not page.warning
    studio(page).pair = OTHER_DRAFT
    assert "cpu, temperature 0: not the current pair" in settled(page.run()).warning[0].value
