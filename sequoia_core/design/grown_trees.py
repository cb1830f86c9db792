"""The best trees of every size and depth, grown once for each depth. N = largest size with the root, D = depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import expected_tokens_table, grown_to_depths, is_monotone, tokens_grown
from .replay import replay_while_growing
from .tree_search import Grown
from .what_if import isotonic

REPLAYED_SIZES = 24  # at each depth


@dataclass(frozen=True, slots=True, eq=False)
class GrownTrees:
    """What the best tree of every size and depth yields and drafts; at [n, d] no deeper than d.

    Attributes:
        tokens: float64 [N + 1, D + 1], G(n, d); -inf where no such tree exists.
        correction: float64 [N + 1, D + 1], what such trees yield along the measured texts ÷ G(n, d); 1 without texts.
        widths: int64 [N + 1, D + 1, D], nodes of each draft pass: at [n, d, l] those at depth l that have children;
            meaningless where no such tree exists.
    """

    acceptance: AcceptanceVector
    tokens: np.ndarray
    correction: np.ndarray
    widths: np.ndarray


def grown_by_depth(acceptance: AcceptanceVector, *, max_size: int, max_depth: int) -> GrownTrees:
    """Return the best trees of up to N nodes and D edges.

    Where ranks do not always decrease, G(n, d) is exact all the same, and widths and correction are those of the
    closest vector whose ranks do.
    """
    if is_monotone(acceptance):
        trees = grown_to_depths(acceptance, max_size, max_depth)
        tokens = tokens_grown(trees, max_size, max_depth)
    else:
        tokens = expected_tokens_table(acceptance, max_size=max_size, max_depth=max_depth)
        trees = grown_to_depths(isotonic(acceptance), max_size, max_depth)
    return GrownTrees(
        acceptance, tokens, _text_correction(trees, tokens.shape, acceptance), _widths(trees, max_size, max_depth)
    )


def _widths(trees: Sequence[Grown], max_size: int, max_depth: int) -> np.ndarray:
    widths = np.zeros((max_size + 1, max_depth + 1, max_depth), dtype=np.int64)
    for depth, grown in enumerate(trees, start=1):
        size = len(grown.parents)
        got_children = np.zeros((size, depth), dtype=np.int64)
        eldest = np.flatnonzero(grown.ranks == 1)
        got_children[eldest, grown.depths[eldest] - 1] = 1
        widths[1 : size + 1, depth:, :depth] = got_children.cumsum(axis=0)[:, None]
    return widths


def _text_correction(trees: Sequence[Grown], shape: tuple[int, ...], acceptance: AcceptanceVector) -> np.ndarray:
    correction = np.ones(shape)
    largest = shape[0] - 1
    sizes = np.unique(np.geomspace(1, largest, REPLAYED_SIZES).round().astype(int))
    for depth, grown in enumerate(trees, start=1):
        known = sizes[sizes <= len(grown.parents)]
        texts = replay_while_growing(grown.parents, grown.ranks, known.tolist(), acceptance)
        if texts is None:
            break
        ratio = [text.tokens_per_step for text in texts] / grown.scores.cumsum()[known - 1]
        correction[1:, depth:] = np.interp(np.arange(1, largest + 1), known, ratio)[:, None]
    return correction
