"""A pair of GGUF files in the app: chosen in the sidebar, decoded and described."""

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.models import gemma
from tests.app.conftest import PAGES, open_page, profile, run_job, settled, studio
from tests.gguf_files import need_llama_cpp, write_demo
from ui.session import model_pairs
from ui.session.state import Chosen


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    need_llama_cpp()
    folder = tmp_path_factory.mktemp("gguf")
    yield {name: write_demo(name, folder / f"{name}.gguf", "q8_0") for name in ("target", "draft")}
    model_pairs.unload_pair()


def choose(page: AppTest, target: Path, draft: Path) -> AppTest:
    page.text_input(key="models_target").set_value(str(target))
    page.text_input(key="models_draft").set_value(str(draft))
    return settled(next(button for button in page.button if button.label == "Use this pair").click().run())


@pytest.mark.slow
def test_gguf_pair_decodes_and_every_page_opens(files, assets) -> None:
    page = choose(open_page("decode", tokens="24", source="file"), files["target"], files["draft"])
    captions = " ".join(caption.value for caption in page.caption)
    assert "Q8_0" in captions
    page = run_job(page, "decode")
    run = studio(page).last_run
    assert (run["target"], run["draft"]) == (str(files["target"]), str(files["draft"]))
    assert run["dtype"] == "Q8_0" and sum(len(step["pieces"]) for step in run["steps"]) == 24 > len(run["steps"])
    held = {"pair": studio(page).pair, "last_run": run, "runs": studio(page).runs}
    for path in PAGES:
        assert not open_page(path.stem, held).error, path.stem


def test_unloadable_files_are_reported_before_loading(files, assets, tmp_path) -> None:
    (tmp_path / "cut.gguf").write_bytes(files["target"].read_bytes()[:2000])
    page = open_page("tree")
    for name, words in (("cut.gguf", "ends inside its header"), ("none.gguf", "No such file")):
        page = choose(page, tmp_path / name, files["draft"])
        assert words in page.error[0].value
    assert studio(page).pair.is_demo


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("passes_by", ["llama.cpp", "transformers"])
def test_llama_cpp_profile_shows_server_options(assets, passes_by) -> None:
    timed = replace(profile(), meta={"passes_by": passes_by})
    page = open_page("machine", {"profile": Chosen(timed, "mine")})
    said = [caption.value for caption in page.caption if "llama-server" in caption.value]
    assert len(said) == (passes_by == "llama.cpp")
    assert all("spec-draft-n-max" in words and "planned tree would be" in words for words in said)


@pytest.mark.slow
@pytest.mark.real
def test_real_model_is_offered_and_loaded(assets, monkeypatch) -> None:
    monkeypatch.setattr(gemma, "REQUIRED_PACKAGES", ("no_such_package",))
    page = open_page("decode", tokens="8")
    assert gemma.INSTALL in [each.value for each in page.code] and any(
        gemma.TERMS in text.value for text in page.markdown
    )
    assert not [button for button in page.button if "gemma" in (button.key or "")]
    monkeypatch.undo()
    if not gemma.is_installed():
        pytest.skip(gemma.INSTALL)
    for key, models in (("alone", model_pairs.gemma_alone()), ("pair", model_pairs.gemma_pair())):
        page = settled(open_page("decode", tokens="8").button(key=f"models_gemma_{key}").click().run())
        assert studio(page).pair == models
    page = run_job(page, "decode")
    run = studio(page).last_run
    assert run["dtype"] in ("bfloat16", "float32") and run["draft"] == str(gemma.file())
    model_pairs.unload_pair()
