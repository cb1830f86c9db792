"""Losslessness by exact enumeration: every draft draw times every accept decision, no sampling."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sequoia_core.decoding.sampling import sample_with_replacement, sample_without_replacement, take_most_likely
from sequoia_core.decoding.verifiers import (
    GREEDY,
    VERIFIERS,
    Offer,
    choose_verifier,
    sequoia_rule,
    specinfer_rule,
    topk_rule,
    traversal_rule,
)
from sequoia_core.decoding.walk import ScoredTree, walk_greedily, walk_tree
from sequoia_core.design.plain_trees import branching_tree
from sequoia_core.design.tree import TokenTree
from tests.core.decoding.test_sampling import draw_law

pytestmark = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


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
        law, _ = next_token_law(target, draft, k, fills, rule)
        np.testing.assert_allclose(law, target, atol=1e-12)


def test_a_wrong_pairing_is_caught_by_the_same_check():
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])

    def min_one_p_over_q(target, draft, children):
        rest = np.maximum(target - draft, 0)
        for token in children:
            yield Offer(target[token], draft[token], lambda: rest / rest.sum())

    law, _ = next_token_law(target, draft, 2, most_likely_law, min_one_p_over_q)
    assert np.abs(law - target).max() > 0.05


def walks(tree, tokens, target_rows, draft_rows, rule):
    """Yield every walk that `walk_tree` can take over these tokens, with its probability.

    The walk is replayed with scripted uniforms: 0 accepts whatever can be, almost 1 rejects whatever can be, and the
    bonus token is chosen from the middle of its stretch.
    """
    scripts = [[]]
    while scripts:
        walk, weight, branches = replay(scripts.pop(), tree, tokens, target_rows, draft_rows, rule)
        scripts.extend(branches)
        yield walk, weight


def replay(script, tree, tokens, target_rows, draft_rows, rule):
    """Take the options numbered in `script`, then always the first; return also the scripts that turn off after it."""
    taken, branches, weight = [], [], 1.0
    left, pending = None, None

    def target_row(node):
        nonlocal left
        left = target_rows[node]
        return left

    def watched(target, draft, children):
        nonlocal pending
        for offer in rule(target, draft, children):
            pending = offer
            yield offer

    def uniform():
        nonlocal left, pending, weight
        if pending is not None:
            options = [(0.0, pending.accept_prob), (1.0 - 2.0**-53, 1.0 - pending.accept_prob)]
            left, pending = pending.residual, None
        else:
            options = list(zip((np.cumsum(left) - left / 2) / left.sum(), left, strict=True))
        options = [option for option in options if option[1] > 1e-15]
        if len(taken) < len(script):
            taken.append(script[len(taken)])
        else:
            branches.extend([*taken, other] for other in range(1, len(options)))
            taken.append(0)
        value, share = options[taken[-1]]
        weight *= share
        return value

    scored = ScoredTree(tree, tokens, target_row, lambda node: draft_rows[node])
    walk = walk_tree(scored, rule=watched, uniform=uniform)
    return walk, weight, branches


def second_level_rows():
    generator = np.random.default_rng(7)
    yield generator.dirichlet(np.ones(3), size=4), generator.dirichlet(np.ones(3), size=4)
    zeros = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    yield generator.dirichlet(np.ones(3), size=4), zeros
    yield zeros[::-1], zeros  # one-hot rows on both sides
    yield zeros, generator.dirichlet(np.ones(3), size=4)


@pytest.mark.parametrize("name", DRAFT_SAMPLINGS)
@pytest.mark.parametrize(("target", "draft"), list(second_level_rows()))
def test_two_tokens_from_a_two_level_tree_follow_the_target_exactly(name, target, draft):
    """Row 3 of `target` and `draft` belongs to the root, row t to the text that ends with token t."""
    fills, rule = DRAFT_SAMPLINGS[name]
    tree, joint = branching_tree([2, 2]), np.zeros((3, 3))
    after = [next_token_law(target[token], draft[token], 2, fills, rule)[0] for token in range(3)]
    for first, weight in fills(draft[3], 2).items():
        inner = [fills(draft[token], 2).items() for token in first]
        for (left, left_weight), (right, right_weight) in itertools.product(*inner):
            drawn = weight * left_weight * right_weight
            if drawn == 0.0:
                continue
            tokens = [0, *first, *left, *right]
            leaf = np.array([1.0, 0.0, 0.0])  # the third token is not looked at
            target_rows = [target[3], *(target[token] for token in first), *[leaf] * 4]
            draft_rows = [draft[3], *(draft[token] for token in first)]
            for walk, chance in walks(tree, tokens, target_rows, draft_rows, rule):
                text = [tokens[node] for node in walk.path[1:]] + [walk.bonus_token]
                if len(text) > 1:
                    joint[text[0], text[1]] += drawn * chance
                else:  # the second token is the first of the next step
                    joint[text[0]] += drawn * chance * after[text[0]]
    np.testing.assert_allclose(joint, target[3][:, None] * target[:3], atol=1e-12)


FILL_FUNCTIONS = {f.__name__: f for f in (sample_without_replacement, sample_with_replacement, take_most_likely)}
RULES = {f.__name__: f for f in (sequoia_rule, specinfer_rule, topk_rule)}


@pytest.mark.parametrize(("draft_sampling", "rule"), itertools.product(FILL_FUNCTIONS, RULES))
def test_only_a_matching_fill_and_rule_make_a_verifier(draft_sampling, rule):
    pair = FILL_FUNCTIONS[draft_sampling], RULES[rule]
    mine = partial(replace, VERIFIERS["topk"], name="mine", draft_sampling=pair[0], rule=pair[1])
    if pair in {(verifier.draft_sampling, verifier.rule) for verifier in VERIFIERS.values()}:
        mine()
    else:
        with pytest.raises(
            ValueError, match=f"'mine': found draft sampling {draft_sampling} with rule {rule}, expected draft sampling"
        ):
            mine()


def test_a_rule_tied_to_no_fill_is_refused():
    with pytest.raises(ValueError, match="rule <lambda>, expected one tied to a draft sampling"):
        replace(VERIFIERS["topk"], name="mine", rule=lambda target, draft, children: iter(()))


def test_at_temperature_zero_every_verifier_is_the_greedy_one():
    assert {choose_verifier(name, greedy=True) for name in VERIFIERS} == {GREEDY}
    assert [choose_verifier(name, greedy=False).name for name in VERIFIERS] == list(VERIFIERS)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_rules_make_no_nan_of_degenerate_rows(rule):
    tiny = np.array([1.0, 1e-45, 1e-300, 0.0])
    degenerate = [np.eye(4)[0], np.eye(4)[3], tiny / tiny.sum(), np.full(4, 0.25)]
    with np.errstate(all="raise", under="ignore"):
        for target, draft in itertools.product(degenerate, repeat=2):
            for children in itertools.permutations(range(4)):
                for offer in rule(target, draft, children):
                    assert 0.0 <= offer.accept_prob <= 1.0
                    assert np.isfinite(offer.residual).all() and offer.residual.sum() == pytest.approx(1.0)


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
    assert next_token_law(point, half, 2, *DRAFT_SAMPLINGS["sequoia"])[1] == pytest.approx(1.0)
    assert next_token_law(point, half, 2, *DRAFT_SAMPLINGS["specinfer"])[1] == pytest.approx(0.75)
    same = np.array([0.6, 0.4])
    assert next_token_law(same, same, 1, *DRAFT_SAMPLINGS["sequoia"])[1] == pytest.approx(1.0)
    assert next_token_law(same, same, 1, *DRAFT_SAMPLINGS["topk"])[1] == pytest.approx(0.6)


def test_a_token_that_the_target_forbids_is_rejected_even_by_a_uniform_of_zero():
    tree, target, draft = TokenTree(np.array([-1, 0])), np.array([0.0, 1.0]), np.array([1.0, 0.0])
    for rule in RULES.values():
        scored = ScoredTree(tree, [0, 0], lambda n: target, lambda n: draft)
        walk = walk_tree(scored, rule=rule, uniform=lambda: 0.0)
        assert (walk.path, walk.bonus_token) == ((0,), 1)


def test_a_token_that_only_rounding_could_draft_is_decided_by_the_target_alone():
    tree, target, draft = TokenTree(np.array([-1, 0])), np.array([0.2, 0.8]), np.array([0.0, 1.0])
    assert [Offer(mass, 0.0, lambda: target).accept_prob for mass in (0.2, 0.0)] == [1.0, 0.0]
    for rule in (sequoia_rule, specinfer_rule):
        assert next(rule(target, draft, [0])).accept_prob == 1.0
        scored = ScoredTree(tree, [1, 0], lambda n: target, lambda n: draft)
        walk = walk_tree(scored, rule=rule, uniform=lambda: 0.99)
        assert walk.path == (0, 1) and walk.trials[0].draft_mass > 0.0  # something to divide by


def test_uniform_fallback_leaves_rejected_tokens_out():
    target, draft = np.array([0.0, 0.0, 0.5, 0.5]), np.array([1.0, 0.0, 0.0, 0.0])
    offers = list(sequoia_rule(target, draft, [0, 1, 2]))
    assert [o.draft_mass for o in offers] == pytest.approx([1.0, 1 / 3, 1 / 2])
    assert all(np.isfinite(o.residual).all() for o in offers)


def test_walk_goes_down_while_accepted_and_samples_the_bonus_at_the_leaf():
    tree = TokenTree(np.array([-1, 0, 0, 1]))
    row = np.array([0.25, 0.25, 0.25, 0.25])
    scored = ScoredTree(tree, [0, 1, 2, 3], lambda n: row, lambda n: row)
    walk = walk_tree(scored, rule=sequoia_rule, uniform=lambda: 0.9)
    assert walk.path == (0, 1, 3) and walk.bonus_token == 3
    assert [t.node for t in walk.trials] == [1, 3] and all(t.accepted for t in walk.trials)


def test_greedy_walk_follows_the_argmax():
    tree = TokenTree(np.array([-1, 0, 0, 2]))
    walk = walk_greedily(tree, [9, 4, 5, 6], choice=[5, 0, 6, 7].__getitem__)
    assert walk.path == (0, 2, 3) and walk.bonus_token == 7
    assert [(t.node, t.accepted) for t in walk.trials] == [(1, False), (2, True), (3, True)]


def test_unknown_verifier_is_named():
    with pytest.raises(ValueError, match="'magic'.*sequoia"):
        choose_verifier("magic", greedy=False)
