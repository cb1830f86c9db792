"""Vectors that the user enters: uploaded files, pasted numbers, and percentages."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.acceptance.vector_files import MAX_TEXT_BYTES
from tests.app.conftest import TIMEOUT_SEC, settled, studio
from ui.session.state import KEY, SessionState

pytestmark = pytest.mark.usefixtures("assets")
REFUSED = "found values up to 72, expected probabilities from 0 to 1: divide percentages by 100 or add % signs."


def draw_vector_input() -> None:
    from ui.vector_input import vector_input

    vector_input()


def opened() -> AppTest:
    page = AppTest.from_function(draw_vector_input, default_timeout=TIMEOUT_SEC)
    page.session_state[KEY] = SessionState()
    return settled(page.run())


def paste(page: AppTest, text: str) -> AppTest:
    page.text_area(key="acceptance_paste").set_value(text)
    return settled(page.button(key="acceptance_paste_use").click().run())


def upload(page: AppTest, name: str, content: bytes) -> AppTest:
    page.file_uploader(key="acceptance_file").upload(name, content)
    return settled(page.run())


def buttons(page: AppTest) -> list[str]:
    return [button.key for button in page.button]


def read_as_percentages(page: AppTest) -> AppTest:
    return settled(page.button(key="acceptance_percent").click().run())


def probs(page: AppTest) -> list[float] | None:
    chosen = studio(page).acceptance
    return None if chosen is None else chosen.value.probs.tolist()


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "text", ["0.72, 0.11", "0.72 0.11", "0.72\n0.11\n", "0,72; 0,11", "rank,p\n1,0.72\n2,0.11", "[0.72, 0.11]"]
)
def test_pasted_numbers_are_used(text: str) -> None:
    page = paste(opened(), text)
    assert probs(page) == [0.72, 0.11] and studio(page).acceptance.source == "your pasted numbers"
    assert list(studio(page).own_vectors) == ["Pasted text"] and not page.error
    assert [each.value for each in page.success] == ["Pasted text is now the current vector (2 ranks)."]


def test_percent_signs_are_converted_and_mentioned() -> None:
    page = paste(opened(), "72 %\n11 %")
    assert probs(page) == [0.72, 0.11] and "acceptance_percent" not in buttons(page)
    assert page.success[0].value.endswith("The values have % signs and were read as percentages.")


def npy(values: list[float]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(values))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content"), [("v.csv", b"72\n11\n"), ("v.json", b"[72, 11]"), ("v.npy", npy([72, 11]))]
)
def test_bare_percentages_in_a_file_are_read_on_request(name: str, content: bytes) -> None:
    page = upload(opened(), name, content)
    assert [each.value for each in page.error] == [f"{name}: {REFUSED} The previous vector stays in use."]
    assert probs(page) is None
    page = read_as_percentages(page)
    assert probs(page) == [0.72, 0.11] and not page.error and "acceptance_percent" not in buttons(page)
    said = f"{name} is now the current vector (2 ranks). 72 → 0.72, read as percentages."
    assert page.success[0].value == said
    assert studio(page).acceptance.source == f"your file {name}"
    assert settled(page.run()).success[0].value == said
    page = upload(page, name, content)  # the request holds for one upload
    assert REFUSED in page.error[0].value and "acceptance_percent" in buttons(page) and not page.success


def test_bare_pasted_percentages_are_read_on_request() -> None:
    page = paste(opened(), "72")
    assert REFUSED in page.error[0].value and probs(page) is None
    page = read_as_percentages(page)
    assert probs(page) == [0.72] and page.success[0].value.endswith("(1 rank). 72 → 0.72, read as percentages.")
    page = paste(page, "72")
    assert REFUSED in page.error[0].value and probs(page) == [0.72]


def test_percentages_of_an_ambiguous_layout_need_both_choices() -> None:
    page = paste(opened(), "72, 11, 17")
    assert "sum to 1" in page.error[0].value and "acceptance_percent" not in buttons(page)
    page = settled(page.selectbox(key="acceptance_entries").select("rest-last").run())
    page = read_as_percentages(page)
    assert probs(page) == [0.72, 0.11] and "rejection probability" in page.success[0].value


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "0.5\0",
        "0.1\n\u202e0.5\u202c \u05d0",
        "0.1\n=HYPERLINK(1)",
        "1e999",
        "nan",
        "-0.5",
        "-5%",
        "150%",
        "72%\n0.1",
    ],
    ids=ascii,
)
def test_other_pasted_text_is_refused_in_one_line(text: str) -> None:
    page = paste(paste(opened(), "0.5"), text)
    (error,) = page.error
    assert error.value.isprintable() and len(error.value) < 300
    assert error.value.endswith(". The previous vector stays in use.")
    assert probs(page) == [0.5] and "acceptance_percent" not in buttons(page) and not page.success


@pytest.mark.parametrize("cell", ["72%\n", " " * 63 + "%"])
def test_a_megabyte_of_pasted_text_is_refused_quickly(cell: str) -> None:
    page = opened()
    started = time.process_time()
    page = paste(page, (cell * MAX_TEXT_BYTES)[:MAX_TEXT_BYTES])
    assert time.process_time() - started < 10
    assert "expected" in page.error[0].value and probs(page) is None


def test_the_message_is_about_the_latest_input() -> None:
    page = paste(upload(opened(), "v.csv", b"0.6\n"), "0.5")
    assert page.success[0].value.startswith("Pasted text is now") and probs(page) == [0.5]
    page = upload(page, "w.csv", b"72\n")
    assert len(page.error) == 1 and page.error[0].value.startswith("w.csv: found values up to 72") and not page.success
    page = paste(page, "many")
    assert len(page.error) == 1 and page.error[0].value.startswith("Pasted text: ")
    page = settled(page.text_area(key="acceptance_paste").set_value("other").run())
    assert page.error[0].value.startswith("w.csv: ")  # the text was edited after it was read


def test_a_vector_that_is_no_longer_current_is_not_confirmed() -> None:
    page = paste(opened(), "0.5")
    studio(page).acceptance = None
    assert not settled(page.run()).success
    page = settled(page.button(key="acceptance_paste_use").click().run())
    assert page.success and probs(page) == [0.5] and list(studio(page).own_vectors) == ["Pasted text"]


def test_pasted_numbers_follow_the_selected_layout() -> None:
    page = paste(opened(), "0.2, 0.7, 0.1")
    assert "sum to 1" in page.error[0].value
    for entries, expected in (("rest-first", [0.7, 0.1]), ("rest-last", [0.2, 0.7])):
        page = settled(page.selectbox(key="acceptance_entries").select(entries).run())
        assert probs(page) == expected and not page.error
