"""Trees exchanged while a run goes on: at the step asked for, and without a trace in what is written.

The statistical test raises a false alarm with a probability below 1e-6; its seed is fixed besides.
"""

import numpy as np
import pytest
import torch

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.switching import SwitchingTree
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.design.plain_trees import branching_tree, chain_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.studies.losslessness import check_losslessness
from tests.conftest import tiny_llama

pytestmark = pytest.mark.usefixtures("each_rows")  # with compiled rows and without
PROMPT = [3, 14, 15, 9, 2, 6]
RAGGED = TokenTree(np.array([-1, 0, 0, 0, 1, 1, 3, 4, 4, 6, 9]))


def switching(*trees: TokenTree, at: int) -> SwitchingTree:
    """The first tree until step `at`, then the second."""
    return SwitchingTree(choose=lambda step: trees[step >= at], max_size=12, max_depth=5, max_children=4)


def tokens_of(steps):
    return [token for step in steps for token in step.new_tokens]


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize(
    "trees", [(RAGGED, chain_tree(4)), (chain_tree(2), RAGGED), (ROOT_ONLY, RAGGED), (RAGGED, ROOT_ONLY)]
)
def test_greedy_text_is_unchanged_and_the_switch_is_where_it_was_asked_for(trees, at, tiny_target, tiny_draft):
    steps = list(decode(PROMPT, target=tiny_target, draft=tiny_draft, tree=switching(*trees, at=at), max_new_tokens=30))
    assert len(steps) > at
    assert [step.tree for step in steps] == [trees[number >= at] for number in range(len(steps))]
    assert tokens_of(steps) == tokens_of(autoregressive(PROMPT, target=tiny_target, max_new_tokens=30))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_tree_that_is_never_exchanged_draws_what_it_draws_alone(verifier, tiny_target, tiny_draft):
    texts = []
    for tree in (RAGGED, switching(RAGGED, RAGGED, at=2)):
        options = {"generator": torch.Generator().manual_seed(4), "verifier": verifier, "sampling": SamplingConfig(0.8)}
        steps = decode(PROMPT, target=tiny_target, draft=tiny_draft, tree=tree, max_new_tokens=30, **options)
        texts.append(tokens_of(steps))
    assert texts[0] == texts[1]


def test_sampled_text_across_a_switch_follows_the_target():
    target, draft = (tiny_llama(seed, vocab=16, layers=1, scale=1.0) for seed in (1, 2))
    report = check_losslessness(
        (3,), target=target, draft=draft, tree=switching(chain_tree(1), branching_tree([3, 2]), at=1),
        sampling=SamplingConfig(0.6), samples=300, new_tokens=3,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert report.passed and report.degrees_of_freedom > 5


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        (branching_tree([4, 2]), "found size 13, expected at most 12"),
        (chain_tree(6), "found depth 6"),
        (branching_tree([5]), "5, expected at most 4"),
    ],
)
def test_a_tree_that_there_is_no_room_for_ends_the_run(tree, found, tiny_target, tiny_draft):
    steps = decode(PROMPT, target=tiny_target, draft=tiny_draft, tree=switching(chain_tree(2), tree, at=1))
    next(steps)
    with pytest.raises(ValueError, match=found):
        next(steps)


def test_compiled_drafting_of_a_real_pair_goes_on_across_a_switch(demo_pair):
    prompt = demo_pair.tokenizer.encode("def read(path):\n")
    policy = switching(chain_tree(3), RAGGED, at=2)
    steps = list(decode(prompt, target=demo_pair.target, draft=demo_pair.draft, tree=policy, max_new_tokens=24))
    assert {step.tree.size for step in steps} == {4, 11}
    assert tokens_of(steps) == tokens_of(autoregressive(prompt, target=demo_pair.target, max_new_tokens=24))
