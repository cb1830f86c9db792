"""Details for display: the most likely tokens along an accepted path, residuals after rejections, acceptance rates."""

from collections import Counter
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from ..acceptance.conditions import SEQUOIA, SPECINFER, TOPK
from .cutting import FLOORS
from .rank_acceptance import (
    MAX_OPTIMUM_RANKS,
    average_rank_acceptance,
    group_similar_tokens,
    optimal_rank_acceptance_row,
    optimal_rank_acceptance_with_replacement,
)
from .row_operations import row_operations
from .sampling import SamplingConfig, take_most_likely
from .verifiers import VERIFIERS, Verifier
from .walk import WALKS, ScoredTree, Walk

SAMPLES = 32  # number of samples of the rejected tokens; the average is accurate to about 0.003
BEST = "best"
PLAIN_SAMPLING = SamplingConfig(temperature=1.0)
Likely = tuple[tuple[int, float], ...]  # (token, probability) pairs, most likely first


class NodeRows(NamedTuple):
    """The most likely tokens at one node of the accepted path.

    Attributes:
        target: tokens from the target's row.
        draft: tokens from the draft's row; empty for a leaf and for a node that the draft did not read.
        residuals: tokens from the target's residual after each rejected child; empty at temperature 0.
        accepted: the result of `acceptance_at`; None if unknown.
    """

    node: int
    target: Likely
    draft: Likely
    residuals: tuple[Likely, ...]
    accepted: dict[str, float] | None = None


def explain_path(
    scored: ScoredTree, walk: Walk, *, verifier: Verifier | None, most: int, sampling: SamplingConfig, drawn: bool
) -> tuple[NodeRows, ...]:
    """Return up to `most` of the most likely tokens of each row along the accepted path.

    Args:
        verifier: the verifier used for the walk; None at temperature 0.
        drawn: whether all children were drawn from the draft's rows, with none looked up.
    """
    refused = Counter(int(scored.tree.parents[trial.node]) for trial in walk.trials if trial.node not in walk.path)
    nodes = []
    share = 1.0  # probability of keeping the node; always 1 in walks from the root
    for step, node in enumerate(walk.path):
        row = scored.target_row(node)
        children = scored.tree.children(node)
        draft = scored.draft_row(node) if children else None
        residuals = []
        accepted = None
        if verifier is not None and draft is not None:
            rule = verifier.rule
            if drawn and rule not in WALKS:  # rules in WALKS decide on whole paths
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
    sampling: SamplingConfig = PLAIN_SAMPLING,
    first_row: np.ndarray | None = None,
) -> dict[str, float] | None:
    """Return the probability that one of a node's children is accepted, averaged over all draws.

    Args:
        target, draft: float64 [V], rows P and Q.
        verifier: the run's verifier; "best" refers to its draft sampling.
        sampling: the target's settings; top-k and top-p also apply to first children's rows.
        first_row: float64 [V], the row that the first child was drawn from; None if the drafter did not record it.

    Returns:
        The acceptance probability by verifier name, and, as "best", the maximum that any verifier could reach with the
        run's draft sampling. "best" is slightly too high for a large vocabulary and is omitted if first children have
        separate rows. None for more than `MAX_OPTIMUM_RANKS` children.
    """
    if children > MAX_OPTIMUM_RANKS:
        return None
    rows = [torch.from_numpy(row) for row in (target, draft)]
    if not sampling.plain:
        rows += (
            row_operations().cut(rows[1][None], sampling.top_p, sampling.top_k)
            if first_row is None
            else [torch.from_numpy(first_row)]
        )
    target_row, draft_row, *first = (row[None] for row in rows)
    short = group_similar_tokens(*rows)
    generator = torch.Generator().manual_seed(0)
    # After a rejection, the residual of all other tokens is 0, so one entry can represent them.
    counts = np.flatnonzero(target > rows[-1].numpy())
    merged = [torch.cat([row[counts], 1.0 - row[counts].sum(0, keepdim=True)])[None] for row in rows]
    ranks = {
        SEQUOIA: average_rank_acceptance(
            short[0], short[1], children, samples=SAMPLES, generator=generator, first=short[2] if first else None
        ),
        SPECINFER: VERIFIERS[SPECINFER].ranks(*merged[:2], children, None, *merged[2:]),
        TOPK: target_row.gather(1, take_most_likely(draft_row.float(), children)),
    }
    if verifier.name == TOPK:
        ranks[BEST] = ranks[TOPK]
    elif not first and verifier.name == SPECINFER:
        ranks[BEST] = optimal_rank_acceptance_with_replacement(target_row, draft_row, children)
    elif not first:
        ranks[BEST] = optimal_rank_acceptance_row(short[0], short[1], children)
    return {name: min(1.0, float(accepted.sum())) for name, accepted in ranks.items()}


def likely(row: np.ndarray, most: int) -> Likely:
    """Return up to `most` of the most likely tokens of a row, float64 [V], omitting those of probability 0."""
    for floor in FLOORS[:-1]:  # avoids sorting most of a large vocabulary
        indices = np.flatnonzero(row > floor)
        if len(indices) >= most:
            break
    else:
        least = torch.from_numpy(row).topk(min(most, len(row))).values
        indices = np.flatnonzero((row >= float(least[-1])) & (row > 0.0)) if len(row) else np.empty(0, dtype=int)
    indices = indices[np.argsort(-row[indices], kind="stable")][:most]
    return tuple((int(token), float(row[token])) for token in indices)
