"""Marginal gains and costs are the numbers by which the policies decided, and justify the decisions."""

import numpy as np
import pytest
import torch

from sequoia_core.decoding.sampling import sample_without_replacement, take_most_likely
from sequoia_extras.dynamic_trees.marginal_gains import marginal_gains
from sequoia_extras.dynamic_trees.plain_growing import DraftRows, PlainGrower
from tests.extras.dynamic_trees.test_compiled_growing import random_expansion, random_session, run_of


def grow_random_tree(expansion, seed, limit):
    """Return the nodes of a tree grown on random rows, and their gains."""
    draft_sampling = sample_without_replacement if expansion.draws else take_most_likely
    run = run_of(random_session(seed, 0.5 if seed % 2 else 3.0), draft_sampling, seed=seed)
    grower = PlainGrower(run, expansion.bounds)
    _, nodes, _ = grower.grow(expansion, [3])
    read = grower.rows[torch.from_numpy(nodes.cache_positions[nodes.cache_positions >= 0])]
    return nodes, marginal_gains(expansion, nodes, DraftRows(read, run), limit=limit)


@pytest.mark.parametrize("sampled", [False, True], ids=["deterministic", "sampled"])
@pytest.mark.parametrize("seed", range(10))
def test_gains_and_costs_explain_the_choice_of_nodes(sampled, seed):
    expansion = random_expansion(np.random.default_rng(seed), sampled)
    nodes, found = grow_random_tree(expansion, seed, limit=10_000)
    assert found.gains == tuple(nodes.scores) and found.costs[0] is None
    known = [candidate for candidate in found.left_out if candidate.token is not None]
    assert list(found.left_out) == sorted(found.left_out, key=lambda candidate: -candidate.gain)
    assert not set(zip(nodes.parents, nodes.tokens, strict=True)) & {candidate[:2] for candidate in known}
    read = nodes.cache_positions >= 0
    assert len(set(known)) == (0 if sampled else read.sum() * expansion.bounds.branch - (nodes.size - 1))
    first_children = {candidate.parent: candidate.gain for candidate in found.left_out if candidate.token is None}
    assert first_children == {
        node: pytest.approx(nodes.scores[node] * expansion.expected[0])
        for node in np.flatnonzero(~read & (nodes.depths < expansion.bounds.max_depth))
    }
    assert grow_random_tree(expansion, seed, limit=3)[1].left_out == found.left_out[:3]
    if expansion.token_costs is None:
        assert set(found.costs) == {None} and found.next_cost is None
        return
    steps = np.diff(expansion.token_costs.step)
    order = np.argsort(-nodes.scores, kind="stable")
    assert [found.costs[node] for node in order[1:]] == steps[1 : nodes.size].tolist()
    full = nodes.size == expansion.bounds.max_size
    assert found.next_cost == (None if full else steps[nodes.size])
    if not sampled:  # no smaller tree would be worth more, and no candidate left out pays
        net_gain = np.cumsum([found.gains[node] - (found.costs[node] or 0.0) for node in order])
        assert net_gain[-1] >= net_gain.max() - 1e-12
        assert full or max((candidate.gain for candidate in known), default=0.0) <= found.next_cost + 1e-12
