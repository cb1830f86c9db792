"""What both models thought along an accepted path: their most likely tokens, and what rejections left of the target's.

Worked out after the walk, to be shown; decides nothing. Shapes: V = vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..design.tree import TokenTree
from .verifiers import Rule
from .walk import WALKS, Walk

Likely = tuple[tuple[int, float], ...]  # tokens with their probabilities, the most likely first


class NodeRows(NamedTuple):
    """The rows at one node of the accepted path.

    Attributes:
        node: its id.
        target: what the target would have written after it.
        draft: what the draft would have; empty for a node without children.
        residuals: one for each child that was rejected there, what was left of the target's row after it. Empty at
            temperature 0, where nothing is left over.
    """

    node: int
    target: Likely
    draft: Likely
    residuals: tuple[Likely, ...]


def explain_path(
    tree: TokenTree,
    tokens: Sequence[int],
    walk: Walk,
    *,
    target_row: Callable[[int], np.ndarray],
    draft_row: Callable[[int], np.ndarray],
    rule: Rule | None,
    most: int,
) -> tuple[NodeRows, ...]:
    """Return the rows at every node of a path, `most` tokens of each.

    Args:
        tokens: token of every node [n].
        target_row, draft_row: node -> float64 [V]; the draft's is asked only for nodes with children.
        rule: what the walk went by; None at temperature 0.
    """
    refused = Counter(int(tree.parents[trial.node]) for trial in walk.trials if trial.node not in walk.path)
    found, share = [], 1.0  # the share in which a node is kept; walks from the root have decided on it already
    for place, node in enumerate(walk.path):
        row, children = target_row(node), tree.children(node)
        draft, residuals = (draft_row(node) if children else None), []
        if rule is not None and draft is not None:
            offers = rule(share * row, draft, [tokens[child] for child in children])
            residuals = [likely(offer.residual, most) for offer in islice(offers, refused[node])]
            if rule in WALKS and place + 1 < len(walk.path):
                share = next(offers).accept_prob
        found.append(NodeRows(node, likely(row, most), () if draft is None else likely(draft, most), tuple(residuals)))
    return tuple(found)


def likely(row: np.ndarray, most: int) -> Likely:
    """Return the most likely tokens of a row, float64 [V], those above probability 0."""
    count = min(most, len(row))
    indices = np.argpartition(-row, count - 1)[:count]
    indices = indices[np.argsort(-row[indices], kind="stable")]
    return tuple((int(token), float(row[token])) for token in indices if row[token] > 0.0)
