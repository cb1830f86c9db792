"""Convert logits to probabilities, sample tokens, and compute residuals.

m = number of rows, V = vocabulary size, k = number of draws.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from ..acceptance.conditions import check_sampling
from .row_operations import gather_tokens, row_operations

SMALL_SHARE = 1e-12  # probability at the level of rounding errors
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """The target's sampling settings; speculation preserves the resulting distribution exactly.

    Args:
        temperature: divisor of the logits; 0 selects the most likely token.
        top_p: minimum total probability of the most likely tokens to sample from, 0 < top_p <= 1.
        top_k: number of most likely tokens to sample from; 0 for no limit.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_p, self.top_k)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def plain(self) -> bool:
        """Whether sampling is a softmax at the temperature, without top-k or top-p."""
        return not self.greedy and not self.top_k and self.top_p == 1.0


def require_finite(result: Result | None, role: str) -> Result:
    """Return the result; raise FloatingPointError if it is None, which indicates non-finite logits."""
    if result is None:
        raise FloatingPointError(f"the {role} model returned non-finite logits")
    return result


def most_likely(logits: torch.Tensor, role: str) -> torch.Tensor:
    """Return the index of the first maximum in each row of logits, float [m, V], as int64 [m] on CPU.

    Raises FloatingPointError for a row with NaN, +inf, or no finite logit.
    """
    check_logits(logits, role)
    return logits.max(-1).indices.cpu()


def check_logits(logits: torch.Tensor, role: str) -> None:
    """Raise FloatingPointError if a row of float [m, V] contains NaN, +inf, or no finite logit."""
    # NaN and +inf propagate through max; the maximum of a row of -inf is -inf.
    if not torch.isfinite(logits.amax(-1)).all():
        raise FloatingPointError(f"the {role} model returned non-finite logits")


def check_probabilities(probs: torch.Tensor, role: str) -> None:
    """Raise FloatingPointError if a row of float [m, V] came from logits with NaN, +inf, or no finite entry.

    Softmax turns such a row into NaN throughout, so checking one column is enough and costs a tenth as much.
    """
    if not math.isfinite(probs[:, 0].sum()):
        raise FloatingPointError(f"the {role} model returned non-finite logits")


def probabilities(logits: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    """Warp logits, float [m, V], to probabilities, float32 [m, V]; temperature 0 gives one-hot rows (first maximum)."""
    if sampling.greedy:
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.max(-1, keepdim=True).indices, 1.0)
    operations = row_operations()
    probs = operations.softmax(logits, sampling.temperature)
    return probs if sampling.plain else operations.cut(probs, sampling.top_p, sampling.top_k)


def draft_probabilities(logits: torch.Tensor, sampling: SamplingConfig) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the rows to draw children from, and those for first children if they differ (else None), float32 [m, V].

    First children are drawn from rows with the target's top-p and top-k applied, so a draft equal to the target is
    always accepted. If top-p and top-k applied to all children, a row could run out of tokens, and the remaining
    children would be drawn uniformly.

    Args:
        logits: float [m, V].
        sampling: the target's settings; without top-p and top-k, or at temperature 0, all children are drawn from the
            same row.
    """
    operations = row_operations()
    probs = operations.softmax(logits, sampling.temperature)
    return probs, None if sampling.plain else operations.cut(probs, sampling.top_p, sampling.top_k)


def sample_without_replacement(
    probs: torch.Tensor, k: int, generator: torch.Generator | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Draw k distinct tokens per row, in order; return int64 [m, k].

    If a row's mass is exhausted before k tokens are drawn, the remaining ones are drawn uniformly from the other
    tokens, as the verifier assumes (Algorithm 2).

    Args:
        probs: float32 [m, V]; each row sums to 1, and V >= k.
        first: float32 [m, V], rows to draw the first token of each row from; None for `probs`.
    """
    if k > probs.shape[-1]:
        raise ValueError(f"children: found {k} for one node, expected at most {probs.shape[-1]} (the vocabulary size)")
    return row_operations().draw_distinct(probs, k, generator, first)


def sample_with_replacement(
    probs: torch.Tensor, k: int, generator: torch.Generator | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Draw k independent tokens per row; takes the arguments of `sample_without_replacement`."""
    return row_operations().draw_independent(probs, k, generator, first)


def take_most_likely(
    probs: torch.Tensor, k: int, generator: torch.Generator | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the k most likely tokens per row of float [m, V], most likely first, int64 [m, k]."""
    return row_operations().largest(probs, k)


def distribution(logits: torch.Tensor, sampling: SamplingConfig, role: str) -> np.ndarray:
    """Return the warped distribution of one row of logits [V] in double precision, float64 [V] summing to 1.

    Raises FloatingPointError for a row with NaN, +inf, or no finite logit.
    """
    if sampling.plain:
        return require_finite(row_operations().distribution(logits, sampling.temperature), role)
    probs = probabilities(logits[None], sampling)
    check_probabilities(probs, role)
    return row_operations().to_float64(probs[0])


def token_probabilities(
    logits: torch.Tensor,
    sampling: SamplingConfig,
    row_indices: np.ndarray,
    starts: np.ndarray,
    tokens: torch.Tensor,
    role: str,
) -> torch.Tensor:
    """Return the warped probabilities of selected tokens, float32 [c] on CPU.

    Raises FloatingPointError for a row with NaN, +inf, or no finite logit.

    Args:
        logits: float [rows, V].
        row_indices: int64 [m], indices of the rows to read.
        starts: int64 [m + 1]; tokens starts[i] to starts[i + 1] - 1 are read from row `row_indices[i]`.
        tokens: int64 [c], on CPU.
    """
    if sampling.plain:
        selected = row_operations().token_probabilities(logits, sampling.temperature, row_indices, starts, tokens)
        return require_finite(selected, role)
    probs = probabilities(logits[torch.from_numpy(row_indices).to(logits.device)].float(), sampling)
    check_probabilities(probs, role)
    return gather_tokens(probs, starts, tokens)


def residual_share(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return the residual of a target row, scaled by the probability of keeping its node, as float64 [V]."""
    rest = np.maximum(target - draft, 0.0)
    refused = max(0.0, 1.0 - target.sum())
    total = rest.sum()
    if total <= 0.0:  # the rows are equal, so only rounding can lead to a rejection
        return target if refused < SMALL_SHARE else rest
    return rest / (total + refused)
