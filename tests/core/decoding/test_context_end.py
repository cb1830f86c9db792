"""The end of the context, whatever runs the models and shapes the trees: the target's text to its last position.

Drafts have the target's weights where that can be, so that trees are accepted up to where they are cut.
"""

import itertools
import warnings
from functools import cache

import pytest
import torch

from sequoia_core import AdaptiveTree, HybridTree, LookupTree
from sequoia_core.decoding.drafting import Reach
from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.models.gguf.model import GGUFModel
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.models.offload.streamed_llama import StreamedLlama
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.native.llama_x86 import CompiledLlama, compiled
from tests.conftest import around_passes, calibration_of, linear_profile, pair_of, tiny_llama, tokens_of
from tests.core.decoding.gpu.test_gpu_path import used  # noqa: F401
from tests.core.decoding.test_loop import TREES
from tests.core.models.conftest import copies  # noqa: F401
from tests.core.models.offload.test_offloading import compiled_family
from tests.core.test_families import build, save
from tests.gguf_files import need_llama_cpp, write_random

CONTEXT = 24  # of the target
REPEATED = [5, 9, 2, 7] * 9  # so that there is something to look up
NAMES = ("TorchLlama", "compiled", "GPT2", "streamed", "GGUF")


@cache
def policies():
    grown = {"calibration": calibration_of(0.8), "max_size": 20, "max_depth": 6, "beam": 4}
    index = TextIndex()
    index.add(REPEATED * 3)
    return {
        **{name: TREES[name] for name in ("chain", "ragged", "wide", "root only")},
        "chain beyond the context": chain_tree(CONTEXT + 8),
        "SpecExec": SpecExecTree(max_size=20, max_depth=6, beam=4),
        "adaptive": AdaptiveTree(profile=linear_profile(0.02), recipe="deterministic", **grown),
        "adaptive, drawn": AdaptiveTree(profile=None, recipe="sampled", **grown),
        "adaptive, static": AdaptiveTree(profile=linear_profile(0.001), recipe="static", **grown),
        "lookup": LookupTree(index, max_size=12),
        "hybrid": HybridTree(index, profile=None, recipe="topk", **grown),
    }


def gpt2(context: int):
    """Return a model whose positions are rows of a table, so that one beyond its end is an error."""
    model = build("GPT2", n_positions=40)
    model.config.n_positions = context
    model.transformer.wpe = torch.nn.Embedding.from_pretrained(model.transformer.wpe.weight[:context])
    return model


@pytest.fixture(params=NAMES)
def model_of(request, tmp_path_factory):
    """Return what makes a model of one kind with some context, as a target or as a draft."""

    def make(context: int, *, target: bool):
        if request.param == "GGUF":
            need_llama_cpp()
            path = tmp_path_factory.mktemp("file") / f"{context}.gguf"
            return GGUFModel(write_random("llama", path, context=context), f"{context}")
        if request.param == "GPT2":
            return HuggingFaceModel(gpt2(context), "GPT2")
        if request.param == "TorchLlama":
            return tiny_llama(1, context=context)
        if compiled()[0] is None:
            pytest.skip("llama_x86.c cannot be built here")
        folder = save(compiled_family("Llama", max_position_embeddings=context), tmp_path_factory.mktemp("model"))
        tier = "disk" if target and request.param == "streamed" else None
        model = load_pair(folder, folder, device="cpu", dtype="bfloat16", offload=tier).target
        assert type(model._backend) is (CompiledLlama if tier is None else StreamedLlama)
        return model

    return make


def within(model):
    """Return the model, which fails where a pass of its sessions names a position that it does not have."""

    def around(append, session, ids, positions, tree_mask, keep):
        assert int(positions.max()) < model.max_context
        return append(ids, positions, tree_mask, keep=keep)

    return around_passes(model, around)


def starts(prompt, steps):
    """Yield each step with the tokens that there were before it."""
    length = len(prompt)
    for step in steps:
        yield length, step
        length += len(step.new_tokens)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("draft_context", [CONTEXT, 15, 40])
def test_text_is_the_targets_to_the_last_position(draft_context, model_of, copies):  # noqa: F811
    target, draft = model_of(CONTEXT, target=True), model_of(draft_context, target=False)
    reach = Reach(CONTEXT, draft_context)
    lengths = {9, draft_context - 1, draft_context, draft_context + 1, CONTEXT - 2, CONTEXT - 1}
    for length, (name, policy) in itertools.product(sorted(n for n in lengths if n < CONTEXT), policies().items()):
        prompt = REPEATED[:length]
        wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=99))
        assert len(wanted) == CONTEXT - length
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = list(decode(prompt, pair_of(within(target), within(draft)), tree=policy, max_new_tokens=99))
        assert tokens_of(steps) == wanted, (name, length)
        assert steps[-1].finished == "context"
        for before, step in starts(prompt, steps):
            alone = name in ("lookup", "hybrid")
            assert step.tree.depth <= (reach.verified(before) if alone else reach.drafted(before)), (name, before)
        assert name != "chain" or length > 9 or len(steps) < len(wanted), "trees are accepted"
        with pytest.raises(ValueError, match=f"expected at most {CONTEXT - 1}: the target's context of {CONTEXT}"):
            decode(REPEATED[:CONTEXT], pair_of(target, draft), tree=policy)
    target.close()


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("draft_context", [CONTEXT, 15])
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_steps_of_fixed_shape_end_as_others_do(kind, draft_context, used):  # noqa: F811
    """The path for GPUs, also where nodes that only pad a smaller tree were a larger one's."""
    make = {"Llama": lambda context: build("Llama", max_position_embeddings=context), "GPT2": gpt2}[kind]
    models = [make(context) for context in (CONTEXT, draft_context)]
    target, draft = (HuggingFaceModel(model, kind, backend=TransformersBackend(model)) for model in models)
    prompt = REPEATED[:6]
    wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=99))
    for policy in policies().values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = list(decode(prompt, pair_of(within(target), within(draft)), tree=policy, max_new_tokens=99))
        assert tokens_of(steps) == wanted
    assert used["StaticPass.logits"] and used["StaticDrafter._fill"]


@pytest.mark.filterwarnings("ignore:draft. found a context")
def test_a_draft_whose_context_is_just_the_prompt_reads_it_before_the_first_step():
    """Its last position is the root's, from which one level is drafted."""
    prompt, read = [5, 9, 2, 7, 3, 1, 8, 4], []

    def around(forward, session, ids, *more):
        read.append(len(ids))
        return forward(ids, *more[:-1], keep=more[-1])

    draft = around_passes(tiny_llama(1, context=len(prompt)), around)
    steps = decode(prompt, pair_of(tiny_llama(1, context=CONTEXT), draft), tree=chain_tree(3), max_new_tokens=6)
    assert [len(step.new_tokens) for step in steps] == [2, 1, 1, 1, 1]
    assert read == [len(prompt) - 1, 1]


def test_a_limit_of_the_draft_is_named_before_the_run():
    target, draft = tiny_llama(1, context=CONTEXT), tiny_llama(2, context=12)
    options = {"pair": pair_of(target, draft), "tree": chain_tree(3)}
    with pytest.warns(UserWarning, match="draft: found a context of 12 tokens, expected 16 for .* goes on without it"):
        decode(REPEATED[:6], **options, max_new_tokens=10)  # no step is taken
    with pytest.warns(UserWarning, match="found a context of 12 tokens, expected 24"):
        decode(REPEATED[:20], **options, max_new_tokens=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(REPEATED[:6], **options, max_new_tokens=6)
        decode(REPEATED[:6], **options | {"tree": LookupTree(TextIndex())})
        autoregressive(REPEATED[:6], pair_of(target))
