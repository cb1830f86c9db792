"""Acceptance by rank: each verifier's rule, applied to many rows P and Q.

N = number of positions, V = vocabulary size, W = number of ranks.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import pad

from .residuals import BLOCK, Residuals, row_sums
from .row_operations import row_operations
from .sampling import sample_without_replacement, take_most_likely

OPTIMUM_TOKENS = 4096  # the optimum without replacement considers only the draft's most likely tokens
OPTIMUM_RANKS = 4  # rank limit when computing many rows; the cost of the optimum grows with each rank
MAX_OPTIMUM_RANKS = 16  # maximum number of ranks for one row
LOG_STEP = 0.5  # step, in log time, of the integral that gives the optimum
MAX_ARRIVALS = 30.0  # 1 - exp(-30) equals 1 to 13 digits, and expm1(30) is finite
UNGROUPED_TOKENS = 128
RARE = 1e-7  # tokens less likely than this in both rows form one group
MAX_RATIO = 2.0**24  # the finest bins cover P / Q from 1 / MAX_RATIO to MAX_RATIO

RankRule = Callable[..., torch.Tensor]  # (P, Q, width, generator, first)
OutcomeRule = Callable[..., torch.Tensor]  # (P, Q, tokens, width, generator, first)


def rank_acceptance(
    target: torch.Tensor,
    draft: torch.Tensor,
    width: int,
    generator: torch.Generator | None = None,
    first: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the acceptance probability of each rank for one draw without replacement per row (paper Algorithm 2).

    Args:
        target, draft: float32 [N, V], rows P and Q.
        first: float32 [N, V], rows to draw the first child from; None for Q.

    Returns:
        float64 [N, W]; a row sums to 1 minus the probability that all W children are rejected.
    """
    return rank_acceptance_given_draws(target, draft, sample_without_replacement(draft, width, generator, first), first)


def rank_acceptance_given_draws(
    target: torch.Tensor, draft: torch.Tensor, children: torch.Tensor, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `rank_acceptance` for the given children, int64 [N, W], drawn without replacement."""
    return row_operations().rank_acceptance(target, draft, children, first)


def rank_acceptance_with_replacement(
    target: torch.Tensor,
    draft: torch.Tensor,
    width: int,
    generator: torch.Generator | None = None,
    first: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the acceptance probability of each rank for independent draws from Q (SpecInfer, multi-step sampling).

    The result is exact and needs no sampling: the residual of P after a rejection does not depend on the rejected
    token, so rank k is accepted with probability sum(min(R, Q)).
    """
    residuals = Residuals(target, draft, first, row_operations().surplus)
    one = torch.ones(len(target), 1, dtype=torch.float64, device=target.device)
    total = row_sums(target)
    reached = one
    columns = []
    for _ in range(width):
        left = residuals.left.clone()
        rest = residuals.reject(one, 0)
        accept = ((total - rest) / left).clamp(0.0, 1.0)
        columns.append(reached * accept)
        reached = reached * (1.0 - accept)
        total = torch.where(rest > 0, rest, total)
    return torch.cat(columns, 1)


def average_rank_acceptance(
    target: torch.Tensor,
    draft: torch.Tensor,
    width: int,
    *,
    samples: int,
    generator: torch.Generator | None = None,
    first: torch.Tensor | None = None,
) -> torch.Tensor:
    """Estimate the mean of `rank_acceptance` over all draws at one position, float64 [W]; the first entry is exact.

    Only the rejected tokens are sampled; they determine the draft's remaining row. After rejections, the target's
    residual is the normalized max(P - g Q, 0), where g increases with each rejection; its sum before normalization is
    the probability that all children were rejected.

    Args:
        target, draft: float64 [V], rows P and Q.
        first: float64 [V], row to draw the first child from; None for Q.
    """
    mass = draft.clamp_min(1e-12).expand(samples, -1).clone()
    given = mass[0].clone()
    wanted = target.expand(samples, -1)
    rejected = target.new_ones(samples, 1)
    taken = target.new_zeros(samples, 1)
    reached = []
    for _ in range(width):
        law = mass if first is None else first.expand(samples, -1)
        scale = rejected / law.sum(1, keepdim=True)
        surplus = (scale * law - wanted).clamp_min_(1e-300)
        mass.scatter_(1, torch.multinomial(surplus, 1, generator=generator), 0.0)
        if first is None:
            taken = taken + scale
        else:
            target = (target - first).clamp_min(0.0)
            first = None
        wanted = (target - taken * given).clamp_min_(0.0)
        rejected = wanted.sum(1, keepdim=True)
        reached.append(1.0 - rejected.mean())
    return _by_rank(torch.stack(reached)[None])[0]


def top_k_rank_acceptance(target: torch.Tensor, draft: torch.Tensor, width: int, *unused: object) -> torch.Tensor:
    """Return the target's probabilities of the draft's most likely tokens, which are the acceptance rates by rank.

    With one-hot target rows, this is the greedy verifier.
    """
    return target.gather(1, take_most_likely(draft, width)).double()


def optimal_rank_acceptance(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return each rank's contribution to the highest acceptance that any verifier can reach without replacement.

    The highest acceptance is that of optimal transport (max-flow = min-cut): the minimum of
    1 + P(H) - Pr(all k draws lie in H) over token sets H, where only sets of the tokens with the smallest P / Q need to
    be considered. Drawing without replacement is equivalent to letting token i arrive after an exponential time of rate
    Q[i] and taking the first k arrivals. All k draws lie in H if k tokens of H arrive before the first token outside H;
    the probability is an integral over that token's arrival time.

    Only the draft's `OPTIMUM_TOKENS` most likely tokens are considered, so for a larger vocabulary the result is an
    upper bound, slightly too high. The integral's error is about 1e-6. W is at most `OPTIMUM_RANKS`.
    """
    width = min(width, OPTIMUM_RANKS)
    return torch.stack(
        [optimal_rank_acceptance_row(*rows, width) for rows in zip(target.double(), draft.double(), strict=True)]
    )


def optimal_rank_acceptance_row(target: torch.Tensor, draft: torch.Tensor, width: int) -> torch.Tensor:
    """Return `optimal_rank_acceptance` for one pair of rows, float64 [V], as float64 [W], W <= `MAX_OPTIMUM_RANKS`."""
    assert width <= MAX_OPTIMUM_RANKS, "the cost of the sums below grows with every rank"
    all_mass = draft.clamp_min(1e-12)  # zero-probability tokens come last, in random order
    mass, kept = (all_mass / all_mass.sum()).topk(min(OPTIMUM_TOKENS, len(draft)))
    wanted = target[kept]
    beyond = (1.0 - mass.sum(0, keepdim=True)).clamp_min(0.0)
    order = (wanted / mass).argsort()
    wanted = wanted[order].cumsum(0)
    mass = mass[order]
    outside = torch.cat([mass[1:], beyond]).flip(0).cumsum(0).flip(0)  # mass outside H
    inside = mass.new_zeros(width, len(mass))  # Pr(all k draws lie in H)
    times = torch.arange(-8.0, 33.0, LOG_STEP, dtype=torch.float64, device=mass.device).exp()[:, None]
    for some in times.split(max(1, BLOCK // len(mass))):
        due = (mass * some).clamp_max_(MAX_ARRIVALS)
        odds = due.expm1()
        none = due.cumsum(1).neg_().exp_()  # P(no token of H has arrived)
        pace = outside * some
        weights = (-pace).exp_().mul_(pace).mul_(LOG_STEP)
        fewer = none.clone()
        ways = torch.ones_like(none)  # P(at most k of H have arrived)
        for k in range(width):
            if k:  # the elementary symmetric polynomial of degree k in the odds of H
                ways = (odds * ways).cumsum_(1) if k == 1 else pad(odds[:, 1:] * ways[:, :-1], (1, 0)).cumsum_(1)
                fewer.addcmul_(none, ways)
            inside[k] += (weights * (1.0 - fewer)).sum(0)
    return _by_rank((wanted + 1.0 - inside).amin(1)[None])[0]


def group_similar_tokens(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return shorter rows: the draft's `UNGROUPED_TOKENS` most likely tokens, and the rest grouped by similar P / Q.

    Tokens that are rare in both rows form one group. Averages over draws hardly depend on which token of a group is
    drawn, and shorter rows take less time.

    Args:
        given: float64 [V] each, on CPU: P, Q, and optionally the `first` row of `average_rank_acceptance`; tokens
            inside and outside the support of `first` are grouped separately.
    """
    if len(given[0]) <= 2 * UNGROUPED_TOKENS:
        return given
    rows = [row.numpy() for row in given]
    some = np.flatnonzero(np.maximum(*rows[:2]) >= RARE)
    kept = [row[some] for row in rows]
    ungrouped = np.argsort(-kept[1], kind="stable")[:UNGROUPED_TOKENS]
    others = [np.delete(part, ungrouped) for part in kept]
    ratios = others[0] / np.maximum(others[1], 1e-12)
    group = quantile_groups(ratios, UNGROUPED_TOKENS) if len(ratios) else np.empty(0, dtype=int)
    for part in others[2:]:
        group = group + UNGROUPED_TOKENS * (part > 0.0)
    groups = UNGROUPED_TOKENS * (len(rows) - 1)
    short = [
        [*part[ungrouped], *np.bincount(group, rest, minlength=groups), max(0.0, row.sum() - part.sum())]
        for row, part, rest in zip(rows, kept, others, strict=True)
    ]
    return tuple(torch.tensor(short, dtype=torch.float64))


def quantile_groups(values: np.ndarray, count: int) -> np.ndarray:
    """Return the quantile group, 0 to count - 1, of each of n values, float64 >= 0.

    Values are counted in bins (float32 numbers with a mantissa of 12 bits) and sorted only within bins that span
    several groups.
    """
    bins = values.clip(1 / MAX_RATIO, MAX_RATIO).astype(np.float32).view(np.int32) >> 11  # monotone
    bins -= bins.min()
    ends = np.bincount(bins).cumsum()
    starts = np.concatenate([[0], ends[:-1]])
    first, last = (ranks * count // len(values) for ranks in (starts, ends - 1))
    cut = first < last
    groups = first[bins]
    unclear = np.flatnonzero(cut[bins])
    by_bin = cut.cumsum()[bins[unclear]].astype(np.uint16)  # at most `count`; NumPy's uint16 sort is a radix sort
    unclear = unclear[by_bin.argsort(kind="stable")]
    unclear = unclear[values[unclear].argsort(kind="stable")]  # stable, to exploit existing runs
    inside = bins[unclear]
    ranks = starts[inside] + np.arange(len(unclear)) - np.searchsorted(inside, inside)
    groups[unclear] = ranks * count // len(values)
    return groups


def optimal_rank_acceptance_with_replacement(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return the exact `optimal_rank_acceptance` for independent draws: all k lie in H with probability Q(H)^k."""
    wanted = target.double()
    mass = draft.double()
    order = (wanted / mass.clamp_min(1e-300)).argsort(1)
    wanted = wanted.gather(1, order).cumsum(1)
    mass = mass.gather(1, order).cumsum(1)
    return _by_rank(torch.stack([(wanted + 1.0 - mass**k).amin(1) for k in range(1, width + 1)], 1))


def _by_rank(accepted: torch.Tensor) -> torch.Tensor:
    """Return acceptance by rank, float64 [N, W], from cumulative acceptance over ranks, made monotone."""
    grown = accepted.clamp(0.0, 1.0).cummax(1).values
    return torch.diff(grown, dim=1, prepend=torch.zeros_like(grown[:, :1]))


OPTIMA: dict[str, RankRule] = {  # the best acceptance of any verifier, by draft sampling
    "optimum": optimal_rank_acceptance,
    "optimum_with_replacement": optimal_rank_acceptance_with_replacement,
}


def accepted_ranks(
    target: torch.Tensor,
    draft: torch.Tensor,
    tokens: torch.Tensor,
    width: int,
    generator: torch.Generator | None = None,
    first: torch.Tensor | None = None,
    *,
    replacement: bool = False,
) -> torch.Tensor:
    """Draw the rank of the accepted child given the token committed at each position (paper Algorithm 2).

    After any rejections, the committed token follows the residual R. Given that it is x, the next child is accepted
    with probability min(1, D[x] / R[x]); otherwise that child was a different token, with probability proportional to
    max(D - R, 0). For text generated by the target, the text and the ranks have the same joint distribution as in tree
    decoding.

    Args:
        target, draft: float32 [N, V], rows P and Q.
        tokens: int64 [N], the committed tokens, each with positive probability in P.
        first: float32 [N, V], rows to draw the first child from; None for Q.
        replacement: whether the children are independent draws from Q, as in SpecInfer.

    Returns:
        int64 [N], 1 to W; 0 if all W children were rejected.
    """
    uniforms = torch.rand(len(tokens), 2 * width, dtype=torch.float64, device=target.device, generator=generator)
    return row_operations().accepted_ranks(target, draft, tokens, uniforms, first, replacement)


def top_k_accepted_ranks(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, width: int, *unused: object
) -> torch.Tensor:
    """Return `accepted_ranks` for the draft's most likely tokens: the committed token's rank among them."""
    hits = take_most_likely(draft, width) == tokens[:, None]
    return torch.where(hits.any(1), hits.int().argmax(1) + 1, 0)
