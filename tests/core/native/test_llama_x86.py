"""Compiled passes: right to rounding, the same bits however tokens are grouped, drafting level by level.

All of it holds for each instruction set that this processor can run, and for those emulated in software.
"""

import copy
import ctypes
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

from sequoia_core import (
    AcceptanceVector,
    AdaptiveTree,
    SamplingConfig,
    TokenTree,
    autoregressive,
    decode,
    load_pair,
    optimal_tree,
)
from sequoia_core.decoding.drafting import CompiledDrafter
from sequoia_core.decoding.growing import compiled_growing
from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.decoding.plan import plan_of
from sequoia_core.decoding.tree_policy import policy_of
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.native import compile_c, instruction_sets
from sequoia_core.native.drafting_calls import DraftCall, GrowCall
from sequoia_core.native.llama_x86 import FLAGS, CompiledLlama, compiled
from tests.conftest import calibration_of, pair_of, tokens_of
from tests.core.native.test_compile_c import needs_compiler
from tests.core.native.test_instruction_sets import RUNNABLE

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not RUNNABLE, reason="the processor has neither AVX-512 nor AVX2"),
]


@pytest.fixture(scope="module", autouse=True, params=RUNNABLE)
def instructions(request):
    """Each set in turn: everything below holds for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(instruction_sets.VARIABLE, request.param)
        functions, reason = compiled()
        if functions is None and "grant" not in reason and "switched off" not in reason:
            compiler_is_old = "unrecognized command-line option" in reason or "unknown argument" in reason
            assert compiler_is_old, reason  # any other is a reason to fail: here it can be built
        if functions is None:
            pytest.skip(reason)
        yield instruction_sets.BY_NAME[request.param]


def test_a_model_says_what_runs_it(instructions):
    found = HuggingFaceModel(llama().to(torch.bfloat16), "by").backend
    assert found == f"compiled code for {instructions.description}"


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
        "vocab_size": 101, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 160, "max_position_embeddings": 256,
    }  # fmt: skip
    model = kind(config(**{**options, **changes})).eval()
    for name, weight in model.named_parameters():  # fresh ones are all 0 or all 1
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
    {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    {"family": "mistral", "sliding_window": None},
    {"family": "qwen2", "hidden_size": 128},
    {"family": "qwen3"},
]  # fmt: skip


def causal(count: int) -> torch.Tensor:
    return torch.full((count, count), -torch.inf).triu(1)


@pytest.mark.sample(24)
@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 70])
def test_logits_are_the_models_to_rounding(changes, count):
    model = llama(**changes)
    ids = torch.randint(model.config.vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        exact = model(ids[None]).logits[0]
        rounded = copy.deepcopy(model).to(torch.bfloat16)(ids[None]).logits[0].float()
    compiled = native(model)
    found = compiled.open(count).forward(ids, torch.arange(count), causal(count), keep=count)
    assert found.dtype == torch.float32 and found.shape == exact.shape
    assert (found - exact).abs().max() < 1.5 * (rounded - exact).abs().max() + 1e-3  # no worse than PyTorch's rounding
    assert (found - exact).abs().mean() < (rounded - exact).abs().mean() + 1e-4


@pytest.mark.sample(16)
@pytest.mark.parametrize("changes", SHAPES)
def test_a_row_has_the_same_bits_alone_in_a_chunk_and_in_a_tree(changes):
    """The invariance that makes greedy trees equal greedy decoding in bfloat16, bit for bit."""
    model = native(llama(**changes))
    vocab = model.vocab_size
    ids = torch.randint(vocab, (75,), generator=torch.Generator().manual_seed(2))
    alone, cache = [], model.open(200)
    for place, token in enumerate(ids):
        alone.append(cache.forward(token[None], torch.tensor([place]), torch.zeros(1, 1), keep=1))
    alone = torch.cat(alone)
    for chunk in (75, 33, 20, 7):
        rows, cache = [], model.open(200)
        for start in range(0, 75, chunk):
            part = ids[start : start + chunk]
            places = torch.arange(start, start + len(part))
            rows.append(cache.forward(part, places, causal(len(part)), keep=len(part)))
        assert torch.equal(torch.cat(rows), alone)
    # some of the tokens once more, as one path of a tree whose other nodes hold anything
    rng = np.random.default_rng(3)
    for start in (64, 63, 50, 33, 31):
        cache = model.open(200)
        cache.forward(ids[:start], torch.arange(start), causal(start), keep=1)
        tree = TokenTree(np.sort([-1, *(int(rng.integers(i // 3, i)) for i in range(1, 40))]))
        nodes = tree.path_to(int(np.argmax(tree.depths)))
        tokens = torch.randint(vocab, (tree.size,), generator=torch.Generator().manual_seed(start))
        for node, token in zip(nodes, ids[start:], strict=False):
            tokens[node] = token
        tree_mask = torch.zeros(tree.size, tree.size).masked_fill(torch.from_numpy(~tree.ancestor_mask), -torch.inf)
        places = torch.from_numpy(tree.depths.astype(np.int64)) + start
        found = cache.forward(tokens, places, tree_mask, keep=tree.size)
        assert torch.equal(found[nodes][: 75 - start], alone[start : start + len(nodes)]) and len(nodes) > 4
        cache.commit(start, nodes)  # and after the path was committed
        after = start + len(nodes)
        following = cache.forward(ids[after : after + 1], torch.tensor([after]), torch.zeros(1, 1), keep=1)
        assert torch.equal(following[0], alone[after])


@pytest.mark.sample(16)
@pytest.mark.parametrize("changes", SHAPES)
def test_a_long_branch_has_the_bits_it_has_alone(changes):
    """Where a row sees slots with gaps between them, vectors add up what elsewhere the matrix unit does: in its order.

    Most orders would round to the same bfloat16. So every key weighs the same here, and each second value is very large
    and cancels with the one two places on, which leaves nothing of what was added to it in between.
    """
    model = llama(**changes)
    first, table = model.model.layers[0].self_attn, model.model.embed_tokens.weight
    with torch.no_grad():
        first.k_proj.weight.zero_()
        first.v_proj.weight[:, 0] *= 1e6
        table[:, 0] = 0.0
        table[:2] = 0.0
        table[:2, 0] = torch.tensor([1.0, -1.0])
    model, start, depth = native(model), 40, 120
    ids, others = torch.randint(2, model.vocab_size, (2, start + depth), generator=torch.Generator().manual_seed(4))
    ids[0::4], ids[2::4] = 0, 1
    cache, alone = model.open(start + depth), []
    for place, token in enumerate(ids):
        alone.append(cache.forward(token[None], torch.tensor([place]), torch.zeros(1, 1), keep=1))
    tree = TokenTree(np.array([-1, 0, *range(2 * depth - 3)]))  # two chains below the root, node beside node
    depths = torch.from_numpy(tree.depths.astype(np.int64))
    branch = [0, *range(1, tree.size, 2)]
    tokens = others[start + depths]
    tokens[branch] = ids[start:]
    cache = model.open(start + tree.size)
    cache.forward(ids[:start], torch.arange(start), causal(start), keep=1)
    tree_mask = torch.zeros(tree.size, tree.size).masked_fill(torch.from_numpy(~tree.ancestor_mask), -torch.inf)
    found = cache.forward(tokens, depths + start, tree_mask, keep=tree.size)
    assert torch.equal(found[branch], torch.cat(alone[start:]))


PROBE = """
#include <immintrin.h>
#include "lanes.h"
void narrow_all(bf16 *to, const float *from, int count) {
    for (int i = 0; i < count; i += LANES) narrow(to + i, load(from + i));
}
void exponentials(float *to, const float *from, int count) {
    for (int i = 0; i < count; i += LANES) store(to + i, exponential(load(from + i)));
}
"""


@pytest.fixture(scope="module")
def lanes(instructions, tmp_path_factory):
    """The functions of lanes.h with the flags of each instruction set."""
    if instructions.emulated:
        pytest.skip("what is emulated is tested in test_amx_emulation")
    folder = tmp_path_factory.mktemp("lanes")
    source = folder / "probe.c"
    source.write_text(PROBE)
    flags = [*FLAGS, *instructions.flags, f"-I{compile_c.FOLDER}"]
    return ctypes.CDLL(str(compile_c.build([source], flags, folder / "built")))


def test_narrowing_rounds_to_nearest_even_and_keeps_what_is_no_number(lanes):
    rng = np.random.default_rng(1)
    edges = [0.0, -0.0, np.inf, -np.inf, 1.00390625, 1.01171875, -1.00390625, 3.4e38, -3.4e38, 1.0, 7.0, np.nan]
    values = np.concatenate([edges, rng.normal(size=500), 10.0 ** rng.uniform(-30, 30, size=512)]).astype(np.float32)
    values = np.concatenate([values, np.float32([1.5, 2.5, 3.5, -0.75] * 4)])
    bits = (rng.integers(2**15, size=512).astype(np.uint32) << 16 | 0x8000).view(np.float32)  # halves between two
    values = np.concatenate([values, bits[np.isfinite(bits) & (bits > 1e-30)]])
    values = values[: len(values) // 16 * 16].copy()
    found = np.empty(len(values), dtype=np.uint16)
    lanes.narrow_all(*(ctypes.c_void_p(array.ctypes.data) for array in (found, values)), len(values))
    wanted = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(found[number], wanted[number])
    assert np.isnan((found[~number].astype(np.uint32) << 16).view(np.float32)).all()


def test_the_exponential_is_right_to_seven_digits(lanes):
    values = -np.float32(np.concatenate([np.linspace(0, 69, 4000), [1e-8] * 16]))
    found = np.empty_like(values)
    lanes.exponentials(*(ctypes.c_void_p(array.ctypes.data) for array in (found, values)), len(values))
    np.testing.assert_allclose(found, np.exp(values.astype(np.float64)), rtol=2.5e-7)
    beyond = np.float32([-70.0, -1e30, -np.inf, np.nan] * 4)
    lanes.exponentials(*(ctypes.c_void_p(array.ctypes.data) for array in (found, beyond)), 16)
    assert (found[:3] < 2e-30).all() and (found[:3] > 0).all() and np.isnan(found[3])


def test_only_the_wanted_rows_of_a_cut_vocabulary_are_returned():
    model = native(llama())
    model.vocab_size = 90
    ids = torch.arange(20)
    whole = model.open(20).forward(ids, ids, causal(20), keep=20)
    last = model.open(20).forward(ids, ids, causal(20), keep=3)
    assert whole.shape == (20, 90) and torch.equal(last, whole[-3:])


def test_a_full_cache_is_refused_with_the_numbers():
    model = native(llama())
    cache = model.open(5)
    cache.forward(torch.arange(4), torch.arange(4), causal(4), keep=1)
    with pytest.raises(ValueError, match="found 4 \\+ 2 tokens, expected at most 5 slots"):
        cache.forward(torch.arange(2), torch.arange(4, 6), causal(2), keep=1)


@pytest.mark.sample(6)
@pytest.mark.parametrize("ids, places", [([101], [0]), ([-1], [0]), ([1], [256]), ([1], [-1])])
def test_ids_and_positions_that_are_not_there_are_refused(ids, places):
    model = native(llama())
    with pytest.raises(ValueError, match="expected ids below 101 and positions below 256"):
        model.open(5).forward(torch.tensor(ids), torch.tensor(places), torch.zeros(1, 1), keep=1)


def test_large_activations_stay_finite():
    model = llama()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight.mul_(3000.0)
    compiled, ids = native(model), torch.arange(20)
    found = compiled.open(20).forward(ids, ids, causal(20), keep=20)
    assert torch.isfinite(found).all()


def test_other_defaults_of_torch_change_nothing():
    model, ids = native(llama()), torch.arange(20)
    wanted = model.open(20).forward(ids, ids, causal(20), keep=20)
    torch.set_default_dtype(torch.bfloat16)  # as transformers does for a while when it loads a model
    threads = torch.get_num_threads()
    try:
        cache, tree_mask = model.open(40), causal(20)
        torch.set_num_threads(1)
        cache.forward(ids[:10], ids[:10], causal(10), keep=10)
        cache.commit(0, [])
        torch.set_num_threads(3)
        assert torch.equal(cache.forward(ids.int(), ids, tree_mask, keep=20), wanted)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)


def test_the_callers_arithmetic_is_left_as_it_was():
    """A pass flushes numbers too small to be normal, as the matrix unit does; others on this thread keep theirs."""
    model, ids = native(llama()), torch.arange(20)
    model.open(20).forward(ids, ids, causal(20), keep=20)
    tiny = np.full(8, 1e-40, dtype=np.float32)
    assert (tiny * np.float32(0.5) > 0).all()


def test_a_model_with_a_layer_in_another_format_keeps_the_other_path():
    model = llama().to(torch.bfloat16)
    model.model.layers[1].mlp.down_proj.float()
    assert not CompiledLlama.supports(model)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 80}, {"intermediate_size": 48}, {"head_dim": 16}], ids=["hidden", "inner", "head"]
)
def test_sizes_that_fill_no_tiles_keep_the_other_path(changes):
    assert not CompiledLlama.supports(llama(**changes).to(torch.bfloat16))
    assert not CompiledLlama.supports(llama())  # nor does float32


def test_what_it_allocates_is_given_back(full):
    import resource

    model = llama(vocab_size=4096, hidden_size=256, num_hidden_layers=2, intermediate_size=512).to(torch.bfloat16)
    ids = torch.arange(64)

    def use() -> int:
        wrapped = HuggingFaceModel(copy.deepcopy(model), "native")
        wrapped.open(2000).forward(ids, ids, causal(64), keep=1)
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


@pytest.mark.sample(6)
@pytest.mark.parametrize("tree", TREES)
def test_greedy_bfloat16_equals_autoregressive_token_for_token(tree, demo_pair, prompts, continuations):
    for ids, plain in zip(prompts, continuations, strict=True):
        steps = decode(ids, demo_pair, tree=TREES[tree], max_new_tokens=64)
        assert tokens_of(steps) == plain


@pytest.mark.parametrize(
    "sampling, verifier",
    [(SamplingConfig(), "sequoia"), *itertools.product((SamplingConfig(0.7), SamplingConfig(0.7, 0.8, 40)), VERIFIERS)],
)
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_drafted_in_one_call_is_that_drafted_level_by_level(
    tree, sampling, verifier, demo_pair, prompts, monkeypatch
):
    """Same tokens, probabilities and decisions under the same seed."""

    def run():
        steps = decode(
            prompts[1], demo_pair, tree=TREES[tree], max_new_tokens=32,
            sampling=sampling, verifier=verifier, generator=torch.Generator().manual_seed(6),
        )  # fmt: skip
        return [(s.tokens, s.new_tokens, s.outcomes, s.draft_probs, s.target_probs, s.trials) for s in steps]

    at_once = run()
    monkeypatch.setattr(CompiledDrafter, "supports", lambda *args: False)
    assert run() == at_once


def test_a_compiled_chain_drafted_by_the_target_itself_is_accepted_whole_at_any_top_p(demo_pair, prompts):
    for verifier, top_p in itertools.product(("sequoia", "specinfer", "traversal"), (0.5, 0.8)):
        *steps, _ = decode(
            prompts[1], pair_of(demo_pair.target, demo_pair.target), tree=TokenTree(np.arange(-1, 4)),
            sampling=SamplingConfig(1.0, top_p), verifier=verifier, generator=torch.Generator().manual_seed(6),
            max_new_tokens=20,
        )  # fmt: skip
        assert steps and all(len(step.new_tokens) == 5 for step in steps)


def test_a_way_of_drawing_that_compiled_code_lacks_is_refused(demo_pair):
    """It would draw without replacement in silence."""
    levels = plan_of(TREES["ragged"]).levels
    with pytest.raises(ValueError, match="draft_sampling: found 'antithetic', expected one of without replacement"):
        DraftCall(demo_pair.draft.open(64), levels, draft_sampling="antithetic")
    assert not CompiledDrafter.supports(demo_pair.draft.open(64), policy_of(TREES["ragged"]), lambda *args: None)


def test_drafting_stops_at_the_context_limit(demo_pair):
    ids = list(range(1, 480))
    steps = list(decode(ids, demo_pair, tree=TREES["ragged"], max_new_tokens=100))
    assert steps[-1].finished in ("context", "eos")
    assert sum(len(step.new_tokens) for step in steps) <= 512 - 479


def test_nodes_beyond_the_context_are_drafted_at_its_last_position(demo_pair, monkeypatch):
    """A tree may reach further than the draft has positions; nothing behind its tables of angles is read."""

    def run():
        steps = decode(list(range(1, 504)), demo_pair, tree=TREES["chain"], max_new_tokens=99)
        return [(step.tokens, step.draft_probs, step.finished) for step in steps]

    at_once = run()
    assert at_once[-1][-1] == "context"
    monkeypatch.setattr(CompiledDrafter, "supports", lambda *args: False)
    assert run() == at_once


def growing_policies(temperature):
    calibration = calibration_of(0.7, temperature=temperature)
    yield SpecExecTree(max_size=24, max_depth=6, beam=4)
    for recipe in ("deterministic", "sampled"):
        yield AdaptiveTree(profile=None, calibration=calibration, max_size=40, max_depth=6, recipe=recipe)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_tree_grown_in_one_call_is_that_grown_wave_by_wave(temperature, demo_pair, prompts, monkeypatch):
    """Same trees, tokens, probabilities and decisions under the same seed, up to the context's end."""
    calls = []
    in_one_call = GrowCall.grow
    monkeypatch.setattr(GrowCall, "grow", lambda self, *given: calls.append(1) or in_one_call(self, *given))

    def run(policy, ids):
        steps = decode(
            ids, demo_pair, tree=policy, max_new_tokens=40,
            sampling=SamplingConfig(temperature), generator=torch.Generator().manual_seed(6),
        )  # fmt: skip
        return [
            (s.tree, s.tokens, s.new_tokens, s.outcomes, s.draft_probs, s.target_probs, s.trials, s.finished)
            for s in steps
        ]

    for policy in growing_policies(temperature):
        for ids in (prompts[1], list(range(1, 500))):
            calls.clear()
            at_once = run(policy, ids)
            assert len(calls) >= sum(tree.size > 1 for tree, *_ in at_once)  # at the context's end nothing is drafted
            with monkeypatch.context() as patch:  # as for a draft whose passes are not compiled
                patch.setattr(compiled_growing, "CompiledSession", type(None))
                calls.clear()
                assert run(policy, ids) == at_once and not calls


@pytest.mark.sample(6)
@pytest.mark.parametrize("tree", ["chain", "deterministic", "sampled"])
def test_a_draft_that_is_not_finite_is_named(tree, demo_pair, prompts):
    broken = copy.deepcopy(demo_pair.draft.model)
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    pair = pair_of(demo_pair.target, HuggingFaceModel(broken, "broken", vocab_size=demo_pair.draft.vocab_size))
    grown = {"profile": None, "calibration": calibration_of(0.7, temperature=0.7), "max_size": 9}
    policy = TREES[tree] if tree in TREES else AdaptiveTree(recipe=tree, **grown)
    with pytest.raises(FloatingPointError, match="step 0: the draft model returned logits that are not finite"):
        list(decode(prompts[0], pair, tree=policy, sampling=SamplingConfig(0.7)))
