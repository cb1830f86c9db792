"""Compiled passes: correct to rounding and bitwise equal however tokens are grouped; one-call drafting.

Everything is tested with each instruction set that this processor can run, including emulated ones.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sequoia_core import AcceptanceVector, SamplingConfig, TokenTree, autoregressive, decode, load_pair, optimal_tree
from sequoia_core.decoding.plan import get_tree_plan
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.protocol import causal_mask
from sequoia_extras.cpu_kernels import instruction_sets
from sequoia_extras.cpu_kernels.drafting import CompiledDrafter
from sequoia_extras.cpu_kernels.llama_x86 import CompiledLlama, llama_kernels
from sequoia_extras.dynamic_trees import AdaptiveTree
from tests.conftest import calibration_of, pair_of, tokens_of
from tests.extras.cpu_kernels.test_compile_c import needs_compiler
from tests.extras.cpu_kernels.test_instruction_sets import RUNNABLE

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not RUNNABLE, reason="the processor has neither AVX-512 nor AVX2"),
]


@pytest.fixture(scope="module", autouse=True, params=RUNNABLE)
def instructions(request):
    """Run the whole module with each instruction set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(instruction_sets.INSTRUCTIONS_VARIABLE, request.param)
        functions, reason = llama_kernels()
        if functions is None and "grant" not in reason and "switched off" not in reason:
            compiler_is_old = "unrecognized command-line option" in reason or "unknown argument" in reason
            assert compiler_is_old, reason
        if functions is None:
            pytest.skip(reason)
        yield instruction_sets.INSTRUCTION_SETS[request.param]


FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "mistral": (MistralForCausalLM, MistralConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def llama(family: str = "llama", **changes) -> PreTrainedModel:
    torch.manual_seed(0)
    kind, config = FAMILIES[family]
    options = {
        "vocab_size": 101,
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 160,
        "max_position_embeddings": 256,
    }
    model = kind(config(**{**options, **changes})).eval()
    for name, weight in model.named_parameters():  # the initial ones are all 0 or all 1
        if name.endswith(("proj.bias", "q_norm.weight", "k_norm.weight")):
            torch.nn.init.normal_(weight, mean=0.5, std=0.5)
    return model


def native(model: PreTrainedModel) -> HuggingFaceModel:
    wrapped = HuggingFaceModel(copy.deepcopy(model).to(torch.bfloat16), "native")
    assert isinstance(wrapped._backend, CompiledLlama)
    return wrapped


SHAPES = [
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 1},
    {"head_dim": 64},
    {"head_dim": 96},
    {"head_dim": 128, "num_attention_heads": 2},
    {"tie_word_embeddings": True, "num_hidden_layers": 1},
    {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 32},
    {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    {"family": "mistral", "sliding_window": None},
    {"family": "qwen2", "hidden_size": 128},
    {"family": "qwen3"},
]


@pytest.mark.sample(8, cover=False)
@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 70])
def test_logits_match_the_model_to_rounding(changes, count):
    model = llama(**changes)
    ids = torch.randint(model.config.vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = model(ids[None]).logits[0]
        rounded = copy.deepcopy(model).to(torch.bfloat16)(ids[None]).logits[0].float()
    compiled = native(model)
    found = compiled.open(count).forward(ids, torch.arange(count), causal_mask(count), keep=count)
    assert found.dtype == torch.float32 and found.shape == exact.shape
    assert (found - exact).abs().max() < 1.5 * (rounded - exact).abs().max() + 1e-3
    assert (found - exact).abs().mean() < (rounded - exact).abs().mean() + 1e-4


@pytest.mark.sample(16)
@pytest.mark.parametrize("changes", SHAPES)
def test_rows_are_bitwise_equal_alone_in_chunks_and_in_trees(changes):
    """The invariance that makes greedy trees equal greedy decoding in bfloat16, bit for bit."""
    model = native(llama(**changes))
    vocab = model.vocab_size
    ids = torch.randint(vocab, (75,), generator=torch.Generator().manual_seed(2))
    alone = []
    cache = model.open(200)
    for place, token in enumerate(ids):
        alone.append(cache.forward(token[None], torch.tensor([place]), torch.zeros(1, 1), keep=1))
    alone = torch.cat(alone)
    for chunk in (75, 33, 20, 7):
        rows = []
        cache = model.open(200)
        for start in range(0, 75, chunk):
            part = ids[start : start + chunk]
            places = torch.arange(start, start + len(part))
            rows.append(cache.forward(part, places, causal_mask(len(part)), keep=len(part)))
        assert torch.equal(torch.cat(rows), alone)
    # Some of the tokens again, as one path of a tree with random other nodes.
    rng = np.random.default_rng(3)
    for start in (64, 63, 50, 33, 31):
        cache = model.open(200)
        cache.forward(ids[:start], torch.arange(start), causal_mask(start), keep=1)
        tree = TokenTree(np.sort([-1, *(int(rng.integers(i // 3, i)) for i in range(1, 40))]))
        nodes = tree.path_to(int(np.argmax(tree.depths)))
        tokens = torch.randint(vocab, (tree.size,), generator=torch.Generator().manual_seed(start))
        for node, token in zip(nodes, ids[start:], strict=False):
            tokens[node] = token
        plan = get_tree_plan(tree)
        found = cache.forward(tokens, torch.from_numpy(plan.depths) + start, plan.tree_mask, keep=tree.size)
        assert torch.equal(found[nodes][: 75 - start], alone[start : start + len(nodes)]) and len(nodes) > 4
        cache.commit(start, nodes)
        after = start + len(nodes)
        following = cache.forward(ids[after : after + 1], torch.tensor([after]), torch.zeros(1, 1), keep=1)
        assert torch.equal(following[0], alone[after])


@pytest.mark.sample(16)
@pytest.mark.parametrize("changes", SHAPES)
def test_long_branches_are_bitwise_equal_to_plain_text(changes):
    """Rows that see slots with gaps are summed by vectors instead of the matrix unit, which must keep its order.

    Most orders would round to the same bfloat16. So all keys have equal weights here, and every other value is very
    large and cancels with the one two positions later, which erases whatever was added in between.
    """
    model = llama(**changes)
    first = model.model.layers[0].self_attn
    table = model.model.embed_tokens.weight
    with torch.no_grad():
        first.k_proj.weight.zero_()
        first.v_proj.weight[:, 0] *= 1e6
        table[:, 0] = 0.0
        table[:2] = 0.0
        table[:2, 0] = torch.tensor([1.0, -1.0])
    model = native(model)
    start = 40
    depth = 120
    ids, others = torch.randint(2, model.vocab_size, (2, start + depth), generator=torch.Generator().manual_seed(4))
    ids[0::4] = 0
    ids[2::4] = 1
    cache = model.open(start + depth)
    alone = []
    for place, token in enumerate(ids):
        alone.append(cache.forward(token[None], torch.tensor([place]), torch.zeros(1, 1), keep=1))
    tree = TokenTree(np.array([-1, 0, *range(2 * depth - 3)]))  # two interleaved chains below the root
    depths = torch.from_numpy(get_tree_plan(tree).depths)
    branch = [0, *range(1, tree.size, 2)]
    tokens = others[start + depths]
    tokens[branch] = ids[start:]
    cache = model.open(start + tree.size)
    cache.forward(ids[:start], torch.arange(start), causal_mask(start), keep=1)
    found = cache.forward(tokens, depths + start, get_tree_plan(tree).tree_mask, keep=tree.size)
    assert torch.equal(found[branch], torch.cat(alone[start:]))


def test_only_requested_rows_and_tokens_are_returned():
    model = native(llama())
    model.vocab_size = 90
    ids = torch.arange(20)
    whole = model.open(20).forward(ids, ids, causal_mask(20), keep=20)
    last = model.open(20).forward(ids, ids, causal_mask(20), keep=3)
    assert whole.shape == (20, 90) and torch.equal(last, whole[-3:])


def test_out_of_range_ids_positions_and_slots_are_rejected():
    cache = native(llama()).open(5)
    for ids, places in (([101], [0]), ([-1], [0]), ([1], [256]), ([1], [-1])):
        with pytest.raises(ValueError, match="expected ids below 101 and positions below 256"):
            cache.forward(torch.tensor(ids), torch.tensor(places), torch.zeros(1, 1), keep=1)
    cache.forward(torch.arange(4), torch.arange(4), causal_mask(4), keep=1)
    with pytest.raises(ValueError, match="found 4 \\+ 2 tokens, expected at most 5 slots"):
        cache.forward(torch.arange(2), torch.arange(4, 6), causal_mask(2), keep=1)


def test_large_activations_stay_finite():
    model = llama()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight.mul_(3000.0)
    compiled = native(model)
    ids = torch.arange(20)
    found = compiled.open(20).forward(ids, ids, causal_mask(20), keep=20)
    assert torch.isfinite(found).all()


def test_floating_point_mode_of_the_caller_is_restored():
    """A pass flushes denormals, as the matrix unit does; other code on this thread must not."""
    model = native(llama())
    ids = torch.arange(20)
    model.open(20).forward(ids, ids, causal_mask(20), keep=20)
    tiny = np.full(8, 1e-40, dtype=np.float32)
    assert (tiny * np.float32(0.5) > 0).all()


def test_unsupported_models_keep_the_pytorch_path():
    tiles = {"hidden_size": 80}, {"intermediate_size": 48}, {"head_dim": 16}
    rotations = {"rope_type": "default", "partial_rotary_factor": 0.5}, {"rope_type": "dynamic", "factor": 2.0}
    turned = [{"rope_parameters": {"rope_theta": 1e4} | rotation} for rotation in rotations]
    for changes in (*tiles, *turned, {"hidden_act": "gelu"}, {"family": "mistral", "sliding_window": 255}):
        assert not CompiledLlama.supports(llama(**changes).to(torch.bfloat16))
    model = llama().to(torch.bfloat16)
    model.model.layers[1].mlp.down_proj.float()
    assert not CompiledLlama.supports(model) and not CompiledLlama.supports(llama())


@pytest.mark.slow
def test_models_and_caches_are_freed(full):
    import resource

    model = llama(vocab_size=4096, hidden_size=256, num_hidden_layers=2, intermediate_size=512).to(torch.bfloat16)
    ids = torch.arange(64)

    def use() -> int:
        wrapped = HuggingFaceModel(copy.deepcopy(model), "native")
        wrapped.open(2000).forward(ids, ids, causal_mask(64), keep=1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for _ in range(5):
        before = use()
    for _ in range(60 if full else 20):
        after = use()
    assert after - before < 40_000  # KiB; one model and its cache take about 12 MiB


@pytest.fixture(scope="module")
def demo_pair():
    return load_pair(dtype="bfloat16")


@pytest.fixture(scope="module")
def prompts(demo_pair):
    texts = ["def main():\n    ", "import os\nimport sys\n\n\nclass Reader:\n", "    return [x for x in "]
    return [demo_pair.tokenizer.encode(text) for text in texts]


TREES = {
    "chain": TokenTree(np.arange(9) - 1),
    "ragged": TokenTree(np.array([-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 8, 10])),
    "best": optimal_tree(AcceptanceVector([0.6, 0.15, 0.06, 0.03, 0.02]), size=64, depth=8),
}


@pytest.fixture(scope="module")
def continuations(demo_pair, prompts):
    return [tokens_of(autoregressive(ids, demo_pair, max_new_tokens=64)) for ids in prompts]


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES)
def test_greedy_bfloat16_equals_autoregressive_token_for_token(tree, demo_pair, prompts, continuations):
    for ids, plain in zip(prompts, continuations, strict=True):
        steps = decode(ids, demo_pair, tree=TREES[tree], max_new_tokens=64)
        assert tokens_of(steps) == plain


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(
    "sampling, verifier",
    [(SamplingConfig(), "sequoia"), *itertools.product((SamplingConfig(0.7), SamplingConfig(0.7, 0.8, 40)), VERIFIERS)],
)
@pytest.mark.parametrize("tree", TREES)
def test_one_call_drafts_the_same_tree_as_level_by_level(tree, sampling, verifier, demo_pair, prompts, monkeypatch):
    """Equal seeds give equal tokens, probabilities and decisions."""

    def run():
        steps = decode(
            prompts[1],
            demo_pair,
            tree=TREES[tree],
            max_new_tokens=32,
            sampling=sampling,
            verifier=verifier,
            generator=torch.Generator().manual_seed(6),
        )
        return [(s.tokens, s.new_tokens, s.outcomes, s.draft_probs, s.target_probs, s.trials) for s in steps]

    at_once = run()
    monkeypatch.setattr(CompiledDrafter, "supports", lambda *args: False)
    assert run() == at_once


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("tree", ["chain", "deterministic", "sampled"])
def test_non_finite_draft_is_named(tree, demo_pair, prompts):
    broken = copy.deepcopy(demo_pair.draft.model)
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    pair = pair_of(demo_pair.target, HuggingFaceModel(broken, "broken", vocab_size=demo_pair.draft.vocab_size))
    grown = {"profile": None, "calibration": calibration_of(0.7, temperature=0.7), "max_size": 9}
    policy = TREES[tree] if tree in TREES else AdaptiveTree(recipe=tree, **grown)
    with pytest.raises(FloatingPointError, match="step 0: the draft model returned non-finite logits"):
        list(decode(prompts[0], pair, tree=policy, sampling=SamplingConfig(0.7)))
