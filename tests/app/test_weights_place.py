"""Where the target's weights live: chosen in the sidebar, said with its numbers, and nothing left behind afterwards."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core import autoregressive
from sequoia_core.models.offload import needs as offload_needs
from sequoia_core.models.offload import packed_layers
from sequoia_core.models.pair_spec import PairSpec
from tests.conftest import pair_of
from tests.core.test_families import build, save
from ui import weights_place
from ui.session import model_pairs

from .conftest import open_page, profile, settled, state_of


@pytest.fixture(autouse=True)
def copies(tmp_path_factory, monkeypatch) -> Path:
    """Keep packed copies of tests apart from the user's, and what was asked before out of the way."""
    folder = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr(packed_layers, "cache_folder", lambda: folder)
    weights_place._needs.clear()
    return folder


@pytest.fixture
def spec(tmp_path) -> PairSpec:
    folder = save(build("Llama", max_position_embeddings=512), tmp_path / "model")
    return PairSpec(folder, folder, dtype="float32", offload="disk")


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("layer reader")]


def open_files(folder: str) -> list[str]:
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if link.is_symlink() and os.readlink(link).startswith(folder)]


def load_and_run(spec: PairSpec):
    pair = model_pairs.shared_pair(spec, threading.Event())
    assert len(list(autoregressive([1, 2, 3], pair, max_new_tokens=4))) == 4
    assert pair.target.offload == "disk" and readers() and open_files(spec.target)
    return pair


def test_unloading_leaves_no_thread_and_no_open_file(spec):
    target = load_and_run(spec).target  # held, so that nothing is closed by being forgotten
    assert model_pairs.loaded_pair() == spec
    model_pairs.unload_pair()
    with pytest.raises(ValueError, match="closed"):
        list(autoregressive([1, 2, 3], pair_of(target), max_new_tokens=4))
    assert model_pairs.loaded_pair() is None and not readers() and not open_files(spec.target)


def test_whoever_uses_a_pair_keeps_it_open_until_the_end(spec):
    pair = load_and_run(spec)
    model_pairs.shared_pair(replace(spec, offload=None), threading.Event())  # another one takes its place
    model_pairs.unload_pair()
    assert len(list(autoregressive([1, 2, 3], pair, max_new_tokens=4))) == 4
    del pair
    assert not readers() and not open_files(spec.target)


def choose(page: AppTest, place: str) -> AppTest:
    page.selectbox(key="sidebar_weights").select(place)
    button = next(button for button in page.sidebar.button if button.label == "Use this pair")
    return settled(button.click().run())


def sidebar_text(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.sidebar.caption, *page.sidebar.markdown])


def test_the_choice_says_what_it_takes_and_what_was_measured_in_memory_predicts_nothing_on_disk(assets, monkeypatch):
    page = open_page("tree")
    assert "measured here" in state_of(page).value
    page = choose(page, "On disk")
    assert page.session_state["studio_pair"].offload == "disk"
    assert "MB free (resident " in sidebar_text(page)
    assert "weights elsewhere" in state_of(page).value
    streamed = profile()
    streamed.meta["offload"] = "disk"
    streamed.save(assets / "profiles" / "cpu-2core.json")
    assert "measured here" in state_of(settled(page.run())).value
    assert "measured here" not in state_of(choose(page, "In memory")).value


def test_a_target_that_cannot_fit_is_refused_with_the_numbers(assets, monkeypatch):
    page = open_page("overview")
    monkeypatch.setattr(offload_needs, "available_bytes", lambda: 2_000_000)
    page = choose(page, "On disk")
    message = " ".join(error.value for error in page.sidebar.error)
    assert "found 2 MB of memory free" in message and "scratch" in message
    assert "studio_pair" not in page.session_state
