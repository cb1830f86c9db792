"""For display: both models' most likely tokens along an accepted path, residuals after rejections, and acceptance."""

from collections import Counter
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from ..design.conditions import SEQUOIA, SPECINFER, TOPK
from .cutting import FLOORS, cut
from .rank_acceptance import (
    MOST_RANKS,
    average_rank_acceptance,
    best_of_distinct,
    grouped,
    optimal_rank_acceptance_with_replacement,
)
from .sampling import SamplingConfig, take_most_likely
from .verifiers import VERIFIERS, Verifier
from .walk import WALKS, ScoredTree, Walk

SAMPLES = 32  # of the tokens that are rejected, for an average: it errs by about 0.003
BEST = "best"
PLAIN = SamplingConfig(temperature=1.0)
Likely = tuple[tuple[int, float], ...]  # tokens with their probabilities, the most likely first


class NodeRows(NamedTuple):
    """The rows at one node of the accepted path.

    Attributes:
        draft: the draft's; empty for a node without children, and for one that it did not read.
        residuals: the target's residual after each child that was rejected there; none at temperature 0.
        accepted: as `acceptance_at` returns it; None where that is not known.
    """

    node: int
    target: Likely
    draft: Likely
    residuals: tuple[Likely, ...]
    accepted: dict[str, float] | None = None


def explain_path(
    scored: ScoredTree, walk: Walk, *, verifier: Verifier | None, most: int, sampling: SamplingConfig, drawn: bool
) -> tuple[NodeRows, ...]:
    """Return the rows at every node of a path, `most` tokens of each.

    Args:
        verifier: of the walk; None at temperature 0.
        drawn: whether all children come from the draft's rows, none from text already seen.
    """
    refused = Counter(int(scored.tree.parents[trial.node]) for trial in walk.trials if trial.node not in walk.path)
    nodes, share = [], 1.0  # the chance that a node is kept; 1 in walks from the root, which have decided already
    for step, node in enumerate(walk.path):
        row, children = scored.target_row(node), scored.tree.children(node)
        draft, residuals, accepted = (scored.draft_row(node) if children else None), [], None
        if verifier is not None and draft is not None:
            rule = verifier.rule
            if drawn and rule not in WALKS:  # those decide over whole paths
                accepted = acceptance_at(row, draft, len(children), verifier, sampling, scored.first_row(node))
            offers = scored.offers(rule, node, share * row, draft)
            residuals = [likely(offer.residual, most) for offer in islice(offers, refused[node])]
            if rule in WALKS and step + 1 < len(walk.path):
                share = next(offers).accept_prob
        likely_next = () if draft is None else likely(draft, most)
        nodes.append(NodeRows(node, likely(row, most), likely_next, tuple(residuals), accepted))
    return tuple(nodes)


def acceptance_at(
    target: np.ndarray,
    draft: np.ndarray,
    children: int,
    verifier: Verifier,
    sampling: SamplingConfig = PLAIN,
    first_row: np.ndarray | None = None,
) -> dict[str, float] | None:
    """Return how often one of a node's children is accepted, on the average of all draws.

    Args:
        target, draft: float64 [V], rows P and Q.
        verifier: whose way of drawing children "best" is about.
        sampling: the target's, which cuts the rows of first children.
        first_row: float64 [V], Q as cut, where the drafter has it.

    Returns:
        Verifier -> acceptance, and "best": the most that any verifier reaches with children drawn as in this run, in a
        large vocabulary slightly high, and left out where first children have rows of their own. None for more than
        `MOST_RANKS` children.
    """
    if children > MOST_RANKS:
        return None
    rows = [torch.from_numpy(row) for row in (target, draft)]
    if not sampling.plain:
        rows += (
            cut(rows[1][None], sampling.top_p, sampling.top_k) if first_row is None else [torch.from_numpy(first_row)]
        )
    wanted, given, *first = (row[None] for row in rows)
    short, generator = grouped(*rows), torch.Generator().manual_seed(0)
    # after a rejection the others' residual is 0: one stands for all
    counts = np.flatnonzero(target > rows[-1].numpy())
    kept = [torch.cat([row[counts], 1.0 - row[counts].sum(0, keepdim=True)])[None] for row in rows]
    ranks = {
        SEQUOIA: average_rank_acceptance(
            short[0], short[1], children, samples=SAMPLES, generator=generator, first=short[2] if first else None
        ),
        SPECINFER: VERIFIERS[SPECINFER].ranks(*kept[:2], children, None, *kept[2:]),
        TOPK: wanted.gather(1, take_most_likely(given.float(), children)),
    }
    if verifier.name == TOPK:
        ranks[BEST] = ranks[TOPK]
    elif not first and verifier.name == SPECINFER:
        ranks[BEST] = optimal_rank_acceptance_with_replacement(wanted, given, children)
    elif not first:
        ranks[BEST] = best_of_distinct(short[0], short[1], children)
    return {name: min(1.0, float(accepted.sum())) for name, accepted in ranks.items()}


def likely(row: np.ndarray, most: int) -> Likely:
    """Return the most likely tokens of a row, float64 [V], above probability 0."""
    for floor in FLOORS[:-1]:  # most of a large vocabulary need not be sorted
        indices = np.flatnonzero(row > floor)
        if len(indices) >= most:
            break
    else:
        least = torch.from_numpy(row).topk(min(most, len(row))).values
        indices = np.flatnonzero((row >= float(least[-1])) & (row > 0.0)) if len(row) else np.empty(0, dtype=int)
    indices = indices[np.argsort(-row[indices], kind="stable")][:most]
    return tuple((int(token), float(row[token])) for token in indices)
