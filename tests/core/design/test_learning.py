"""What a run shows of acceptance by rank, how far it corrects the vector in use, and the tree that follows."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.learning import (
    WEIGHTS,
    ObservedAcceptance,
    learned_vector,
    observe,
    plan_again,
    prior_weight,
)
from sequoia_core.design.optimal_trees import expected_tokens, optimal_tree
from sequoia_core.design.plain_trees import branching_tree, chain_tree
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.tree import TokenTree

VECTOR = AcceptanceVector(np.array([0.5, 0.2, 0.1, 0.05]))
FLAT = HardwareProfile(sizes=[1, 64], verify_sec=[0.01, 0.011], draft_sec=0.0005)


def seen(drafted, accepted) -> ObservedAcceptance:
    return ObservedAcceptance(np.array(drafted), np.array(accepted))


def test_counting_by_hand():
    tree = TokenTree(np.array([-1, 0, 0, 1, 1, 1, 2]))  # root: 1, 2; node 1: 3, 4, 5; node 2: 6
    found = observe([(tree, (0, 1, 4)), (tree, (0, 2)), (tree, (0,)), (chain_tree(2), (0, 1, 2))])
    # visited: root 4 times (3 with two children), node 1 once, node 2 once, the chain's root and middle
    assert found.drafted.tolist() == [7, 4, 1] and found.accepted.tolist() == [3, 2, 0]


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
    found = observe(steps)
    assert found.rates == pytest.approx(VECTOR.probs[:3], abs=0.02)  # 5 standard errors of the first rank
    assert found.outside(VECTOR) == []
    assert found.outside(AcceptanceVector(np.array([0.4, 0.2, 0.2]))) == [1, 3]


def test_nothing_observed_leaves_the_vector_as_it_is():
    assert learned_vector(VECTOR, observe([])).probs.tolist() == VECTOR.probs.tolist()
    assert observe([]).outside(VECTOR) == []
    assert learned_vector(VECTOR, seen([0, 0], [0, 0])).probs.tolist() == VECTOR.probs.tolist()


def test_ranks_shrink_by_their_counts_and_those_never_drafted_stay():
    learned = learned_vector(VECTOR, seen([40, 10], [10, 5]), weight=20)
    assert learned.probs == pytest.approx([20 / 60, (20 * 0.2 + 5) / 30, 0.1, 0.05])
    assert learned.prompt_ranks is None and learned.calibration is None and learned.trials is None


def test_more_of_the_same_moves_the_vector_further():
    distances = [
        abs(learned_vector(VECTOR, seen([10 * k], [8 * k]), weight=30).probs[0] - 0.8) for k in (0, 1, 10, 1000)
    ]
    assert distances == sorted(distances, reverse=True) and distances[-1] < 0.005


def test_ranks_that_were_drafted_leave_the_others_only_what_room_there_is():
    learned = learned_vector(VECTOR, seen([1000], [1000]), weight=10)
    assert learned.probs.sum() == pytest.approx(1.0) and learned.probs[0] > 0.99
    assert learned.probs[1:] / learned.probs[1] == pytest.approx([1, 0.5, 0.25])  # in the proportions of the vector


def test_a_run_may_draft_ranks_that_the_vector_does_not_have():
    learned = learned_vector(AcceptanceVector(np.array([0.5])), seen([50, 50], [30, 10]), weight=50)
    assert learned.probs == pytest.approx([0.55, 0.1])


def test_a_weight_of_nothing_is_refused():
    with pytest.raises(ValueError, match="weight: found 0"):
        learned_vector(VECTOR, observe([]), weight=0)


def of_prompts(rates) -> AcceptanceVector:
    trials = np.full(len(rates), 200)
    sums = np.array(rates)[:, None] * trials[:, None]
    return AcceptanceVector(sums.sum(0) / trials.sum(), prompt_sums=sums, prompt_trials=trials)


def test_a_vector_of_prompts_that_agree_counts_for_more():
    alike, unlike = of_prompts([0.5, 0.5, 0.5]), of_prompts([0.2, 0.5, 0.8])
    assert prior_weight(alike) == WEIGHTS[1] and prior_weight(unlike) < 10 and prior_weight(VECTOR) == 30


def test_prompts_spread_as_a_beta_distribution_give_back_its_weight():
    rates = np.random.default_rng(1).beta(0.6 * 40, 0.4 * 40, size=4000)
    assert prior_weight(of_prompts(np.random.default_rng(2).binomial(200, rates) / 200)) == pytest.approx(40, rel=0.1)


def test_an_interval_covers_and_an_unseen_rank_has_none():
    low, high = seen([100, 0], [50, 0]).interval()
    assert 0.40 < low[0] < 0.41 and 0.59 < high[0] < 0.60 and (low[1], high[1]) == (0, 1)


def test_a_draft_that_was_better_than_thought_gets_a_deeper_tree_that_gains():
    tree = optimal_tree(VECTOR, size=6, depth=2)
    learned = learned_vector(VECTOR, seen([300, 200], [270, 10]), weight=30)
    plan = plan_again(tree, learned, FLAT, max_size=32, max_depth=12)
    assert plan.tree.depth > tree.depth and plan.tree.size <= 32 and plan.gain > 1.2
    assert plan.expected_tokens == expected_tokens(plan.tree, learned) > plan.kept_tokens
    assert plan_again(tree, learned, FLAT, max_size=5, max_depth=3).tree.size <= 5


def test_a_draft_that_is_never_right_is_left_out():
    learned = learned_vector(VECTOR, seen([5000] * 4, [0] * 4), weight=10)
    assert plan_again(chain_tree(4), learned, FLAT, max_size=32, max_depth=12).tree.size == 1


def test_without_a_profile_the_shape_stays_and_tokens_are_compared():
    learned = learned_vector(VECTOR, seen([300, 200], [270, 10]), weight=30)
    tree = branching_tree([2, 2])
    plan = plan_again(tree, learned, None, max_size=64, max_depth=12)
    assert (plan.tree.size, plan.tree.depth <= 2) == (tree.size, True)
    assert plan.gain == pytest.approx(plan.expected_tokens / plan.kept_tokens) and plan.gain >= 1
