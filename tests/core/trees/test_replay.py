"""Replays compared with a plain walk."""

import numpy as np
import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.trees.plain import chain_tree
from sequoia_core.trees.replay import replay, replay_while_growing
from sequoia_core.trees.tree import TokenTree

RAGGED = TokenTree(np.array([-1, 0, 0, 1, 1, 2, 3, 3, 3, 8]))


def with_texts(texts, width=4) -> AcceptanceVector:
    """Return a vector measured on texts with these accepted ranks."""
    sums = np.array([[np.count_nonzero(ranks == k) for k in range(1, width + 1)] for ranks in texts], dtype=float)
    counts = np.array([len(ranks) for ranks in texts])
    return AcceptanceVector(
        sums.sum(0) / counts.sum(), prompt_sums=sums, prompt_trials=counts, prompt_ranks=tuple(texts)
    )


def steps_of(tree, ranks) -> int:
    """Return the steps of decoding one text: along accepted ranks from the root, then the bonus token."""
    at = steps = 0
    while at < len(ranks):
        node = 0
        while at < len(ranks) and 1 <= ranks[at] <= len(tree.children(node)):
            node = tree.children(node)[ranks[at] - 1]
            at += 1
        at, steps = at + 1, steps + 1
    return steps


@pytest.mark.parametrize(
    "tree", [RAGGED, chain_tree(3), chain_tree(40), TokenTree(np.array([-1])), TokenTree(np.array([-1, 0, 0, 0, 0, 0]))]
)
def test_replay_matches_a_plain_walk(tree):
    rng = np.random.default_rng(1)
    texts = [rng.choice(5, size, p=[0.15, 0.5, 0.2, 0.1, 0.05]) for size in (1, 2, 17, 60, 31)]
    found = replay(tree, with_texts(texts))
    assert found.tokens.tolist() == [1, 2, 17, 60, 31]
    assert found.steps.tolist() == [steps_of(tree, text) for text in texts]
    assert found.tokens_per_step == found.tokens.sum() / found.steps.sum()
    assert replay(tree, AcceptanceVector(np.array([0.5]))) is None  # stores no texts


def test_replaying_growing_trees_matches_replaying_each_tree():
    rng = np.random.default_rng(2)
    vector = with_texts([rng.choice(5, 80, p=[0.15, 0.5, 0.2, 0.1, 0.05]) for _ in range(3)])
    sizes = [1, 3, 7, 10]
    found = replay_while_growing(RAGGED.parents, RAGGED.child_ranks, sizes, vector)
    for size, one in zip(sizes, found, strict=True):
        assert one.steps.tolist() == replay(TokenTree(RAGGED.parents[:size]), vector).steps.tolist()


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([[1, 2]], "one rank per position"),
        ([[1, 2, 9]], "outside 0 to 4"),
    ],
)
def test_invalid_prompt_ranks_are_refused(ranks, message):
    with pytest.raises(ValueError, match=message):
        AcceptanceVector(np.full(4, 0.1), prompt_sums=[[1.0, 0, 0, 0]], prompt_trials=[3], prompt_ranks=ranks)
    with pytest.raises(ValueError, match="without prompt_sums"):
        AcceptanceVector(np.full(4, 0.1), prompt_ranks=([1],))
