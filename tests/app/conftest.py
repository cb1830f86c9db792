"""What the page tests share: a small stand-in for `assets/`, pages run alone, and a way to wait for the worker."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.design.conditions import Conditions
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models import default_dtype
from sequoia_core.models.installation import installation_id
from sequoia_core.models.language_model import HuggingFaceModel, ModelPair
from sequoia_core.models.pair_spec import PairSpec
from ui.jobs import jobs
from ui.jobs.engine_queue import EngineQueue
from ui.session import core_cache, machine, shipped

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "pages").glob("*.py"))
DEMO_NAMES = ("demo target", "demo draft")
OTHER_DRAFT = PairSpec(*map(str, (DEMO_PAIR / "target", DEMO_PAIR / "draft-large")))  # of the same target
TIMEOUT_SEC = 60  # torch loads in the first test that touches it


def vector(scale: float = 0.55, ranks: int = 8) -> AcceptanceVector:
    """A vector with per-prompt sums that is not monotone, as measured ones are."""
    probs = scale * 0.4 ** np.arange(ranks)
    probs[3], probs[4] = probs[4], probs[3]
    trials = np.array([40, 60, 50])
    sums = np.array([probs * count * factor for count, factor in zip(trials, (0.9, 1.05, 1.0), strict=True)])
    meta = {"target": "big", "draft": "small", "temperature": 0.0}
    return AcceptanceVector(
        sums.sum(0) / trials.sum(), trials=int(trials.sum()), prompt_sums=sums, prompt_trials=trials, meta=meta,
        holds_for=Conditions(*DEMO_NAMES, temperature=0.0),
    )  # fmt: skip


def profile(slope: float = 0.02, device: str = "") -> HardwareProfile:
    """A profile of the demo pair here whose pass time grows with `slope` per token, with two noisy repeats."""
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    seconds = 0.01 * (1 + slope * sizes)
    samples = tuple((float(s), float(1.1 * s)) for s in seconds)
    return HardwareProfile(
        sizes, seconds, 0.001, device=device or machine.device_name(), dtype="float32", verify_samples=samples,
        meta=dict(zip(("target", "draft"), DEMO_NAMES, strict=True)) | {"installation": installation_id()},
    )  # fmt: skip


@pytest.fixture
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like `assets/` that the session reads instead of the shipped one."""
    for kind in ("acceptance", "profiles", "prompts"):
        (tmp_path / kind).mkdir()
    vector().save(tmp_path / "acceptance" / "demo-t0.json")
    vector(0.4, 5).save(tmp_path / "acceptance" / "other.json")
    profile().save(tmp_path / "profiles" / "cpu-2core.json")
    lines = [json.dumps({"text": f"def f{i}():", "source": "test"}) for i in range(3)]
    (tmp_path / "prompts" / "prompts.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(shipped, "ASSETS", tmp_path)
    in_float32 = default_dtype.DefaultDtype("float32", "as the profile of these tests")
    monkeypatch.setattr(default_dtype, "dtype_for", lambda stored, config, gpu: in_float32)
    monkeypatch.setattr(core_cache, "demo_dtype", lambda: "float32")
    return tmp_path


def run_job(page: AppTest, kind: str, label: str = "") -> AppTest:
    """Press the button that starts a job of that kind, wait until it has ended without a fault, and draw the page."""
    button = next(each for each in page.button if each.key == f"{kind}_start" or (label and label in each.label))
    settled(button.click().run())
    job = page.session_state["studio_jobs"][kind]
    wait_for(lambda: not job.active)
    assert job.error is None, job.error
    return settled(page.run())


class OpenPair(SimpleNamespace):
    """A pair whose parts tests may replace."""

    remarks = ()
    models, text, ignore_eos = ModelPair.models, ModelPair.text, ModelPair.ignore_eos
    vocab_size, max_context = ModelPair.vocab_size, ModelPair.max_context


def as_demo_pair(target: HuggingFaceModel, draft: HuggingFaceModel, tokenizer: SimpleNamespace) -> SimpleNamespace:
    """Return small models under the names that measurements of the demo pair carry."""
    models = [copy.copy(model) for model in (target, draft)]
    for model, name in zip(models, DEMO_NAMES, strict=True):
        model.name = name
    return OpenPair(target=models[0], draft=models[1], tokenizer=tokenizer)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A model pair that nothing runs: the tests replace what would."""
    target, tokenizer = SimpleNamespace(vocab_size=1 << 20), SimpleNamespace(encode=lambda text: [len(text)])
    fake = OpenPair(target=target, draft=None, tokenizer=tokenizer)
    monkeypatch.setattr("ui.jobs.jobs.shared_pair", lambda *spec: fake)
    return fake


@pytest.fixture
def tiny_pair(monkeypatch: pytest.MonkeyPatch, tiny_target, tiny_draft) -> SimpleNamespace:
    """Two random models with 64 tokens, and a tokenizer of 64 letters."""
    tokenizer = SimpleNamespace(
        encode=lambda text: [ord(letter) % 64 for letter in text],
        decode=lambda ids, skip_special_tokens=False: "".join(chr(48 + token) for token in ids),
    )
    pair = as_demo_pair(tiny_target, tiny_draft, tokenizer)
    monkeypatch.setattr(jobs, "shared_pair", lambda *spec: pair)
    return pair


@pytest.fixture
def queue() -> Iterator[EngineQueue]:
    """An engine of the test's own."""
    engine = EngineQueue()
    yield engine
    engine.close()


def open_page(name: str, held: dict[str, Any] | None = None, **query: str) -> AppTest:
    """Run one page alone, as a cold deep link does, in a session that holds some of its values already."""
    page = AppTest.from_file(str(ROOT / "pages" / f"{name}.py"), default_timeout=TIMEOUT_SEC)
    for key, value in (held or {}).items():
        page.session_state[f"studio_{key}"] = value
    page.query_params |= query
    return settled(page.run())


def settled(page: AppTest) -> AppTest:
    """Return the page after checking that nothing was raised."""
    assert not page.exception, [error.message for error in page.exception]
    return page


def metrics(page: AppTest) -> dict[str, tuple[str, str]]:
    """Return label -> (value, what it is compared with)."""
    return {metric.label: (metric.value, metric.delta) for metric in page.metric}


def state_of(page: AppTest):
    """Return the chip that says what the predictions of a page rest on."""
    return next(element for element in page.markdown if "-badge[" in element.value)


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for the worker thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def growing_never_pays(folder: Path) -> None:
    """Let the shipped profiles say that a dynamic tree costs an hour."""
    for path in (folder / "profiles").glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"growing_sec": [3600.0, 3600.0]}))
