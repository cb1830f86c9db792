"""The My models page: a pair is checked before loading, measured quickly, planned, and watched."""

from __future__ import annotations

import json
import shutil

import pytest

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models import gemma
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import open_page, settled, studio, wait_for
from ui.plan import pair_checks
from ui.session import model_pairs


@pytest.fixture
def own_pair(tmp_path) -> PairSpec:
    """Copies of the demo models in folders of one's own."""
    folders = [shutil.copytree(DEMO_PAIR / name, tmp_path / f"my-{name}") for name in ("target", "draft")]
    return PairSpec(*map(str, folders))


def outcomes(spec: PairSpec) -> list[str]:
    return [check.outcome for check in pair_checks.check_pair(spec).checks]


def said(page) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.caption])


def test_files_vocabulary_memory_and_size_are_checked(own_pair, monkeypatch) -> None:
    assert outcomes(own_pair) == ["ok"] * 4
    swapped = PairSpec(own_pair.draft, own_pair.target)
    assert outcomes(swapped) == ["ok", "ok", "ok", "error"]
    assert "it cannot pay" in pair_checks.check_pair(swapped).checks[-1].words
    monkeypatch.setattr(pair_checks.machine.device, "available_bytes", lambda: 1_000)
    alone = PairSpec(own_pair.target, "none")
    assert outcomes(alone) == ["ok", "error"] and pair_checks.check_pair(alone).too_large


def test_a_draft_with_another_vocabulary_and_missing_files_are_errors(own_pair) -> None:
    path = pair_checks.Path(str(own_pair.draft), "tokenizer.json")
    tokenizer = json.loads(path.read_text())
    one, other = list(tokenizer["model"]["vocab"])[-2:]
    vocab = tokenizer["model"]["vocab"]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    path.write_text(json.dumps(tokenizer))
    checks = pair_checks.check_pair(own_pair).checks
    assert checks[1].outcome == "error" and "Choose a draft of the same model family" in checks[1].words
    pair_checks.Path(str(own_pair.target), "model.safetensors").unlink()
    assert outcomes(own_pair) == ["error"]


def test_files_that_will_be_made_are_no_error(assets, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert outcomes(model_pairs.gemma_pair()) == ["later", "ok"]
    assert outcomes(PairSpec("someone/a-model", "none")) == ["later"]
    page = open_page("models", {"pair": model_pairs.gemma_pair()})
    assert f"{gemma.TITLE}'s files will be made at the first use" in said(page)


def test_a_pair_of_ones_own_is_measured_and_planned(assets, own_pair) -> None:
    page = open_page("models", {"pair": own_pair})
    assert "Complete files: my-target" in said(page) and ":yellow-badge[now]" in said(page)
    assert "tokens per step, 1.00" not in said(page)
    settled(next(each for each in page.button if each.key == "measure_here").click().run())
    jobs = studio(page).jobs
    wait_for(lambda: not any(job.active for job in jobs.values()))
    assert [job.error for job in jobs.values()] == [None, None]
    page = settled(page.run())
    profile = next(iter(studio(page).own_profiles.values())).value
    assert profile.max_size == 32 and profile.growing_sec.size == 0 and len(profile.verify_samples[0]) == 3
    assert "tokens per step, 1.00 without a draft" in said(page)
    assert "In memory" in said(page) and any(each.key == "measure_more" for each in page.button)
    model_pairs.unload_pair()


def test_without_a_draft_there_is_nothing_to_measure(assets, own_pair) -> None:
    page = open_page("models", {"pair": PairSpec(own_pair.target, "none")})
    assert "Nothing to measure without a draft" in said(page)
