"""One chip says what predictions rest on, and its button measures what is missing for the pair in use here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sequoia_core import AcceptanceVector
from tests.app.conftest import DEMO_NAMES, open_page, profile, run_job, state_of, vector
from ui.session import predictions, session

pytestmark = pytest.mark.usefixtures("assets")


def test_what_was_measured_on_this_pair_here_needs_nothing() -> None:
    page = open_page("tree")
    assert "green-badge" in state_of(page).value and "measured here" in state_of(page).value
    assert "measure_here" not in [button.key for button in page.button]


@pytest.mark.sample(7, cover=False)
@pytest.mark.parametrize(
    ("state", "words", "found"),
    [
        ("another machine", "measured on some other processor", profile(device="some other processor, 64 threads")),
        (
            "weights elsewhere",
            "the target's weights on disk, not in memory",
            replace(profile(), meta=profile().meta | {"offload": "disk"}),
        ),
        ("measured with other settings", "in bfloat16, not float32", replace(profile(), dtype="bfloat16")),
        (
            "measured with other settings",
            "weights on disk, not in memory",
            replace(profile(), dtype="bfloat16", meta=profile().meta | {"offload": "disk"}),
        ),
        (
            "shipped, machine of the same name",
            "perhaps not this one",
            replace(profile(), meta=profile().meta | {"installation": "another"}),
        ),
        (
            "shipped, machine of the same name",
            "perhaps not this one",
            replace(profile(), meta=profile().meta | {"installation": None}),
        ),
        ("missing", "with the draft small", replace(vector(), holds_for=replace(vector().holds_for, draft="small"))),
    ],
)
def test_other_states_say_why_and_offer_to_measure(state, words, found, assets) -> None:
    is_vector = isinstance(found, AcceptanceVector)
    (assets / "acceptance" / "other.json").unlink()
    found.save(assets / ("acceptance/demo-t0.json" if is_vector else "profiles/cpu-2core.json"))
    page = open_page("tree")
    chip = state_of(page)
    assert state in chip.value and words in chip.help.lower()
    assert "Measure" in page.button(key="measure_here").label


def last_run(factor: float, **facts) -> dict:
    """A run of three steps whose target passes took so many times as long as the profile says."""
    seconds = [0.0, factor * float(profile().verify_at(4)), 0.0, 0.0]
    step = {"tokens": ["a"] * 4, "pieces": ["a", "b"], "seconds": seconds}
    run = {"target": DEMO_NAMES[0], "draft": DEMO_NAMES[1], "dtype": "float32", "offload": None}
    return run | {"prompt_tokens": 9, "steps": 3 * [step]} | facts


@pytest.mark.sample(6, cover=False)
@pytest.mark.parametrize(
    ("run", "words"),
    [
        (last_run(13.5), "13.5 times as long as the profile says"),
        (last_run(2.1), "2.1 times as long as the profile says"),
        (last_run(0.4), "40% of the time that the profile says"),
        (last_run(1.9), ""),
        (last_run(0.6), ""),
        (last_run(13.5, draft="owner/small"), ""),
    ],
)
def test_a_run_that_contradicts_the_profile_turns_the_chip_amber(run, words, monkeypatch) -> None:
    chip = state_of(open_page("tree", {"timed_run": run}))
    state = "yellow-badge" if words else "green-badge"
    assert state in chip.value and words in chip.help and ("contradicted by the last run" in chip.value) == bool(words)


def test_what_is_measured_anew_is_not_contradicted_by_an_earlier_run(monkeypatch) -> None:
    kept = {"timed_run": last_run(9.0)}
    monkeypatch.setattr(session, "get", kept.get)
    monkeypatch.setattr(session, "put", kept.__setitem__)
    assert predictions.state().name == "contradicted by the last run"
    session.set_measured_profile(profile(), "measured here")
    assert predictions.state().name == "measured here"
    session.set_last_run(last_run(9.0, id="again"))
    assert predictions.state().name == "contradicted by the last run"


@pytest.mark.slow
def test_the_button_measures_what_is_missing_and_no_more(assets, tiny_pair) -> None:
    profile(device="some other processor").save(assets / "profiles" / "cpu-2core.json")
    page = run_job(open_page("tree"), "profile", "Measure (10 s)")
    jobs = page.session_state["studio_jobs"]
    assert list(jobs) == ["profile"]  # the vector holds
    assert "measured here" in state_of(page).value
    assert page.session_state["studio_profile"] is jobs["profile"].result


def test_the_temperature_is_the_sessions_and_brings_its_vector(assets) -> None:
    warm = replace(vector(0.3), holds_for=replace(vector().holds_for, temperature=0.6))
    warm.save(assets / "acceptance" / "warm.json")
    state = open_page("decode", temperature="0.6").session_state
    assert state["studio_sampling"] == (0.6, 1.0)
    for name, query in (("race", {}), ("draft", {"acceptance_way": "Measure"})):
        held = {kept: state[f"studio_{kept}"] for kept in ("sampling", "sampling_page")}
        page = open_page(name, held, **query)
        assert page.slider(key="temperature").value == 0.6
        assert "temperature 0.6" in state_of(page).value  # the vector that the app chooses by itself
