"""Which rank a node accepts, in expectation: each verifier's rule over many pairs of rows at once.

Knows rows of a vocabulary, nothing of text or models. `verifiers` decides one node for real, and names for each rule
the function here that says what it would do on average. Shapes: N = positions, V = vocabulary, W = ranks; P = target
row, Q = draft row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .sampling import sample_without_replacement, take_most_likely

RankRule = Callable[[torch.Tensor, torch.Tensor, int, torch.Generator | None], torch.Tensor]


def rank_acceptance(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return P(child of rank k is the accepted one) along one without-replacement draw per row (paper Algorithm 2).

    Args:
        target, draft: float32 [N, V], rows P and Q.
        width: ranks W.

    Returns:
        float64 [N, W]; a row sums to 1 minus the probability that all W children are rejected.
    """
    children = sample_without_replacement(draft, width, generator)
    left, mass = target.double(), draft.double()
    reached = torch.ones(len(left), 1, dtype=torch.float64, device=left.device)
    columns = []
    for k in range(width):
        token = children[:, k : k + 1]
        wanted, offered = left.gather(1, token), mass.gather(1, token)
        accept = torch.where(offered > 0, (wanted / offered.clamp_min(1e-300)).clamp_max(1.0), (wanted > 0).double())
        columns.append(reached * accept)
        reached = reached * (1.0 - accept)
        left = _residuals(left, mass)
        mass = mass.scatter(1, token, 0.0)
        total = mass.sum(1, keepdim=True)
        if not (total > 0).all():  # exhausted rows go on uniformly over the tokens not rejected so far
            open_tokens = torch.ones_like(mass).scatter_(1, children[:, : k + 1], 0.0)
            mass = torch.where(total > 0, mass, open_tokens)
            total = mass.sum(1, keepdim=True).clamp_min(1e-300)
        mass = mass / total
    return torch.cat(columns, 1)


def _residuals(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """`sampling.residual` over rows, float64 [N, V]: where nothing is left a row stays as it is."""
    rest = (target - draft).clamp_min_(0.0)
    total = rest.sum(1, keepdim=True)
    return torch.where(total > 0, rest / total.clamp_min(1e-300), target)


def rank_acceptance_with_replacement(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return P(child of rank k is the accepted one) for independent draws from Q (SpecInfer, multi-step sampling).

    Exact, without drawing: what is left of P after a rejection does not depend on which token was rejected, so rank k
    is accepted with probability sum(min(R, Q)). Arguments and result as for `rank_acceptance`.
    """
    left, mass = target.double(), draft.double()
    reached = torch.ones(len(left), 1, dtype=torch.float64, device=left.device)
    columns = []
    for _ in range(width):
        accept = torch.minimum(left, mass).sum(1, keepdim=True).clamp_max(1.0)
        columns.append(reached * accept)
        reached = reached * (1.0 - accept)
        left = _residuals(left, mass)
    return torch.cat(columns, 1)


def rank_acceptance_of_most_likely(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return P(child of rank k is the accepted one) when children are the draft's most likely tokens: P of each.

    With one-hot target rows this is the greedy verifier. Arguments and result as for `rank_acceptance`.
    """
    return target.double().gather(1, take_most_likely(draft, width))
