"""What `native/text_index.c` answers, in Python, from the places after each context: keep the answers equal.

A place is the number of a token, counted from a ring's capacity; in C it is taken modulo 2^32.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ...native.text_index import FORGOTTEN_AT, LENGTHS, MOST, OCCURRENCES, WRAP, Ring, TreeColumns


class Candidate(NamedTuple):
    """A token that may follow: which bin of the tables it belongs to, and where it was found."""

    token: int
    bin: int
    level: int
    place: int
    source: int


def candidates(sources: Sequence[Ring | None], context: Sequence[int]) -> list[Candidate]:
    """Return what may follow a context, from the longest match to the shortest."""
    followers: list[Candidate] = []
    for level, length in enumerate(LENGTHS):
        if length > len(context) or len(followers) >= MOST:
            continue
        seen: dict[int, list[int]] = {}  # token -> how often, source, newest place
        total = 0
        for source, ring in enumerate(sources):
            if ring is None:
                continue
            for place in reversed(ring.places.get(tuple(context[-length:]), ())):
                seen.setdefault(ring.token_at(place), [0, source, place])[0] += 1
                total += 1
        known = {candidate.token for candidate in followers}
        for kind, (token, (count, source, place)) in enumerate(seen.items()):
            if token not in known and len(followers) < MOST:
                often, others = _count_bin(count), _others_bin(total - count)
                number = (((source * len(LENGTHS) + level) * 4 + often) * 5 + others) * 2 + (kind == 0)
                followers.append(Candidate(token, number, level, place, source))
    return followers


def _count_bin(count: int) -> int:
    return count - 1 if count < 3 else 2 if count < 5 else 3


def _others_bin(others: int) -> int:
    return others if others < 2 else 2 if others < 4 else 3 if others < 8 else 4


def chances(ring: Ring, followers: Sequence[Candidate]) -> list[float]:
    """Return the chance of each candidate: what shorter matches say shares what longer ones leave."""
    result, left, level, total = [], 1.0, -1, 0.0
    for candidate in followers:
        if candidate.level != level:
            left, level, total = (left - total if left > total else 0.0), candidate.level, 0.0
        result.append(left * (float(ring.hits[candidate.bin]) / float(ring.trials[candidate.bin])))
        total += result[-1]
    return result


def _learn(ring: Ring, followers: Sequence[Candidate], token: int) -> None:
    """Count which of the candidates came true."""
    hit = None
    for candidate in followers:
        if hit is not None and candidate.level != hit:
            return
        number = candidate.bin
        ring.trials[number] += 1.0
        if candidate.token == token:
            ring.hits[number] += 1.0
            hit = candidate.level
        if ring.trials[number] > FORGOTTEN_AT:
            ring.trials[number] *= 0.5
            ring.hits[number] *= 0.5


def last_tokens(ring: Ring, path: Sequence[int] = ()) -> list[int]:
    """Return the last tokens of the text under way and a path behind it, as many as the longest context has."""
    state = ring.state
    some = min(state.text_length, state.max_context)
    whole = [ring.token_at(state.total - back) for back in range(some, 0, -1)] + list(path)
    return whole[-state.max_context :]


def extend(own: Ring, store: Ring | None, tokens: Sequence[int]) -> None:
    """Add tokens to the text under way; where its tables learn, also from another store's candidates."""
    for token in tokens:
        before = last_tokens(own)
        if own.state.learns and before:
            _learn(own, candidates((own, store), before), token)
        for length in LENGTHS:
            if length <= len(before):
                places = own.places.setdefault(tuple(before[-length:]), deque(maxlen=OCCURRENCES))
                places.append(own.state.total)
        _put(own, token)
        own.state.text_length += 1


def end(ring: Ring) -> None:
    """End a text: no context reaches across."""
    _put(ring, -1)
    ring.state.text_length = 0


def _put(ring: Ring, token: int) -> None:
    """Write a token; contexts that begin with the one that it overwrites are forgotten."""
    state = ring.state
    first = state.total - state.capacity
    overwritten = [ring.token_at(first + further) for further in range(LENGTHS[0])]
    for length in LENGTHS:
        places = ring.places.get(context := tuple(overwritten[:length]))
        if places and places[0] == first + length:
            places.popleft()
            if not places:
                del ring.places[context]
    ring.tokens[state.total & state.capacity - 1] = token
    state.total += 1


def grow(own: Ring, store: Ring | None, tree: TreeColumns, size: int = 0, fresh: int = 0) -> int:
    """Grow the tree of the likeliest continuations of the text under way, likeliest first; return its nodes.

    A tree of `size` nodes goes on below the nodes from `fresh` on; 0 begins with the root.
    """
    bounds, columns = tree.state, tree.columns
    root = (-1, 0, 0, own.token_at(own.state.total - 1), 1.0, 1.0, -1, -1, 0)
    names = "parents ranks depths tokens probs scores places sources lengths".split()
    nodes = list(zip(*(columns[name][:size].tolist() for name in names), strict=True)) or [root]
    paths: list[tuple[int, ...]] = [()]
    children = [0] * len(nodes)
    for parent, _, _, token, *_ in nodes[1:]:
        paths.append((*paths[parent], token))
        children[parent] += 1
    waiting: list[tuple] = []  # the largest score first, equal ones in the order in which they were found
    count = 0
    while True:
        for node in range(fresh, len(nodes)):
            if nodes[node][2] == bounds.max_depth:
                continue
            followers = candidates((own, store), last_tokens(own, paths[node]))
            for candidate, found_chance in zip(followers, chances(own, followers), strict=True):
                chance = bounds.gain * found_chance
                score = nodes[node][5] * chance
                if score >= bounds.least:
                    heapq.heappush(waiting, (-score, count, node, candidate, chance))
                    count += 1
        fresh = len(nodes)
        while waiting and len(nodes) < bounds.max_size:
            score, _, parent, candidate, chance = heapq.heappop(waiting)
            if children[parent] < bounds.max_children:
                break
        else:
            for name, column in zip(names, zip(*nodes, strict=True), strict=True):
                columns[name][: len(nodes)] = column
            return len(nodes)
        children[parent] += 1
        where = candidate.place & WRAP, candidate.source, LENGTHS[candidate.level]
        nodes.append((parent, children[parent], nodes[parent][2] + 1, candidate.token, chance, -score, *where))
        paths.append((*paths[parent], candidate.token))
        children.append(0)
