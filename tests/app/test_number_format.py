"""The number format that the app runs a pair in: measured once, shown, overridable."""

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core import load_pair
from sequoia_core.models.number_formats import FormatTimes, keep_times
from ui import model_pairs, number_format
from ui.model_pairs import PairSpec

from .conftest import ROOT, TIMEOUT_SEC

TIMES = (
    FormatTimes("float32", 0.002, 0.004, 0.0001, 500.0, "PyTorch"),
    FormatTimes("bfloat16", 0.004, 0.008, 0.0001, 250.0, "PyTorch"),
)


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A cache folder of this test's own, with compiled code beside it as built before."""
    path = tmp_path / "formats.json"
    monkeypatch.setattr("sequoia_core.models.number_formats.record_path", lambda: path)
    return path


def test_the_first_load_measures_and_later_ones_remember(kept):
    pair = model_pairs._load_pair(PairSpec(dtype=number_format.FASTEST))
    measured = number_format.kept_times(None, None)
    assert sorted(row.dtype for row in measured) == ["bfloat16", "float32"]
    assert str(pair.target.dtype) == f"torch.{measured[0].dtype}"
    before = kept.stat().st_mtime_ns
    again = model_pairs._load_pair(PairSpec(dtype=number_format.FASTEST))
    assert again.target.dtype == pair.target.dtype and kept.stat().st_mtime_ns == before


def test_one_that_is_asked_for_is_taken_unmeasured(kept):
    assert str(model_pairs._load_pair(PairSpec(dtype="float32")).target.dtype) == "torch.float32"
    assert not kept.exists()


def test_what_was_measured_decides_even_against_what_is_likely():
    keep_times(None, None, TIMES)
    assert number_format.likely(None, None) == "float32"
    assert str(model_pairs._load_pair(PairSpec(dtype=number_format.FASTEST)).target.dtype) == "torch.float32"


def test_large_models_are_not_loaded_twice(monkeypatch):
    monkeypatch.setattr(number_format, "LARGEST_TIMED_BYTES", 1000)
    loaded = []

    def load(dtype):
        loaded.append(dtype)
        return load_pair(dtype=dtype)

    number_format.load_fastest(None, None, load)
    assert loaded == ["bfloat16"] and number_format.kept_times(None, None) == ()


@pytest.mark.parametrize("name", ["x" * 5_000, "a/" + "b" * 300, "--/..", "a..b/c", "~nobody/x", "\0"])
def test_names_that_are_no_model_break_no_page(name):
    """The sidebar asks on every page, before anything is loaded."""
    assert number_format.likely(name, name) in ("float32", "bfloat16")
    assert "when the pair is first loaded" in number_format.explanation(name, name)


def test_a_cache_that_cannot_be_written_costs_only_measuring_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.number_formats.record_path", lambda: tmp_path)  # a folder
    assert model_pairs._load_pair(PairSpec(dtype=number_format.FASTEST)) is not None


def test_the_sidebar_names_the_format_and_how_it_was_found(monkeypatch):
    def shown() -> tuple[str, str]:
        page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_SEC).run()
        caption = next(item for item in page.sidebar.caption if "memory" in item.value)
        return caption.value, caption.proto.help

    value, explained = shown()
    assert value.endswith(number_format.likely(None, None)) and "timing both when the pair is first loaded" in explained
    keep_times(None, None, TIMES)
    value, explained = shown()
    assert value.endswith(", float32")
    assert explained.startswith("Measured here: 2.0 times as fast as bfloat16. A target pass takes 2.00 ms for 1 token")
    assert explained.endswith("Passes run by PyTorch, in bfloat16 by PyTorch.")


def test_an_override_is_what_predictions_go_by():
    script = (
        "import streamlit as st\nfrom ui import predictions, session\nfrom ui.model_pairs import PairSpec\n"
        "session.set_pair(PairSpec(dtype='float16'))\nst.write(predictions.dtype_in_use())"
    )
    assert AppTest.from_string(script, default_timeout=TIMEOUT_SEC).run().markdown[0].value == "float16"
