"""Why a tree has its shape: the numbers are those that the shapers went by, and they bear the decisions out."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from sequoia_core.design.shape_reasons import GROUNDS, RowsRead, shape_reasons
from sequoia_core.design.shaping import AsDrafted, BestFirst, DrawnInTurn, Nodes, ShapeBounds
from tests.core.decoding.test_compiled_growing import random_shaper

VOCAB = 24
SEEN: list = []  # what the shapers below went by


class SeenBestFirst(BestFirst):
    def passes(self, nodes):
        found = super().passes(nodes)
        SEEN.append(("passes", found[1]))
        return found

    def extended(self, nodes, wave, rows):
        tokens, probs = rows.most_likely(self.bounds.branch)
        SEEN.append(("scored", tokens, nodes.scores[wave, None] * self.chances.most_likely(probs)))
        return super().extended(nodes, wave, rows)


class SeenDrawnInTurn(DrawnInTurn):
    def passes(self, nodes):
        found = super().passes(nodes)
        SEEN.append(("passes", found[1]))
        return found

    def price(self, *args):
        found = super().price(*args)
        SEEN.append(("price", *found))
        return found

    def gains(self, *args):
        found = super().gains(*args)
        SEEN.append(("gains", found))
        return found


class RandomRows:
    """Rows of random distributions; remembers the most likely tokens of all that were read."""

    def __init__(self, generator, sharpness):
        self.generator, self.sharpness, self.read = generator, sharpness, []

    def wave(self, width, branch):
        logits = self.generator.normal(size=(width, VOCAB)) * self.sharpness
        self.rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        self.read.append(self.most_likely(branch))
        return self

    def most_likely(self, k):
        return self._with_probs(np.argsort(-self.rows, axis=1, kind="stable")[:, :k])

    def drawn(self, k):
        race = self.rows / self.generator.standard_exponential(self.rows.shape)
        return self._with_probs(np.argsort(-race, axis=1)[:, :k])

    def _with_probs(self, tokens):
        return tokens, np.take_along_axis(self.rows, tokens, axis=1)


def explained(shaper, seed, *, most=12):
    """Return the nodes of a tree, the widths of its passes, its reasons, and what its shaper went by."""
    generator = np.random.default_rng(seed)
    rows, nodes, widths = RandomRows(generator, generator.choice([0.5, 3.0])), Nodes.root(3), []
    seen = (SeenBestFirst if isinstance(shaper, BestFirst) else SeenDrawnInTurn)(
        *(getattr(shaper, field.name) for field in fields(shaper))
    )
    SEEN.clear()
    for _ in range(shaper.bounds.max_depth):
        wave = seen.wave(nodes)
        if len(wave) == 0:
            break
        nodes.slots[wave] = sum(widths) + np.arange(len(wave))
        widths.append(len(wave))
        nodes = seen.extended(nodes, wave, rows.wave(len(wave), shaper.bounds.branch))
    nodes = seen.kept(nodes).as_tree()[1]
    branch = shaper.bounds.branch
    none = [(np.zeros((0, branch), np.int64), np.zeros((0, branch)))]
    read = RowsRead(*map(np.concatenate, zip(*(rows.read or none), strict=True)))
    went_by = list(SEEN)
    return nodes, widths, shape_reasons(shaper, nodes, widths, read, most=most), went_by


def check_passes(shaper, widths, reasons, went_by):
    worths = [found for kind, *(found, *_) in went_by if kind == "passes"]
    assert [one.width for one in reasons.passes] == widths
    if shaper.prices is None:
        assert reasons.theta is None and reasons.further is None
        assert all(one.gain is None and one.price is None for one in reasons.passes)
        return
    assert reasons.theta == shaper.prices.step[1]
    for one, worth in zip(reasons.passes, worths, strict=False):
        assert one.price == shaper.prices.draft[one.width]
        assert one.gain == pytest.approx(worth[one.width] - worth[0] + one.price, abs=1e-12)
        assert one.gain >= one.price - 1e-12  # else it would not have been made
    if reasons.further is not None:
        assert len(worths) == len(widths) + 1 and reasons.further.gain <= reasons.further.price + 1e-12
    elif len(widths) < shaper.bounds.max_depth:
        assert set(worths[-1]) == {0}


@pytest.mark.parametrize("seed", range(150))
def test_a_tree_of_the_best_says_what_its_nodes_were_weighed_against(seed) -> None:
    shaper = random_shaper(np.random.default_rng(seed), False)
    nodes, widths, reasons, went_by = explained(shaper, seed)
    check_passes(shaper, widths, reasons, went_by)
    size, full = nodes.size, nodes.size == shaper.bounds.max_size
    assert reasons.scores == reasons.chances == tuple(nodes.scores) and reasons.bars[0] is None
    bars = [bar for bar in reasons.bars[1:] if bar is not None]
    if shaper.prices is None:
        assert reasons.rule == "budget" and len(bars) == (size - 1 if full else 0)
        assert all(bar == nodes.scores.min() for bar in bars)
    else:
        assert reasons.rule == "costs" and len(bars) == size - 1
        assert sum(bars) == pytest.approx(shaper.prices.step[size] - shaper.prices.step[1])
        by_score = np.argsort(-nodes.scores, kind="stable")
        assert size == 1 or nodes.scores[by_score[-1]] > reasons.bars[by_score[-1]]  # the last one pays for itself
    # every child that nodes of the tree were offered, and what it was worth: what is not in the tree was left out
    offered = {}
    slots = np.flatnonzero(nodes.slots >= 0)[np.argsort(nodes.slots[nodes.slots >= 0])]
    scored = [(row, scores) for kind, *found in went_by if kind == "scored" for row, scores in zip(*found, strict=True)]
    for node in slots:
        row, scores = scored[nodes.slots[node]]
        offered |= {(int(node), int(token)): score for token, score in zip(row, scores, strict=True)}
    for node in range(1, size):
        assert offered.pop((int(nodes.parents[node]), int(nodes.tokens[node]))) == nodes.scores[node]
    every = shape_listed(reasons, offered)
    assert [one.score for one in reasons.left_out] == sorted((one.score for one in every), reverse=True)
    for one in every:
        if one.token is not None:
            assert one.ground == ("size" if full else "cost") and one.score <= one.bar + 1e-12


def shape_listed(reasons, offered):
    """Return what was left out; every one with a token was offered, and none better is missing."""
    named = [one for one in reasons.left_out if one.token is not None]
    assert all(offered[one.parent, one.token] == one.score for one in named)
    lowest = reasons.left_out[-1].score if len(reasons.left_out) == 12 else -1.0
    assert len(named) >= sum(score > lowest for score in offered.values())
    return reasons.left_out


@pytest.mark.parametrize("seed", range(150))
def test_a_tree_drawn_in_turn_says_what_its_draws_were_weighed_against(seed) -> None:
    shaper = random_shaper(np.random.default_rng(1_000 + seed), True)
    nodes, widths, reasons, went_by = explained(shaper, seed, most=1_000)
    check_passes(shaper, widths, reasons, went_by)
    assert reasons.rule == "draws" and reasons.scores == tuple(nodes.scores)
    prices = [found[0] for kind, *found in went_by if kind == "price"]
    gains = [found[0] for kind, *found in went_by if kind == "gains"]
    starts = np.cumsum([0, *widths])
    for node in range(1, nodes.size):
        slot = nodes.slots[nodes.parents[node]]
        made = reasons.drafted[node] - 1
        assert starts[made] <= slot < starts[made + 1] and reasons.bars[node] == prices[made]
        assert reasons.chances[node] == gains[made][slot - starts[made], nodes.ranks[node] - 1] >= prices[made]
    assert reasons.drafted[0] == 0 and reasons.bars[0] is None
    for one in reasons.left_out:
        children = int((nodes.parents == one.parent).sum())
        assert one.rank == children + 1 and one.token is None
        slot = nodes.slots[one.parent]
        if slot < 0:
            assert one.ground in ("depth", "size", "floor", "pass")
            continue
        made = int(np.searchsorted(starts, slot, side="right")) - 1
        if one.ground == "cost":  # the last bit may differ: the token that nobody looked at is not known
            assert one.score <= one.bar + 1e-12 and np.isfinite(one.bar)
            assert prices[made] in (one.bar, np.inf)
            if children < gains[made].shape[1]:
                assert one.score == pytest.approx(gains[made][slot - starts[made], children], abs=1e-12)
        else:
            assert one.score >= prices[made] and one.ground in ("size", "children")
            assert one.ground == "children" or nodes.size == shaper.bounds.max_size
    assert {one.parent for one in reasons.left_out} == set(range(nodes.size))  # of every node the next child


def test_all_that_can_be_in_the_way_occurs_and_the_list_is_bounded() -> None:
    grounds = set()
    for seed in range(60):
        for in_turn in (False, True):
            found = explained(random_shaper(np.random.default_rng(seed), in_turn), seed, most=3)[2]
            grounds |= {one.ground for one in found.left_out}
            assert len(found.left_out) <= 3
    assert grounds == set(GROUNDS)


def test_a_shaper_that_is_not_known_is_not_explained() -> None:
    class Other(BestFirst):
        pass

    bounds = ShapeBounds(max_size=2, max_depth=1, beam=1, branch=1)
    rows = RowsRead(np.zeros((0, 1), np.int64), np.zeros((0, 1)))
    assert shape_reasons(Other(bounds, AsDrafted()), Nodes.root(0), [], rows, most=3) is None
    alone = shape_reasons(BestFirst(bounds, AsDrafted()), Nodes.root(0), [], rows, most=3)
    assert alone.scores == (1.0,) and [one.ground for one in alone.left_out] == ["pass"]
