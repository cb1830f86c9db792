"""Losslessness by exact enumeration: every draft draw times every accept decision, no sampling."""

import itertools

import numpy as np
import pytest

from sequoia_core.tree import TokenTree
from sequoia_core.verification import (
    Offer,
    choose_verifier,
    sequoia_rule,
    specinfer_rule,
    topk_rule,
    walk_greedily,
    walk_tree,
)

from .test_sampling import draw_law


def replacement_law(draft, k):
    return {t: float(np.prod(draft[list(t)])) for t in itertools.product(range(len(draft)), repeat=k)}


def most_likely_law(draft, k):
    return {tuple(np.argsort(-draft, kind="stable")[:k].tolist()): 1.0}


FILLS = {
    "sequoia": (draw_law, sequoia_rule),
    "specinfer": (replacement_law, specinfer_rule),
    "topk": (most_likely_law, topk_rule),
}


def next_token_law(target, draft, k, fills, rule):
    """Return the law of the token that follows a node with k children, and the probability that one is accepted."""
    law, accepted = np.zeros(len(target)), 0.0
    for children, weight in fills(draft, k).items():
        if weight == 0.0:
            continue
        reach, left = weight, target
        for token, offer in zip(children, rule(target, draft, children), strict=True):
            law[token] += reach * offer.accept_prob
            accepted += reach * offer.accept_prob
            reach *= 1.0 - offer.accept_prob
            left = offer.rest
        law += reach * left
    return law, accepted


def rows():
    generator = np.random.default_rng(1)
    for size in (2, 3, 4, 5):
        for _ in range(3):
            yield generator.dirichlet(np.full(size, 0.7)), generator.dirichlet(np.full(size, 0.7))
    yield np.array([0.6, 0.4]), np.array([0.6, 0.4])
    yield np.array([1.0, 0.0]), np.array([0.5, 0.5])
    yield np.array([0.0, 0.0, 0.5, 0.5]), np.array([0.5, 0.5, 0.0, 0.0])  # disjoint supports
    yield np.array([0.2, 0.3, 0.5, 0.0]), np.array([0.0, 1.0, 0.0, 0.0])  # draft with zeros
    yield np.array([0.0, 1.0, 0.0]), np.array([0.2, 0.3, 0.5])  # one-hot target


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_next_token_follows_the_target_exactly(name, target, draft):
    fills, rule = FILLS[name]
    for k in range(1, len(target) + 1):
        law, _ = next_token_law(target, draft, k, fills, rule)
        np.testing.assert_allclose(law, target, atol=1e-12)


def test_a_wrong_pairing_is_caught_by_the_same_check():
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])

    def min_one_p_over_q(target, draft, children):
        for token in children:
            yield Offer(
                target[token], draft[token], np.maximum(target - draft, 0) / np.maximum(target - draft, 0).sum()
            )

    law, _ = next_token_law(target, draft, 2, most_likely_law, min_one_p_over_q)
    assert np.abs(law - target).max() > 0.05


@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_one_child_is_optimal_transport(target, draft):
    _, accepted = next_token_law(target, draft, 1, draw_law, sequoia_rule)
    assert accepted == pytest.approx(1.0 - 0.5 * np.abs(target - draft).sum(), abs=1e-12)


@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_all_tokens_drafted_means_one_is_accepted(target, draft):
    _, accepted = next_token_law(target, draft, len(target), draw_law, sequoia_rule)
    assert accepted == pytest.approx(1.0, abs=1e-12)


def test_worked_cases():
    half, point = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    assert next_token_law(point, half, 2, *FILLS["sequoia"])[1] == pytest.approx(1.0)
    assert next_token_law(point, half, 2, *FILLS["specinfer"])[1] == pytest.approx(0.75)
    same = np.array([0.6, 0.4])
    assert next_token_law(same, same, 1, *FILLS["sequoia"])[1] == pytest.approx(1.0)
    assert next_token_law(same, same, 1, *FILLS["topk"])[1] == pytest.approx(0.6)


def test_uniform_fallback_leaves_rejected_tokens_out():
    target, draft = np.array([0.0, 0.0, 0.5, 0.5]), np.array([1.0, 0.0, 0.0, 0.0])
    offers = list(sequoia_rule(target, draft, [0, 1, 2]))
    assert [o.draft_mass for o in offers] == pytest.approx([1.0, 1 / 3, 1 / 2])
    assert all(np.isfinite(o.rest).all() for o in offers)


def test_walk_goes_down_while_accepted_and_samples_the_bonus_at_the_leaf():
    tree = TokenTree(np.array([-1, 0, 0, 1]))
    row = np.array([0.25, 0.25, 0.25, 0.25])
    walk = walk_tree(
        tree, [0, 1, 2, 3], target_row=lambda n: row, draft_row=lambda n: row, rule=sequoia_rule, uniform=lambda: 0.9
    )
    assert walk.path == (0, 1, 3) and walk.bonus_token == 3
    assert [t.node for t in walk.trials] == [1, 3] and all(t.accepted for t in walk.trials)


def test_greedy_walk_follows_the_argmax():
    tree = TokenTree(np.array([-1, 0, 0, 2]))
    walk = walk_greedily(tree, [9, 4, 5, 6], choices=[5, 0, 6, 7])
    assert walk.path == (0, 2, 3) and walk.bonus_token == 7
    assert [(t.node, t.accepted) for t in walk.trials] == [(1, False), (2, True), (3, True)]


def test_unknown_verifier_is_named():
    with pytest.raises(ValueError, match="'magic'.*sequoia"):
        choose_verifier("magic", greedy=False)
