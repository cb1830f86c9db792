"""The decode page: its five states, the real engine behind it, and what must never break it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.design.tree import TokenTree
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import (
    OTHER_DRAFT,
    ROOT,
    growing_never_pays,
    metrics,
    open_page,
    profile,
    settled,
    state_of,
    vector,
    wait_for,
)
from tests.chat_pair import save_chat_pair
from ui import token_tree
from ui.decode import live_run
from ui.jobs import decode_job, engine_queue, jobs
from ui.runs import run_files, runs
from ui.session import machine
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


def test_empty_state_invites_and_names_the_tree(assets) -> None:
    page = open_page("decode")
    assert "Nothing decoded yet" in page.info[0].value
    assert not page.button(key="decode_start").disabled and page.button(key="decode_stop").disabled
    assert "tokens per step" in words(page) and "predicted" in words(page)


def test_a_recorded_run_can_be_replayed_before_the_first(assets) -> None:
    with_a_recorded_run(assets)
    page = open_page("decode")
    assert "A recording (" in words(page) and "Press Start" in words(page)
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


@pytest.mark.parametrize("prompt", ["", "   \n\t", "x" * 1_048_576])
def test_prompts_that_cannot_be_decoded_get_a_message(prompt: str, assets, tiny_pair) -> None:
    page = start(open_page("decode"), prompt)
    assert len(page.error) == 1 and ("empty" in page.error[0].value or "1,048,576 characters" in page.error[0].value)
    assert "studio_jobs" not in page.session_state


def test_a_draft_with_less_context_is_named_before_the_run(assets, tmp_path) -> None:
    folders = save_chat_pair(tmp_path)
    page = AppTest.from_file(str(ROOT / "pages" / "decode.py"), default_timeout=30)
    page.session_state["studio_pair"] = PairSpec(*folders, dtype="float32")
    assert not any("the target goes on without the draft" in caption.value for caption in page.run().caption)
    config = Path(folders[1]) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 64}))
    said = [caption.value for caption in page.run().caption if "the target goes on without the draft" in caption.value]
    assert len(said) == 1 and "holds 64 tokens, the target's 512: beyond 64" in said[0]


def test_a_prompt_longer_than_the_context_says_so(assets, tiny_pair) -> None:
    page = finish(start(open_page("decode", tokens="16"), "a" * 1_000))
    assert "found 1000 tokens" in page.error[0].value and "256" in page.error[0].value
    page = finish(start(page, "a"))
    assert not page.error and metrics(page)["Tokens per step"][0] != "–"


def test_stop_keeps_what_was_decoded(assets, monkeypatch: pytest.MonkeyPatch, released) -> None:
    held_work(monkeypatch, released, steps=2)
    page = start(open_page("decode"))
    job = page.session_state["studio_jobs"]["decode"]
    wait_for(lambda: job.step_count == 2)
    page = settled(page.run())
    assert page.button(key="decode_start").disabled and payload(page)["running"] and not page.metric
    page = settled(page.button(key="decode_stop").click().run())
    page = finish(page)
    assert "Stopped after 2 steps" in page.warning[0].value and payload(page)["total"] == 2
    assert not page.button(key="decode_start").disabled


def test_a_failure_names_the_step_and_keeps_the_earlier_ones(assets, monkeypatch: pytest.MonkeyPatch, released) -> None:
    held_work(monkeypatch, released, steps=3, error="logits are NaN")
    page = finish(start(open_page("decode")))
    assert "step 3" in page.error[0].value and "NaN" in page.error[0].value and "3 steps" in page.error[0].value
    assert payload(page)["total"] == 3
    assert not page.button(key="decode_start").disabled


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
    again = AppTest.from_file(str(page._script_path), default_timeout=60)
    again.session_state["studio_jobs"] = {"decode": first}
    again = settled(again.run())
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


@pytest.mark.parametrize(
    "query",
    [
        {
            "temperature": "99",
            "tokens": "-3",
            "top_p": "nan",
            "verifier": "../../etc/passwd",
            "source": "x",
            "seed": "a",
        },
        {"chain": "1e9", "source": "chain", "temperature": "inf"},
    ],
)
def test_bad_links_fall_back_to_defaults(query: dict[str, str], assets) -> None:
    page = open_page("decode", **query)
    assert page.slider(key="temperature").value == 0.0 and page.slider(key="tokens").value == 128
    assert page.selectbox(key="verifier").value == "sequoia"


def test_every_tree_source(assets, tiny_pair) -> None:
    page = open_page("decode", tokens="16")
    for source, said in (("best", "best tree for this hardware"), ("chain", "chain of 4: n = 5, d = 4")):
        page = settled(page.selectbox(key="source").set_value(source).run())
        assert said in words(page)
    page = settled(page.selectbox(key="source").set_value("file").run())
    assert "Upload a tree file" in page.warning[0].value and page.button(key="decode_start").disabled
    broken = page.file_uploader(key="decode_tree_file").upload("tree.json", b"<html>")
    page = settled(broken.run())
    assert page.button(key="decode_start").disabled and page.warning


def dynamic(kind: str, **query: str) -> AppTest:
    page = AppTest.from_file(str(ROOT / "pages" / "decode.py"), default_timeout=60)
    page.session_state["studio_tree_kind"] = kind
    for name, value in {"tokens": "32", "source": "Tree page", **query}.items():
        page.query_params[name] = value
    return settled(page.run())


def test_specexec_trees_decode_with_the_rule_that_is_exact_for_them(assets, tiny_pair) -> None:
    page = finish(start(dynamic("specexec", temperature="0.8")))
    run = page.session_state["studio_last_run"]
    assert run["verifier"] == "topk" and "SpecExec" in run["tree_source"] and len(run["shapes"]) > 1
    assert not metrics(page)["Tokens per step"][1]
    for step in payload(page)["steps"]:
        assert len(step["marginal"]["gains"]) == len(step["tokens"]) and step["marginal"]["next_cost"] is None


def test_a_run_verified_from_the_leaves_is_kept_and_opened_like_any_other(assets, tiny_pair) -> None:
    page = finish(start(open_page("decode", tokens="24", temperature="0.9", verifier="Traversal")))
    assert "temperature 0.9, sequoia" in words(page)  # whose vectors serve it
    run = page.session_state["studio_last_run"]
    assert run["verifier"] == "traversal" and any(step["trials"] for step in run["steps"])
    assert run_files.run_from_bytes(run_files.run_to_bytes(run), "kept.jsonl")["steps"] == run["steps"]


def test_adaptive_trees_decode_once_a_calibration_was_measured_here(assets, tiny_pair, monkeypatch) -> None:
    monkeypatch.setattr(
        "sequoia_core.decoding.growing.growing_tree.LEAST_ADVANTAGE", 0.5
    )  # on this machine growing pays
    page = dynamic("adaptive")
    assert "need a vector with a calibration" in page.warning[0].value and page.button(key="decode_start").disabled
    page = settled(page.button(key="measure_here").click().run())
    job = page.session_state["studio_jobs"]["measure"]
    wait_for(lambda: not job.active, seconds=60)
    page = settled(page.run())
    assert not page.warning and "adaptive trees: up to n = 64" in words(page) and "tokens per step" in words(page)
    page = finish(start(page))
    run = page.session_state["studio_last_run"]
    assert len(run["steps"]) > 1 and metrics(page)["Tokens per step"][1].startswith("expected ")
    sent = payload(page)["steps"]
    assert sent == run["steps"] and len(sent) == len(run["steps"])
    for step in sent:
        marginal = step["marginal"]
        assert marginal["next_cost"] > 0 and all(cost > 0 for cost in marginal["costs"][1:])
        assert 0 < len(marginal["left_out"]) <= decode_job.LEFT_OUT


def test_where_growing_does_not_pay_the_adaptive_policy_decodes_with_a_static_tree(assets, tiny_pair) -> None:
    growing_never_pays(assets)
    page = settled(dynamic("adaptive").button(key="measure_here").click().run())
    job = page.session_state["studio_jobs"]["measure"]
    wait_for(lambda: not job.active, seconds=60)
    page = settled(page.run())
    assert not page.warning and "expects a static tree to be faster here" in words(page)
    page = finish(start(page))
    run = page.session_state["studio_last_run"]
    assert len(run["shapes"]) == 1 and "marginal" not in run["steps"][0] and "static tree" in run["tree_source"]


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


def test_the_shape_travels_once_and_then_only_new_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    mount, tree = Mount(monkeypatch), TokenTree(np.array([-1, 0, 0]))
    steps = [a_record(index, tree) for index in range(10)]
    first = mount.show(steps[:4])
    assert first["about"]["prompt"] == "p" and first["shapes"][0]["across"] == [0.0, 0.0, 1.0]
    assert [step["index"] for step in first["steps"]] == [0, 1, 2, 3]
    second = mount.show(steps[:7])
    assert second["about"] is None and second["shapes"] == []
    assert [step["index"] for step in second["steps"]] == [2, 3, 4, 5, 6]
    assert second["from"] == 2 and second["total"] == 7
    again = mount.show(steps, epoch="run 2")
    assert again["about"] is not None and len(again["shapes"]) == 1


def test_while_a_run_goes_on_tables_travel_with_the_last_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    mount, tree = Mount(monkeypatch), TokenTree(np.array([-1, 0, 0]))
    steps = [a_record(index, tree) | {"rows": [{"node": 0}], "marginal": {"gains": [1.0]}} for index in range(5)]
    *others, last = mount.show(steps, lean=True)["steps"]
    assert last == steps[-1]
    for sent, step in zip(others, steps, strict=False):
        assert sent == {name: value for name, value in step.items() if name not in ("rows", "marginal")} | {
            "lean": True
        }
    mount.state["t"] = {"resync": {"epoch": "run 1", "have": 0}}  # once the run has ended
    token_tree._resync("t")
    assert mount.show(steps)["steps"] == steps


@pytest.mark.parametrize(
    ("stepwise", "near", "gpu", "sec"),
    [
        (True, True, False, live_run.WAITING_SEC),
        (False, True, False, live_run.SHARED_SEC),
        (False, False, False, live_run.WATCHED_SEC),
        (False, True, True, live_run.WATCHED_SEC),
    ],
)
def test_a_run_on_the_browsers_own_processor_is_looked_at_less_often(monkeypatch, stepwise, near, gpu, sec) -> None:
    monkeypatch.setattr(machine, "has_gpu", lambda: gpu)
    monkeypatch.setattr(st, "context", SimpleNamespace(ip_address=None if near else "192.0.2.7"))
    job = SimpleNamespace(info=SimpleNamespace(steering=Steering(stepwise=stepwise)), cancel_event=threading.Event())
    assert live_run.poll_sec(job) == sec
    job.cancel_event.set()  # its end is near, and waited for
    assert live_run.poll_sec(job) == live_run.WAITING_SEC


def test_each_shape_travels_with_the_first_steps_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mount, shapes = Mount(monkeypatch), [[-1, 0, 0], [-1, 0, 1, 2], [-1]]
    steps = [
        a_record(index, TokenTree(np.array(shapes[shape]))) | {"shape": shape}
        for index, shape in enumerate((0, 1, 0, 1, 0, 1, 0, 2, 2))
    ]
    assert [shape["index"] for shape in mount.show(steps[:1], shapes=shapes)["shapes"]] == [0]
    grown = mount.show(steps[:4], shapes=shapes)["shapes"]  # the first step is sent again, and its shape with it
    assert [(shape["index"], len(shape["parents"])) for shape in grown] == [(0, 3), (1, 4)]
    assert mount.show(steps[:7], shapes=shapes)["shapes"] == []
    assert [shape["index"] for shape in mount.show(steps, shapes=shapes)["shapes"]] == [2]
    mount.state["t"] = {"resync": {"epoch": "run 1", "have": 2}}
    token_tree._resync("t")
    assert [shape["index"] for shape in mount.show(steps, shapes=shapes)["shapes"]] == [0, 1, 2]


def test_a_rejection_is_explained_by_the_verifier_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {name: Mount(monkeypatch).show([], verifier=name)["about"] for name in (*VERIFIERS, "greedy")}
    said = {name: words["after_rejection"] for name, words in about.items()}
    assert "max(R − D, 0)" in said["sequoia"] and "D loses this token" in said["sequoia"]
    assert "max(R − D, 0)" in said["specinfer"] and "D stays as it is" in said["specinfer"]
    assert "R loses this token" in said["topk"] and "max" not in said["topk"]
    assert [name for name, words in about.items() if words["greedy"]] == ["greedy"] and not said["greedy"]
    drawn = {name: words["drawn"] for name, words in about.items()}
    assert (drawn["sequoia"], drawn["specinfer"]) == ("drawn without replacement", "drawn with replacement")
    own = {name: [label for _, label, own in words["verifiers"] if own] for name, words in about.items()}
    assert own["sequoia"] == ["Sequoia"] and own["topk"] == ["Top-k"] and own["greedy"] == []


def test_a_gap_or_a_remount_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mount, tree = Mount(monkeypatch), TokenTree(np.array([-1, 0, 0]))
    steps = [a_record(index, tree) for index in range(10)]
    mount.show(steps)
    mount.state["t"] = {"resync": {"epoch": "run 1", "have": 5}}
    token_tree._resync("t")
    gap = mount.show(steps)
    assert gap["about"] is None and gap["from"] <= 5 and gap["steps"][-1]["index"] == 9
    mount.state["t"] = {"resync": {"epoch": "run 1", "have": 0}}
    token_tree._resync("t")
    remount = mount.show(steps)
    assert remount["about"] is not None and len(remount["shapes"]) == 1 and len(remount["steps"]) == 10


def test_one_message_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_tree, "NODES_PER_UPDATE", 12)
    mount, tree = Mount(monkeypatch), TokenTree(np.array([-1, 0, 0]))
    steps = [a_record(index, tree) for index in range(10)]
    seen = {step["index"] for _ in range(6) for step in mount.show(steps)["steps"]}
    assert all(len(sent["steps"]) <= 4 for sent in mount.sent) and seen == set(range(10))


def words(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.caption])


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ({"temperature": "1.5"}, "temperature 1.5, sequoia"),
        ({"temperature": "0.6", "verifier": "Top-k"}, "temperature 0.6, topk"),
        ({"temperature": "0.6", "top_p": "0.9"}, "temperature 0.6, top-p 0.9, sequoia"),
    ],
)
def test_nothing_is_expected_at_settings_nobody_measured(setting, missing, assets, tiny_pair) -> None:
    page = open_page("decode", tokens="16", **setting)
    assert f"{missing} · no prediction at these settings yet" in words(page) and "expected 1." not in words(page)
    page = finish(start(page))
    shown = metrics(page)
    assert not shown["Tokens per step"][1] and not shown["Speedup"][1]
    assert "fell short" not in words(page) and "beat the prediction" not in words(page)
    assert "no speed was predicted" in words(page)


def test_the_missing_vector_is_measured_where_it_is_missed(assets, tiny_pair, monkeypatch) -> None:
    page = open_page("decode", tokens="16", temperature="0.6")
    page = settled(page.button(key="measure_here").click().run())
    job = page.session_state["studio_jobs"]["measure"]
    wait_for(lambda: not job.active, seconds=60)
    assert job.state == "done", job.error
    page = settled(page.run())
    assert page.session_state["studio_acceptance"].holds_for.temperature == 0.6
    assert "no prediction" not in words(page) and "tokens per step" in words(page)
    page = settled(page.slider(key="temperature").set_value(0.0).run())  # the shipped one still holds there
    assert "temperature 0 · expected" in words(page)


def test_another_pair_is_promised_nothing(assets) -> None:
    page = AppTest.from_file(str(ROOT / "pages" / "decode.py"), default_timeout=60)
    page.session_state["studio_pair"] = PairSpec("owner/big", "owner/small")
    page = settled(page.run())
    assert "no prediction at these settings yet" in words(page)


def test_times_of_another_machine_predict_no_speed(assets) -> None:
    profile(device="some other processor").save(assets / "profiles" / "cpu-2core.json")
    page = open_page("decode")
    assert "tokens per step" in words(page) and "no speedup predicted" in words(page)
    assert "Measured on some other processor" in state_of(page).help


def test_a_run_whose_server_is_gone_is_marked_stopped_once(assets) -> None:
    page = open_page("decode", run="0123456789ab")
    assert "was stopped" in page.warning[0].value and "run" not in page.query_params
    assert not page.button(key="decode_start").disabled
    assert not settled(page.run()).warning


def test_a_running_decode_is_named_in_the_link_until_it_ends(assets, monkeypatch: pytest.MonkeyPatch, released) -> None:
    held_work(monkeypatch, released)
    page = settled(start(open_page("decode")).run())
    job = page.session_state["studio_jobs"]["decode"]
    assert page.query_params["run"] in (job.id, [job.id])
    released.set()
    page = finish(page)
    assert "run" not in page.query_params and not page.warning


def with_a_recorded_run(assets, **fields) -> dict:
    tree = TokenTree(np.array([-1, 0, 0]))
    run = runs.DecodeRequest("prompt", tree).header() | {"shapes": [[-1, 0, 0]], "text": "xxx"} | fields
    run |= {"steps": [a_record(i, tree) for i in range(3)]}
    (assets / "runs").mkdir()
    (assets / "runs" / "recorded.jsonl").write_bytes(run_files.run_to_bytes(run))
    return run


@pytest.mark.parametrize(
    ("step", "at"),
    [("2", 1), ("3", 2), ("0", None), ("4", None), ("-1", None), ("x", None), ("9" * 5000, None), ("²", None)],
)
def test_a_link_names_run_and_step(step: str, at: int | None, assets) -> None:
    run = with_a_recorded_run(assets)
    page = open_page("decode", run=run["id"], step=step)
    assert payload(page)["about"]["at"] == at and payload(page)["link"] == run["id"]
    assert not page.warning and page.query_params["run"] in (run["id"], [run["id"]])


def test_a_link_names_a_run_whose_id_reads_as_a_number_without_bounds(assets) -> None:
    run = with_a_recorded_run(assets, id="12e345678901")
    assert open_page("decode", run=run["id"]).query_params["run"] in (run["id"], [run["id"]])


def test_a_link_to_a_run_of_this_session_shows_it_and_not_the_last(assets) -> None:
    recorded = with_a_recorded_run(assets)
    page = AppTest.from_file(str(ROOT / "pages" / "decode.py"), default_timeout=60)
    own, last = (recorded | {"id": name * 12, "prompt": name} for name in "ab")
    page.session_state["studio_runs"] = {run["id"]: run for run in (own, last)}
    page.session_state["studio_run_origins"] = {run["id"]: "decoded here" for run in (own, last)}
    page.session_state["studio_last_run"] = last
    page.query_params["run"] = own["id"]
    assert payload(settled(page.run()))["about"]["prompt"] == "a"
    page.query_params["run"] = "../../etc/passwd"
    page = settled(page.run())
    assert "was stopped" in page.warning[0].value and payload(page)["about"]["prompt"] == "b"


def pressed(wish: object, steering: Steering) -> None:
    """Do what the page does when the live tree tells what was pressed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(st, "session_state", {"t": {"steer": wish}})
        token_tree._steer("t", steering)


@pytest.mark.parametrize("wish", [None, "on", {"next": "1"}, {"next": None}, {"next": 7}, {}, {"hold": False}])
def test_what_no_button_asks_for_moves_no_run(wish) -> None:
    held = Steering(stepwise=True)
    held.waiting_after = 1
    pressed(wish, held)
    assert held.stepwise and not held._go.is_set()
    pressed({"next": 1}, held)
    assert held._go.is_set()


def test_a_run_that_goes_on_is_held_and_let_go_from_above_the_tree(assets, tiny_pair) -> None:
    held = Steering()
    pressed({"hold": True}, held)
    assert held.stepwise
    pressed({"on": True}, held)
    assert not held.stepwise


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


def test_stopping_a_run_that_waits_for_its_next_step(assets, tiny_pair) -> None:
    page = start(open_page("decode", stepwise="true"))
    held = page.session_state["studio_jobs"]["decode"].info.steering
    wait_for(lambda: held.waiting_after == 1)
    page = finish(settled(settled(page.run()).button(key="decode_stop").click().run()))
    assert "Stopped after 1 step" in page.warning[0].value


@pytest.mark.parametrize("shown", ["the job", "the last run", "a link"])
def test_a_run_of_another_pair_is_not_shown_as_one_of_the_pair_in_use(shown: str, assets, tiny_pair) -> None:
    page = finish(start(open_page("decode", tokens="16")))
    said = "demo target ← demo draft, float32, cpu, temperature 0"
    assert said in words(page) and not page.warning
    run = page.session_state["studio_last_run"]
    if shown != "the job":
        page.session_state["studio_jobs"] = {}
    if shown == "a link":
        page.query_params["run"] = run["id"]
    page.session_state["studio_pair"] = OTHER_DRAFT
    page = settled(page.run())
    assert payload(page)["epoch"] and any(f"{said}: not the pair in use" in warning.value for warning in page.warning)
    page.session_state["studio_pair"] = PairSpec(dtype="bfloat16")
    assert any("not the pair in use" in warning.value for warning in settled(page.run()).warning)
    page.session_state["studio_pair"] = PairSpec(dtype="float32")
    assert not settled(page.run()).warning
