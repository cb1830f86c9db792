"""The draft page: shipped, uploaded, measured and hypothetical vectors, and broken files."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from sequoia_core import AcceptanceVector
from tests.app.conftest import metrics, open_page, settled, studio, vector, wait_for

pytestmark = pytest.mark.usefixtures("assets")


def test_the_default_vector_names_its_conditions() -> None:
    page = open_page("draft")
    assert any("shipped with the app, measured on big ← small, temperature 0" in each.value for each in page.markdown)
    shown = metrics(page)
    assert shown["First choice accepted"][0] == f"{vector().probs[0]:.1%}"
    assert shown["Best possible chain"] == (f"{1 / (1 - vector().probs[0]):.2f}", "tokens/step, vs 1.00")
    assert shown["Positions measured"][0] == "150"
    more = vector().more_prompts(0.02)
    assert any(f"About {more:,} more prompts" in caption.value for caption in page.caption)


def test_a_vector_of_one_prompt_has_no_interval() -> None:
    page = open_page("draft")
    everything = AcceptanceVector(np.array([1.0]), prompt_sums=[[96.0]], prompt_trials=[96])
    page = upload(page, "one.json", everything.to_bytes())
    shown = metrics(page)
    assert shown["Positions measured"] == ("96", "one prompt: no interval")
    assert shown["Best possible chain"] == ("unknown", "one prompt is not enough")
    assert "nothing was rejected in the one measured prompt" in page.get("plotly_chart")[1].proto.spec


def upload(page, name: str, content: bytes):
    page.file_uploader(key="acceptance_file").upload(name, content)
    return settled(page.run())


def test_an_upload_is_used_and_its_layout_shown() -> None:
    page = upload(open_page("draft"), "mine.csv", b"0.7\n0.1\n")
    assert studio(page).acceptance.value.probs.tolist() == [0.7, 0.1]
    assert any("your file mine.csv" in each.value for each in page.markdown)
    buffer = io.BytesIO()
    np.save(buffer, np.array([0.0, 0.6, 0.3, 0.1]))
    page = upload(open_page("draft"), "reference.npy", buffer.getvalue())
    assert studio(page).acceptance.value.probs.tolist() == [0.6, 0.3]
    assert any("rejection" in caption.value for caption in page.caption)


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b"0.9\n0.9\n"), ("photo.png", b"\x89PNG\r\n")],
)
def test_a_broken_upload_keeps_the_previous_vector(name: str, content: bytes) -> None:
    page = upload(open_page("draft"), name, content)
    assert len(page.error) == 1 and name in page.error[0].value and "\n" not in page.error[0].value
    assert studio(page).acceptance is None
    assert metrics(page)["First choice accepted"][0] == f"{vector().probs[0]:.1%}"


def test_the_layout_of_an_upload_can_be_chosen() -> None:
    page = upload(open_page("draft"), "rest.csv", b"0.2\n0.7\n0.1\n")
    assert "sum to 1" in page.error[0].value and studio(page).acceptance is None
    for entries, probs in (("rest-first", [0.7, 0.1]), ("rest-last", [0.2, 0.7])):
        page = settled(page.selectbox(key="acceptance_entries").select(entries).run())
        assert studio(page).acceptance.value.probs.tolist() == probs
        assert f"the {entries[5:]} entry as the rejection probability, as declared" in page.success[0].value


def test_up_to_five_other_vectors_are_drawn_with_the_current_one(assets) -> None:
    for number in range(5):
        vector(0.1 + number / 20).save(assets / "acceptance" / f"v{number}.json")
    page = open_page("draft")
    others = page.multiselect(key="acceptance_others")
    assert others.proto.max_selections == 5 and len(others.options) == 6
    assert all(option.split(": ")[1].startswith("big ← small") for option in others.options)
    settled(others.set_value(["v3", "other"]).run())
    ranks, rejection = (json.loads(chart.proto.spec)["data"] for chart in page.get("plotly_chart")[:2])
    assert [trace["name"].split(": ")[0] for trace in ranks] == ["demo-t0", "v3", "other"]
    assert all(len(trace["name"]) == 36 or "big ← small" in trace["name"] for trace in ranks)
    assert [trace["name"] for trace in rejection[::2]] == ["demo-t0", "v3", "other"]


def measuring(page):
    settled(page.segmented_control(key="acceptance_way").set_value("Measure").run())
    return next(b for b in page.button if "Measure on" in b.label)


def start_measuring(page):
    return settled(measuring(page).click().run())


def test_a_measurement_can_be_cancelled_resumed_and_used_on_every_page(pair, monkeypatch) -> None:
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
    job = studio(page).jobs["measure"]
    wait_for(lambda: job.result is not None)
    settled(page.run())
    assert any("prompt 1 of 3" in bar.text for bar in page.progress) and measuring(page).disabled
    page.button(key="measure_cancel").click().run()
    wait_for(lambda: job.state == "cancelled")
    settled(page.run())
    assert studio(page).acceptance.value.trials == 7
    assert page.checkbox(key="acceptance_resume").value and "1 of 3 prompts" in page.checkbox[0].label
    job = studio(start_measuring(page)).jobs["measure"]
    wait_for(lambda: job.state == "done")
    other = open_page("tree", {"jobs": {"measure": job}})
    assert studio(other).acceptance.value is job.result
    settled(page.run())
    assert seen[0] is None and seen[1].trials == 7 and studio(page).acceptance.value.trials == 21
    assert not page.checkbox  # complete: nothing to resume
    assert "measured here on the demo pair at temperature 0" in "".join(m.value for m in page.markdown)


def what_if(page, kind: str):
    settled(page.segmented_control(key="acceptance_way").set_value("What-if").run())
    return settled(page.segmented_control(key="acceptance_suppose").set_value(kind).run())


def test_a_hypothetical_vector_is_shown_and_used_on_request() -> None:
    page = what_if(open_page("draft"), "Weaker draft")
    settled(page.slider(key="acceptance_share").set_value(40).run())
    assert "if weaker, 40%" in page.get("plotly_chart")[0].proto.spec
    assert studio(page).acceptance is None  # shown, but not used
    settled(page.button(key="acceptance_use_supposed").click().run())
    np.testing.assert_allclose(studio(page).acceptance.value.probs, 0.4 * vector().probs)
    page = what_if(page, "Power law")
    page.slider(key="acceptance_p1").set_value(0.5)
    page.slider(key="acceptance_length").set_value(8)
    page.slider(key="acceptance_b").set_value(1.0)
    settled(page.button(key="acceptance_use_supposed").click().run())
    np.testing.assert_allclose(studio(page).acceptance.value.probs[:2], [0.5, 0.25])


def test_smoothing_is_applied_described_and_undone() -> None:
    page = open_page("draft")
    settled(page.segmented_control(key="acceptance_smoothing").set_value("Isotonic").run())
    assert np.all(np.diff(studio(page).acceptance.value.probs) <= 0)
    assert any("isotonic regression" in caption.value for caption in page.caption)
    settled(page.segmented_control(key="acceptance_smoothing").set_value("Power-law tail").run())
    settled(page.slider(key="acceptance_tail").set_value(3).run())
    np.testing.assert_array_equal(studio(page).acceptance.value.probs[:2], vector().probs[:2])
    settled(page.segmented_control(key="acceptance_smoothing").set_value("None").run())
    assert studio(page).acceptance.value == vector()


def test_uploaded_vectors_can_be_selected_by_name() -> None:
    page = upload(open_page("draft"), "mine.csv", b"0.7\n0.1\n")
    page = upload(page, "mine.csv", b"0.6\n0.1\n")
    choice = page.radio(key="plan_acceptance")
    assert choice.value == "mine.csv (2)" and any("mine.csv: your file" in option for option in choice.options)
    settled(choice.set_value("mine.csv").run())
    assert studio(page).acceptance.value.probs[0] == 0.7
    settled(page.radio(key="plan_acceptance").set_value("auto").run())
    assert studio(page).acceptance is None


def file_of_prompts(page, name: str, content: bytes):
    settled(page.segmented_control(key="acceptance_way").set_value("Measure").run())
    page.file_uploader(key="acceptance_prompts_file").upload(name, content)
    return settled(page.run())


def test_prompts_are_read_from_a_column_of_a_file(pair, monkeypatch: pytest.MonkeyPatch) -> None:
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
    job = studio(page).jobs["measure"]
    wait_for(lambda: not job.active)
    settled(page.run())
    assert seen == {"prompts": [[len("What?")], [len("Where to?")]], "max_new_tokens": None, "resume": None}
    assert "own text" in "".join(text.value for text in page.markdown)


def test_the_conditions_of_an_upload_are_declared_by_the_user(assets) -> None:
    page = open_page("draft")
    page = settled(page.file_uploader(key="acceptance_file").upload("own.csv", b"0.5\n0.2\n").run())
    assert any("does not record its conditions. Confirm" in element.value for element in page.markdown)
    page.number_input(key="acceptance_for_temperature").set_value(0.6)
    page.text_input(key="acceptance_for_target").set_value("![x](http://x)")
    submit = next(button for button in page.button if button.label == "Declare")
    page = settled(submit.click().run())
    held = studio(page).acceptance.value.holds_for
    assert held.declared and held.temperature == 0.6 and held.draft == "demo draft"
    assert any("as declared by you" in element.value and r"\!\[x\]" in element.value for element in page.caption)
    assert len(studio(page).own_vectors) == 1
