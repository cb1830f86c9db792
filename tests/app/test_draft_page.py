"""The draft page: shipped, uploaded and measured vectors, and what happens when one is broken."""

from __future__ import annotations

import io

import numpy as np
import pytest

from sequoia_core import AcceptanceVector
from sequoia_core.studies.lookup_replay import Request, replay_log
from tests.app.conftest import metrics, open_page, settled, vector, wait_for
from ui.jobs import replays
from ui.jobs.replay_job import Replayed

pytestmark = pytest.mark.usefixtures("assets")


def test_the_default_says_what_it_was_measured_on() -> None:
    page = open_page("draft")
    assert "shipped with the app, measured on big ← small, temperature 0" in page.markdown[0].value
    shown = metrics(page)
    assert shown["First choice accepted"][0] == f"{vector().probs[0]:.1%}"
    assert shown["Best possible chain"] == (f"{1 / (1 - vector().probs[0]):.2f}", "tokens/step, vs 1.00")
    assert shown["Positions measured"][0] == "150"
    more = vector().more_prompts(0.02)
    assert any(f"About {more:,} more prompts" in caption.value for caption in page.caption)


def test_one_prompt_is_not_shown_as_if_it_were_many() -> None:
    page = open_page("draft")
    everything = AcceptanceVector(np.array([1.0]), prompt_sums=[[96.0]], prompt_trials=[96])
    page = upload(page, "one.json", everything.to_bytes())
    shown = metrics(page)
    assert shown["Positions measured"] == ("96", "one prompt: no interval")
    assert shown["Best possible chain"] == ("unknown", "one prompt does not tell")
    assert "nothing was rejected on the one prompt measured" in page.get("plotly_chart")[1].proto.spec


def upload(page, name: str, content: bytes):
    settled(page.segmented_control(key="acceptance_way").set_value("Upload").run())
    page.file_uploader(key="acceptance_file").upload(name, content)
    return settled(page.run())


def test_an_upload_is_used_and_its_assumption_shown() -> None:
    page = upload(open_page("draft"), "mine.csv", b"0.7\n0.1\n")
    assert page.session_state["studio_acceptance"].probs.tolist() == [0.7, 0.1]
    assert any("your file mine.csv" in each.value for each in page.markdown)
    buffer = io.BytesIO()
    np.save(buffer, np.array([0.0, 0.6, 0.3, 0.1]))
    page = upload(open_page("draft"), "reference.npy", buffer.getvalue())
    assert page.session_state["studio_acceptance"].probs.tolist() == [0.6, 0.3]
    assert any("rejection" in caption.value for caption in page.caption)


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b"0.9\n0.9\n"), ("photo.png", b"\x89PNG\r\n")],
)
def test_a_broken_upload_leaves_the_previous_vector(name: str, content: bytes) -> None:
    page = upload(open_page("draft"), name, content)
    assert len(page.error) == 1 and name in page.error[0].value and "\n" not in page.error[0].value
    assert "studio_acceptance" not in page.session_state
    assert metrics(page)["First choice accepted"][0] == f"{vector().probs[0]:.1%}"


def test_what_the_entries_of_an_upload_are_is_asked_and_can_be_changed() -> None:
    page = upload(open_page("draft"), "rest.csv", b"0.2\n0.7\n0.1\n")
    assert "sum to 1" in page.error[0].value and "studio_acceptance" not in page.session_state
    for entries, probs in (("rest-first", [0.7, 0.1]), ("rest-last", [0.2, 0.7])):
        page = settled(page.selectbox(key="acceptance_entries").select(entries).run())
        assert page.session_state["studio_acceptance"].probs.tolist() == probs
        assert f"its {entries[5:]} entry as the rejection probability, as declared" in page.success[0].value


def measuring(page):
    settled(page.segmented_control(key="acceptance_way").set_value("Measure").run())
    return next(b for b in page.button if "Measure on" in b.label)


def start_measuring(page):
    return settled(measuring(page).click().run())


def test_a_measurement_shows_its_progress_is_cut_continued_and_used_everywhere(pair, monkeypatch) -> None:
    seen = []

    def measure(prompts, pair, *, progress, checkpoints, cancel, sampling, width, **rest):
        assert len(prompts) == 3 and width == 32 and sampling.temperature == 0.0
        seen.append(checkpoints.resume)
        done = 1 if checkpoints.resume is None else 3
        cut = AcceptanceVector(np.array([0.5]), trials=7 * done, meta={"prompts": done, "prompts_wanted": 3})
        progress(0.25, f"prompt {done} of 3")
        checkpoints.save(cut)
        if checkpoints.resume is None:
            assert cancel.wait(20)
        return cut

    monkeypatch.setattr("sequoia_core.measure_acceptance", measure)
    page = start_measuring(open_page("draft"))
    job = page.session_state["studio_jobs"]["measure"]
    wait_for(lambda: job.result is not None)
    settled(page.run())
    assert any("prompt 1 of 3" in bar.text for bar in page.progress) and measuring(page).disabled
    page.button(key="measure_cancel").click().run()
    wait_for(lambda: job.state == "cancelled")
    settled(page.run())
    assert page.session_state["studio_acceptance"].trials == 7
    assert page.checkbox(key="acceptance_resume").value and "1 of 3 prompts" in page.checkbox[0].label
    job = start_measuring(page).session_state["studio_jobs"]["measure"]
    wait_for(lambda: job.state == "done")
    other = open_page("tree", {"jobs": {"measure": job}})
    assert other.session_state["studio_acceptance"] is job.result
    settled(page.run())
    assert seen[0] is None and seen[1].trials == 7 and page.session_state["studio_acceptance"].trials == 21
    assert not page.checkbox  # whole: nothing to continue
    assert "measured here on the demo pair at temperature 0" in "".join(m.value for m in page.markdown)


def what_if(page, kind: str):
    settled(page.segmented_control(key="acceptance_way").set_value("What-if").run())
    return settled(page.segmented_control(key="acceptance_suppose").set_value(kind).run())


def test_what_is_supposed_is_shown_beside_and_used_when_asked() -> None:
    page = what_if(open_page("draft"), "Weaker draft")
    settled(page.slider(key="acceptance_share").set_value(40).run())
    assert "if weaker, 40%" in page.get("plotly_chart")[0].proto.spec
    assert "studio_acceptance" not in page.session_state  # looking is not using
    settled(page.button(key="acceptance_use_supposed").click().run())
    np.testing.assert_allclose(page.session_state["studio_acceptance"].probs, 0.4 * vector().probs)
    page = what_if(page, "Power law")
    page.slider(key="acceptance_p1").set_value(0.5)
    page.slider(key="acceptance_length").set_value(8)
    page.slider(key="acceptance_b").set_value(1.0)
    settled(page.button(key="acceptance_use_supposed").click().run())
    np.testing.assert_allclose(page.session_state["studio_acceptance"].probs[:2], [0.5, 0.25])


def test_smoothing_is_chosen_said_and_taken_back() -> None:
    page = open_page("draft")
    settled(page.segmented_control(key="acceptance_smoothing").set_value("Isotonic").run())
    assert np.all(np.diff(page.session_state["studio_acceptance"].probs) <= 0)
    assert any("isotonic regression" in caption.value for caption in page.caption)
    settled(page.segmented_control(key="acceptance_smoothing").set_value("Power-law tail").run())
    settled(page.slider(key="acceptance_tail").set_value(3).run())
    np.testing.assert_array_equal(page.session_state["studio_acceptance"].probs[:2], vector().probs[:2])
    settled(page.segmented_control(key="acceptance_smoothing").set_value("None").run())
    assert page.session_state["studio_acceptance"] == vector()


def test_own_vectors_stay_at_hand_by_name() -> None:
    page = upload(open_page("draft"), "mine.csv", b"0.7\n0.1\n")
    page = upload(page, "mine.csv", b"0.6\n0.1\n")
    settled(page.segmented_control(key="acceptance_way").set_value("Choose").run())
    choice = page.selectbox(key="acceptance_choice")
    assert choice.value == "mine.csv (2)" and any("mine.csv: your file" in option for option in choice.options)
    settled(choice.select("mine.csv").run())
    assert page.session_state["studio_acceptance"].probs[0] == 0.7


def file_of_prompts(page, name: str, content: bytes):
    settled(page.segmented_control(key="acceptance_way").set_value("Measure").run())
    page.file_uploader(key="acceptance_prompts_file").upload(name, content)
    return settled(page.run())


def test_prompts_come_from_a_file_and_a_column(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def measure(prompts, pair, *, max_new_tokens, checkpoints, **rest):
        seen.update(prompts=prompts, max_new_tokens=max_new_tokens, resume=checkpoints.resume)
        return AcceptanceVector(np.array([0.8]), trials=9)

    monkeypatch.setattr("sequoia_core.measure_acceptance", measure)
    page = file_of_prompts(open_page("draft"), "mine.csv", b"note,question\nab,What?\ncd,Where to?\n")
    settled(page.selectbox(key="acceptance_column").select("question").run())
    assert any("2 prompts" in caption.value for caption in page.caption) and page.code[0].value == "What?"
    page.slider(key="acceptance_prompts").set_value(0)
    page.toggle(key="acceptance_own_text").set_value(True)
    settled(next(b for b in page.button if "Measure on" in b.label).click().run())
    job = page.session_state["studio_jobs"]["measure"]
    wait_for(lambda: not job.active)
    settled(page.run())
    assert seen == {"prompts": [[len("What?")], [len("Where to?")]], "max_new_tokens": None, "resume": None}
    assert "own text" in "".join(text.value for text in page.markdown)


def test_a_broken_file_of_prompts_says_so() -> None:
    page = file_of_prompts(open_page("draft"), "x.parquet", b"nope")
    assert "x.parquet" in page.error[0].value and "No prompts were read" in page.error[0].value


def test_what_an_upload_holds_for_is_asked_and_shown_as_declared(assets) -> None:
    page = open_page("draft", acceptance_way="Upload")
    page = settled(page.file_uploader(key="acceptance_file").upload("own.csv", b"0.5\n0.2\n").run())
    assert any("does not say. Confirm" in element.value for element in page.markdown)
    page.number_input(key="acceptance_for_temperature").set_value(0.6)
    page.text_input(key="acceptance_for_target").set_value("![x](http://x)")
    submit = next(button for button in page.button if button.label == "Declare")
    page = settled(submit.click().run())
    held = page.session_state["studio_acceptance"].holds_for
    assert held.declared and held.temperature == 0.6 and held.draft == "demo draft"
    assert any("as you declared" in element.value and r"\!\[x\]" in element.value for element in page.caption)
    assert len(page.session_state["studio_own_vectors"]) == 1


def which_draft(page) -> str | None:
    return next((each.value for each in page.markdown if "Which draft?" in each.value), None)


def compared(*names: str, **settings) -> dict:
    rows = [
        {"verifier": name, "temperature": t, "top_p": 1.0, "tokens_per_step": 2.0 + place, "ci_low": 1.5 + place}
        | {"ci_high": 2.5 + place}
        for place, name in enumerate(names)
        for t in (0.0, 0.6)
    ]
    return {"settings": {"pair": "demo pair", "prompts": 7, "tree": [-1, 0, 0, 1]} | settings, "runs": rows}


def test_no_draft_and_both_stand_beside_the_draft_where_they_were_measured(assets, monkeypatch) -> None:
    monkeypatch.setattr(replays, "example", lambda: None)
    page = open_page("draft")
    assert "replay recorded answers" in which_draft(page) and "were not measured on this pair" in which_draft(page)
    page.session_state["studio_evidence_comparison"] = compared("greedy", "lookup", "hybrid", pair="other pair")
    assert "were not measured on this pair" in which_draft(settled(page.run()))
    page.session_state["studio_evidence_comparison"] = compared("greedy", "lookup", "hybrid")
    assert which_draft(settled(page.run())).endswith(
        "Tokens per step at T = 0, by decoding 7 prompts with trees of at most n = 4: demo draft 2.00 (1.50 to 2.50), "
        "none (lookup) 3.00 (2.50 to 3.50), both (hybrid) 4.00 (3.50 to 4.50); 95% intervals."
    )
    page.session_state["studio_evidence_comparison"] = compared("specinfer", "lookup", "hybrid")
    assert "were not measured" in which_draft(settled(page.run())), "by another verifier than the vector's"


def test_what_replayed_answers_tell_of_no_draft_is_said_with_its_interval(monkeypatch) -> None:
    log = [Request([1, 2, 3], [1, 2, 3] * 20), Request([4, 5], [6, 7, 8, 9] * 9)]
    found = Replayed("some answers", replay_log(log), 2, 0, exact=True)
    monkeypatch.setattr(replays, "example", lambda: found)
    size = found.report.own.best_size(None)
    tokens = found.report.own.tokens_per_step(size)
    said = which_draft(open_page("draft"))
    assert f"at most n = {size}: {tokens.value:.2f} ({tokens.low:.2f} to {tokens.high:.2f}) tokens per step in" in said
