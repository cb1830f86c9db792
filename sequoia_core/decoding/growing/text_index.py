"""An index of text: which tokens followed which context, how often, and how often such a token came again.

Related: prompt lookup decoding (Saxena 2023), REST (arXiv 2311.08252), SuffixDecoding (arXiv 2411.04975); the backing
off is that of prediction by partial matching (Cleary and Witten 1984).
"""

from collections.abc import Sequence

import numpy as np

from ...design.optimal_trees import check_whole
from ...native import text_index as native
from ...native.text_index import BINS, LONGEST, MOST, Ring, TreeColumns
from ..node_facts import Occurrence
from . import plain_index

MAX_TOKENS = 1 << 26  # of an index: 4 GB
LEAST_SCORE = 0.005  # of a node in a tree: rarer ones are not worth their verification on any machine
SHOWN_TOKENS = 6  # tokens of a passage before a token, and from it on
PRIOR_TRIALS = 8.0
# A token that followed a context k times, others o times, comes again with chance k / (k + o + a). The a by length of
# match, if it was the newest there and if not: fitted to 17,000 positions of the demo target's answers.
IN_TEXT = ((0.08, 2.0), (0.2, 2.8), (0.25, 4.0), (0.3, 2.0), (0.4, 4.0), (0.7, 6.0), (2.0, 12.0))
IN_STORE = ((0.05, 2.8), (0.4, 7.0), (0.6, 10.0), (1.1, 8.5), (2.2, 13.0), (5.4, 17.0), (20.0, 32.0))


def _prior() -> np.ndarray:
    """Return the chance of each kind of candidate where nothing was counted yet, float64 [prod(BINS)]."""
    counts, others = np.array([1.0, 2.0, 3.0, 7.0]), np.array([0.0, 1.0, 2.0, 5.0, 12.0])  # of each bin
    spread = np.array([IN_TEXT, IN_STORE])[:, :, None, None, ::-1]
    counts = counts[:, None, None]
    return np.broadcast_to(counts / (counts + others[:, None] + spread), BINS).ravel()


PRIOR = _prior()


def checked_tokens(token_ids: Sequence[int]) -> np.ndarray:
    """Return token ids as int32 [L]."""
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise ValueError(f"token ids: found shape {tokens.shape} of {tokens.dtype}, expected a 1-D list of integers")
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < 2**31):
        raise ValueError(f"token ids: found {tokens.min()} to {tokens.max()}, expected 0 to {2**31 - 1}")
    return np.ascontiguousarray(tokens, np.int32)


class TextIndex:
    """What earlier texts say about what comes next; a decode only reads it.

    Keeps the newest tokens in about 60 bytes each. Not to be added to while a decode reads.

    Args:
        max_context: the longest match that is looked for, 1 to 12 tokens.
        max_tokens: tokens that are kept, rounded up to a power of two.
    """

    def __init__(self, max_context: int = LONGEST, max_tokens: int = 1_000_000) -> None:
        check_whole("max_context", max_context, 1, LONGEST)
        check_whole("max_tokens", max_tokens, 1, MAX_TOKENS)
        self.max_context, self.max_tokens = max_context, max_tokens
        self.hits, self.trials = PRIOR_TRIALS * PRIOR, np.full(PRIOR.size, PRIOR_TRIALS)
        self.texts = 0
        self.ring: Ring | None = None  # no memory before the first text

    @property
    def tokens(self) -> int:
        """How many tokens are kept, with one more for the end of each text."""
        return 0 if self.ring is None else self.ring.held

    @property
    def largest_token(self) -> int:
        """The largest id of those kept; -1 where there are none."""
        return -1 if self.ring is None else int(self.ring.tokens.max())

    def add(self, token_ids: Sequence[int]) -> None:
        """Add a whole text int [L], such as a prompt and its answer; of one longer than the index only the end."""
        tokens = checked_tokens(token_ids)[-self.max_tokens :]
        if not tokens.size:
            return
        RunningText(self, tokens.size, learns_here=True).extend(tokens)
        if self.ring is None:
            self.ring = Ring(self.max_tokens, self.max_context, hits=self.hits, trials=self.trials)
        _extend(self.ring, None, tokens)
        _end(self.ring)
        self.texts += 1


class RunningText:
    """One text that is extended while it is read, and what an index and itself say about what comes next.

    Args:
        room: tokens that the text will have at most.
        learns_here: whether the index's own tables count what comes true, not a copy.
    """

    def __init__(self, index: TextIndex, room: int, *, learns_here: bool = False) -> None:
        self._store = index.ring
        tables = index.hits, index.trials
        hits, trials = tables if learns_here else (table.copy() for table in tables)
        self._ring = Ring(room, index.max_context, hits=hits, trials=trials, learns=True)
        self.length = 0

    def extend(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Add tokens that were committed, int [L]."""
        _extend(self._ring, self._store, np.ascontiguousarray(token_ids, np.int32))
        self.length += len(token_ids)

    def grow(self, tree: TreeColumns, size: int = 0, fresh: int = 0) -> int:
        """Write the tree of the likeliest continuations into buffers, likeliest first; return its nodes.

        The root is the text's last token. A node's score is the product of the chances along its path.

        Args:
            size: nodes that the buffers hold already, parents before their children; 0 begins with the root.
            fresh: what follows is looked up below the nodes from this one on.
        """
        library = native.compiled()
        if library is None:
            return plain_index.grow(self._ring, self._store, tree, size, fresh)
        parents, room = tree.columns["parents"][1:size], len(tree.columns["parents"])
        ordered = ((parents >= 0) & (parents < np.arange(1, size))).all() if 0 <= fresh <= size <= room else False
        if not ordered or not max(size, 1) <= tree.state.max_size <= room:
            raise ValueError(f"found {size} nodes, {fresh} of them known, expected at most {room} below one root")
        return library.index_grow(self._ring.address, _address(self._store), tree.address, size, fresh)

    def occurrences(self, parents: np.ndarray, tokens: np.ndarray, read: np.ndarray) -> tuple[Occurrence | None, ...]:
        """Return where each node of a tree int [n] below this text was found [n]; empty where none was.

        `read`, bool [n], are the nodes that the draft model has read.
        """
        size = len(parents)
        tree = TreeColumns(max_size=size * (1 + MOST), max_depth=1, max_children=size + MOST, least=LEAST_SCORE)
        for name, values in (("parents", parents), ("tokens", tokens), ("scores", 1.0)):
            tree.columns[name][:size] = values
        grown = self.grow(tree, size)  # what may follow each node: all are given as roots, of depth 0
        names = ("parents", "tokens", "places", "sources", "lengths")
        candidates = zip(*(tree.columns[name][size:grown].tolist() for name in names), strict=True)
        where = {(parent, token): rest for parent, token, *rest in candidates}
        occurrences = [
            self._occurrence(*where[parent, token], drafted=bool(read[parent])) if (parent, token) in where else None
            for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)
        ]
        return tuple(occurrences) if any(occurrences) else ()

    def _occurrence(self, place: int, source: int, match: int, *, drafted: bool) -> Occurrence:
        sides = ((SHOWN_TOKENS, 0), (0, SHOWN_TOKENS))
        before, after = (self.passage(place, source, before=b, after=a) for b, a in sides)
        return Occurrence(match, bool(source), tuple(before), tuple(after), drafted)

    @property
    def addresses(self) -> tuple[int, int | None]:
        """Addresses of this text and of the index, for compiled code."""
        return self._ring.address, _address(self._store)

    def passage(self, place: int, source: int, *, before: int, after: int) -> list[int]:
        """Return the tokens around a place, of its text alone; `place` and `source` as `TreeColumns` has them."""
        ring = self._store if source else self._ring
        assert ring is not None
        passage: list[int] = []
        for step, most in ((-1, before), (1, after)):
            at = place - 1 if step < 0 else place
            part: list[int] = []
            while len(part) < most and 0 < (ring.state.total - at) & native.WRAP <= ring.held:
                token = ring.token_at(at)
                if token < 0:
                    break
                part.append(token)
                at += step
            passage = part[::-1] if step < 0 else passage + part
        return passage


def _address(ring: Ring | None) -> int | None:
    return None if ring is None else ring.address


def _extend(ring: Ring, store: Ring | None, tokens: np.ndarray) -> None:
    library = native.compiled()
    if library is None:
        plain_index.extend(ring, store, tokens.tolist())
    else:
        library.index_extend(ring.address, _address(store), tokens.ctypes.data, len(tokens))


def _end(ring: Ring) -> None:
    library = native.compiled()
    if library is None:
        plain_index.end(ring)
    else:
        library.index_end(ring.address)
