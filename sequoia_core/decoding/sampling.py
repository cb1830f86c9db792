"""From logits to probabilities to tokens, and speculative sampling's residual. m = rows, V = vocabulary, k = draws."""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from ..design.conditions import check_sampling
from ..native import sampling_ops as rows
from .cutting import cut

SMALL_TEMPERATURE = 1e-3
SMALL_SHARE = 1e-12  # no more than rounding
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the target is sampled; speculation preserves exactly this distribution.

    Args:
        temperature: divides the logits; 0 takes the most likely token.
        top_p: keep the smallest set of most likely tokens whose probability reaches this, 0 < top_p <= 1.
        top_k: keep this many most likely tokens; 0 keeps all.
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
        """Whether sampling is a softmax at the temperature and nothing else."""
        return not self.greedy and not self.top_k and self.top_p == 1.0


def finite(result: T | None, role: str) -> T:
    """Return the result of compiled code; FloatingPointError for None, which means logits that are not finite."""
    if result is None:
        raise FloatingPointError(f"the {role} model returned logits that are not finite")
    return result


def most_likely(logits: torch.Tensor, role: str) -> torch.Tensor:
    """Return the index of each row's first largest logit, int64 [m] on CPU, of float [m, V].

    FloatingPointError for a row with NaN, +inf, or nothing finite.
    """
    check_logits(logits, role)
    return logits.max(-1).indices.cpu()


def check_logits(logits: torch.Tensor, role: str) -> None:
    """Raise FloatingPointError when a row holds NaN, +inf, or nothing finite; float [m, V]."""
    if not torch.isfinite(logits.amax(-1)).all():  # NaN and +inf propagate through max; an all -inf row shows as -inf
        raise FloatingPointError(f"the {role} model returned logits that are not finite")


def check_probabilities(probs: torch.Tensor, role: str) -> None:
    """Raise FloatingPointError when a row came from logits with NaN, +inf or nothing finite; float [m, V].

    A softmax makes all of such a row NaN, so one column is enough, at a tenth of the cost.
    """
    if not math.isfinite(probs[:, 0].sum()):
        raise FloatingPointError(f"the {role} model returned logits that are not finite")


def probabilities(logits: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    """Warp logits float [m, V] to probabilities float32 [m, V]; at temperature 0 one-hot at the first largest logit."""
    if sampling.greedy:
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.max(-1, keepdim=True).indices, 1.0)
    probs = _softmax(logits, sampling)
    return probs if sampling.plain else cut(probs, sampling.top_p, sampling.top_k)


def draft_probabilities(logits: torch.Tensor, sampling: SamplingConfig) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the rows that children are drawn from, and those of first children, float32 [m, V]; None if the same.

    The first child follows the draft's row cut as the target's is: a draft equal to the target is then always accepted.
    A row cut for all children would run out, and add tokens that the draft does not propose.

    Args:
        logits: float [m, V].
        sampling: the target's; without top-p and top-k, or at temperature 0, children are all drawn from one row.
    """
    probs = _softmax(logits, sampling)
    return probs, None if sampling.plain else cut(probs, sampling.top_p, sampling.top_k)


def _softmax(logits: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    if rows.supports(logits):
        return rows.softmax_rows(logits, sampling.temperature)
    if sampling.temperature == 1.0:
        return logits.softmax(-1, dtype=torch.float32)
    scaled = logits.float()
    if sampling.temperature < SMALL_TEMPERATURE:  # the quotient could overflow: let the largest be 0 first
        scaled = scaled - scaled.amax(-1, keepdim=True)
    return (scaled / max(sampling.temperature, 1e-30)).softmax(-1)  # a smaller one is 0 in float32, and 0 / 0 no number


def sample_without_replacement(
    probs: torch.Tensor, k: int, generator: torch.Generator | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Draw k distinct tokens per row, in order -> int64 [m, k].

    When a row's mass is used up before k tokens are drawn, the rest are uniform over the tokens not yet drawn, as the
    verifier assumes (Algorithm 2).

    Args:
        probs: float32 [m, V]; rows sum to 1. `k <= V`.
        first: what the first token of each row is drawn from, shaped as `probs`; None for `probs`.
    """
    if k > probs.shape[-1]:
        raise ValueError(f"children: found {k} of one node, expected at most the vocabulary of {probs.shape[-1]}")
    if rows.supports(probs):
        return rows.draw(probs, torch.rand(len(probs), k, dtype=torch.float64, generator=generator), first=first)
    noise = exponential(probs, generator)
    return (
        race(probs, noise, k) if first is None else race_after(probs, noise, k, first, uniforms_for(probs, generator))
    )


def uniforms_for(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw a number in [0, 1) for each row, float64 [m, 1]."""
    return torch.rand(len(like), 1, dtype=torch.float64, device=like.device, generator=generator)


def race_after(
    probs: torch.Tensor, noise: torch.Tensor, k: int, first: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """`race` after one token of each row was drawn from `first` by a number of its own, float64 [m, 1] in [0, 1)."""
    apart = torch.where(first.sum(-1, keepdim=True) > 0.0, first, probs)
    drawn = invert(apart.cumsum(-1, dtype=torch.float64), uniforms)
    return torch.cat([drawn, race(probs, noise.scatter(-1, drawn, torch.inf), k - 1)], -1)


def race(probs: torch.Tensor, noise: torch.Tensor, k: int) -> torch.Tensor:
    """Draw k tokens per row by an exponential race, those without mass last; `noise` as `exponential` makes it."""
    noise = noise.clamp_min(torch.finfo(torch.float32).tiny)
    arrived = probs / noise
    # tokens without mass follow in the order of their noise, which is uniformly random
    return _largest(torch.where(arrived > 0, arrived, -noise), k)[1]


def _largest(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest values and their indices, largest first, [m, k] each; for k = 1 at a quarter of the time."""
    return values.max(-1, keepdim=True) if k == 1 else values.topk(k, dim=-1)


def exponential(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw standard exponential noise, float32 of a tensor's shape, drawn in double precision.

    Float32 noise of CUDA has no value below 6e-8, so tokens rarer than that would never be drawn. On CPU NumPy's
    ziggurat, seeded from the generator, takes a fifth of torch's time.
    """
    if like.device.type == "cpu":
        seed = int(torch.randint(2**62, (), generator=generator))
        draws = np.random.Generator(np.random.SFC64(seed)).standard_exponential(tuple(like.shape))
        return torch.from_numpy(draws).float()
    return torch.empty_like(like, dtype=torch.float64).exponential_(generator=generator).float()


def sample_with_replacement(
    probs: torch.Tensor, k: int, generator: torch.Generator | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Draw k independent tokens per row -> int64 [m, k]; `probs` and `first` as for `sample_without_replacement`."""
    if rows.supports(probs):
        uniforms = torch.rand(len(probs), k, dtype=torch.float64, generator=generator)
        return rows.draw(probs, uniforms, first=first, replace=True)
    # torch inverts a running sum: in float32 its rounding over a large vocabulary is not small beside rare tokens
    drawn = torch.multinomial(probs.double(), k, replacement=True, generator=generator)
    if first is not None:
        drawn[:, :1] = torch.multinomial(first.double(), 1, generator=generator)
    return drawn


def take_most_likely(
    probs: torch.Tensor, k: int, generator: torch.Generator | None = None, first: torch.Tensor | None = None
) -> torch.Tensor:
    """Take the k most likely tokens per row, most likely first -> int64 [m, k]; `probs` float [m, V]."""
    return rows.largest(probs, k) if rows.supports(probs) else _largest(probs, k)[1]


def invert(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return where running sums, float64 [m, V], pass a share of their totals, float64 [m, 1] in [0, 1)."""
    return torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)


def sample_row(probs: np.ndarray, uniform: float) -> int:
    """Invert the cumulative distribution of float64 [V] at `uniform` in [0, 1)."""
    if rows.compiled() is not None:
        return rows.invert(probs, uniform)
    cumulative = np.cumsum(probs)  # its total times a number below 1 rounds to less than its total
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def to_float64(probs: torch.Tensor) -> np.ndarray:
    """Return one row of probabilities in double precision, float64 [V] summing to 1."""
    if rows.supports(probs[None]):
        return rows.to_float64(probs)
    values = probs.double().cpu().numpy()
    return values / values.sum()


def distribution(logits: torch.Tensor, sampling: SamplingConfig, role: str) -> np.ndarray:
    """Return the warped distribution of one row of logits [V] in double precision, float64 [V] summing to 1.

    FloatingPointError for a row with NaN, +inf, or nothing finite.
    """
    if sampling.plain and rows.supports(logits[None]):
        return finite(rows.distribution(logits, sampling.temperature), role)
    probs = probabilities(logits[None], sampling)
    check_probabilities(probs, role)
    return to_float64(probs[0])


def token_probabilities(
    logits: torch.Tensor,
    sampling: SamplingConfig,
    which: np.ndarray,
    starts: np.ndarray,
    tokens: torch.Tensor,
    role: str,
) -> torch.Tensor:
    """Return the warped probabilities of certain tokens, float32 [c] on CPU.

    FloatingPointError for a row with NaN, +inf, or nothing finite.

    Args:
        logits: float [rows, V].
        which: int64 [m], the rows to read.
        starts: int64 [m + 1]; row `which[i]` is asked for tokens starts[i] to starts[i + 1] - 1.
        tokens: int64 [c], on CPU.
    """
    if not (sampling.plain and rows.supports(logits)):  # as of half precision, whose rows asked for are widened
        logits, which = logits[torch.from_numpy(which).to(logits.device)].float(), np.arange(len(which))
    if sampling.plain and rows.supports(logits):
        return finite(rows.token_probabilities(logits, sampling.temperature, which, starts, tokens), role)
    probs = probabilities(logits, sampling)
    check_probabilities(probs, role)
    lines = torch.from_numpy(np.repeat(which, np.diff(starts)))
    return probs[lines.to(probs.device), tokens.to(probs.device)].cpu()


def residual(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return normalised max(target - draft, 0), float64 [V]; `target` itself where nothing is left (equal rows)."""
    if rows.compiled() is not None:
        return rows.residual(target, draft)
    rest = np.maximum(target - draft, 0.0)
    total = rest.sum()
    return rest / total if total > 0.0 else target


def residual_share(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return the residual of a row float64 [V] that sums to its share of cases; it sums to the share left."""
    rest, refused = np.maximum(target - draft, 0.0), max(0.0, 1.0 - target.sum())
    total = rest.sum()
    if total <= 0.0:  # both equal: rejection has probability 0, but for rounding
        return target if refused < SMALL_SHARE else rest
    return rest / (total + refused)


def remove_token(probs: np.ndarray, token: int) -> float:
    """Take a token out of float64 [V], in place, scale the others to sum to 1, and return their sum before."""
    if rows.compiled() is not None:
        return rows.remove_token(probs, token)
    probs[token] = 0.0
    total = probs.sum()
    if total > 0.0:
        probs /= total
    return total
