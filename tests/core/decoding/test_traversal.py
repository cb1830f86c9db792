"""Traversal verification (arXiv 2505.12398): the whole law of a step, on trees of two and three levels.

Exact, in float64: every draw of the draft is enumerated and every way the traversal can end; what a step leaves open is
completed by the target's own law. Trees take the shape that a whim gives them, looking at every token drawn before.
"""

import numpy as np
import pytest

from sequoia_core.decoding.verifiers import sequoia_rule, traversal_rule
from sequoia_core.decoding.walk import ScoredTree, stops, walk_from_leaves
from sequoia_core.design.tree import TokenTree
from tests.core.decoding.growing import test_dynamic_exactness as dynamic
from tests.core.decoding.growing.test_dynamic_exactness import law_after, random_law

CHAIN = (0, 1, 2)
BRANCHING = (0, 0, 1, 1, 3, 2)


def fixed(parents):
    """Draw the children of these nodes, one after the other, whatever is drawn."""
    return lambda drawn: parents[len(drawn)] if len(drawn) < len(parents) else None


def whim(vocab, levels, seed, most=5):
    """Choose the next node to have a child, or none, by everything that was drawn so far."""

    def choose(drawn):
        if len(drawn) == most:
            return None
        depths, counts = [0], [0] * (most + 1)
        for parent, _ in drawn:
            depths.append(depths[parent] + 1)
            counts[parent] += 1
        told = sum((place + 2.3) * (token + 1.1) * (parent + 0.7) for place, (parent, token) in enumerate(drawn))
        mixed = int(1e6 * abs(np.sin(seed + 3.7 * told)))
        if drawn and mixed % 7 == 0:
            return None
        open_nodes = [node for node, depth in enumerate(depths) if depth < levels and counts[node] < vocab]
        return open_nodes[mixed % len(open_nodes)] if open_nodes else None

    return choose


def drafts(draft, choose, drawn=()):
    """Yield (parents and tokens in the order drawn, probability) for all that drawing without replacement can give."""
    parent = choose(drawn)
    if parent is None:
        yield drawn, 1.0
        return
    taken = [token for node, token in drawn if node == parent]
    left = draft[path_of(drawn, parent)].copy()
    left[taken] = 0.0
    if left.sum() <= 0.0:  # used up: uniform over the tokens not drawn yet
        left[:] = 1.0
        left[taken] = 0.0
    for token in np.flatnonzero(left):
        for whole, chance in drafts(draft, choose, (*drawn, (parent, int(token)))):
            yield whole, chance * left[token] / left.sum()


def path_of(drawn, node):
    return () if node == 0 else (*path_of(drawn, drawn[node - 1][0]), drawn[node - 1][1])


def drafted_tree(drawn, target, draft):
    """Return the tree with its tokens and the rows after each node."""
    size = len(drawn) + 1
    tree, order = TokenTree.from_links(np.array([-1, *(parent for parent, _ in drawn)]), np.arange(size))
    tokens = [0, *(token for _, token in drawn)]
    return ScoredTree(
        tree, [tokens[node] for node in order], lambda node: target[path_of(drawn, order[node])],
        lambda node: draft[path_of(drawn, order[node])],
    )  # fmt: skip


def endings(scored):
    """Yield (tokens committed, probability) for every way a walk from the leaves can end."""
    reach = 1.0
    for stop in stops(scored):
        chance = reach * (stop.share if stop.node else 1.0)  # the root is kept whatever rounding says
        if chance > 0.0:
            path = tuple(scored.tokens[node] for node in scored.tree.path_to(stop.node)[1:])
            left = scored.target_row(stop.node) if stop.residual is None else stop.residual / stop.residual.sum()
            for token in np.flatnonzero(left):
                yield (*path, int(token)), chance * left[token]
        reach *= 1.0 - stop.share
    assert stop.node == 0 and stop.share == pytest.approx(1.0, abs=1e-12)


def law_of_a_step(choose, target, draft, vocab, levels, kept=lambda drawn: drawn):
    """Return the law of the next tokens, float64 [V, ..., V] with an axis more than levels, and the shapes seen."""
    law, shapes = np.zeros((vocab,) * (levels + 1)), set()
    for drawn, chance in drafts(draft, choose):
        scored = drafted_tree(kept(drawn), target, draft)
        shapes.add(scored.tree)
        for text, share in endings(scored):
            law[text] += chance * share * law_after(target, text, vocab, levels)
    return law, shapes


@pytest.mark.parametrize("parents", [CHAIN, BRANCHING, (0, 0, 0, 1, 2, 3)])
@pytest.mark.parametrize("vocab", [3, 4])
def test_fixed_trees_of_two_and_three_levels_keep_the_law(vocab, parents):
    levels = 2 if parents[-1] == 3 and parents != BRANCHING else 3
    for seed in range(3 if vocab == 3 else 1):
        target, draft = random_law(vocab, seed, levels), random_law(vocab, 100 + seed, levels)
        law, _ = law_of_a_step(fixed(parents), target, draft, vocab, levels)
        np.testing.assert_allclose(law, law_after(target, (), vocab, levels), atol=1e-14)


@pytest.mark.parametrize(("vocab", "levels", "seeds"), [(2, 3, 12), (3, 2, 12), (3, 3, 6), (4, 2, 2)])
def test_trees_shaped_by_what_was_drawn_before_keep_the_law(vocab, levels, seeds):
    seen = set()
    for seed in range(seeds):
        target, draft = random_law(vocab, seed, levels), random_law(vocab, 100 + seed, levels)
        law, shapes = law_of_a_step(whim(vocab, levels, seed), target, draft, vocab, levels)
        np.testing.assert_allclose(law, law_after(target, (), vocab, levels), atol=1e-14)
        seen |= shapes
    assert len(seen) > 5, "decisions that never differ prove nothing"


def test_trees_of_the_sampled_recipe_keep_the_law(monkeypatch):
    """Through the drafter that decoding uses, its children drawn in turn."""

    def by_traversal(drafted, target, verifier):
        tree, tokens = drafted.tree, drafted.tokens.tolist()

        def target_row(node):
            return target[tuple(tokens[step] for step in tree.path_to(node)[1:])]

        return endings(ScoredTree(tree, tokens, target_row, drafted.row))

    monkeypatch.setattr(dynamic, "outcomes", by_traversal)
    for seed in range(3):
        target, draft = dynamic.random_law(3, seed), dynamic.random_law(3, 100 + seed)
        law, shapes = dynamic.law_of_a_step(dynamic.drawn_in_turn(seed), "sequoia", target, draft, 3)
        np.testing.assert_allclose(law, law_after(target, (), 3), atol=2e-7)  # the draft's rows are float32
        assert len(shapes) > 1


def test_dropping_a_leaf_after_its_draw_is_caught():
    for seed in range(3):
        target, draft = random_law(3, seed, 2), random_law(3, 100 + seed, 2)
        law, _ = law_of_a_step(
            whim(3, 2, seed), target, draft, 3, 2, kept=lambda drawn: drawn[:-1] if drawn[-1][1] == 0 else drawn
        )
        assert law.sum() == pytest.approx(1.0)
        assert np.abs(law - law_after(target, (), 3, 2)).max() > 1e-3


def expected(choose, target, draft):
    """Return the expected tokens of a step by a walk from the leaves and by Sequoia's from the root."""
    found = np.zeros(2)
    for drawn, chance in drafts(draft, choose):
        scored = drafted_tree(drawn, target, draft)
        from_leaves = sum(len(text) * share for text, share in endings(scored))
        found += chance * np.array([from_leaves, from_root(scored)])
    return found


def from_root(scored, node=0):
    children, reach, found = scored.tree.children(node), 1.0, 1.0
    if children:
        offers = scored.offers(sequoia_rule, node, scored.target_row(node), scored.draft_row(node))
        for child, offer in zip(children, offers, strict=True):
            below = from_root(scored, child)
            found += reach * offer.accept_prob * below
            reach *= 1.0 - offer.accept_prob
    return found


def test_a_chain_of_two_is_block_verification():
    """Worked out for block verification (arXiv 2403.10444): 11/9 tokens accepted, and 10/9 token by token."""
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    target, draft = dict.fromkeys(paths, np.array([1, 2]) / 3), dict.fromkeys(paths, np.array([2, 1]) / 3)
    np.testing.assert_allclose(expected(fixed((0, 1)), target, draft), [1 + 11 / 9, 1 + 10 / 9], atol=1e-14)


def test_a_chain_yields_no_less_than_by_descent_and_one_level_the_same():
    for seed in range(10):
        target, draft = random_law(3, seed, 3), random_law(3, 100 + seed, 3)
        by_traversal, by_descent = expected(fixed(CHAIN), target, draft)
        assert by_traversal >= by_descent - 1e-12
        by_traversal, by_descent = expected(fixed((0, 0)), target, draft)
        assert by_traversal == pytest.approx(by_descent, abs=1e-12)


def test_a_draft_that_is_the_target_has_its_first_path_accepted():
    law = random_law(3, 1, 3)
    for drawn, _ in drafts(law, fixed(BRANCHING)):
        scored = drafted_tree(drawn, law, law)
        walk = walk_from_leaves(scored, rule=traversal_rule, uniform=lambda: 0.999999)
        assert [scored.tree.depths[node] for node in walk.path] == [0, 1, 2, 3]
        assert len(walk.trials) == 1 and walk.trials[0].accepted


def test_what_a_walk_tried_is_in_the_order_of_the_stops():
    """Refuse everything: each node that can be kept was tried once, after its children, and the root is left."""
    target, draft = random_law(3, 4, 3), random_law(3, 104, 3)
    for drawn, _ in drafts(draft, fixed(BRANCHING)):
        scored = drafted_tree(drawn, target, draft)
        walk = walk_from_leaves(scored, rule=traversal_rule, uniform=lambda: 1.0)
        assert walk.path == (0,)
        tried = [trial.node for trial in walk.trials]
        assert tried == [stop.node for stop in stops(scored)][:-1]
        places = {node: place for place, node in enumerate(tried)}
        parents = scored.tree.parents
        assert all(places[node] < places[int(parents[node])] for node in tried if parents[node])
