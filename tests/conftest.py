"""Fixtures shared by all tests: the demo pair, and tiny random models that need no weights."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from sequoia_core.design.calibration import Calibration, Sample
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.native import sampling_ops as rows

if TYPE_CHECKING:  # transformers, which takes seconds, is for the tests that use a model
    from sequoia_core.models.heads.session import HeadModel
    from sequoia_core.models.language_model import HuggingFaceModel, ModelPair

CASES = 4  # of a test that run by default, chosen by its name; the others are slow
torch.set_num_threads(1)  # tiny models lose more to waiting threads than they gain
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the commands and servers that a test starts beside other tests


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what a test has beyond a sample of its cases: `@pytest.mark.sample(count)`, else CASES."""
    groups: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("gpu") or item.get_closest_marker("slow"):
            continue  # not by default in any case
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in groups.items():
        mark = cases[0].get_closest_marker("sample") or pytest.mark.sample(CASES, cover=False)
        values = [tuple((axis, id(value)) for axis, value in case.callspec.params.items()) for case in cases]
        for index in {*range(len(cases))} - covering_sample(values, *mark.args, seed=name, **mark.kwargs):
            cases[index].add_marker(pytest.mark.slow)


def covering_sample(cases: list[tuple], count: int, seed: str, cover: bool = True) -> set[int]:
    """Return the indices of `count` cases, with many different pairs of values; of more to `cover` each axis."""
    left, chosen, covered = list(range(len(cases))), set(), set()
    random.Random(seed).shuffle(left)
    values, every = [set(case) for case in cases], set(itertools.chain(*cases))
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
    """Return a random Llama; `scale` sharpens its logits so that argmax is far from a tie."""
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
    """Return models as a pair without a tokenizer, which decoding and measuring do without."""
    from sequoia_core.models.language_model import ModelPair

    return ModelPair(target, draft, tokenizer=None)


def tokens_of(steps) -> list[int]:
    """Return the text that the steps of a run wrote."""
    return [token for step in steps for token in step.new_tokens]


def linear_profile(per_node: float = 0.1, draft_sec: float = 0.1, **more) -> HardwareProfile:
    """One token takes a second; each further node and each draft pass as given."""
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    return HardwareProfile(sizes, 1.0 + per_node * (sizes - 1), draft_sec, **more)


def calibration_of(sharpness: float, *, temperature: float = 0.0, prompts: int = 2) -> Calibration:
    """Return a calibration of a draft that is right as often as it says; its favourite has about that probability."""
    generator = np.random.default_rng(0)
    samples = []
    for _ in range(prompts):
        first = np.clip(generator.normal(sharpness, 0.1, (100, 1)), 0.2, 0.99)
        probs = np.concatenate([first, (1 - first) * 0.6, (1 - first) * 0.3, (1 - first) * 0.1], axis=1)
        probs = -np.sort(-probs, axis=1)
        samples.append(Sample(probs, probs, probs, probs, probs))
    return Calibration.of_samples(samples, temperature=temperature)


def around_passes(model: HuggingFaceModel, around, name: str | None = None) -> HuggingFaceModel:
    """Return the model, weights shared, each pass of which goes through `around`.

    Args:
        around: called with (the session's own forward, session, ids, positions, tree_mask, keep) in its place.
    """
    twin = copy.copy(model)
    twin.name = name or model.name

    def open_(capacity: int, states=()):
        session = model.open(capacity, states)
        forward = session.forward
        session.forward = lambda ids, positions, tree_mask, *, keep: around(
            forward, session, ids, positions, tree_mask, keep
        )
        return session

    twin.open = open_
    return twin


class RecalledSession:
    """Reads off the mask which text each token ends, and gives the row that the model gave after that text."""

    logits_dtype, read_wait_sec, states = torch.float32, 0.0, None

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
        before, new = self.ids[: -tree_mask.shape[1]], self.ids[-tree_mask.shape[1] :]
        texts = [(*before, *itertools.compress(new, seen)) for seen in (tree_mask[-keep:] == 0.0).tolist()]
        assert [len(text) - 1 for text in texts] == positions[-keep:].tolist()
        return torch.stack([self.row_after(text) for text in texts])

    def commit(self, start, slots) -> None:
        self.ids[start:] = [self.ids[start + slot] for slot in slots]

    def wait(self) -> None:
        pass


def recalled(model: HuggingFaceModel) -> HuggingFaceModel:
    """Return the model with each text read once, for laws that take thousands of samples: its rows, but no passes."""
    twin = copy.copy(model)

    @functools.cache
    @torch.inference_mode()
    def row_after(text):
        return model.model(torch.tensor([text])).logits[0, -1]

    passes: dict = {}
    twin.open = lambda capacity, states=(): RecalledSession(row_after, passes)
    return twin


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether slow tests run too: then a test takes its whole size."""
    return "not slow" not in request.config.option.markexpr


@pytest.fixture(scope="session")
def tiny_target() -> HuggingFaceModel:
    return tiny_llama(1)


@pytest.fixture(scope="session")
def tiny_draft() -> HuggingFaceModel:
    return tiny_llama(2, layers=1)


@pytest.fixture(scope="session")
def tiny_head(tiny_target) -> HeadModel:
    """A head with 60 of 64 tokens that has learned what `tiny_target` writes after one prompt of the tests."""
    from tests.head_folders import random_head, teach  # needs pydantic, which a rented GPU lacks

    prompt = torch.tensor([[3, 14, 15, 9, 2, 6]])
    text = tiny_target.model.generate(prompt, do_sample=False, max_new_tokens=60, pad_token_id=0)
    return teach(random_head(tiny_target, draft_vocab=60), text.tolist())


@pytest.fixture(scope="session")
def demo_pair():
    """The shipped pair in float32, in which it writes what `generate` does; bfloat16 has its own tests."""
    from sequoia_core.models.loading import load_pair

    return load_pair(device="cpu", dtype="float32")


@pytest.fixture(params=["compiled rows", "plain rows"])
def each_rows(request, monkeypatch) -> None:
    """Run a test twice: with the rows of a vocabulary by compiled code, and by PyTorch and NumPy as without a compiler.

    For whole files: `pytestmark = pytest.mark.usefixtures("each_rows")`.
    """
    if request.param == "plain rows":
        monkeypatch.setattr(rows, "compiled", lambda: None)
    elif rows.compiled() is None:
        pytest.skip("sampling_ops.c cannot be built here")
