"""Policies that choose a tree for each step; one that always chooses the same tree decodes like that tree."""

from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest
import torch

from sequoia_core.decoding import assemble
from sequoia_core.decoding.drafting import LevelDrafter
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.plan import get_tree_plan
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import FixedTree, TreePolicy, as_policy
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.trees.tree import TokenTree
from tests.conftest import pair_of, tiny_llama, tokens_of

pytestmark = pytest.mark.usefixtures("taking_turns")
PROMPT = [3, 14, 15, 9, 2, 6]
RAGGED = TokenTree(np.array([-1, 0, 0, 0, 1, 1, 3, 4, 4, 6, 9]))


@dataclass(frozen=True)
class TakingTurns(TreePolicy):
    """A policy that cycles through a few trees."""

    trees: tuple[TokenTree, ...]
    verifiers: tuple[str, ...] = tuple(VERIFIERS)

    @property
    def max_size(self):
        return max(tree.size for tree in self.trees)

    @property
    def max_inner(self):
        return self.max_size - 1

    @property
    def max_depth(self):
        return max(tree.depth for tree in self.trees)

    @property
    def max_children(self):
        return max(as_policy(tree).max_children for tree in self.trees)


class TurnDrafter(LevelDrafter):
    def __init__(self, run):
        super().__init__(run)
        self.turns = count()

    @staticmethod
    def supports(run):
        return isinstance(run.policy, TakingTurns)

    def grow(self, sequence):
        trees = self.run.policy.trees
        return self.fill_tree(get_tree_plan(trees[next(self.turns) % len(trees)]), sequence)


@pytest.fixture
def taking_turns(monkeypatch):
    """Register the drafter of the policy."""
    monkeypatch.setattr(assemble, "DRAFTERS", (*assemble.DRAFTERS, TurnDrafter))


def assert_records_plain_probabilities(policy, temperature=0.7, by_draft=True, head=None):
    """Check the probabilities in a run's steps against plain passes over each node's text.

    `head` makes a draft head for the target, which then replaces the draft.
    """
    target = tiny_llama(1, scale=1.0)
    draft = tiny_llama(2, layers=1, scale=1.0)  # mild logits limit rounding
    draft = draft if head is None else head(target)
    sequence = list(PROMPT)
    shown_at = temperature or 1.0  # a greedy run shows the probabilities at temperature 1
    for step in decode(
        PROMPT,
        pair_of(target, draft),
        tree=policy,
        sampling=SamplingConfig(temperature),
        max_new_tokens=30,
        generator=torch.Generator().manual_seed(9),
    ):
        for node in range(1, step.tree.size):
            text = sequence[:-1] + [step.tokens[place] for place in step.tree.path_to(node)]
            for model, seen in ((target, step.target_probs), (draft, step.draft_probs))[: 1 + by_draft]:
                if model.state_indices:
                    from tests.head_folders import plain_row  # of an optional package

                    logits = plain_row(model, text[:-1], true=len(sequence))
                else:
                    with torch.inference_mode():
                        logits = model.model(torch.tensor([text[:-1]])).logits[0, -1]
                assert seen[node] == pytest.approx(float((logits / shown_at).softmax(-1)[text[-1]]), abs=2e-6)
        sequence += step.new_tokens


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "sequoia"), *((0.8, name) for name in VERIFIERS)])
def test_a_policy_with_one_tree_decodes_like_that_tree(temperature, verifier, tiny_target, tiny_draft):
    """The results agree bit for bit, although the drafters and judges differ."""

    def steps(tree):
        found = decode(
            PROMPT,
            pair_of(tiny_target, tiny_draft),
            tree=tree,
            sampling=SamplingConfig(temperature),
            verifier=verifier,
            max_new_tokens=60,
            generator=torch.Generator().manual_seed(6),
        )
        return [
            (s.tree, s.tokens, s.new_tokens, s.outcomes, s.draft_probs, s.target_probs, s.trials, s.finished)
            for s in found
        ]

    assert steps(TakingTurns((RAGGED,))) == steps(RAGGED) == steps(FixedTree(RAGGED))


def test_a_policy_determines_the_default_and_the_exact_verifiers(tiny_target, tiny_draft):
    policy = TakingTurns((RAGGED,), verifiers=("topk",))
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 20}

    def text(**options):
        generator = torch.Generator().manual_seed(1)
        return tokens_of(decode(PROMPT, **models, sampling=SamplingConfig(1.0), generator=generator, **options))

    assert text(tree=policy) == text(tree=RAGGED, verifier="topk") != text(tree=RAGGED)
    with pytest.raises(ValueError, match="verifier: found 'sequoia', expected topk"):
        decode(PROMPT, **models, tree=policy, sampling=SamplingConfig(1.0), verifier="sequoia")
    decode(PROMPT, **models, tree=policy, verifier="sequoia")  # all verifiers agree at temperature 0
