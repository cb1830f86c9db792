"""What rejections leave of target rows P, by three numbers a row. N = positions, m = the first of them, W = ranks."""

import torch

from ..native import sampling_ops

BLOCK = 65_536  # numbers that a processor's cache holds


def rows_at_once(rows: torch.Tensor) -> int:
    """Return how many of [N, V] to work on at a time: on CPU what fits a cache."""
    return max(1, BLOCK // rows.shape[1] if rows.device.type == "cpu" else len(rows))


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sums of [N, V] in double precision, float64 [N, 1], without a double copy of all rows."""
    return torch.cat([part.sum(1, keepdim=True, dtype=torch.float64) for part in rows.split(rows_at_once(rows))])


def remaining_masses(draft: torch.Tensor, children: torch.Tensor, among: torch.Tensor | None = None) -> torch.Tensor:
    """Return what Q has left when each of the children, int64 [N, W], is drawn: float64 [N, W], 1 at first.

    What is left is added up, never subtracted: of peaked rows nothing but rounding would remain. Children that are not
    `among`, bool [N, W], repeat one that is.
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


class Residuals:
    """Target rows P after rejections: each subtracts the draft's remaining row and scales what is left to sum to 1.

    The draft's row is Q / mass where `mass` is what Q has left. So a residual is max(P - scale Q - offset, 0) / left,
    where `scale` grows by left / mass; once Q is exhausted, its children are drawn evenly from the other tokens, and
    `offset` grows instead. P lies below scale Q + offset at rejected tokens. `scale` is 1 after the first rejection and
    grows: only tokens with P > Q count later, and compiled code looks at no others. Where the first token is drawn from
    a row of its own, what its rejection leaves takes the place of P.

    Args:
        target, draft: float [N, V], rows P and Q.
        first: float [N, V], what the first token is drawn from; None for Q.
    Attributes:
        scale, offset, left: float64 [N, 1].
    """

    def __init__(self, target: torch.Tensor, draft: torch.Tensor, first: torch.Tensor | None = None) -> None:
        self.target, self.draft, self.first = target, draft, first
        self.left = torch.ones(len(target), 1, dtype=torch.float64, device=target.device)
        self.scale, self.offset = torch.zeros_like(self.left), torch.zeros_like(self.left)
        self._sum_over(target)

    def _sum_over(self, target: torch.Tensor) -> None:
        self._summed = target, self.draft
        compiled = sampling_ops.supports(target) and sampling_ops.supports(self.draft)
        self._sums = sampling_ops.Surplus(target, self.draft).sums if compiled else self._added

    def offer(self, tokens: torch.Tensor, mass: torch.Tensor, drawn: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what residuals and draft give the tokens int64 [m, 1] of the first m rows, float64 [m, 1] each.

        `mass`, float64 [m, 1], is what Q has left after `drawn` tokens.
        """
        offering = self.draft if self.first is None else self.first
        count, given = len(tokens), offering[: len(tokens)].gather(1, tokens).double()
        over = self.target[:count].gather(1, tokens).double() - self.scale[:count] * given - self.offset[:count]
        even = 1.0 / max(1, self.draft.shape[1] - drawn)
        return over.clamp_min(0.0) / self.left[:count], torch.where(mass > 0, given / mass.clamp_min(1e-300), even)

    def reject(self, mass: torch.Tensor, drawn: int, among: torch.Tensor | None = None) -> torch.Tensor:
        """Take one more draw off the first m rows; return what is left before it is scaled, float64 [m, 1].

        Where nothing would be left, the residual stays, and so do rows that are not `among`, bool [m, 1], from now on.
        """
        if self.first is not None:
            return self._reject_first(self.first, among)
        parts = [part[: len(mass)] for part in (self.scale, self.offset, self.left)]
        scale, offset, left = parts
        some, even = mass > 0, left / max(1, self.draft.shape[1] - drawn)
        scale = torch.where(some, scale + left / mass.clamp_min(1e-300), scale)
        offset = torch.where(some, offset, offset + even)
        if among is not None:
            offset = offset.masked_fill(~among, torch.inf)
        left = self._sums(scale, offset)
        for part, grown in zip(parts, (scale, offset, left), strict=True):
            part.copy_(torch.where(left > 0, grown, part))
        return left

    def _reject_first(self, first: torch.Tensor, among: torch.Tensor | None) -> torch.Tensor:
        over = (self.target - first).clamp_min_(0.0)
        left = row_sums(over)
        left = left if among is None else left * among
        self.target, self.first = torch.where(left > 0, over, self.target), None
        self.left = torch.where(left > 0, left, self.left)
        self._sum_over(self.target)
        return left

    def _added(self, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        count, (target, draft) = len(scale), self._summed
        over = (target[:count] - scale * draft[:count] - offset).clamp_min_(0.0)
        if len(target) == 1 and 2 * int((kept := over[0] > 0.0).sum()) < len(kept):  # what is 0 once stays 0
            self._summed = target[:, kept], draft[:, kept]
        return over.sum(1, keepdim=True)

    def rows(self, which: torch.Tensor) -> torch.Tensor:
        """Return the residuals of some rows, float64 [.., V]; `which` int64."""
        over = self.target[which] - self.scale[which] * self.draft[which] - self.offset[which]
        return over.clamp_min_(0.0) / self.left[which]
