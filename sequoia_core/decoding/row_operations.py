"""Operations on rows over the vocabulary, in PyTorch and NumPy or compiled; one object serves the whole process.

m = number of rows, V = vocabulary size, k = number of draws, W = number of ranks.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import torch

from ..files.extras import provided
from .cutting import cut
from .draws import exponential, invert, largest, race, race_after_first, row_uniforms
from .residuals import Residuals, Surplus, remaining_masses, rows_at_once

SMALL_TEMPERATURE = 1e-3


class RowOperations:
    """Row operations in PyTorch and NumPy, for any device and dtype.

    Compiled implementations override the methods that they speed up, and fall back to these for unsupported rows.
    """

    cut = staticmethod(cut)
    largest = staticmethod(largest)
    surplus: Callable[[torch.Tensor, torch.Tensor], Any] = Surplus

    def softmax(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return the softmax of float [m, V] at a temperature, as float32; non-finite rows become NaN throughout."""
        if temperature == 1.0:
            return logits.softmax(-1, dtype=torch.float32)
        scaled = logits.float()
        if temperature < SMALL_TEMPERATURE:  # the quotient could overflow, so shift the maximum to 0 first
            scaled = scaled - scaled.amax(-1, keepdim=True)
        return (scaled / max(temperature, 1e-30)).softmax(-1)  # smaller temperatures would underflow to 0 / 0

    def draw_distinct(
        self, probs: torch.Tensor, k: int, generator: torch.Generator | None, first: torch.Tensor | None
    ) -> torch.Tensor:
        """Implement `sampling.sample_without_replacement`; return int64 [m, k]."""
        noise = exponential(probs, generator)
        if first is None:
            return race(probs, noise, k)
        return race_after_first(probs, noise, k, first, row_uniforms(probs, generator))

    def draw_independent(
        self, probs: torch.Tensor, k: int, generator: torch.Generator | None, first: torch.Tensor | None
    ) -> torch.Tensor:
        """Implement `sampling.sample_with_replacement`; return int64 [m, k]."""
        # torch.multinomial inverts a cumulative sum, whose rounding error in float32 can exceed a rare token's mass.
        drawn = torch.multinomial(probs.double(), k, replacement=True, generator=generator)
        if first is not None:
            drawn[:, :1] = torch.multinomial(first.double(), 1, generator=generator)
        return drawn

    def to_float64(self, probs: torch.Tensor) -> np.ndarray:
        """Return one row of probabilities in double precision, float64 [V] summing to 1."""
        values = probs.double().cpu().numpy()
        return values / values.sum()

    def distribution(self, logits: torch.Tensor, temperature: float) -> np.ndarray | None:
        """Return the softmax of one row [V] in double precision; None if the row is not finite."""
        probs = self.softmax(logits[None], temperature)[0]
        return self.to_float64(probs) if math.isfinite(probs[0]) else None

    def token_probabilities(
        self, logits: torch.Tensor, temperature: float, which: np.ndarray, starts: np.ndarray, tokens: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the softmax at selected tokens (see `sampling.token_probabilities`); None if a row is not finite."""
        probs = self.softmax(logits[torch.from_numpy(which).to(logits.device)].float(), temperature)
        return gather_tokens(probs, starts, tokens) if math.isfinite(probs[:, 0].sum()) else None

    def invert(self, probs: np.ndarray, uniform: float) -> int:
        """Return the index at which the cumulative sum of float64 [V] first exceeds its total times `uniform`."""
        cumulative = np.cumsum(probs)  # `uniform` is below 1, so the product rounds to less than the total
        return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))

    def residual(self, target: np.ndarray, draft: np.ndarray) -> np.ndarray:
        """Return the normalized max(target - draft, 0), float64 [V]; `target` itself if the rows are equal."""
        rest = np.maximum(target - draft, 0.0)
        total = rest.sum()
        return rest / total if total > 0.0 else target

    def remove_token(self, probs: np.ndarray, token: int) -> float:
        """Remove a token from a row, float64 [V], and renormalize it in place; return the mass before normalization."""
        probs[token] = 0.0
        total = probs.sum()
        if total > 0.0:
            probs /= total
        return total

    def rank_acceptance(
        self, target: torch.Tensor, draft: torch.Tensor, children: torch.Tensor, first: torch.Tensor | None
    ) -> torch.Tensor:
        """Implement `rank_acceptance.rank_acceptance_given_draws`."""
        residuals = Residuals(target, draft, first, self.surplus)
        masses = remaining_masses(draft, children)
        reached = torch.ones(len(target), 1, dtype=torch.float64, device=target.device)
        columns = []
        for k in range(children.shape[1]):
            wanted, offered = residuals.offer(children[:, k : k + 1], masses[:, k : k + 1], k)
            accept = torch.where(
                offered > 0, (wanted / offered.clamp_min(1e-300)).clamp_max(1.0), (wanted > 0).double()
            )
            columns.append(reached * accept)
            reached = reached * (1.0 - accept)
            residuals.reject(masses[:, k : k + 1], k, reached > 0)
        return torch.cat(columns, 1)

    def accepted_ranks(
        self,
        target: torch.Tensor,
        draft: torch.Tensor,
        tokens: torch.Tensor,
        uniforms: torch.Tensor,
        first: torch.Tensor | None,
        replacement: bool,
    ) -> torch.Tensor:
        """Implement `rank_acceptance.accepted_ranks` with two uniforms per rank, float64 [m, 2 W]."""
        some = rows_at_once(draft)
        firsts = repeat(None) if first is None else first.split(some)
        parts = (target.split(some), draft.split(some), tokens[:, None].split(some), uniforms.split(some), firsts)
        return torch.cat([self._accepted_ranks(*part, replacement) for part in zip(*parts, strict=False)])

    def _accepted_ranks(
        self,
        target: torch.Tensor,
        draft: torch.Tensor,
        tokens: torch.Tensor,
        uniforms: torch.Tensor,
        first: torch.Tensor | None,
        replacement: bool,
    ) -> torch.Tensor:
        count = len(tokens)
        device = target.device
        width = uniforms.shape[1] // 2
        residuals = Residuals(target, draft, first, self.surplus)
        mass = torch.ones(count, 1, dtype=torch.float64, device=device)
        ranks = torch.zeros_like(tokens)
        drawn = tokens[:, :0]
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
                drawn = torch.cat([drawn, rejected], 1)
            residuals.reject(mass, before, undecided)
            if not replacement:
                mass = draft.scatter(1, drawn, 0.0).sum(1, keepdim=True, dtype=torch.float64)
        return ranks[:, 0]


def gather_tokens(probs: torch.Tensor, starts: np.ndarray, tokens: torch.Tensor) -> torch.Tensor:
    """Return row i's entries of float32 [m, V] at tokens[starts[i] : starts[i + 1]], float32 [c] on CPU."""
    lines = torch.from_numpy(np.repeat(np.arange(len(probs)), np.diff(starts)))
    return probs[lines.to(probs.device), tokens.to(probs.device)].cpu()


@cache
def row_operations() -> RowOperations:
    """Return the fastest row operations that work on this machine."""
    return next((cls() for cls in provided("row_operations") if cls.works()), RowOperations())
