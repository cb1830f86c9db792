"""Traversal verification (arXiv 2505.12398): the exact law of a step, by enumeration of all draws and endings.

The target's law completes the tokens that a step leaves open.
"""

import itertools

import numpy as np
import pytest

from sequoia_core.decoding.walk import ScoredTree, stops
from sequoia_core.trees.plain import chain_tree
from tests.laws import law_after, random_law


def endings(tree, tokens, target, draft_row):
    """Yield (committed tokens, probability) for every possible ending of a walk from the leaves."""

    def path_to(node):
        return tuple(tokens[step] for step in tree.path_to(node)[1:])

    reach = 1.0
    scored = ScoredTree(tree, tokens, lambda node: target[path_to(node)], draft_row)
    for stop in stops(scored):
        chance = reach * (stop.share if stop.node else 1.0)  # the root is always kept, despite rounding
        if chance > 0.0:
            left = scored.target_row(stop.node) if stop.residual is None else stop.residual / stop.residual.sum()
            for token in np.flatnonzero(left):
                yield (*path_to(stop.node), int(token)), chance * left[token]
        reach *= 1.0 - stop.share
    assert stop.node == 0 and stop.share == pytest.approx(1.0, abs=1e-12)


def drawn_chains(target, draft, depth):
    """Yield (committed tokens, probability) for a step with a chain."""
    for drawn in itertools.product(range(len(draft[()])), repeat=depth):
        chance = np.prod([draft[drawn[:place]][token] for place, token in enumerate(drawn)])
        if chance > 0.0:
            rows = [draft[drawn[:node]] for node in range(depth + 1)]
            for text, share in endings(chain_tree(depth), [0, *drawn], target, rows.__getitem__):
                yield text, chance * share


@pytest.mark.parametrize("vocab", [2, 3])
def test_chains_of_three_follow_the_target_exactly(vocab):
    for seed in range(6):
        target = random_law(vocab, seed, 3)
        draft = random_law(vocab, 100 + seed, 3)
        law = np.zeros((vocab,) * 4)
        for text, chance in drawn_chains(target, draft, 3):
            law[text] += chance * law_after(target, text, vocab, 3)
        np.testing.assert_allclose(law, law_after(target, (), vocab, 3), atol=1e-14)


def test_a_chain_of_two_matches_block_verification():
    """Block verification (arXiv 2403.10444) accepts 11/9 tokens here, and token-by-token verification 10/9."""
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    target = dict.fromkeys(paths, np.array([1, 2]) / 3)
    draft = dict.fromkeys(paths, np.array([2, 1]) / 3)
    yielded = sum(chance * len(text) for text, chance in drawn_chains(target, draft, 2))
    assert yielded == pytest.approx(1 + 11 / 9, abs=1e-14)
