"""One chip says what predictions rest on, and its button measures what is missing for the pair in use here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sequoia_core import AcceptanceVector
from tests.app.conftest import open_page, profile, run_job, state_of, vector

pytestmark = pytest.mark.usefixtures("assets")


def test_what_was_measured_on_this_pair_here_needs_nothing() -> None:
    page = open_page("tree")
    assert "green-badge" in state_of(page).value and "measured here" in state_of(page).value
    assert "measure_here" not in [button.key for button in page.button]


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize(
    ("state", "words", "found"),
    [
        ("another machine", "measured on some other processor", profile(device="some other processor, 64 threads")),
        (
            "weights elsewhere",
            "the target's weights on disk, not in memory",
            replace(profile(), meta=profile().meta | {"offload": "disk"}),
        ),
        ("measured otherwise", "in bfloat16, not float32", replace(profile(), dtype="bfloat16")),
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
    assert page.button(key="measure_here").label == "Measure (10 s)"


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
