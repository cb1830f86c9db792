"""Fixtures of the page tests: a small replacement of `assets/`, pages run alone, and tiny models."""

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
from streamlit.proto.WidgetStates_pb2 import WidgetState
from streamlit.testing.v1 import AppTest

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.files.extras import has
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models import default_dtype
from sequoia_core.models.installation import installation_id
from sequoia_core.models.language_model import HuggingFaceModel, ModelPair
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.threads import TimedLoad
from ui import menu
from ui.jobs import jobs
from ui.jobs.engine_queue import EngineQueue
from ui.measuring import pass_check
from ui.session import core_cache, machine, shipped
from ui.session.state import KEY, Chosen, SessionState

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {  # test file -> the optional package that it tests
    "comparison": "sweeps",
    "decode_page": "dynamic_trees",
    "draft_page": "dynamic_trees",
    "exact_page": "evaluation",
    "gguf": "gguf",
    "heads": "draft_heads",
    "lookup_trees": "dynamic_trees",
    "machine_page": "hardware_models",
    "race_page": "dynamic_trees",
    "replay": "dynamic_trees",
    "run_files": "dynamic_trees",
    "server_page": "servers",
    "tree_page": "evaluation",
    "weight_location": "offloading",
}
collect_ignore = [f"test_{name}.py" for name, package in NEEDS.items() if not has(package)]
PAGES = sorted(ROOT / "pages" / f"{page.script}.py" for page in menu.MENU)
DEMO_NAMES = ("demo target", "demo draft")
OTHER_DRAFT = PairSpec(*map(str, (DEMO_PAIR / "target", DEMO_PAIR / "draft-large")))
TIMEOUT_SEC = 60  # the first test that uses torch loads it


def vector(scale: float = 0.55, ranks: int = 8) -> AcceptanceVector:
    """Return a vector with per-prompt sums that is not monotone, like measured ones."""
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
    """Return a profile of the demo pair on this machine; pass times grow by `slope` per token."""
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    seconds = 0.01 * (1 + slope * sizes)
    samples = tuple((float(s), float(1.1 * s)) for s in seconds)
    return HardwareProfile(
        sizes, seconds, 0.001, device=device or machine.device_name(), dtype="float32", verify_samples=samples,
        meta=dict(zip(("target", "draft"), DEMO_NAMES, strict=True)) | {"installation": installation_id()},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Switch off the check of the machine's speed, which starts a job on every page; return the real function."""
    real = pass_check.start_check
    monkeypatch.setattr(pass_check, "start_check", lambda: None)
    return real


@pytest.fixture(autouse=True)
def kept_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep results in a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "sequoia-studio"


REAL_RECORD = TimedLoad.record


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other processes be busy, so that pages show no warnings about them."""
    monkeypatch.setattr(TimedLoad, "record", lambda load: {"share": 0.0, "processes": 0})


@pytest.fixture
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace `assets/` by a small folder."""
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
    monkeypatch.setattr(core_cache, "demo_dtype", lambda: in_float32)
    return tmp_path


def run_job(page: AppTest, name: str, label: str = "") -> AppTest:
    """Press a job's start button, wait until it has ended without an error, and rerun the page."""
    button = next(each for each in page.button if each.key == f"{name}_start" or (label and label in each.label))
    settled(button.click().run())
    job = studio(page).jobs[name]
    wait_for(lambda: not job.active)
    assert job.error is None, job.error
    return settled(page.run())


class OpenPair(SimpleNamespace):
    """A pair with replaceable parts."""

    remarks = ()
    models, text, ignore_eos = ModelPair.models, ModelPair.text, ModelPair.ignore_eos
    vocab_size, max_context = ModelPair.vocab_size, ModelPair.max_context


def as_demo_pair(target: HuggingFaceModel, draft: HuggingFaceModel, tokenizer: SimpleNamespace) -> SimpleNamespace:
    """Return small models with the names of the demo pair."""
    models = [copy.copy(model) for model in (target, draft)]
    for model, name in zip(models, DEMO_NAMES, strict=True):
        model.name = name
    return OpenPair(target=models[0], draft=models[1], tokenizer=tokenizer)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a model pair that cannot run."""
    target, tokenizer = SimpleNamespace(vocab_size=1 << 20), SimpleNamespace(encode=lambda text: [len(text)])
    fake = OpenPair(target=target, draft=None, tokenizer=tokenizer)
    monkeypatch.setattr("ui.jobs.jobs.shared_pair", lambda *spec: fake)
    return fake


@pytest.fixture
def tiny_pair(monkeypatch: pytest.MonkeyPatch, tiny_target, tiny_draft) -> SimpleNamespace:
    """Return two random models with 64 tokens, and a tokenizer of 64 letters."""
    tokenizer = SimpleNamespace(
        encode=lambda text: [ord(letter) % 64 for letter in text],
        decode=lambda ids, skip_special_tokens=False: "".join(chr(48 + token) for token in ids),
    )
    pair = as_demo_pair(tiny_target, tiny_draft, tokenizer)
    monkeypatch.setattr(jobs, "shared_pair", lambda *spec: pair)
    return pair


@pytest.fixture
def queue() -> Iterator[EngineQueue]:
    """Return a new engine queue."""
    engine = EngineQueue()
    yield engine
    engine.close()


def open_page(name: str, session: dict[str, Any] | None = None, **query: str) -> AppTest:
    """Run one page alone in a new session with the given fields of its state."""
    page = AppTest.from_file(str(ROOT / "pages" / f"{name}.py"), default_timeout=TIMEOUT_SEC)
    page.session_state[KEY] = SessionState(**(session or {}))
    page.query_params |= query
    return settled(page.run())


def studio(page: AppTest) -> SessionState:
    """Return the state of the page's session."""
    return page.session_state[KEY]


def newest(page: AppTest, kind: str) -> Chosen:
    """Return the newest of the session's own "vectors" or "profiles"."""
    return next(iter(getattr(studio(page), f"own_{kind}").values()))


def settled(page: AppTest) -> AppTest:
    """Return the page after checking that it raised no exception."""
    assert not page.exception, [error.message for error in page.exception]
    return page


def metrics(page: AppTest) -> dict[str, tuple[str, str]]:
    """Return value and comparison of the figures by label, with those on a picture's edge."""
    shown = {metric.label: (metric.value, metric.delta) for metric in page.metric}
    for component in page.get("bidi_component"):
        for label, value, _ in json.loads(component.proto.json or "{}").get("figures", ()):
            name, _, against = label.partition(", ")
            shown[name.capitalize()] = value, against
    return shown


def methods_table(page: AppTest):
    """Return the tree page's table of methods."""
    return next(table for table in page.dataframe if "method" in table.value)


def use_method(page: AppTest, name: str) -> AppTest:
    """Press *Use* in a row of the tree page's table of methods."""
    table = methods_table(page)
    (row,) = np.flatnonzero(table.value["method"].str.removeprefix("★ ") == name)
    state = WidgetState(id=table.proto.button_click_widgets["use"])
    state.string_trigger_value.data = json.dumps({"row": int(row), "label": "Use"})
    states = page._tree.get_widget_states()
    states.widgets.append(state)
    return settled(page._run(states))


def state_of(page: AppTest):
    """Return the part of the plan bar with the plan's prediction and its basis."""
    return next(element for element in page.markdown if "-badge[" in element.value)


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
