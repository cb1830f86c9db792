"""Residuals of target rows P after rejections, represented by three numbers per row.

N = number of positions, m = number of leading positions used (m <= N), V = vocabulary size, W = number of ranks.
"""

from collections.abc import Callable
from typing import Any

import torch

BLOCK = 65_536  # number of elements that fit in a processor's cache


def rows_at_once(rows: torch.Tensor) -> int:
    """Return the number of rows of [N, V] to process at once: on CPU, as many as fit in the cache."""
    return max(1, BLOCK // rows.shape[1] if rows.device.type == "cpu" else len(rows))


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return row sums of [N, V] in double precision, float64 [N, 1], without converting all rows at once."""
    return torch.cat([part.sum(1, keepdim=True, dtype=torch.float64) for part in rows.split(rows_at_once(rows))])


def remaining_masses(draft: torch.Tensor, children: torch.Tensor, among: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mass of Q that remains before each of the children, int64 [N, W], is drawn.

    The result is float64 [N, W]; its first column is 1.

    The remaining mass is summed, never subtracted, because subtracting from a peaked row would leave only rounding
    errors. Children outside `among`, bool [N, W], are duplicates of a child inside it.
    """
    some = rows_at_once(draft)
    others = [
        rows.scatter(1, drawn, 0.0).sum(1, keepdim=True, dtype=torch.float64)
        for rows, drawn in zip(draft.split(some), children.split(some), strict=True)
    ]
    given = draft.gather(1, children).double()
    given = given if among is None else given * among
    masses = given.flip(1).cumsum(1).flip(1) + torch.cat(others)
    masses[:, :1] = 1.0
    return masses


class Surplus:
    """Repeatedly computes the row sums of max(target - scale * draft - offset, 0).

    Scales and offsets never decrease between calls, so an entry that reaches 0 stays 0.

    Args:
        target, draft: float [N, V], rows P and Q.
    """

    def __init__(self, target: torch.Tensor, draft: torch.Tensor) -> None:
        self._rows = target, draft

    def sums(self, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """Return the sums of the first m rows; arguments and result are float64 [m, 1]. An infinite offset gives 0."""
        count = len(scale)
        (target, draft) = self._rows
        excess = (target[:count] - scale * draft[:count] - offset).clamp_min_(0.0)
        if len(target) == 1 and 2 * int((kept := excess[0] > 0.0).sum()) < len(kept):
            self._rows = target[:, kept], draft[:, kept]
        return excess.sum(1, keepdim=True)


class Residuals:
    """Target rows P after rejections; each rejection subtracts the draft's remaining row and renormalizes.

    The draft's row is Q / mass, where `mass` is the remaining mass of Q. A residual is max(P - scale Q - offset, 0) /
    left, and each rejection increases `scale` by left / mass. Once Q is exhausted, children are drawn uniformly from
    the other tokens, and `offset` increases instead. P lies below scale Q + offset at rejected tokens. `scale` is at
    least 1 after the first rejection, so only tokens with P > Q matter later, and compiled code skips the others. If
    the first token is drawn from a separate row, the residual of its rejection replaces P.

    Args:
        target, draft: float [N, V], rows P and Q.
        first: float [N, V], rows to draw the first token from; None for Q.
        surplus: constructor of a `Surplus` for rows P and Q.

    Attributes:
        scale, offset, left: float64 [N, 1], as defined above.
    """

    def __init__(
        self,
        target: torch.Tensor,
        draft: torch.Tensor,
        first: torch.Tensor | None,
        surplus: Callable[[torch.Tensor, torch.Tensor], Any],
    ) -> None:
        self.target = target
        self.draft = draft
        self.first = first
        self._surplus = surplus
        self.left = torch.ones(len(target), 1, dtype=torch.float64, device=target.device)
        self.scale = torch.zeros_like(self.left)
        self.offset = torch.zeros_like(self.left)
        self._summed = surplus(target, draft)

    def offer(self, tokens: torch.Tensor, mass: torch.Tensor, drawn: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual and draft probabilities of one token in each of the first m rows, float64 [m, 1] each.

        `tokens` is int64 [m, 1]. `mass`, float64 [m, 1], is the mass of Q that remains after `drawn` tokens were drawn.
        """
        offering = self.draft if self.first is None else self.first
        count = len(tokens)
        given = offering[: len(tokens)].gather(1, tokens).double()
        excess = self.target[:count].gather(1, tokens).double() - self.scale[:count] * given - self.offset[:count]
        even = 1.0 / max(1, self.draft.shape[1] - drawn)
        return excess.clamp_min(0.0) / self.left[:count], torch.where(mass > 0, given / mass.clamp_min(1e-300), even)

    def reject(self, mass: torch.Tensor, drawn: int, among: torch.Tensor | None = None) -> torch.Tensor:
        """Reject one more draw in the first m rows; return the mass left before normalization, float64 [m, 1].

        A residual with no mass left stays unchanged. Rows outside `among`, bool [m, 1], no longer change.
        """
        if self.first is not None:
            return self._reject_first(self.first, among)
        parts = [part[: len(mass)] for part in (self.scale, self.offset, self.left)]
        scale, offset, left = parts
        some = mass > 0
        even = left / max(1, self.draft.shape[1] - drawn)
        scale = torch.where(some, scale + left / mass.clamp_min(1e-300), scale)
        offset = torch.where(some, offset, offset + even)
        if among is not None:
            offset = offset.masked_fill(~among, torch.inf)
        left = self._summed.sums(scale, offset)
        for part, grown in zip(parts, (scale, offset, left), strict=True):
            part.copy_(torch.where(left > 0, grown, part))
        return left

    def _reject_first(self, first: torch.Tensor, among: torch.Tensor | None) -> torch.Tensor:
        excess = (self.target - first).clamp_min_(0.0)
        left = row_sums(excess)
        left = left if among is None else left * among
        self.target = torch.where(left > 0, excess, self.target)
        self.first = None
        self.left = torch.where(left > 0, left, self.left)
        self._summed = self._surplus(self.target, self.draft)
        return left

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the residuals of the rows at `indices`, int64 [..], as float64 [.., V]."""
        excess = self.target[indices] - self.scale[indices] * self.draft[indices] - self.offset[indices]
        return excess.clamp_min_(0.0) / self.left[indices]
