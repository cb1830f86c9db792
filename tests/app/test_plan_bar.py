"""The plan bar: four independent choices, what they predict, and what does not belong together."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.files.extras import has
from tests.app.conftest import (
    DEMO_NAMES,
    OTHER_DRAFT,
    PAGES,
    metrics,
    open_page,
    profile,
    run_job,
    settled,
    state_of,
    studio,
    vector,
    wait_for,
)
from tests.app.test_run_comparison import a_run
from ui.jobs import job_panel
from ui.jobs.engine_queue import engine_queue
from ui.measuring import pass_check
from ui.runs import contradictions
from ui.session import predictions, session, shipped
from ui.session.state import KEY, Chosen, SessionState

pytestmark = pytest.mark.usefixtures("assets")
REAL = shipped.ASSETS
MODELS = ("meta-llama/Llama-2-7b-hf", "JackFram/llama-68m")
needs_models = pytest.mark.skipif(not has("hardware_models"), reason="needs the package hardware_models")


@pytest.fixture
def others(assets):
    """The shipped vectors and profiles of other models, besides those of the tests."""
    shutil.copytree(REAL / "scenarios", assets / "scenarios")
    shipped_files = ("acceptance/llama3-70b-8b-cnn", "acceptance/demo-large-t0", "profiles/cpu-2core-bfloat16")
    for name in (f"{path}.json" for path in shipped_files):
        shutil.copy(REAL / name, assets / name)
    return assets


def problem(page) -> str:
    """Return the sentence on what does not belong together."""
    return " ".join(each.value for each in page.caption if each.value.startswith(":material/info: "))


def buttons(page) -> list[str]:
    return [button.key for button in page.button]


def test_no_action_is_offered_after_measuring_here() -> None:
    page = open_page("tree")
    assert "green-badge" in state_of(page).value and "measured here" in state_of(page).value
    assert "measure_here" not in buttons(page)


@pytest.mark.sample(6, cover=False)
@pytest.mark.parametrize(
    ("state", "words", "found"),
    [
        ("measured with other settings", "on some other processor", profile(device="some other processor, 64 threads")),
        (
            "measured with other settings",
            "weights on disk, not in memory",
            replace(profile(), meta=profile().meta | {"offload": "disk"}),
        ),
        ("measured with other settings", "in bfloat16, not float32", replace(profile(), dtype="bfloat16")),
        (
            "shipped, from another machine",
            "of another",
            replace(profile(), meta=profile().meta | {"installation": None}),
        ),
        (
            "Measure first",
            "Nothing was measured for the demo pair",
            replace(vector(), holds_for=replace(vector().holds_for, draft="small")),
        ),
    ],
)
def test_other_states_explain_and_offer_to_measure(state, words, found, assets) -> None:
    is_vector = isinstance(found, AcceptanceVector)
    (assets / "acceptance" / "other.json").unlink()
    found.save(assets / ("acceptance/demo-t0.json" if is_vector else "profiles/cpu-2core.json"))
    page = open_page("tree")
    assert state in state_of(page).value and "green" not in state_of(page).value
    assert words in problem(page)
    assert "Measure" in page.button(key="measure_here").label


@pytest.mark.slow
@pytest.mark.parametrize("found", ["some other processor", "busy"])
def test_the_button_measures_only_what_is_missing(found, assets, tiny_pair) -> None:
    other = profile(device="some other processor")
    busy = replace(profile(), meta=profile().meta | {"load": {"share": 0.5, "processes": 2}})
    (busy if found == "busy" else other).save(assets / "profiles" / "cpu-2core.json")
    page = run_job(open_page("tree"), "profile", "Measure (10 s)")
    jobs = studio(page).jobs
    assert list(jobs) == ["profile"]  # the vector still applies
    assert "measured here" in state_of(page).value
    assert session.profile_title(jobs["profile"].result) in page.radio(key="plan_machine").options[1]


def test_sampling_selects_the_vector_on_every_page(assets) -> None:
    warm = replace(vector(0.3), holds_for=replace(vector().holds_for, temperature=0.6))
    warm.save(assets / "acceptance" / "warm.json")
    page = open_page("decode", temperature="0.6")
    assert studio(page).sampling == (0.6, 1.0) and "measured here" in state_of(page).value
    cold = settled(page.slider(key="temperature").set_value(0.0).run())
    assert "fits models, machine and T: demo-t0" in cold.radio(key="plan_acceptance").options[0]
    page = settled(cold.slider(key="temperature").set_value(0.6).run())
    for name in ("race", "draft", "tree"):
        held = {"sampling": (0.6, 1.0), "sampling_page": studio(page).sampling_page}
        other = open_page(name, held)
        assert other.slider(key="temperature").value == 0.6
        assert "fits models, machine and T: warm" in other.radio(key="plan_acceptance").options[0]
        assert "measured here" in state_of(other).value


def test_a_chosen_vector_survives_another_temperature_and_says_so() -> None:
    page = open_page("tree", {"acceptance": Chosen(vector(), "mine")})
    page = settled(page.slider(key="temperature").set_value(0.6).run())
    assert "no prediction" in state_of(page).value and metrics(page)["Predicted speedup"][0] == "–"
    assert "measured at temperature 0, not at temperature 0.6." in problem(page)
    page = settled(page.button(key="plan_set_t").click().run())
    assert studio(page).sampling == (0.0, 1.0) and "measured here" in state_of(page).value
    page = settled(page.slider(key="temperature").set_value(0.6).run())
    page = settled(page.button(key="plan_fit").click().run())
    assert studio(page).acceptance is None


@needs_models
def test_a_machine_brings_the_acceptance_of_its_models(others) -> None:
    page = settled(open_page("tree").radio(key="plan_machine").set_value("llama2-7b-68m-a100").run())
    assert "modelled for NVIDIA A100" in state_of(page).value and "×" in state_of(page).value
    listed = page.radio(key="plan_machine").options
    for machine, origin in (("A100", "modelled"), ("H200", "measured")):
        assert [title.endswith(f"· {origin}") for title in listed if machine in title and "13b" in title] == [True]
    assert session.short_names(*MODELS) in " ".join(each.value for each in page.caption)
    before = state_of(page).value
    for name in ("llama2-7b-68m-h200", "llama3-70b-8b-l40-host"):
        page = settled(page.radio(key="plan_machine").set_value(name).run())
        assert "×" in state_of(page).value and state_of(page).value != before
    assert "if the acceptance was measured for Meta-Llama-3-70B ← Meta-Llama-3-8B" in state_of(page).value
    page = settled(page.radio(key="plan_machine").set_value("here").run())
    assert studio(page).profile is None and "measured here" in state_of(page).value


@needs_models
def test_a_vector_of_ones_own_is_planned_for_a_gpu_alike_on_every_page(others) -> None:
    page = open_page("draft")
    page = settled(page.file_uploader(key="acceptance_file").upload("mine.csv", b"0.7\n0.1\n0.05\n").run())
    page = settled(page.radio(key="plan_machine").set_value("llama2-7b-68m-a100").run())
    assert "if the acceptance was measured for Llama-2-7b-hf ← llama-68m" in state_of(page).value
    kept = {name: getattr(studio(page), name) for name in ("acceptance", "own_vectors", "profile", "own_profiles")}
    pages = {path.stem: open_page(path.stem, dict(kept)) for path in PAGES}
    assert {state_of(each).value for each in pages.values()} == {state_of(page).value}
    tree, machine = (metrics(pages[name]) for name in ("tree", "machine"))
    assert tree["Predicted speedup"][0] == machine["Best static tree"][0]
    assert f"{tree['Predicted speedup'][0]}" in state_of(page).value
    assert f"{tree['Expected tokens per step'][0]} tokens per step" == machine["Best shape"][1]


@needs_models
def test_what_does_not_belong_together_predicts_nothing_anywhere(others) -> None:
    held = {"acceptance": Chosen(vector(), "mine"), "profile": session_profile("llama2-7b-68m-a100", others)}
    for name in ("tree", "machine", "decode"):
        page = open_page(name, dict(held))
        assert "no prediction" in state_of(page).value
        assert "The acceptance was measured for demo target ← demo draft, the machine is set to" in problem(page)
        assert not {"Best static tree"} & set(metrics(page))
        page = settled(page.button(key="plan_fit").click().run())
        assert "modelled for NVIDIA A100" in state_of(page).value


def session_profile(name: str, assets) -> Chosen:
    from sequoia_core import HardwareProfile

    return Chosen(HardwareProfile.load(assets / "scenarios" / "profiles" / f"{name}.json"), "a test")


@needs_models
def test_a_modelled_machine_is_chosen_by_device_and_shapes(others) -> None:
    page = open_page("machine")
    page.selectbox(key="model_device").select("h200")
    page.selectbox(key="model_target").select("llama-2-13b")
    page.selectbox(key="model_draft").select("llama-2-7b")
    page = settled(page.button(key="model_use").click().run())
    name = "model:h200:llama-2-13b:llama-2-7b:float16"
    assert page.radio(key="plan_machine").value == name and page.query_params["machine"] == name
    assert "no prediction" in state_of(page).value and "Llama-2-13b-hf ← Llama-2-7b-hf" in problem(page)
    linked = open_page("tree", machine=name, acceptance="llama3-70b-8b-cnn")
    assert "modelled for NVIDIA H200" in state_of(linked).value
    for junk in (
        "model:h200:../../etc/passwd:x:float16",
        "model:h200:llama-2-7b:llama-2-7b:int3",
        "model:x",
        "nowhere",
    ):
        assert studio(open_page("tree", machine=junk)).profile is None
    page.selectbox(key="model_target").select("llama-3-70b")
    page.selectbox(key="model_device").select("rtx-4090")
    page = settled(page.button(key="model_use").click().run())
    assert "has only" in page.error[0].value and studio(page).profile.value.device == "NVIDIA H200 SXM"


@needs_models
def test_links_hold_all_four_choices(others) -> None:
    link = {"models": "demo-draft-large", "acceptance": "llama2-7b-68m-c4", "machine": "llama2-7b-68m-a100"}
    page = open_page("tree", temperature="0.5", **link)
    assert {name: page.query_params[name] for name in link} == link
    assert studio(page).pair.names == ("demo target", "demo draft-large") and studio(page).sampling == (0.5, 1.0)
    assert studio(page).profile.value.modelled
    assert studio(open_page("tree", vector="other")).acceptance.value == vector(0.4, 5)


def test_models_change_alone() -> None:
    page = open_page("tree", {"acceptance": Chosen(vector(), "mine")})
    page.selectbox(key="models_demo_draft").select("Large, right more often")
    page = settled(next(button for button in page.button if button.label == "Use this pair").click().run())
    assert studio(page).pair.names == OTHER_DRAFT.names and studio(page).acceptance.source == "mine"
    assert "no prediction" in state_of(page).value or "Measure first" in state_of(page).value


def contradicting_run(**seconds: float) -> dict:
    """Return a run in which the named phases take longer than in `profile()`, each by its factor."""
    run = a_run([["a", "b"]] * 3)
    tree_size = len(run["shapes"][0])
    hardware = profile()
    times = {"draft": float(hardware.draft_sec), "verify": float(hardware.verify_at(tree_size))}
    for step in run["steps"]:
        step["seconds"] = [times["draft"] * seconds.get("draft", 1), times["verify"] * seconds.get("verify", 1), 0, 0]
    alone = float(hardware.verify_sec[0])
    fields = {"target": DEMO_NAMES[0], "draft": DEMO_NAMES[1], "dtype": "float32", "offload": None}
    fields |= {"baseline": {"tokens": 6, "seconds": 6 * alone}, "predicted_speedup": 1.9}
    return run | fields | {"expected_tokens": 2.0, "predicted_interval": [1.8, 2.0]}


@pytest.mark.parametrize(("phase", "words"), [("verify", "verification was slower"), ("draft", "drafting was slower")])
def test_a_run_beyond_its_interval_turns_the_bar_amber_and_names_the_cause(phase, words, monkeypatch) -> None:
    monkeypatch.setattr(st, "session_state", {KEY: SessionState()})
    contradictions.note_contradiction(contradicting_run(**{phase: 30.0}))
    basis = predictions.prediction_basis()
    assert basis.name == predictions.CONTRADICTED and words in basis.why and "predicted 1.80 to 2.00×" in basis.why
    session.set_measured_profile(profile(0.021), "measured here")
    assert predictions.prediction_basis().name == predictions.MEASURED
    contradictions.note_contradiction(contradicting_run(verify=30.0))
    assert predictions.prediction_basis().name == predictions.CONTRADICTED
    contradictions.note_contradiction(contradicting_run() | {"predicted_interval": [0.1, 90.0]})
    assert predictions.prediction_basis().name == predictions.MEASURED


@pytest.mark.parametrize(("ratio", "words"), [(8.04, "8 times as long as"), (0.5, "50% of the time that"), (1.2, "")])
def test_a_checked_machine_of_another_speed_is_not_green(ratio, words) -> None:
    page = open_page("tree", {"pass_times": {predictions.profile_key(profile()): ratio}})
    assert ("yellow-badge[does not match" in state_of(page).value) == bool(words) and words in problem(page)
    assert ("measure_here" in buttons(page)) == bool(words)


@needs_models
def test_only_this_machine_is_called_under_check(others, monkeypatch) -> None:
    monkeypatch.setattr(job_panel, "is_active", lambda name: name == "check")
    assert "checking this machine" in state_of(open_page("tree")).value
    elsewhere = {"profile": session_profile("llama2-7b-68m-h200", others)}
    assert "checking" not in state_of(open_page("tree", elsewhere)).value


def test_a_problem_found_later_moves_no_element_of_the_page() -> None:
    page = open_page("overview")
    before = sorted(page.main.children)
    studio(page).pass_times[predictions.profile_key(profile())] = 1.6
    assert problem(page.run()) and sorted(page.main.children) == before


def test_the_check_says_nothing_about_a_machine_that_does_not_rest(check, tiny_pair, monkeypatch) -> None:
    monkeypatch.setattr(pass_check, "start_check", check)
    for name, value in (("REST_PERCENT", -1.0), ("REST_SEC", 0.01)):
        monkeypatch.setattr(pass_check, name, value)
    wait_for(engine_queue().is_idle)  # another test's job may still be ending
    page = open_page("race")
    wait_for(lambda: not studio(page).jobs["check"].active)
    assert [*studio(settled(page.run())).pass_times.values()] == [0.0] and "times say" not in problem(page)


def test_the_check_times_passes_once_and_only_of_models_at_hand(check, tiny_pair, monkeypatch) -> None:
    monkeypatch.setattr(pass_check, "start_check", check)
    monkeypatch.setattr(pass_check, "REST_PERCENT", 101.0)
    wait_for(engine_queue().is_idle)
    page = open_page("tree")
    job = studio(page).jobs["check"]
    wait_for(lambda: not job.active)
    assert job.error is None, job.error
    page = settled(page.run())
    (ratio,) = studio(page).pass_times.values()
    assert ratio == job.result > 0
    assert ("measured here" in state_of(page).value) == (1 / 1.3 <= ratio <= 1.3)
    settled(page.run())
    assert studio(page).jobs["check"] is job
    assert "check" not in studio(open_page("tree", {"pair": replace(OTHER_DRAFT, offload="disk")})).jobs


def test_a_plan_that_is_slower_says_so_in_red_with_the_way_out() -> None:
    page = open_page("tree", {"profile": Chosen(profile(0.5), "mine"), "shape": (64, 8)})
    red = next(each.value for each in page.markdown if "trending_down" in each.value)
    assert red.startswith(":red[") and "slower than without speculation" in red
    assert ":red[" in state_of(page).value


@pytest.mark.slow
def test_after_the_chain_every_page_shows_the_same_numbers(monkeypatch) -> None:
    """The whole chain on the real demo pair: planned tree, tokens per step and speedup have one value everywhere."""
    page = run_job(open_page("overview"), "chain")
    studio(page).contradiction = None  # a busy machine may contradict what it was measured for
    bar = state_of(settled(page.run())).value
    assert "measured here" in bar
    speedup = re.search(r"tokens\. ([\d.]+×)", " ".join(each.value for each in page.markdown))[1]
    assert f"[{speedup}]" in bar
    kept = {name: value for name, value in vars(studio(page)).items() if name != "jobs"}
    pages = {path.stem: open_page(path.stem, dict(kept)) for path in PAGES}
    assert {state_of(each).value for each in pages.values()} == {bar}
    tree, machine = metrics(pages["tree"]), metrics(pages["machine"])
    tokens = tree["Expected tokens per step"][0]
    assert tree["Predicted speedup"][0] == machine["Best static tree"][0] == speedup
    assert machine["Best shape"][1] == f"{tokens} tokens per step"
    assert machine["Best shape"][0] in bar
    live = " ".join(each.value for each in pages["decode"].caption)
    assert f"expected {tokens} tokens per step, predicted {speedup}" in live and machine["Best shape"][0] in live
