"""Shared fixtures: the demo pair, and tiny random models."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
import random
import re
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from sequoia_core.acceptance.calibration import Calibration, Sample
from sequoia_core.decoding.row_operations import RowOperations, row_operations
from sequoia_core.files.extras import has, installed
from sequoia_core.planning.profile import HardwareProfile

if find_spec("sequoia_extras") is not None:  # the checkout may lack optional packages
    from sequoia_extras import EXTRAS
else:
    EXTRAS = ()

if TYPE_CHECKING:  # importing transformers takes seconds
    from sequoia_core.models.language_model import HuggingFaceModel, ModelPair
    from sequoia_extras.draft_heads.session import HeadModel

DEFAULT_CASES = 4  # cases per parametrized test that run by default; the others are slow
_DATA = tempfile.TemporaryDirectory(prefix="sequoia-tests-")
os.environ["XDG_DATA_HOME"] = _DATA.name  # never the user's own results
torch.set_num_threads(1)  # tiny models are slower with more threads
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for commands and servers in parallel tests


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return the optional packages that a test file imports, directly or through other test files."""
    names = re.findall(
        r"^from ((?:sequoia_extras|tests|benchmarks|scripts)\.[\w.]+) import", path.read_text(), re.MULTILINE
    )
    found = {name.removeprefix("tests.extras.").removeprefix("sequoia_extras.").split(".")[0] for name in names}
    ours = [name for name in names if not name.startswith("sequoia_extras.")]
    files = [Path(__file__).parents[1] / f"{name.replace('.', '/')}.py" for name in ours]
    return frozenset(found.union(*(imported(file) for file in files if file.is_file())))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore test files that import a deleted optional package."""
    absent = {package.rpartition(".")[2] for package in EXTRAS if package not in installed()}
    return True if collection_path.suffix == ".py" and absent & imported(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test beyond a sample as slow: `@pytest.mark.sample(count)`, or DEFAULT_CASES cases."""
    groups: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("gpu") or item.get_closest_marker("slow"):
            continue  # never runs by default
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in groups.items():
        mark = cases[0].get_closest_marker("sample") or pytest.mark.sample(DEFAULT_CASES, cover=False)
        values = [tuple((axis, id(value)) for axis, value in case.callspec.params.items()) for case in cases]
        for index in {*range(len(cases))} - covering_sample(values, *mark.args, seed=name, **mark.kwargs):
            cases[index].add_marker(pytest.mark.slow)


def covering_sample(cases: list[tuple], count: int, seed: str, cover: bool = True) -> set[int]:
    """Return the indices of `count` cases with diverse pairs of values, or of more to `cover` every value."""
    left = list(range(len(cases)))
    chosen = set()
    covered = set()
    random.Random(seed).shuffle(left)
    values = [set(case) for case in cases]
    every = set(itertools.chain(*cases))
    pairs = [set(itertools.combinations(case, 2)) for case in cases]
    while left and (len(chosen) < count or (cover and not every <= covered)):
        best = max(left, key=lambda index: (len(values[index] - covered), len(pairs[index] - covered)))
        left.remove(best)
        chosen.add(best)
        covered |= values[best] | pairs[best]
    return chosen


def tiny_llama(
    seed: int, *, vocab: int = 64, layers: int = 2, context: int = 256, scale: float = 4.0
) -> HuggingFaceModel:
    """Return a random Llama; `scale` sharpens its logits to avoid near-ties."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from sequoia_core.models.language_model import HuggingFaceModel

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=context, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale * 10)
    return HuggingFaceModel(model, name=f"tiny-{seed}")


def pair_of(target: HuggingFaceModel, draft: HuggingFaceModel | None = None) -> ModelPair:
    """Return a pair without a tokenizer, which decoding and measuring do not need."""
    from sequoia_core.models.language_model import ModelPair

    return ModelPair(target, draft, tokenizer=None)


def tokens_of(steps) -> list[int]:
    """Return the tokens of a run's steps."""
    return [token for step in steps for token in step.new_tokens]


def linear_profile(per_node: float = 0.1, draft_sec: float = 0.1, **more) -> HardwareProfile:
    """Return a profile in which one token takes a second, plus `per_node` for each further node."""
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    return HardwareProfile(sizes, 1.0 + per_node * (sizes - 1), draft_sec, **more)


def calibration_of(sharpness: float, *, temperature: float = 0.0, prompts: int = 2) -> Calibration:
    """Return the calibration of a well-calibrated draft whose first choice has about probability `sharpness`."""
    generator = np.random.default_rng(0)
    samples = []
    for _ in range(prompts):
        first = np.clip(generator.normal(sharpness, 0.1, (100, 1)), 0.2, 0.99)
        probs = np.concatenate([first, (1 - first) * 0.6, (1 - first) * 0.3, (1 - first) * 0.1], axis=1)
        probs = -np.sort(-probs, axis=1)
        samples.append(Sample(probs, probs, probs, probs, probs))
    return Calibration.from_samples(samples, temperature=temperature)


def around_passes(model: HuggingFaceModel, around, name: str | None = None) -> HuggingFaceModel:
    """Return a copy of the model, with shared weights, whose passes go through `around`.

    Args:
        around: called as around(forward of the session, session, ids, positions, tree_mask, keep).
    """
    twin = copy.copy(model)
    twin.name = name or model.name

    def open_(capacity: int, state_indices=()):
        session = model.open(capacity, state_indices)
        forward = session.forward
        session.forward = lambda ids, positions, tree_mask, *, keep: around(
            forward, session, ids, positions, tree_mask, keep
        )
        return session

    twin.open = open_
    return twin


class RecalledSession:
    """A session that derives each token's text from the mask, and returns the model's cached logits after it."""

    logits_dtype = torch.float32
    read_wait_sec = 0.0
    states = None

    def __init__(self, row_after, passes) -> None:
        self.row_after, self.passes, self.ids = row_after, passes, []

    @property
    def length(self) -> int:
        return len(self.ids)

    def forward(self, ids, positions, tree_mask, *, keep):
        self.ids += ids.tolist()
        key = (*self.ids, keep, tree_mask.numpy().tobytes(), positions.numpy().tobytes())
        if key not in self.passes:
            self.passes[key] = self._rows(positions, tree_mask, keep)
        return self.passes[key]

    def _rows(self, positions, tree_mask, keep):
        before = self.ids[: -tree_mask.shape[1]]
        new = self.ids[-tree_mask.shape[1] :]
        texts = [(*before, *itertools.compress(new, seen)) for seen in (tree_mask[-keep:] == 0.0).tolist()]
        assert [len(text) - 1 for text in texts] == positions[-keep:].tolist()
        return torch.stack([self.row_after(text) for text in texts])

    def commit(self, start, slots) -> None:
        self.ids[start:] = [self.ids[start + slot] for slot in slots]

    def wait(self) -> None:
        pass


def recalled(model: HuggingFaceModel) -> HuggingFaceModel:
    """Return the model with cached logits for each text, for tests that take thousands of samples."""
    twin = copy.copy(model)

    @functools.cache
    @torch.inference_mode()
    def row_after(text):
        return model.model(torch.tensor([text])).logits[0, -1]

    passes: dict = {}
    twin.open = lambda capacity, state_indices=(): RecalledSession(row_after, passes)
    return twin


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Return whether slow tests run too, so that tests use their full size."""
    return "not slow" not in request.config.option.markexpr


@pytest.fixture(scope="session")
def tiny_target() -> HuggingFaceModel:
    return tiny_llama(1)


@pytest.fixture(scope="session")
def tiny_draft() -> HuggingFaceModel:
    return tiny_llama(2, layers=1)


@pytest.fixture(scope="session")
def tiny_head(tiny_target) -> HeadModel:
    """A head with 60 of 64 tokens, trained on a text of `tiny_target`."""
    from tests.head_folders import random_head, teach  # needs pydantic, which rented GPUs lack

    prompt = torch.tensor([[3, 14, 15, 9, 2, 6]])
    text = tiny_target.model.generate(prompt, do_sample=False, max_new_tokens=60, pad_token_id=0)
    return teach(random_head(tiny_target, draft_vocab=60), text.tolist())


@pytest.fixture(scope="session")
def demo_pair():
    """The shipped pair in float32, which matches `generate` exactly."""
    from sequoia_core.models.loading import load_pair

    return load_pair(device="cpu", dtype="float32")


@contextlib.contextmanager
def plain_rows() -> Iterator[None]:
    """Use the PyTorch and NumPy row operations, as without a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if has("cpu_kernels"):
            patch.setattr("sequoia_extras.cpu_kernels.sampling_ops.sampling_kernels", lambda: None)
        row_operations.cache_clear()
        yield
    row_operations.cache_clear()


@pytest.fixture(params=["compiled rows", "plain rows"])
def each_rows(request) -> Iterator[None]:
    """Run a test with compiled row operations, and with those of PyTorch and NumPy.

    For whole files: `pytestmark = pytest.mark.usefixtures("each_rows")`.
    """
    with plain_rows() if request.param == "plain rows" else contextlib.nullcontext():
        if request.param == "compiled rows" and type(row_operations()) is RowOperations:
            pytest.skip("row operations cannot be compiled here")
        yield


@pytest.fixture
def call(capsys):
    """Run a command in this process with --json; return its result."""

    from sequoia_core.command_line.main import main

    def run(*arguments: str) -> dict:
        code = main([*arguments, "--json"])
        output = capsys.readouterr()
        assert code == 0, output.err
        assert output.out.count("\n") == 1
        return json.loads(output.out)

    return run


@pytest.fixture
def refusal(capsys):
    """Run a command that fails; return its error line."""

    from sequoia_core.command_line.main import main

    def run(*arguments: str) -> str:
        code = main([*arguments])
        output = capsys.readouterr()
        assert (code, output.out, output.err.count("\n")) == (2, "", 1), output.err
        return output.err

    return run


COLUMNS = 60


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.fixture
def said(narrow, capsys):
    """Run a command without --json; return its words after checking the line width."""

    from sequoia_core.command_line.main import main

    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return folded(capsys.readouterr().out)

    return run


@pytest.fixture
def shown(narrow, capsys):
    """Print the parts of a report; return their words after checking the line width."""

    from sequoia_core.command_line.output import report

    def run(parts) -> str:
        report({}, False, parts)
        return folded(capsys.readouterr().out)

    return run


def folded(text: str) -> str:
    for line in text.splitlines():  # lines to copy may be longer
        assert len(line) <= COLUMNS or line.startswith(("Next: ", "Written to ", "--", "  ")), line
    assert "…" not in text and "{'" not in text and "None" not in text and "nan" not in text
    return " ".join(text.split())
