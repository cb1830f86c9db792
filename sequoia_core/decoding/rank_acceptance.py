"""Which rank a node accepts: each verifier's rule over many rows P and Q. N = positions, V = vocabulary, W = ranks."""

from collections.abc import Callable
from itertools import repeat

import numpy as np
import torch
from torch.nn.functional import pad

from ..native import sampling_ops
from .residuals import BLOCK, Residuals, remaining_masses, row_sums, rows_at_once
from .sampling import invert, sample_without_replacement, take_most_likely

OPTIMUM_TOKENS = 4096  # likeliest tokens of the draft among which the optimum without replacement looks
OPTIMUM_RANKS = 4  # its time grows with every one
MOST_RANKS = 16  # that the optimum can be asked for
LOG_STEP = 0.5  # of its integral over time
MAX_ARRIVALS = 30.0  # 1 - exp(-30) is 1 to 13 digits; keeps expm1 finite
UNGROUPED_TOKENS = 128
RARE = 1e-7  # tokens to which both rows give less are one group
MAX_RATIO = 2.0**24  # of P / Q; beyond it, and below 1 / it, there are no finer bins

# of rows P and Q, how many ranks, a generator, and the rows of the first child; the other one after Q of tokens, too
RankRule = Callable[..., torch.Tensor]
OutcomeRule = Callable[..., torch.Tensor]


def rank_acceptance(
    target: torch.Tensor,
    draft: torch.Tensor,
    width: int,
    generator: torch.Generator | None = None,
    first: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return P(child of rank k is the accepted one) along one without-replacement draw per row (paper Algorithm 2).

    Args:
        target, draft: float32 [N, V], rows P and Q.
        first: float32 [N, V], what the first child is drawn from; None for Q.

    Returns:
        float64 [N, W]; a row sums to 1 minus the probability that all W children are rejected.
    """
    return rank_acceptance_of_drawn(target, draft, sample_without_replacement(draft, width, generator, first), first)


def rank_acceptance_of_drawn(
    target: torch.Tensor, draft: torch.Tensor, children: torch.Tensor, first: torch.Tensor | None = None
) -> torch.Tensor:
    """`rank_acceptance` of children that were drawn without replacement already, int64 [N, W]."""
    if sampling_ops.supports(target) and sampling_ops.supports(draft):
        return sampling_ops.rank_acceptance(target, draft, children, first)
    residuals, masses = Residuals(target, draft, first), remaining_masses(draft, children)
    reached = torch.ones(len(target), 1, dtype=torch.float64, device=target.device)
    columns = []
    for k in range(children.shape[1]):
        wanted, offered = residuals.offer(children[:, k : k + 1], masses[:, k : k + 1], k)
        accept = torch.where(offered > 0, (wanted / offered.clamp_min(1e-300)).clamp_max(1.0), (wanted > 0).double())
        columns.append(reached * accept)
        reached = reached * (1.0 - accept)
        residuals.reject(masses[:, k : k + 1], k, reached > 0)
    return torch.cat(columns, 1)


def rank_acceptance_with_replacement(
    target: torch.Tensor,
    draft: torch.Tensor,
    width: int,
    generator: torch.Generator | None = None,
    first: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return P(child of rank k is the accepted one) for independent draws from Q (SpecInfer, multi-step sampling).

    Exact, without drawing: the residual of P after a rejection does not depend on the token rejected, so rank k is
    accepted with probability sum(min(R, Q)).
    """
    residuals = Residuals(target, draft, first)
    one = torch.ones(len(target), 1, dtype=torch.float64, device=target.device)
    total, reached = row_sums(target), one
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
    """Estimate `rank_acceptance` on the average of all draws, at one position: float64 [W], the first exact.

    Only which tokens were rejected is sampled, which changes what is left of the draft's row. Of the target's row,
    rejections leave max(P - g Q, 0) scaled to sum to 1, with a g that grows; the sum before scaling is the probability
    that all were rejected.

    Args:
        target, draft: float64 [V], rows P and Q.
        first: float64 [V], what the first child is drawn from; None for Q.
    """
    mass = draft.clamp_min(1e-12).expand(samples, -1).clone()
    given = mass[0].clone()
    wanted, rejected, taken = target.expand(samples, -1), target.new_ones(samples, 1), target.new_zeros(samples, 1)
    reached = []
    for _ in range(width):
        law = mass if first is None else first.expand(samples, -1)
        scale = rejected / law.sum(1, keepdim=True)
        surplus = (scale * law - wanted).clamp_min_(1e-300)
        mass.scatter_(1, torch.multinomial(surplus, 1, generator=generator), 0.0)
        if first is None:
            taken = taken + scale
        else:
            target, first = (target - first).clamp_min(0.0), None
        wanted = (target - taken * given).clamp_min_(0.0)
        rejected = wanted.sum(1, keepdim=True)
        reached.append(1.0 - rejected.mean())
    return _added_by_each(torch.stack(reached)[None])[0]


def rank_acceptance_of_most_likely(
    target: torch.Tensor, draft: torch.Tensor, width: int, *unused: object
) -> torch.Tensor:
    """Return P(child of rank k is the accepted one) when children are the draft's most likely tokens: P of each.

    With one-hot target rows this is the greedy verifier.
    """
    return target.gather(1, take_most_likely(draft, width)).double()


def optimal_rank_acceptance(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return what each child adds to the most that any verifier accepts of children drawn without replacement.

    The most is that of optimal transport (max-flow = min-cut): the least over sets H of tokens of
    P(H) + 1 - Pr(all k draws lie in H), where it is enough to look at the tokens of smallest P / Q. To draw without
    replacement is to let token i arrive after an exponential time of rate Q[i] and to take the first arrivals. All k
    lie in H if k of H have arrived when the first other token does: an integral over that time.

    Only sets of the draft's `OPTIMUM_TOKENS` are tried: in a larger vocabulary the result is a bound, slightly high.
    The integral errs by about 1e-6. For `OPTIMUM_RANKS` ranks at most.
    """
    width = min(width, OPTIMUM_RANKS)
    return torch.stack([best_of_distinct(*rows, width) for rows in zip(target.double(), draft.double(), strict=True)])


def best_of_distinct(target: torch.Tensor, draft: torch.Tensor, width: int) -> torch.Tensor:
    """`optimal_rank_acceptance` at one position: float64 rows P and Q [V] -> float64 [W], for at most `MOST_RANKS`."""
    assert width <= MOST_RANKS, "the sums below grow with every rank"
    all_mass = draft.clamp_min(1e-12)  # tokens without mass come last, evenly
    mass, kept = (all_mass / all_mass.sum()).topk(min(OPTIMUM_TOKENS, len(draft)))
    wanted, beyond = target[kept], (1.0 - mass.sum(0, keepdim=True)).clamp_min(0.0)
    order = (wanted / mass).argsort()
    wanted, mass = wanted[order].cumsum(0), mass[order]
    outside = torch.cat([mass[1:], beyond]).flip(0).cumsum(0).flip(0)  # mass that is not in H
    inside = mass.new_zeros(width, len(mass))  # Pr(all k draws lie in H)
    times = torch.arange(-8.0, 33.0, LOG_STEP, dtype=torch.float64, device=mass.device).exp()[:, None]
    for some in times.split(max(1, BLOCK // len(mass))):
        due = (mass * some).clamp_max_(MAX_ARRIVALS)
        odds, none = due.expm1(), due.cumsum(1).neg_().exp_()  # that a token has arrived; P(none of H has)
        pace = outside * some
        weights = (-pace).exp_().mul_(pace).mul_(LOG_STEP)
        fewer, ways = none.clone(), torch.ones_like(none)  # P(at most k of H have arrived)
        for k in range(width):
            if k:  # sum over sets of k tokens of H, of the product of their odds
                ways = (odds * ways).cumsum_(1) if k == 1 else pad(odds[:, 1:] * ways[:, :-1], (1, 0)).cumsum_(1)
                fewer.addcmul_(none, ways)
            inside[k] += (weights * (1.0 - fewer)).sum(0)
    return _added_by_each((wanted + 1.0 - inside).amin(1)[None])[0]


def grouped(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return rows with all but the draft's `UNGROUPED_TOKENS` likeliest tokens in groups of similar P / Q, as many.

    Tokens that both rows give next to nothing are one group. Averages over draws hardly depend on which token of a
    group was drawn, and short rows take less time.

    Args:
        given: float64 [V], on CPU: P, Q, and perhaps `first` of `average_rank_acceptance`, tokens outside which have
            groups of their own.
    """
    if len(given[0]) <= 2 * UNGROUPED_TOKENS:
        return given
    rows = [row.numpy() for row in given]
    some = np.flatnonzero(np.maximum(*rows[:2]) >= RARE)
    kept = [row[some] for row in rows]
    ungrouped = np.argsort(-kept[1], kind="stable")[:UNGROUPED_TOKENS]
    others = [np.delete(part, ungrouped) for part in kept]
    ratios = others[0] / np.maximum(others[1], 1e-12)
    group = equal_parts(ratios, UNGROUPED_TOKENS) if len(ratios) else np.empty(0, dtype=int)
    for part in others[2:]:
        group = group + UNGROUPED_TOKENS * (part > 0.0)
    groups = UNGROUPED_TOKENS * (len(rows) - 1)
    short = [
        [*part[ungrouped], *np.bincount(group, rest, minlength=groups), max(0.0, row.sum() - part.sum())]
        for row, part, rest in zip(rows, kept, others, strict=True)
    ]
    return tuple(torch.tensor(short, dtype=torch.float64))


def equal_parts(values: np.ndarray, count: int) -> np.ndarray:
    """Return the group of each of n values, float64 >= 0, when they are sorted and cut into that many equal parts.

    Values are counted in bins, those of float32 numbers with twelve bits after the point, and sorted only where a group
    ends within one.
    """
    bins = values.clip(1 / MAX_RATIO, MAX_RATIO).astype(np.float32).view(np.int32) >> 11  # rounding keeps the order
    bins -= bins.min()
    ends = np.bincount(bins).cumsum()
    starts = np.concatenate([[0], ends[:-1]])
    first, last = (ranks * count // len(values) for ranks in (starts, ends - 1))
    cut = first < last
    groups, unclear = first[bins], np.flatnonzero(cut[bins])
    by_bin = cut.cumsum()[bins[unclear]].astype(np.uint16)  # at most `count`; NumPy sorts such numbers by their digits
    unclear = unclear[by_bin.argsort(kind="stable")]
    unclear = unclear[values[unclear].argsort(kind="stable")]  # in runs by now
    inside = bins[unclear]
    ranks = starts[inside] + np.arange(len(unclear)) - np.searchsorted(inside, inside)
    groups[unclear] = ranks * count // len(values)
    return groups


def optimal_rank_acceptance_with_replacement(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """`optimal_rank_acceptance` for independent draws from Q, where all k lie in H with probability Q(H)^k: exact."""
    wanted, mass = target.double(), draft.double()
    order = (wanted / mass.clamp_min(1e-300)).argsort(1)
    wanted, mass = wanted.gather(1, order).cumsum(1), mass.gather(1, order).cumsum(1)
    return _added_by_each(torch.stack([(wanted + 1.0 - mass**k).amin(1) for k in range(1, width + 1)], 1))


def _added_by_each(accepted: torch.Tensor) -> torch.Tensor:
    """Return float64 [N, W] by rank from the acceptance of the first k children; more children never accept less."""
    grown = accepted.clamp(0.0, 1.0).cummax(1).values
    return torch.diff(grown, dim=1, prepend=torch.zeros_like(grown[:, :1]))


OPTIMA: dict[str, RankRule] = {  # the most that any verifier reaches, by how children are drawn
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
    """Draw the rank of the accepted child, given the token that the step committed there (paper Algorithm 2).

    Whatever was rejected, the token to come is distributed as the residual R. So, given that it is x, the next child is
    the accepted one with probability min(1, D[x] / R[x]); else it was another token, with probability proportional to
    max(D - R, 0). Along a text that the target wrote this draws text and ranks jointly as tree decoding would.

    Args:
        target, draft: float32 [N, V], rows P and Q.
        tokens: int64 [N], what was committed; P must give each of them some probability.
        first: float32 [N, V], what the first child is drawn from; None for Q.
        replacement: children are independent draws from Q, as SpecInfer draws them.

    Returns:
        int64 [N], 1 to W; 0 where all W children were rejected.
    """
    uniforms = torch.rand(len(tokens), 2 * width, dtype=torch.float64, device=target.device, generator=generator)
    if sampling_ops.supports(target) and sampling_ops.supports(draft):
        return sampling_ops.accepted_ranks(target, draft, tokens, first, uniforms, replace=replacement)
    some = rows_at_once(draft)
    firsts = repeat(None) if first is None else first.split(some)
    parts = (target.split(some), draft.split(some), tokens[:, None].split(some), uniforms.split(some), firsts)
    return torch.cat([_accepted_ranks(*part, width, replacement) for part in zip(*parts, strict=False)])


def _accepted_ranks(
    target: torch.Tensor,
    draft: torch.Tensor,
    tokens: torch.Tensor,
    uniforms: torch.Tensor,
    first: torch.Tensor | None,
    width: int,
    replacement: bool,
) -> torch.Tensor:
    count, device = len(tokens), target.device
    residuals, mass = Residuals(target, draft, first), torch.ones(count, 1, dtype=torch.float64, device=device)
    ranks, drawn = torch.zeros_like(tokens), tokens[:, :0]
    undecided = torch.ones_like(tokens, dtype=torch.bool)
    for before in range(width):
        wanted, offered = residuals.offer(tokens, mass, before)
        accept = torch.where(wanted > 0, offered / wanted.clamp_min(1e-300), 1.0)
        taken = undecided & (uniforms[:, 2 * before : 2 * before + 1] < accept)
        ranks[taken] = before + 1
        undecided &= ~taken
        if before + 1 == width or not undecided.any():
            break
        if not replacement:
            even = 1.0 / (draft.shape[1] - before)
            law = draft if residuals.first is None else residuals.first
            given = torch.where(mass > 0, law / mass.clamp_min(1e-300), even).scatter(1, drawn, 0.0)
            surplus = (given - residuals.rows(torch.arange(count, device=device))).clamp_min_(0.0)
            rejected = invert(surplus.cumsum(1), uniforms[:, 2 * before + 1 : 2 * before + 2])
            drawn = torch.cat([drawn, rejected.clamp_max(draft.shape[1] - 1)], 1)  # beyond only where nothing is left
        residuals.reject(mass, before, undecided)
        if not replacement:
            mass = draft.scatter(1, drawn, 0.0).sum(1, keepdim=True, dtype=torch.float64)
    return ranks[:, 0]


def accepted_ranks_of_most_likely(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, width: int, *unused: object
) -> torch.Tensor:
    """`accepted_ranks` where children are the draft's most likely tokens: the rank of the token among them."""
    hits = take_most_likely(draft, width) == tokens[:, None]
    return torch.where(hits.any(1), hits.int().argmax(1) + 1, 0)
