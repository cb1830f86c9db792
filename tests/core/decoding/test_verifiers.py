"""Losslessness by exact enumeration: every draft draw times every accept decision, no sampling."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.decoding.verifiers import (
    GREEDY_VERIFIER,
    VERIFIERS,
    Offer,
    choose_verifiers,
    sequoia_rule,
    specinfer_rule,
    topk_rule,
    traversal_rule,
)
from sequoia_core.decoding.walk import ScoredTree, walk_tree
from sequoia_core.trees.tree import TokenTree
from tests.core.decoding.test_sampling import draw_law

pytestmark = pytest.mark.usefixtures("each_rows")  # with and without compiled row operations


def replacement_law(draft, k):
    return {t: float(np.prod(draft[list(t)])) for t in itertools.product(range(len(draft)), repeat=k)}


def most_likely_law(draft, k):
    return {tuple(np.argsort(-draft, kind="stable")[:k].tolist()): 1.0}


DRAFT_SAMPLINGS = {
    "sequoia": (draw_law, sequoia_rule),
    "specinfer": (replacement_law, specinfer_rule),
    "topk": (most_likely_law, topk_rule),
    "traversal": (draw_law, traversal_rule),
}


def next_token_law(target, draft, k, fills, rule):
    """Return the law of the token after a node with k children, and the probability of accepting one of them."""
    law = np.zeros(len(target))
    accepted = 0.0
    for children, weight in fills(draft, k).items():
        if weight == 0.0:
            continue
        reach = weight
        left = target
        for token, offer in zip(children, rule(target, draft, children), strict=True):
            law[token] += reach * offer.accept_prob
            accepted += reach * offer.accept_prob
            reach *= 1.0 - offer.accept_prob
            left = offer.residual
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


@pytest.mark.parametrize("name", DRAFT_SAMPLINGS)
@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_next_token_follows_the_target_exactly(name, target, draft):
    fills, rule = DRAFT_SAMPLINGS[name]
    for k in range(1, len(target) + 1):
        law, accepted = next_token_law(target, draft, k, fills, rule)
        np.testing.assert_allclose(law, target, atol=1e-12)
        if name == "sequoia" and k == 1:  # optimal transport
            assert accepted == pytest.approx(1.0 - 0.5 * np.abs(target - draft).sum(), abs=1e-12)
        if name == "sequoia" and k == len(target):
            assert accepted == pytest.approx(1.0, abs=1e-12)


RULES = {f.__name__: f for f in (sequoia_rule, specinfer_rule, topk_rule)}


def test_a_verifier_needs_the_exact_rule_for_its_draft_sampling():
    with pytest.raises(ValueError, match="'mine': found draft sampling take_most_likely with rule sequoia_rule"):
        replace(VERIFIERS["topk"], name="mine", rule=sequoia_rule)
    with pytest.raises(ValueError, match="rule <lambda>, expected one of the rules in EXACT_SAMPLING"):
        replace(VERIFIERS["topk"], name="mine", rule=lambda target, draft, children: iter(()))


def test_every_verifier_is_greedy_at_temperature_zero():
    assert choose_verifiers([*VERIFIERS], greedy=True) == {"greedy": GREEDY_VERIFIER}
    assert choose_verifiers([*VERIFIERS], greedy=False) == VERIFIERS
    with pytest.raises(ValueError, match="verifier: found 'magic', expected one of sequoia"):
        choose_verifiers(["magic"], greedy=True)
    with pytest.raises(ValueError, match="verifiers: found none"):
        choose_verifiers([], greedy=True)


@pytest.mark.sample(6)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_degenerate_rows_give_no_nan(rule):
    tiny = np.array([1.0, 1e-45, 1e-300, 0.0])
    degenerate = [np.eye(4)[0], np.eye(4)[3], tiny / tiny.sum(), np.full(4, 0.25)]
    with np.errstate(all="raise", under="ignore"):
        for target, draft in itertools.product(degenerate, repeat=2):
            for children in itertools.permutations(range(4)):
                for offer in rule(target, draft, children):
                    assert 0.0 <= offer.accept_prob <= 1.0
                    assert np.isfinite(offer.residual).all() and offer.residual.sum() == pytest.approx(1.0)


def test_a_token_without_target_mass_is_rejected_even_for_a_uniform_of_zero():
    tree = TokenTree(np.array([-1, 0]))
    target = np.array([0.0, 1.0])
    draft = np.array([1.0, 0.0])
    for rule in RULES.values():
        scored = ScoredTree(tree, [0, 0], lambda n: target, lambda n: draft)
        walk = walk_tree(scored, rule=rule, uniform=lambda: 0.0)
        assert (walk.path, walk.bonus_token) == ((0,), 1)


def test_a_token_without_draft_mass_is_decided_by_the_target_alone():
    tree = TokenTree(np.array([-1, 0]))
    target = np.array([0.2, 0.8])
    draft = np.array([0.0, 1.0])
    assert [Offer(mass, 0.0, lambda: target).accept_prob for mass in (0.2, 0.0)] == [1.0, 0.0]
    for rule in (sequoia_rule, specinfer_rule):
        assert next(rule(target, draft, [0])).accept_prob == 1.0
        scored = ScoredTree(tree, [1, 0], lambda n: target, lambda n: draft)
        walk = walk_tree(scored, rule=rule, uniform=lambda: 0.99)
        assert walk.path == (0, 1) and walk.trials[0].draft_mass > 0.0  # a positive divisor
