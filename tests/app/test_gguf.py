"""A pair of GGUF files in the app: chosen in the sidebar, decoded with, and what is said of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.models import gemma
from tests.app.conftest import PAGES, open_page, profile, run_job, settled
from tests.gguf_files import need_llama_cpp, write_demo
from ui.session import model_pairs


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    need_llama_cpp()
    folder = tmp_path_factory.mktemp("gguf")
    yield {name: write_demo(name, folder / f"{name}.gguf", "q8_0") for name in ("target", "draft")}
    model_pairs.unload_pair()


def choose(page: AppTest, target: Path, draft: Path) -> AppTest:
    page.text_input(key="sidebar_target").set_value(str(target))
    page.text_input(key="sidebar_draft").set_value(str(draft))
    return settled(next(button for button in page.sidebar.button if button.label == "Use this pair").click().run())


@pytest.mark.slow
def test_it_is_chosen_decoded_with_and_every_page_runs(files, assets) -> None:
    page = choose(open_page("decode", tokens="24", source="file"), files["target"], files["draft"])
    captions = " ".join(caption.value for caption in page.sidebar.caption)
    assert "Q8_0" in captions and "llama.cpp: takes " in captions and "MB" in captions
    page = run_job(page, "decode")
    run = page.session_state["studio_last_run"]
    assert (run["target"], run["draft"]) == (str(files["target"]), str(files["draft"]))
    assert run["dtype"] == "Q8_0" and sum(len(step["pieces"]) for step in run["steps"]) == 24 > len(run["steps"])
    names = ("pair", "last_run", "runs", "run_origins")
    held = {name: page.session_state[f"studio_{name}"] for name in names}
    for path in PAGES:
        assert not open_page(path.stem, held).error, path.stem


def test_what_cannot_be_loaded_is_said_before_it_is(files, assets, tmp_path) -> None:
    (tmp_path / "cut.gguf").write_bytes(files["target"].read_bytes()[:2000])
    page = open_page("tree")
    for name, words in (("cut.gguf", "ends within its head"), ("none.gguf", "No such file")):
        page = choose(page, tmp_path / name, files["draft"])
        assert words in page.sidebar.error[0].value
    assert "studio_pair" not in page.session_state


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("passes_by", ["llama.cpp", "transformers"])
def test_a_profile_of_llama_cpp_says_what_to_tell_its_server(assets, passes_by) -> None:
    timed = replace(profile(), meta={"passes_by": passes_by})
    page = open_page("machine", {"profile": timed, "profile_source": "mine"})
    said = [caption.value for caption in page.caption if "llama-server" in caption.value]
    assert len(said) == (passes_by == "llama.cpp")
    assert all("spec-draft-n-max" in words and "planned tree would be" in words for words in said)


@pytest.mark.slow
@pytest.mark.real
def test_a_real_model_is_offered_and_loaded_by_a_click(assets, monkeypatch) -> None:
    monkeypatch.setattr(gemma, "PARTS", ("no_such_package",))
    page = open_page("decode", tokens="8")
    assert gemma.INSTALL in [each.value for each in page.sidebar.code] and any(
        gemma.TERMS in caption.value for caption in page.sidebar.caption
    )
    assert not [button for button in page.sidebar.button if "gemma" in (button.key or "")]
    monkeypatch.undo()
    if not gemma.is_installed():
        pytest.skip(gemma.INSTALL)
    for key, models in (("alone", model_pairs.gemma_alone()), ("pair", model_pairs.gemma_pair())):
        page = settled(open_page("decode", tokens="8").button(key=f"sidebar_gemma_{key}").click().run())
        assert page.session_state["studio_pair"] == models
    page = run_job(page, "decode")
    run = page.session_state["studio_last_run"]
    assert run["dtype"] in ("bfloat16", "float32") and run["draft"] == str(gemma.file())
    model_pairs.unload_pair()
