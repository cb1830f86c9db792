"""Both models' most likely tokens along an accepted path, and the target's residuals after rejections.

Computed after the walk, for display; decides nothing. Shapes: V = vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ..design.tree import TokenTree
from .verifiers import Rule
from .walk import WALKS, Walk, offers_at

Likely = tuple[tuple[int, float], ...]  # tokens with their probabilities, the most likely first


class NodeRows(NamedTuple):
    """The rows at one node of the accepted path.

    Attributes:
        node: its id.
        target: the target's most likely tokens after it.
        draft: the draft's; empty for a node without children, and for one that it did not read.
        residuals: the target's residual after each child that was rejected there; none at temperature 0.
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
    looked_up: np.ndarray | None = None,
) -> tuple[NodeRows, ...]:
    """Return the rows at every node of a path, `most` tokens of each.

    Args:
        tokens: token of every node [n].
        target_row, draft_row: node -> float64 [V]; the draft's is asked only for nodes with children.
        rule: of the walk; None at temperature 0.
        looked_up: as for `walk_tree`.
    """
    refused = Counter(int(tree.parents[trial.node]) for trial in walk.trials if trial.node not in walk.path)
    found, share = [], 1.0  # the chance that a node is kept; 1 in walks from the root, which have decided already
    for place, node in enumerate(walk.path):
        row, children = target_row(node), tree.children(node)
        draft, residuals = (draft_row(node) if children else None), []
        if rule is not None and draft is not None:
            offers = offers_at(rule, node, share * row, draft, [tokens[child] for child in children], looked_up)
            residuals = [likely(offer.residual, most) for offer in islice(offers, refused[node])]
            if rule in WALKS and place + 1 < len(walk.path):
                share = next(offers).accept_prob
        found.append(NodeRows(node, likely(row, most), () if draft is None else likely(draft, most), tuple(residuals)))
    return tuple(found)


def likely(row: np.ndarray, most: int) -> Likely:
    """Return the most likely tokens of a row, float64 [V], those above probability 0."""
    if not len(row):
        return ()
    count = min(most, len(row))
    indices = np.argpartition(-row, count - 1)[:count]
    indices = indices[np.argsort(-row[indices], kind="stable")]
    return tuple((int(token), float(row[token])) for token in indices if row[token] > 0.0)
