"""The end of the context with trees that grow: every backend writes the target's text up to the last position."""

import warnings
from functools import cache

import pytest

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_extras.cpu_kernels.llama_x86 import llama_kernels
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree, LookupTree
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from tests.conftest import calibration_of, linear_profile, pair_of, tokens_of
from tests.core.decoding.test_context_end import (
    CONTEXT,
    FIXED,
    MODELS,
    REPEATED,
    assert_text_matches_target,
    gpt2,
    within,
)
from tests.core.test_families import build, save
from tests.extras.conftest import copies  # noqa: F401

NAMES = ("TorchLlama", "compiled", "GPT2", "streamed", "GGUF")


@cache
def policies():
    grown = {"calibration": calibration_of(0.8), "max_size": 20, "max_depth": 6, "beam": 4}
    index = TextIndex()
    index.add(REPEATED * 3)
    return {
        **FIXED,
        "SpecExec": SpecExecTree(max_size=20, max_depth=6, beam=4),
        "adaptive": AdaptiveTree(profile=linear_profile(0.02), recipe="deterministic", **grown),
        "adaptive, drawn": AdaptiveTree(profile=None, recipe="sampled", **grown),
        "adaptive, static": AdaptiveTree(profile=linear_profile(0.001), recipe="static", **grown),
        "lookup": LookupTree(index, max_size=12),
        "hybrid": HybridTree(index, profile=None, recipe="topk", **grown),
    }


@pytest.fixture(params=NAMES)
def model_of(request, tmp_path_factory):
    """Return a function that makes a model with a given context, as a target or as a draft."""

    def make(context: int, target: bool):
        if request.param == "GGUF":
            model = pytest.importorskip("sequoia_extras.gguf.model")
            files = pytest.importorskip("tests.gguf_files")
            files.need_llama_cpp()
            path = tmp_path_factory.mktemp("file") / f"{context}.gguf"
            return model.GGUFModel(files.write_random("llama", path, context=context), f"{context}")
        if llama_kernels()[0] is None:
            pytest.skip("llama_x86.c cannot be built here")
        tests = pytest.importorskip("tests.extras.offloading.test_offloading")
        folder = save(tests.compiled_family("Llama", max_position_embeddings=context), tmp_path_factory.mktemp("model"))
        tier = "disk" if target and request.param == "streamed" else None
        model = load_pair(folder, folder, device="cpu", dtype="bfloat16", offload=tier).target
        assert type(model._backend).__name__ == ("CompiledLlama" if tier is None else "StreamedLlama")
        return model

    return MODELS.get(request.param, make)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("draft_context", [CONTEXT, 15, 40])
def test_text_matches_the_target_up_to_the_last_position(draft_context, model_of, copies):  # noqa: F811
    assert_text_matches_target(model_of, draft_context, policies(), looks_up=("lookup", "hybrid"))


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("draft_context", [CONTEXT, 15])
@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_static_shapes_end_like_other_steps(family, draft_context, monkeypatch):
    """CUDA-graph steps run on the CPU, including those in which a larger tree's nodes now only pad."""
    paths = pytest.importorskip("tests.extras.cuda_graphs.test_gpu_path")
    paths.run_on_cpu(monkeypatch)
    used = paths.count_phases(monkeypatch)
    make = {"Llama": lambda context: build("Llama", max_position_embeddings=context), "GPT2": gpt2}[family]
    models = [make(context) for context in (CONTEXT, draft_context)]
    target, draft = (HuggingFaceModel(model, family, backend=TransformersBackend(model)) for model in models)
    prompt = REPEATED[:6]
    wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=99))
    for policy in policies().values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = list(decode(prompt, pair_of(within(target), within(draft)), tree=policy, max_new_tokens=99))
        assert tokens_of(steps) == wanted
    assert used["StaticPass.logits"] and used["StaticDrafter._fill_all"]
