"""Everything that runs in PyTorch, on a device other than the CPU: no tensors mix, and greedy text is unchanged."""

import threading
from functools import cache

import numpy as np
import pytest
import torch

from sequoia_core import HardwareProfile, load_pair, measure_acceptance, measure_profile
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import TorchLlama
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.trees.plain import k_ary_tree
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.cuda_graphs import drafting, judging, phases
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree, LookupTree
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.evaluation.losslessness import check_losslessness
from tests.conftest import calibration_of, pair_of, tiny_llama, tokens_of
from tests.core.test_families import FAMILIES, build, save
from tests.extras.cuda_graphs.test_phases import simulated
from tests.pretend_device import pretend_device

PROMPT = [3, 14, 15, 9, 2, 6, 3, 14, 15]
RAGGED = TokenTree(np.array([-1, 0, 0, 0, 1, 1, 3, 4, 4, 6, 9]))
COSTS = HardwareProfile(np.array([1, 2, 4, 8, 16, 32]), 1.0 + 0.02 * np.arange(6), 0.1)
WARM = SamplingConfig(0.8)
CUT = SamplingConfig(0.8, 0.9, 20)


POLICIES = (
    "static",
    "SpecExec",
    "lookup",
    "adaptive, deterministic",
    "adaptive, sampled",
    "adaptive, static",
    "hybrid, topk",
    "hybrid, in_turn",
    "hybrid, static",
)


@cache
def policies(temperature: float) -> dict:
    """Return every tree policy with each of its recipes."""
    grown = {"calibration": calibration_of(0.6, temperature=temperature), "max_size": 12, "max_depth": 4, "beam": 3}
    index = TextIndex()
    index.add([3, 14, 15, 9, 2, 6, 5, 3, 5, 8])
    return {
        "static": RAGGED,
        "SpecExec": SpecExecTree(max_size=12, max_depth=4, beam=3, branch=5),
        "lookup": LookupTree(index, max_size=12, max_depth=4, profile=COSTS),
        **{
            f"adaptive, {recipe}": AdaptiveTree(profile=COSTS, recipe=recipe, **grown)
            for recipe in ("deterministic", "sampled", "static")
        },
        **{
            f"hybrid, {recipe}": HybridTree(index, profile=COSTS, recipe=recipe, **grown)
            for recipe in ("topk", "in_turn", "static")
        },
    }


def moved(model: HuggingFaceModel, device: torch.device, *, own: bool = False) -> HuggingFaceModel:
    """Return a model on a device, run by transformers or by TorchLlama."""
    there = model.model.to(device)
    return HuggingFaceModel(there, model.name, backend=None if own else TransformersBackend(there))


@pytest.fixture(scope="module", params=["pretend", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "pretend":
        with pretend_device() as found:
            yield found
    elif torch.cuda.is_available():
        yield torch.device("cuda", 0)
    else:
        pytest.skip("there is no GPU")


@pytest.fixture(params=["by phases", "pass by pass"])
def each_path(request, monkeypatch):
    """Run a test with and without static phases."""
    if request.param == "pass by pass":
        for module in (drafting, judging):
            monkeypatch.setattr(module, "is_static", lambda session: False)


@pytest.fixture(scope="module")
def pair(device):
    """A target run by TorchLlama and a draft run by transformers, both on the device."""
    models = [moved(tiny_llama(1), device, own=True), moved(tiny_llama(2, layers=1), device)]
    assert all(model.device == device for model in models)
    assert [type(model._backend) for model in models] == [TorchLlama, TransformersBackend]
    return models


PLACED = [(name, "both") for name in POLICIES] + [
    (name, alone) for name in ("static", "adaptive, sampled") for alone in ("target", "draft")
]


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(("name", "placed"), PLACED)
def test_greedy_text_matches_the_cpu(name, placed, each_path, pair, tiny_target, tiny_draft):
    here = {"target": tiny_target, "draft": tiny_draft}
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=12))
    there = dict(zip(("target", "draft"), pair, strict=True))
    models = there if placed == "both" else here | {placed: there[placed]}
    tree = policies(0.0)[name]
    steps = decode(PROMPT, pair_of(**models), tree=tree, max_new_tokens=12, details=StepDetails(likely=3, left_out=3))
    assert tokens_of(steps) == wanted
    if placed == "both":  # a perfect draft, so that accepted paths move in both caches
        steps = list(decode(PROMPT, pair_of(pair[0], pair[0]), tree=tree, max_new_tokens=12))
        assert tokens_of(steps) == wanted and (len(steps) < 9 or name == "lookup")


SAMPLED = [(name, WARM) for name in POLICIES] + [(name, CUT) for name in ("static", "hybrid, in_turn")]


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(("name", "sampling"), SAMPLED)
def test_every_policy_decodes_with_each_verifier(name, sampling, each_path, pair):
    tree = policies(sampling.temperature)[name]
    for verifier in VERIFIERS if isinstance(tree, TokenTree) else tree.verifiers:
        steps = list(
            decode(
                PROMPT,
                pair_of(*pair),
                tree=tree,
                sampling=sampling,
                verifier=verifier,
                max_new_tokens=6,
                details=StepDetails(likely=3, left_out=3),
                generator=torch.Generator().manual_seed(0),
            )
        )
        assert len(tokens_of(steps)) == 6 and all(step.path_rows for step in steps)


FUSED = "captured, by TorchLlama"
CAPTURED = "captured, by transformers"
# How each family's passes run on a GPU, or why they are not captured.
PASSES = dict.fromkeys(FAMILIES, CAPTURED) | dict.fromkeys(("Llama", "Qwen2", "Qwen3"), FUSED)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_matches_the_cpu(family, device, tmp_path, monkeypatch):
    captures = []
    capture = phases.GRAPH_CAPTURE.get(device.type, simulated)
    monkeypatch.setitem(phases.GRAPH_CAPTURE, device.type, lambda *call: captures.append(call) or capture(*call))
    folder = save(build(family), tmp_path)
    prompt = [2 + place for place in range(20)]
    texts = []
    for where in ("cpu", device):
        pair = load_pair(folder, folder, device=str(where), dtype="float32")
        assert pair.target.device == torch.device(where)
        steps = decode(prompt, pair, tree=k_ary_tree(2, 3), max_new_tokens=20)
        texts.append(tokens_of(steps))
    assert texts[0] == texts[1]
    assert (PASSES[family] in (FUSED, CAPTURED)) == phases.is_static(pair.target.open(64)) == bool(captures)
    assert (PASSES[family] == FUSED) == isinstance(pair.target._backend, TorchLlama)


@pytest.mark.slow
def test_demo_pair_loads_in_stored_precision(device):
    pair = load_pair(device=str(device))
    assert pair.target.dtype == torch.bfloat16, "as stored, on a device that is not a CPU"
    prompt = pair.tokenizer.encode("def add(a, b):\n    return")
    steps = decode(prompt, pair, tree=RAGGED, max_new_tokens=6)
    assert len(tokens_of(steps)) == 6


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("max_new_tokens", [4, None])
@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_acceptance_is_measured(temperature, verifier, max_new_tokens, pair):
    vector = measure_acceptance(
        [PROMPT, PROMPT[2:]],
        pair_of(*pair),
        sampling=SamplingConfig(temperature),
        width=4,
        max_new_tokens=max_new_tokens,
        verifier=verifier,
    )
    assert vector.trials > 0 and vector.calibration is not None


@pytest.mark.slow
def test_profiles_and_studies_run(each_path, pair):
    target, draft = pair
    profile = measure_profile(pair_of(target, draft), sizes=[1, 4, 8], context=16, repeats=1)
    assert (profile.verify_sec > 0).all() and len(profile.growing_sec) == 2
    report = check_losslessness(
        [3],
        pair_of(target, draft),
        tree=RAGGED,
        sampling=SamplingConfig(1.0),
        samples=20,
        new_tokens=1,
        generator=torch.Generator().manual_seed(0),
        cancel=threading.Event(),
    )
    assert report.samples == 20
