"""What nodes add and cost: the numbers by which the policies decided, and they bear the decisions out."""

import numpy as np
import pytest

from sequoia_core.decoding.growing.expansion import Nodes
from sequoia_core.decoding.growing.marginal_gains import marginal_gains
from tests.core.decoding.growing.test_adaptive import AlwaysThis
from tests.core.decoding.growing.test_compiled_growing import random_expansion
from tests.core.decoding.test_tree_policy import RAGGED

VOCAB = 24


class Rows:
    """Distributions float64 [w, V] as `expansion.Rows`."""

    def __init__(self, block, generator):
        self.block, self.generator = block, generator

    def most_likely(self, k):
        return self._with_probs(np.argsort(-self.block, axis=1, kind="stable")[:, :k])

    def drawn(self, k, seen=()):
        race = self.block / self.generator.standard_exponential(self.block.shape)
        return self._with_probs(np.argsort(-race, axis=1)[:, :k])

    def _with_probs(self, tokens):
        return tokens, np.take_along_axis(self.block, tokens, axis=1)


def grown(expansion, seed, most):
    """Return the nodes of a tree that was grown on random rows, and its gains."""
    generator = np.random.default_rng(seed)
    sharpness, nodes, read = generator.choice([0.5, 3.0]), Nodes.root(3), np.zeros((0, VOCAB))
    for _ in range(expansion.bounds.max_depth):
        frontier = expansion.frontier(nodes)
        if len(frontier) == 0:
            break
        nodes.cache_positions[frontier] = len(read) + np.arange(len(frontier))
        block = np.exp(generator.normal(size=(len(frontier), VOCAB)) * sharpness)
        read = np.append(read, block / block.sum(axis=1, keepdims=True), axis=0)
        nodes = expansion.extended(nodes, frontier, Rows(read[-len(frontier) :], generator))
    nodes = expansion.kept(nodes).as_tree()[1]
    return nodes, marginal_gains(
        expansion, nodes, Rows(read[nodes.cache_positions[nodes.cache_positions >= 0]], generator), most=most
    )


@pytest.mark.parametrize("sampled", [False, True], ids=["deterministic", "sampled"])
@pytest.mark.parametrize("seed", range(10))
def test_gains_are_scores_and_costs_those_of_one_more_node(sampled, seed) -> None:
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
def test_the_best_that_was_left_out_is_not_in_the_tree(sampled, seed) -> None:
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


def test_any_policy_has_gains() -> None:
    nodes, found = grown(AlwaysThis(RAGGED), 0, most=3)
    assert found.gains == tuple(nodes.scores) and set(found.costs) == {None} and found.left_out == ()
