"""An index of text that records which tokens followed each context and how often such predictions were correct.

Related work: prompt lookup decoding (Saxena 2023), REST (arXiv 2311.08252), SuffixDecoding (arXiv 2411.04975). Backing
off to shorter contexts follows prediction by partial matching (Cleary and Witten 1984).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from sequoia_core.decoding.node_facts import Occurrence
from sequoia_core.files.extras import provided
from sequoia_core.trees.optimal import check_whole_number

from . import plain_index
from .index_memory import BIN_SHAPE, MAX_CANDIDATES, MAX_CONTEXT, POSITION_MASK, Ring, TreeColumns

MAX_INDEX_TOKENS = 1 << 26  # takes about 4 GB of memory
# Verifying nodes with smaller scores is not worth it on any machine.
MIN_SCORE = 0.005
SHOWN_TOKENS = 6  # number of tokens shown on either side of a position
PRIOR_TRIALS = 8.0
# If a token followed a context k times and other tokens followed it o times, the token follows again with probability
# k / (k + o + a). For each match length, the first value of a is for the token that followed most recently, the second
# for others. The values were fitted to 17,000 positions of the demo target's answers.
TEXT_SPREAD = ((0.08, 2.0), (0.2, 2.8), (0.25, 4.0), (0.3, 2.0), (0.4, 4.0), (0.7, 6.0), (2.0, 12.0))
STORE_SPREAD = ((0.05, 2.8), (0.4, 7.0), (0.6, 10.0), (1.1, 8.5), (2.2, 13.0), (5.4, 17.0), (20.0, 32.0))


def _prior() -> np.ndarray:
    """Return each bin's initial probability that a candidate is correct, float64 [prod(BIN_SHAPE)]."""
    counts = np.array([1.0, 2.0, 3.0, 7.0])[:, None, None]
    others = np.array([0.0, 1.0, 2.0, 5.0, 12.0])[:, None]
    spread = np.array([TEXT_SPREAD, STORE_SPREAD])[:, :, None, None, ::-1]
    return np.broadcast_to(counts / (counts + others + spread), BIN_SHAPE).ravel()


PRIOR = _prior()


@cache
def compiled_index() -> Any:
    """Return the compiled functions that replace `plain_index`, or None if they are unavailable."""
    return next((library for find in provided("text_index") if (library := find()) is not None), None)


def validate_tokens(token_ids: Sequence[int]) -> np.ndarray:
    """Return token ids as int32 [L]; raise ValueError if they are invalid."""
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise ValueError(f"token ids: found shape {tokens.shape} of {tokens.dtype}, expected a 1-D list of integers")
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < 2**31):
        raise ValueError(f"token ids: found {tokens.min()} to {tokens.max()}, expected 0 to {2**31 - 1}")
    return np.ascontiguousarray(tokens, np.int32)


class TextIndex:
    """An index of earlier texts. Decoding only reads it; do not add texts during a run.

    The index stores the newest tokens, using about 60 bytes each.

    Args:
        max_context: length of the longest match to look for, 1 to 12 tokens.
        max_tokens: number of tokens to store, rounded up to a power of two.
    """

    def __init__(self, max_context: int = MAX_CONTEXT, max_tokens: int = 1_000_000) -> None:
        check_whole_number("max_context", max_context, 1, MAX_CONTEXT)
        check_whole_number("max_tokens", max_tokens, 1, MAX_INDEX_TOKENS)
        self.max_context = max_context
        self.max_tokens = max_tokens
        self.hits = PRIOR_TRIALS * PRIOR
        self.trials = np.full(PRIOR.size, PRIOR_TRIALS)
        self.texts = 0
        self.ring: Ring | None = None  # allocated when the first text is added

    @property
    def tokens(self) -> int:
        """The number of stored tokens, including one end marker per text."""
        return 0 if self.ring is None else len(self.ring)

    @property
    def largest_token(self) -> int:
        """The largest stored token id; -1 if the index is empty."""
        return -1 if self.ring is None else int(self.ring.tokens.max())

    def add(self, token_ids: Sequence[int]) -> None:
        """Add a whole text's token ids, int [L], such as a prompt and its answer; only the end if it is too long."""
        tokens = validate_tokens(token_ids)[-self.max_tokens :]
        if not tokens.size:
            return
        RunningText(self, tokens.size, update_index=True).extend(tokens)
        if self.ring is None:
            self.ring = Ring(self.max_tokens, self.max_context, hits=self.hits, trials=self.trials)
        _extend(self.ring, None, tokens)
        _end_text(self.ring)
        self.texts += 1


class RunningText:
    """A text that grows while it is decoded, and the continuations found in it and in an index.

    Args:
        capacity: maximum number of tokens that the text will have.
        update_index: whether candidates are counted in the index's tables instead of a copy.
    """

    def __init__(self, index: TextIndex, capacity: int, *, update_index: bool = False) -> None:
        self._store = index.ring
        hits = index.hits if update_index else index.hits.copy()
        trials = index.trials if update_index else index.trials.copy()
        self._ring = Ring(capacity, index.max_context, hits=hits, trials=trials, learns=True)
        self.length = 0

    def extend(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Add committed token ids, int [L]."""
        _extend(self._ring, self._store, np.ascontiguousarray(token_ids, np.int32))
        self.length += len(token_ids)

    def grow(self, tree: TreeColumns, size: int = 0, fresh: int = 0) -> int:
        """Write the tree of the likeliest continuations into buffers, likeliest first; return its size.

        The root is the text's last token. A node's score is the product of the probabilities along its path.

        Args:
            size: number of nodes already in the buffers, parents before their children; 0 to begin with the root.
            fresh: index of the first node below which continuations are looked up.
        """
        library = compiled_index()
        if library is None:
            return plain_index.grow(self._ring, self._store, tree, size, fresh)
        parents = tree.columns["parents"][1:size]
        capacity = len(tree.columns["parents"])
        in_bounds = 0 <= fresh <= size <= capacity and max(size, 1) <= tree.state.max_size <= capacity
        if not in_bounds or not ((parents >= 0) & (parents < np.arange(1, size))).all():
            raise ValueError(
                f"found {size} nodes, extended from {fresh}, expected at most {capacity}, each after its parent"
            )
        return library.index_grow(self._ring.address, _address(self._store), tree.address, size, fresh)

    def occurrences(self, parents: np.ndarray, tokens: np.ndarray, read: np.ndarray) -> tuple[Occurrence | None, ...]:
        """Return an occurrence of each node, or None, for a tree below this text; empty if no node occurs.

        `parents` and `tokens` are int [n]; `read`, bool [n], marks the nodes that the draft model has read.
        """
        size = len(parents)
        tree = TreeColumns(
            max_size=size * (1 + MAX_CANDIDATES),
            max_depth=1,
            max_children=size + MAX_CANDIDATES,
            min_score=MIN_SCORE,
        )
        for name, values in (("parents", parents), ("tokens", tokens), ("scores", 1.0)):
            tree.columns[name][:size] = values
        # All depths are 0, so continuations of every node are looked up.
        grown = self.grow(tree, size)
        names = ("parents", "tokens", "positions", "sources", "lengths")
        candidates = zip(*(tree.columns[name][size:grown].tolist() for name in names), strict=True)
        found = {(parent, token): occurrence for parent, token, *occurrence in candidates}
        occurrences = tuple(
            self._describe(*found[edge], drafted=bool(read[edge[0]])) if edge in found else None
            for edge in zip(parents.tolist(), tokens.tolist(), strict=True)
        )
        return occurrences if any(occurrences) else ()

    def _describe(self, position: int, source: int, match: int, *, drafted: bool) -> Occurrence:
        before = self.passage(position, source, before=SHOWN_TOKENS, after=0)
        after = self.passage(position, source, before=0, after=SHOWN_TOKENS)
        return Occurrence(match, bool(source), tuple(before), tuple(after), drafted)

    @property
    def addresses(self) -> tuple[int, int | None]:
        """The addresses of this text and of the index, for compiled code."""
        return self._ring.address, _address(self._store)

    def passage(self, position: int, source: int, *, before: int, after: int) -> list[int]:
        """Return the tokens around an occurrence (`TreeColumns` explains `position` and `source`), within one text."""
        ring = self._store if source else self._ring
        assert ring is not None, "an occurrence in the index implies that it has a ring"
        passage: list[int] = []
        for start, step, limit in ((position - 1, -1, before), (position, 1, after)):
            part: list[int] = []
            while len(part) < limit and 0 < (ring.state.total - start) & POSITION_MASK <= len(ring):
                token = ring.token_at(start)
                if token < 0:
                    break
                part.append(token)
                start += step
            passage += part[::step]
        return passage


def _address(ring: Ring | None) -> int | None:
    return None if ring is None else ring.address


def _extend(ring: Ring, store: Ring | None, tokens: np.ndarray) -> None:
    library = compiled_index()
    if library is None:
        plain_index.extend(ring, store, tokens.tolist())
    else:
        library.index_extend(ring.address, _address(store), tokens.ctypes.data, len(tokens))


def _end_text(ring: Ring) -> None:
    library = compiled_index()
    if library is None:
        plain_index.end_text(ring)
    else:
        library.index_end(ring.address)
