"""Heads that draft a block in one pass: files, sessions, and the exact distribution of a step."""

import itertools

import numpy as np
import pytest
import torch

from sequoia_core.decoding.drafting import DraftRun, LevelDrafter, Reach
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig, probabilities
from sequoia_core.decoding.tree_policy import FixedTree
from sequoia_core.decoding.verifiers import VERIFIERS, draft_sampling_config
from sequoia_core.measuring import ranks_along_text
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.models.protocol import causal_mask, prefill
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from sequoia_core.trees.replay import replay
from sequoia_extras.draft_heads.blocks import read_blocks
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.evaluation.losslessness import check_losslessness
from tests.conftest import pair_of, tiny_llama, tokens_of
from tests.core.decoding.test_loop import PROMPT, greedy_reference
from tests.extras.dynamic_trees.test_dynamic_exactness import Script, filled_by, outcomes
from tests.head_folders import (
    DFLASH,
    SPECULATORS,
    head_fields,
    head_tensors,
    load_head,
    random_head,
    states_along,
    teach_blocks,
    write_head,
)
from tests.laws import DEPTH, law_after

SPEC_EXEC = SpecExecTree(max_size=8, max_depth=3, beam=2)


@pytest.fixture(scope="module")
def target():
    return tiny_llama(0, layers=6)


def test_published_ids_count_layers_and_default_to_even_steps(target, tmp_path):
    def reads(name, **fields):
        fields = head_fields(target.model, DFLASH, **fields)
        return load_head(write_head(tmp_path / name, fields, head_tensors(fields)), target.model).settings.reads

    assert reads("given", reads=(1, 4, 5)) == (1, 4, 5)
    assert reads("one") == (4,) and reads("three", layers=3) == (2, 3, 4)  # [3] and [1, 2, 3] in the authors' code
    inside = {"dflash_config": {"mask_token_id": 5, "block_size": 3}, "block_size": None}
    assert reads("inside", **inside) == (4,)


SPEC = {"form": SPECULATORS, "speculators_model_type": "dflash"}
FAULTS = {
    "mask_token_id: found 64, expected an id below 64": SPEC | {"mask_token_id": 64},
    "dflash_config.mask_token_id: found nothing": {"dflash_config": {"target_layer_ids": [1]}},
    "block_size: found nothing, expected the number of tokens": {"block_size": None},
    "num_target_layers: found 8, expected 6 as in this target": {"num_target_layers": 8, "reads": (1,)},
    "target_layer_ids: found 5, the target's last layer": {"reads": (1, 6)},
    "num_target_layers: found nothing, expected it or dflash_config": {"num_target_layers": None},
    "target_hidden_size: found 8, expected 32": {"dflash_config": {"mask_token_id": 5, "target_hidden_size": 8}},
    "layer_types: found 'sliding_attention', expected full": {"layer": {"layer_types": ["sliding_attention"]}},
    "layer_types: found 1, expected 2, one per layer": SPEC | {"layers": 2, "layer": {"layer_types": ["other"]}},
    "proposal_methods: found nothing": {
        "form": SPECULATORS, "speculators_model_type": "peagle", "speculators_config": {}
    },
}  # fmt: skip


@pytest.mark.parametrize("message", FAULTS)
def test_faulty_configs_are_rejected(message, target, tmp_path):
    fields = head_fields(target.model, **({"form": DFLASH} | FAULTS[message]))
    with pytest.raises(ValueError, match=message):
        load_head(write_head(tmp_path, fields, head_tensors(fields)), target.model)


HEADS = {
    "dflash": {"form": DFLASH, "layers": 2, "reads": (1,)},
    "from the anchor": SPEC | {"sample_from_anchor": True},
    "p-eagle": {"form": SPECULATORS, "speculators_model_type": "peagle"},
}
each_head = pytest.mark.parametrize("kind", HEADS)


@pytest.fixture(scope="module")
def text(tiny_target):
    return [*PROMPT, *greedy_reference(tiny_target, PROMPT, 60)]


@pytest.fixture(scope="module")
def dflash(tiny_target, text):
    return teach_blocks(random_head(tiny_target, **HEADS["dflash"]), [text])


@pytest.mark.parametrize("tree", [chain_tree(5), k_ary_tree(2, 3), SPEC_EXEC], ids=["chain", "tree", "SpecExec"])
@each_head
def test_one_pass_per_step_and_text_equal_to_generate(kind, tree, tiny_target, dflash, text):
    head = dflash if kind == "dflash" else random_head(tiny_target, **HEADS[kind])
    passes = []
    hook = head.head.register_forward_hook(lambda *_: passes.append(1))
    steps = list(decode(PROMPT, pair_of(tiny_target, head), tree=tree, max_new_tokens=40))
    hook.remove()
    assert tokens_of(steps) == text[len(PROMPT) :][:40]
    assert len(passes) == len(steps) + 1, "one for the prompt and one per step"
    if kind == "dflash":
        assert max(len(step.new_tokens) for step in steps) > 3, "the head has learnt this text"


def test_sessions_match_a_head_without_a_cache(tiny_target, dflash, text):
    """Read a text in two passes, drop some tokens, and look up rows of drafted tokens, one of them beyond the block."""
    count = 12
    states = states_along(dflash, text[:count])
    outputs = read_blocks(dflash.head, torch.tensor(text[:count]), dflash.head.project(states), torch.arange(count))
    wanted = dflash.target_logits(outputs[:, 1:].flatten(0, 1)).unflatten(0, (count, 3))
    own = dflash.open(24)
    prefill(tiny_target.open(24, dflash.state_indices), text[:count], reader=own)
    for begin, end in ((0, 1), (1, count)):
        ids = torch.tensor(text[begin:end])
        found = own.forward(ids, torch.arange(begin, end), causal_mask(end - begin), keep=end - begin)
        torch.testing.assert_close(found, wanted[begin:end, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dflash.plain_logits(torch.tensor(text[:count])), wanted[:, 0], rtol=1e-4, atol=1e-4)
    mask = causal_mask(5)
    mask[2, 1] = mask[3, 2] = mask[4, 2] = -torch.inf
    places = torch.tensor([7, 8, 8, 9, 10])
    for keep in (5, 1):
        own.commit(7, [])
        rows = own.forward(torch.tensor([text[7], 5, 6, 9, 9]), places, mask, keep=keep)
        torch.testing.assert_close(rows, wanted[7, [0, 1, 1, 2, 2]][-keep:], rtol=1e-4, atol=1e-4)
    own.commit(7, [0, 1])
    assert own.length == 8, "drafted tokens are dropped even if accepted"


SAMPLINGS = [SamplingConfig(0.0), SamplingConfig(0.6), SamplingConfig(1.0), SamplingConfig(1.0, 0.7)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("tree", [chain_tree(2), k_ary_tree(2, 2)], ids=["chain", "tree"])
@each_head
def test_a_step_follows_the_target_exactly(kind, tree, sampling):
    """Every draw and decision is enumerated, for a random target and head of three tokens."""
    text = [1, 2, 0]
    verifier = "topk" if sampling.greedy else "sequoia"
    for seed in range(2):
        target = tiny_llama(seed, vocab=3, scale=0.5)
        head = random_head(target, seed=seed, scale=3.0, **HEADS[kind])
        paths = itertools.chain(*(itertools.product(range(3), repeat=length) for length in range(DEPTH + 1)))
        logits = {path: target.plain_logits(torch.tensor([*text, *path]))[-1:].detach() for path in paths}
        law = {path: probabilities(rows, sampling)[0].double().numpy() for path, rows in logits.items()}
        found = np.zeros((3,) * (DEPTH + 1))
        script = Script()
        while True:
            read = target.open(9, head.state_indices)
            own = head.open(9)
            prefill(read, text[:-1], reader=own)
            prefill(own, text[:-1])
            drawn = draft_sampling_config(sampling, VERIFIERS[verifier])
            run = DraftRun(own, FixedTree(tree), filled_by(script, verifier), drawn, Reach(99, 99), torch.Generator())
            drafted = LevelDrafter(run).grow(text)
            weight = script.weight
            for new, share in outcomes(drafted, law, verifier):
                found[new] += weight * share * law_after(law, new, 3)
            if not script.next():
                break
        np.testing.assert_allclose(found, law_after(law, (), 3), atol=2e-6)
        if tree.depth < tree.size - 1:
            assert drafted.row(1).tolist() == drafted.row(2).tolist() != drafted.row(0).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tree", "sampling"),
    zip(HEADS, (SPEC_EXEC, k_ary_tree(2, 2), k_ary_tree(2, 2)), SAMPLINGS[1:], strict=True),
)
def test_sampled_text_follows_the_target(kind, tree, sampling):
    target = tiny_llama(1, vocab=16, scale=1.0)
    report = check_losslessness(
        [3, 5, 3],
        pair_of(target, random_head(target, scale=3.0, **HEADS[kind])),
        tree=tree,
        sampling=sampling,
        verifier="topk" if tree is SPEC_EXEC else "sequoia",
        samples=300,
        new_tokens=3,
        generator=torch.Generator().manual_seed(0),
    )
    assert report.passed and report.degrees_of_freedom > 5


def test_one_reading_measures_all_depths_and_predicts_decoding(tiny_target, dflash):
    """Blocks along a text have the acceptance by depth that decoding has, also across chunks of the text."""
    passes = []
    pair = pair_of(tiny_target, dflash)
    hook = dflash.head.register_forward_hook(lambda *_: passes.append(1))
    measured = measure_acceptance([PROMPT, [7, 8]], pair, width=8, max_new_tokens=60)
    hook.remove()
    assert len(passes) == 2 * 2, "one for each prompt and one for each text"
    for tree in (chain_tree(3), k_ary_tree(2, 3)):
        steps = [len(list(decode(prompt, pair, tree=tree, max_new_tokens=60))) for prompt in (PROMPT, [7, 8])]
        assert replay(tree, measured).steps.tolist() == steps and steps[0] < 40
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_along_text, "CHUNK", 7)
        again = measure_acceptance([PROMPT, [7, 8]], pair, width=8, max_new_tokens=60)
    for one, other in zip(measured.by_depth.prompt_ranks, again.by_depth.prompt_ranks, strict=True):
        np.testing.assert_array_equal(one, other)


def test_all_depths_of_a_block_and_one_more_are_measured(tiny_target):
    head = random_head(tiny_target, form=DFLASH, reads=(1,), block_size=12)
    measured = measure_acceptance([PROMPT], pair_of(tiny_target, head), width=4, max_new_tokens=30)
    assert head.depths_per_pass == 11 and measured.levels.shape == (12, 4)
