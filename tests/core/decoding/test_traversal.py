"""Traversal verification (arXiv 2505.12398): the whole law of a step, exact, by every draw and every way it can end.

What a step leaves open is completed by the target's own law.
"""

import itertools

import numpy as np
import pytest

from sequoia_core.decoding.walk import ScoredTree, stops
from sequoia_core.design.plain_trees import chain_tree
from tests.core.decoding.growing import test_dynamic_exactness as dynamic
from tests.core.decoding.growing.test_dynamic_exactness import PruningAfterTheDraw, law_after, random_law


def endings(tree, tokens, target, draft_row):
    """Yield (tokens committed, probability) for every way a walk from the leaves can end."""

    def path_to(node):
        return tuple(tokens[step] for step in tree.path_to(node)[1:])

    reach, scored = 1.0, ScoredTree(tree, tokens, lambda node: target[path_to(node)], draft_row)
    for stop in stops(scored):
        chance = reach * (stop.share if stop.node else 1.0)  # the root is kept whatever rounding says
        if chance > 0.0:
            left = scored.target_row(stop.node) if stop.residual is None else stop.residual / stop.residual.sum()
            for token in np.flatnonzero(left):
                yield (*path_to(stop.node), int(token)), chance * left[token]
        reach *= 1.0 - stop.share
    assert stop.node == 0 and stop.share == pytest.approx(1.0, abs=1e-12)


def by_traversal(drafted, target, verifier):
    return endings(drafted.tree, drafted.tokens.tolist(), target, drafted.row)


@pytest.mark.parametrize("kind", [dynamic.SampledExpansion, PruningAfterTheDraw])
def test_trees_shaped_by_what_was_drawn_before_keep_the_law(kind, monkeypatch):
    """Through the drafter that decoding uses; where drawn nodes are dropped by their tokens, it is caught."""
    monkeypatch.setattr(dynamic, "outcomes", by_traversal)
    for seed in range(4):
        target, draft = random_law(3, seed), random_law(3, 100 + seed)
        law, shapes = dynamic.law_of_a_step(dynamic.drawn_in_turn(seed, kind), "sequoia", target, draft, 3)
        fault = np.abs(law - law_after(target, (), 3)).max()
        assert fault > 1e-3 if kind is PruningAfterTheDraw else fault < 2e-7  # the draft's rows are float32
        assert len(shapes) > 1


def drawn_chains(target, draft, depth):
    """Yield (tokens committed, probability) of a step with a chain."""
    for drawn in itertools.product(range(len(draft[()])), repeat=depth):
        chance = np.prod([draft[drawn[:place]][token] for place, token in enumerate(drawn)])
        if chance > 0.0:
            rows = [draft[drawn[:node]] for node in range(depth + 1)]
            for text, share in endings(chain_tree(depth), [0, *drawn], target, rows.__getitem__):
                yield text, chance * share


@pytest.mark.parametrize("vocab", [2, 3])
def test_chains_of_three_keep_the_law(vocab):
    for seed in range(6):
        target, draft = random_law(vocab, seed, 3), random_law(vocab, 100 + seed, 3)
        law = np.zeros((vocab,) * 4)
        for text, chance in drawn_chains(target, draft, 3):
            law[text] += chance * law_after(target, text, vocab, 3)
        np.testing.assert_allclose(law, law_after(target, (), vocab, 3), atol=1e-14)


def test_a_chain_of_two_is_block_verification():
    """Worked out for block verification (arXiv 2403.10444): 11/9 tokens accepted, where token by token 10/9 are."""
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    target, draft = dict.fromkeys(paths, np.array([1, 2]) / 3), dict.fromkeys(paths, np.array([2, 1]) / 3)
    yielded = sum(chance * len(text) for text, chance in drawn_chains(target, draft, 2))
    assert yielded == pytest.approx(1 + 11 / 9, abs=1e-14)
