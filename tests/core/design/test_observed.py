"""What a run shows of acceptance by rank, and how far it corrects the vector in use."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.observed import PRIOR_NODES, corrected, count_ranks
from sequoia_core.design.plain_trees import branching_tree, chain_tree
from sequoia_core.design.tree import TokenTree

VECTOR = AcceptanceVector(np.array([0.5, 0.2, 0.1, 0.05]))
P = PRIOR_NODES


def test_counting_by_hand():
    tree = TokenTree(np.array([-1, 0, 0, 1, 1, 1, 2]))  # root: 1, 2; node 1: 3, 4, 5; node 2: 6
    drafted, accepted = count_ranks([(tree, (0, 1, 4)), (tree, (0, 2)), (tree, (0,)), (chain_tree(2), (0, 1, 2))])
    # visited: root 4 times (3 with two children), node 1 once, node 2 once, the chain's root and middle
    assert drafted.tolist() == [7, 4, 1] and accepted.tolist() == [3, 2, 0]


def test_counts_of_steps_drawn_from_a_vector_come_back():
    generator, tree = np.random.default_rng(0), branching_tree([3, 3, 2])
    steps = []
    for _ in range(6000):
        path = [0]
        while tree.children(path[-1]):
            rank = int(generator.choice(5, p=[*VECTOR.probs, VECTOR.reject]))
            children = tree.children(path[-1])
            if rank >= len(children):
                break
            path.append(children[rank])
        steps.append((tree, path))
    drafted, accepted = count_ranks(steps)
    assert accepted / drafted == pytest.approx(VECTOR.probs[:3], abs=0.02)  # 5 standard errors of the first rank


def test_nothing_observed_leaves_the_vector_as_it_is():
    assert corrected(VECTOR, *count_ranks([])).probs.tolist() == VECTOR.probs.tolist()
    assert corrected(VECTOR, np.zeros(2), np.zeros(2)).probs.tolist() == VECTOR.probs.tolist()


def test_ranks_move_by_their_counts_and_those_never_drafted_stay():
    found = corrected(VECTOR, np.array([40, 10]), np.array([10, 5]))
    assert found.probs == pytest.approx([(P * 0.5 + 10) / (P + 40), (P * 0.2 + 5) / (P + 10), 0.1, 0.05])
    assert found.prompt_ranks is None and found.calibration is None and found.trials is None


def test_ranks_that_were_drafted_leave_the_others_only_what_room_there_is():
    found = corrected(VECTOR, np.array([10_000]), np.array([10_000]))
    assert found.probs.sum() == pytest.approx(1.0) and found.probs[0] > 0.99
    assert found.probs[1:] / found.probs[1] == pytest.approx([1, 0.5, 0.25])  # in the proportions of the vector


def test_a_run_may_draft_ranks_that_the_vector_does_not_have():
    found = corrected(AcceptanceVector(np.array([0.5])), np.array([30, 30]), np.array([18, 6]))
    assert found.probs == pytest.approx([0.55, 0.1])
