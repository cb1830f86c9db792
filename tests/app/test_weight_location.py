"""Offloading in the app: chosen in the sidebar, shown with its memory needs, and released without leaks."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core import autoregressive
from sequoia_core.models.pair_spec import PairSpec
from sequoia_extras.offloading import needs as offload_needs
from sequoia_extras.offloading import packed_layers
from tests.app.conftest import open_page, profile, settled, state_of, studio
from tests.conftest import pair_of
from tests.core.test_families import build, save
from ui import weight_location
from ui.session import model_pairs


@pytest.fixture(autouse=True)
def copies(tmp_path_factory, monkeypatch) -> Path:
    """Use a temporary folder for packed copies, and clear cached needs."""
    folder = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr(packed_layers, "cache_folder", lambda: folder)
    weight_location._needs.clear()
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
    target = load_and_run(spec).target  # a reference, so that nothing is closed by garbage collection
    assert model_pairs.loaded_pair() == spec
    model_pairs.unload_pair()
    with pytest.raises(ValueError, match="closed"):
        list(autoregressive([1, 2, 3], pair_of(target), max_new_tokens=4))
    assert model_pairs.loaded_pair() is None and not readers() and not open_files(spec.target)


def test_a_pair_in_use_stays_open_after_unloading(spec):
    pair = load_and_run(spec)
    model_pairs.shared_pair(replace(spec, offload=None), threading.Event())  # replaces it
    model_pairs.unload_pair()
    assert len(list(autoregressive([1, 2, 3], pair, max_new_tokens=4))) == 4
    del pair
    assert not readers() and not open_files(spec.target)


def choose_weights(page: AppTest, location: str) -> AppTest:
    page.selectbox(key="models_weights").select(location)
    button = next(button for button in page.button if button.label == "Use this pair")
    return settled(button.click().run())


def sidebar_text(page: AppTest) -> str:
    return " ".join(element.value for element in [*page.caption, *page.markdown])


def test_the_choice_shows_its_needs_and_invalidates_predictions(assets, monkeypatch):
    page = open_page("tree")
    assert "measured here" in state_of(page).value
    page = choose_weights(page, "On disk")
    assert studio(page).pair.offload == "disk"
    assert "MB free (resident " in sidebar_text(page)
    assert "measured with other settings" in state_of(page).value
    streamed = profile()
    streamed.meta["offload"] = "disk"
    streamed.save(assets / "profiles" / "cpu-2core.json")
    assert "measured here" in state_of(settled(page.run())).value
    assert "measured here" not in state_of(choose_weights(page, "In memory")).value


def test_a_target_that_does_not_fit_is_refused_with_the_numbers(assets, monkeypatch):
    page = open_page("overview")
    monkeypatch.setattr(offload_needs, "available_bytes", lambda: 2_000_000)
    page = choose_weights(page, "On disk")
    message = " ".join(error.value for error in page.error)
    assert "found 2 MB of free memory" in message and "scratch" in message
    assert studio(page).pair == PairSpec()
