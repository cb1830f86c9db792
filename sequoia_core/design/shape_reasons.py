"""Why a step's tree has the shape it has: what each node was weighed by and against, and the best that was left out.

Worked out after the step, to be shown, from what its shaper went by: its tables and prices and the draft's rows. The
sums are the shaper's own functions called again, so the numbers are those that it decided by.
Shapes: n = nodes of the tree, r = nodes that the draft read, w = nodes of one pass (a wave), k = ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .shaping import BestFirst, DrawnInTurn, Nodes, Shaper

RULES = ("budget", "costs", "draws")
GROUNDS = ("cost", "size", "depth", "pass", "floor", "children")


class PassWeighed(NamedTuple):
    """A draft pass as it was weighed before it was made, or not made.

    Attributes:
        width: nodes that it reads.
        gain: tokens that what it drafts is expected to add, beyond what these nodes cost the target; None where no
            costs are counted.
        price: tokens that its time is worth.
    """

    width: int
    gain: float | None
    price: float | None


class LeftOut(NamedTuple):
    """A child that a node of the tree does not have.

    Attributes:
        parent: node of the tree below which it would be.
        rank: among the candidates there, from 1.
        token: None where none is known: nothing was drawn, or nothing was drafted there at all.
        score: chance that it would be the one accepted; where nothing was drafted below its parent, what is expected of
            a first child there, or at most its parent's where nothing is expected.
        bar: what the score was weighed against; None where it was not.
        ground: "cost": it would have cost more than it is expected to bring. "size": the tree is full; the bar is the
            lowest score in it. "depth": no more levels may be. "pass": no further draft pass was made. "floor": worth
            too little, if the nodes are to last to the deeper levels. "children": a node gets no more at once.
    """

    parent: int
    rank: int
    token: int | None
    score: float
    bar: float | None
    ground: str


@dataclass(frozen=True, slots=True)
class ShapeReasons:
    """Why the nodes of a tree are there, and what is not.

    Attributes:
        rule: "budget": the best of all candidates, as many as may be. "costs": of the best, as many as are worth their
            cost. "draws": each drawn because its chance, before its token was known, was worth a draw.
        theta: tokens that the time of a step with the root alone is worth; None where no costs are counted.
        scores: chance of each node, the product along its path [n]; 1 for the root.
        chances: what was weighed [n]. For "draws" the chance before the draw, else the score.
        bars: what it was weighed against [n]: for "budget" the lowest score of a full tree, for "costs" the price of
            the node's place in the order of scores, for "draws" the least chance that was worth a draw in its pass.
            None where there was nothing to weigh: for the root, and in a tree that is not full.
        drafted: in which of the passes each node was drafted, from 1 [n]; 0 for the root.
        passes: those made.
        further: the most promising pass that was not made; None where none was possible or none was weighed.
        left_out: the best of what is not in the tree, best first: children that nodes of the tree do not have.
    """

    rule: str
    theta: float | None
    scores: tuple[float, ...]
    chances: tuple[float, ...]
    bars: tuple[float | None, ...]
    drafted: tuple[int, ...]
    passes: tuple[PassWeighed, ...]
    further: PassWeighed | None
    left_out: tuple[LeftOut, ...]


class RowsRead(NamedTuple):
    """The draft's most likely tokens after every node that it read, in the order of their places in its cache.

    Attributes:
        tokens: int64 [r, k].
        probs: float64 [r, k].
    """

    tokens: np.ndarray
    probs: np.ndarray

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens[:, :k], self.probs[:, :k]

    def at(self, slots: np.ndarray | slice) -> RowsRead:
        return RowsRead(self.tokens[slots], self.probs[slots])


def shape_reasons(
    shaper: Shaper, nodes: Nodes, widths: Sequence[int], rows: RowsRead, *, most: int
) -> ShapeReasons | None:
    """Return why a tree has its shape; None for a shaper that is not known here.

    Args:
        shaper: what shaped it.
        nodes: of the finished tree, numbered as it has them.
        widths: how many nodes each draft pass read.
        rows: of all nodes that were read, as many ranks as a node may have children.
        most: how many candidates that were left out to list.
    """
    explain = {BestFirst: _best_first, DrawnInTurn: _drawn_in_turn}.get(type(shaper))
    return None if explain is None else explain(shaper, nodes, widths, rows, most)


def _best_first(shaper: BestFirst, nodes: Nodes, widths: Sequence[int], rows: RowsRead, most: int) -> ShapeReasons:
    size, full = nodes.size, nodes.size == shaper.bounds.max_size
    if shaper.prices is None:
        bars = np.full(size, nodes.scores.min() if full else np.nan)
    else:
        places = np.empty(size, np.int64)
        places[np.argsort(-nodes.scores, kind="stable")] = np.arange(1, size + 1)
        bars = shaper.prices.step[places] - shaper.prices.step[places - 1]
    bars[0] = np.nan
    read = np.flatnonzero(nodes.slots >= 0)
    own = rows.at(nodes.slots[read])
    scores = nodes.scores[read, None] * shaper.chances.most_likely(own.probs)
    bar = float(nodes.scores.min()) if full else None if shaper.prices is None else _next_price(shaper, size)
    held = set(zip(nodes.parents.tolist(), nodes.tokens.tolist(), strict=True))
    left = (
        LeftOut(int(read[row]), rank + 1, token, float(scores[row, rank]), bar, "size" if full else "cost")
        for row, rank in (divmod(int(at), scores.shape[1]) for at in np.argsort(-scores, axis=None, kind="stable"))
        if (int(read[row]), token := int(own.tokens[row, rank])) not in held
    )
    return _reasons(
        shaper, nodes, widths, [*_first(left, most), *_not_read(shaper, nodes, widths)], most,
        rule="budget" if shaper.prices is None else "costs", chances=nodes.scores, bars=bars,
        worths=list(_replayed(shaper, int(nodes.tokens[0]), widths, rows)),
    )  # fmt: skip


def _replayed(shaper: BestFirst, token: int, widths: Sequence[int], rows: RowsRead) -> Iterator[dict[int, float]]:
    """Yield what passes were worth before each one and after the last; nodes were there that the tree lost again."""
    nodes, start = Nodes.root(token), 0
    for width in widths:
        unread, worth = shaper.passes(nodes)
        yield worth
        wave, stop = unread[:width], start + width
        nodes.slots[wave] = np.arange(start, stop)
        nodes, start = shaper.extended(nodes, wave, rows.at(slice(start, stop))), stop
    yield shaper.passes(nodes)[1]


def _drawn_in_turn(shaper: DrawnInTurn, nodes: Nodes, widths: Sequence[int], rows: RowsRead, most: int) -> ShapeReasons:
    chances, bars, left = np.ones(nodes.size), np.full(nodes.size, np.nan), []
    stops = np.cumsum([0, *widths]).tolist()
    states = [_with_passes(nodes, stop) for stop in stops]
    for before, start, stop in zip(states, stops, stops[1:], strict=False):
        wave = np.argsort(nodes.slots, kind="stable")[np.sum(nodes.slots < start) :][: stop - start]
        best, reach = rows.at(slice(start, stop)), nodes.scores[wave]
        price, planned = shaper.price(before.size, reach, best.probs)
        bar = price if np.isfinite(price) else max(_next_price(shaper, before.size), shaper.floor)
        children = [np.flatnonzero(nodes.parents == node) for node in wave]
        ranks = max(map(len, children)) + 1  # one more than there are: the child that was not drawn
        tokens, probs = np.full((len(wave), ranks), -1), np.zeros((len(wave), ranks))
        for row, own in enumerate(children):
            tokens[row, : len(own)], probs[row, : len(own)] = nodes.tokens[own], nodes.probs[own]
        gains = shaper.gains(reach, tokens, probs, best)
        for row, own in enumerate(children):
            chances[own], bars[own] = gains[row, : len(own)], bar
            gain, limit = float(gains[row, len(own)]), min(planned + 1, shaper.bounds.branch)
            ground = "cost" if gain < price else "children" if len(own) == limit else "size"
            left.append(LeftOut(int(wave[row]), len(own) + 1, None, gain, bar if ground == "cost" else None, ground))
    return _reasons(
        shaper, nodes, widths, [*left, *_not_read(shaper, nodes, widths)], most,
        rule="draws", chances=chances, bars=bars, worths=[shaper.passes(state)[1] for state in states],
    )  # fmt: skip


def _with_passes(nodes: Nodes, read: int) -> Nodes:
    """Return the nodes that were there when the draft had read so many; no node is dropped again."""
    slots = np.append(nodes.slots, -1)  # the root's parent
    there = (nodes.parents < 0) | ((slots[nodes.parents] >= 0) & (slots[nodes.parents] < read))
    some = Nodes(*(column[there] for column in nodes))
    return some._replace(slots=np.where(some.slots < read, some.slots, -1))


def _not_read(shaper: BestFirst | DrawnInTurn, nodes: Nodes, widths: Sequence[int]) -> list[LeftOut]:
    """Return a first child of every node that the draft did not read."""
    bounds, hoped = shaper.bounds, max(shaper.expected, default=1.0)
    floor = shaper.floor if isinstance(shaper, DrawnInTurn) else 0.0
    found = []
    for node in np.flatnonzero(nodes.slots < 0).tolist():
        score, bar = float(nodes.scores[node] * hoped), None
        if nodes.depths[node] == bounds.max_depth or len(widths) == bounds.max_depth:
            ground = "depth"
        elif isinstance(shaper, DrawnInTurn) and nodes.size == bounds.max_size:
            ground = "size"
        elif score <= floor:
            ground, bar = "floor", floor
        else:
            ground = "pass"
        found.append(LeftOut(node, 1, None, min(score, 1.0), bar, ground))  # chances by rank may be trusted beyond 1
    return found


def _reasons(
    shaper: BestFirst | DrawnInTurn,
    nodes: Nodes,
    widths: Sequence[int],
    left: list[LeftOut],
    most: int,
    *,
    rule: str,
    chances: np.ndarray,
    bars: np.ndarray,
    worths: Sequence[dict[int, float]],
) -> ShapeReasons:
    """Put together what both recipes have in common.

    Args:
        worths: what passes of each width were worth before each pass that was made, and after the last one.
    """
    passes = [_weighed(shaper, worth, width) for worth, width in zip(worths, widths, strict=False)]
    further, worth = None, worths[-1]
    others = [width for width in worth if width > 0]
    if others and shaper.prices is not None and len(widths) < shaper.bounds.max_depth:
        further = _weighed(shaper, worth, max(others, key=worth.get))
    places = np.searchsorted(np.cumsum(widths), nodes.slots[nodes.parents[1:]], side="right") + 1
    return ShapeReasons(
        rule=rule,
        theta=None if shaper.prices is None else float(shaper.prices.step[1]),
        scores=tuple(nodes.scores.tolist()),
        chances=tuple(chances.tolist()),
        bars=tuple(None if np.isnan(bar) else float(bar) for bar in bars),
        drafted=(0, *places.tolist()),
        passes=tuple(passes),
        further=further,
        left_out=tuple(sorted(left, key=lambda one: -one.score)[:most]),
    )


def _weighed(shaper: BestFirst | DrawnInTurn, worth: dict[int, float], width: int) -> PassWeighed:
    if shaper.prices is None:
        return PassWeighed(width, None, None)
    price = float(shaper.prices.draft[width])
    return PassWeighed(width, max(worth[width] - worth[0] + price, 0.0), price)  # rounding may fall below 0


def _next_price(shaper: BestFirst | DrawnInTurn, size: int) -> float:
    """Return what one more node than so many costs, in tokens."""
    step = None if shaper.prices is None else shaper.prices.step
    return 0.0 if step is None or size + 1 >= len(step) else float(step[size + 1] - step[size])


def _first(found: Iterable[LeftOut], most: int) -> list[LeftOut]:
    return [one for one, _ in zip(found, range(most), strict=False)]
