"""Python versions of the functions in `text_index.c`, which is in cpu_kernels.

Both must return the same numbers, so change them together. A ring's tokens are numbered by position, starting at its
capacity; the C code stores positions modulo 2^32.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from .index_memory import (
    CONTEXT_LENGTHS,
    HALVING_TRIALS,
    MAX_CANDIDATES,
    MAX_OCCURRENCES,
    NODE_COLUMNS,
    POSITION_MASK,
    Ring,
    TreeColumns,
)


class Candidate(NamedTuple):
    """A token that may follow a context, with its bin in the tables and its newest occurrence."""

    token: int
    bin: int
    level: int
    position: int
    source: int


def candidates(sources: Sequence[Ring | None], context: Sequence[int]) -> list[Candidate]:
    """Return the tokens that may follow a context, those with the longest matches first."""
    followers: list[Candidate] = []
    for level, length in enumerate(CONTEXT_LENGTHS):
        if length > len(context) or len(followers) >= MAX_CANDIDATES:
            continue
        seen: dict[int, list[int]] = {}  # token -> [count, source, newest position]
        total = 0
        for source, ring in enumerate(sources):
            if ring is None:
                continue
            for position in reversed(ring.positions.get(tuple(context[-length:]), ())):
                seen.setdefault(ring.token_at(position), [0, source, position])[0] += 1
                total += 1
        found = {candidate.token for candidate in followers}
        for order, (token, (count, source, position)) in enumerate(seen.items()):
            if token not in found and len(followers) < MAX_CANDIDATES:
                bin_index = (source * len(CONTEXT_LENGTHS) + level) * 4 + _count_bin(count)
                bin_index = (bin_index * 5 + _others_bin(total - count)) * 2 + (order == 0)
                followers.append(Candidate(token, bin_index, level, position, source))
    return followers


def _count_bin(count: int) -> int:
    return count - 1 if count < 3 else 2 + (count >= 5)


def _others_bin(others: int) -> int:
    return others if others < 2 else 2 + (others >= 4) + (others >= 8)


def chances(ring: Ring, followers: Sequence[Candidate]) -> list[float]:
    """Return the probability of each candidate; shorter matches share the mass that longer ones leave."""
    result: list[float] = []
    left = 1.0
    level = -1
    total = 0.0
    for candidate in followers:
        if candidate.level != level:
            left = left - total if left > total else 0.0
            level = candidate.level
            total = 0.0
        result.append(left * (float(ring.hits[candidate.bin]) / float(ring.trials[candidate.bin])))
        total += result[-1]
    return result


def _learn(ring: Ring, followers: Sequence[Candidate], token: int) -> None:
    """Count the trials and hits of candidates, down to the match length that yields `token`."""
    hit_level = None
    for candidate in followers:
        if hit_level is not None and candidate.level != hit_level:
            return
        ring.trials[candidate.bin] += 1.0
        if candidate.token == token:
            ring.hits[candidate.bin] += 1.0
            hit_level = candidate.level
        if ring.trials[candidate.bin] > HALVING_TRIALS:
            ring.trials[candidate.bin] *= 0.5
            ring.hits[candidate.bin] *= 0.5


def last_tokens(ring: Ring, path: Sequence[int] = ()) -> list[int]:
    """Return the end of the current text followed by a path, truncated to the longest context."""
    state = ring.state
    count = min(state.text_length, state.max_context)
    text = [ring.token_at(state.total - back) for back in range(count, 0, -1)]
    return [*text, *path][-state.max_context :]


def extend(ring: Ring, store: Ring | None, tokens: Sequence[int]) -> None:
    """Add tokens to the current text; if the ring learns, first count its candidates and the store's."""
    for token in tokens:
        context = last_tokens(ring)
        if ring.state.learns and context:
            _learn(ring, candidates((ring, store), context), token)
        for length in CONTEXT_LENGTHS:
            if length <= len(context):
                positions = ring.positions.setdefault(tuple(context[-length:]), deque(maxlen=MAX_OCCURRENCES))
                positions.append(ring.state.total)
        _write(ring, token)
        ring.state.text_length += 1


def end_text(ring: Ring) -> None:
    """End the current text, so that no context extends across its end."""
    _write(ring, -1)
    ring.state.text_length = 0


def _write(ring: Ring, token: int) -> None:
    """Write a token and remove the contexts that begin with the token it overwrites."""
    state = ring.state
    first = state.total - state.capacity
    overwritten = [ring.token_at(first + offset) for offset in range(CONTEXT_LENGTHS[0])]
    for length in CONTEXT_LENGTHS:
        context = tuple(overwritten[:length])
        positions = ring.positions.get(context)
        if positions and positions[0] == first + length:
            positions.popleft()
            if not positions:
                del ring.positions[context]
    ring.tokens[state.total & state.capacity - 1] = token
    state.total += 1


def grow(ring: Ring, store: Ring | None, tree: TreeColumns, size: int = 0, fresh: int = 0) -> int:
    """Grow the tree of the likeliest continuations of the current text, likeliest first; return its size.

    If `size` is 0, the tree begins with the root; otherwise the existing `size` nodes are extended below node `fresh`
    and the nodes after it.
    """
    bounds = tree.state
    root = (-1, 0, 0, ring.token_at(ring.state.total - 1), 1.0, 1.0, -1, -1, 0)
    nodes = list(zip(*(tree.columns[name][:size].tolist() for name in NODE_COLUMNS), strict=True)) or [root]
    paths: list[tuple[int, ...]] = [()]
    children = [0] * len(nodes)
    for parent, _, _, token, *_ in nodes[1:]:
        paths.append((*paths[parent], token))
        children[parent] += 1
    waiting: list[tuple] = []  # a heap in descending order of score, then in order of insertion
    inserted = 0
    while True:
        for node in range(fresh, len(nodes)):
            if nodes[node][2] == bounds.max_depth:
                continue
            followers = candidates((ring, store), last_tokens(ring, paths[node]))
            for candidate, plain_chance in zip(followers, chances(ring, followers), strict=True):
                chance = bounds.gain * plain_chance
                score = nodes[node][5] * chance
                if score >= bounds.min_score:
                    heapq.heappush(waiting, (-score, inserted, node, candidate, chance))
                    inserted += 1
        fresh = len(nodes)
        while waiting and len(nodes) < bounds.max_size:
            score, _, parent, candidate, chance = heapq.heappop(waiting)
            if children[parent] < bounds.max_children:
                break
        else:
            for name, column in zip(NODE_COLUMNS, zip(*nodes, strict=True), strict=True):
                tree.columns[name][: len(nodes)] = column
            return len(nodes)
        children[parent] += 1
        occurrence = candidate.position & POSITION_MASK, candidate.source, CONTEXT_LENGTHS[candidate.level]
        nodes.append((parent, children[parent], nodes[parent][2] + 1, candidate.token, chance, -score, *occurrence))
        paths.append((*paths[parent], candidate.token))
        children.append(0)
