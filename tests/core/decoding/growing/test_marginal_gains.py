"""What nodes add and cost: the numbers by which the policies decided, and they bear the decisions out."""

import numpy as np
import pytest
import torch

from sequoia_core.decoding.growing.marginal_gains import marginal_gains
from sequoia_core.decoding.growing.plain_growing import DraftRows, PlainGrower
from sequoia_core.decoding.sampling import sample_without_replacement, take_most_likely
from tests.core.decoding.growing.test_compiled_growing import random_expansion, random_session, run_of


def grown(expansion, seed, most):
    """Return the nodes of a tree that was grown on random rows, and its gains."""
    draft_sampling = sample_without_replacement if expansion.draws else take_most_likely
    run = run_of(random_session(seed, 0.5 if seed % 2 else 3.0), draft_sampling, seed=seed)
    grower = PlainGrower(run, expansion.bounds)
    _, nodes, _ = grower.grow(expansion, [3])
    read = grower.rows[torch.from_numpy(nodes.cache_positions[nodes.cache_positions >= 0])]
    return nodes, marginal_gains(expansion, nodes, DraftRows(read, run), most=most)


@pytest.mark.parametrize("sampled", [False, True], ids=["deterministic", "sampled"])
@pytest.mark.parametrize("seed", range(10))
def test_gains_are_scores_and_costs_those_of_one_more_node(sampled, seed):
    expansion = random_expansion(np.random.default_rng(seed), sampled)
    nodes, found = grown(expansion, seed, most=12)
    assert found.gains == tuple(nodes.scores) and found.costs[0] is None
    if expansion.token_costs is None:
        assert set(found.costs) == {None} and found.next_cost is None
        return
    step, order = expansion.token_costs.step, np.argsort(-nodes.scores, kind="stable")
    for place, node in enumerate(order[1:], start=2):
        assert found.costs[node] == step[place] - step[place - 1]
    full = nodes.size == expansion.bounds.max_size
    assert found.next_cost == (None if full else step[nodes.size + 1] - step[nodes.size])
    if not sampled:  # fewer nodes would be worth less, and none that was left out pays
        net_gain = np.cumsum([found.gains[node] - (found.costs[node] or 0.0) for node in order])
        assert net_gain[-1] >= net_gain.max() - 1e-12
        known = [one.gain for one in found.left_out if one.token is not None]
        assert full or max(known, default=0.0) <= found.next_cost + 1e-12


@pytest.mark.parametrize("sampled", [False, True], ids=["deterministic", "sampled"])
@pytest.mark.parametrize("seed", range(10))
def test_the_best_that_was_left_out_is_not_in_the_tree(sampled, seed):
    expansion = random_expansion(np.random.default_rng(seed), sampled)
    nodes, found = grown(expansion, seed, most=10_000)
    assert [one.gain for one in found.left_out] == sorted((one.gain for one in found.left_out), reverse=True)
    held = set(zip(nodes.parents, nodes.tokens, strict=True))
    known = [one for one in found.left_out if one.token is not None]
    read, unread = np.flatnonzero(nodes.cache_positions >= 0), np.flatnonzero(nodes.cache_positions < 0)
    assert not held & {one[:2] for one in known}
    assert len(set(known)) == (0 if sampled else len(read) * expansion.bounds.branch - (nodes.size - 1))
    assert all(one.gain <= nodes.scores[one.parent] for one in found.left_out)
    further = {one.parent: one.gain for one in found.left_out if one.token is None}
    assert further == {
        node: pytest.approx(nodes.scores[node] * expansion.expected[0])
        for node in unread if nodes.depths[node] < expansion.bounds.max_depth
    }  # fmt: skip
    assert grown(expansion, seed, most=3)[1].left_out == found.left_out[:3]
