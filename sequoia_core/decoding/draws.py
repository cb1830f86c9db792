"""Sampling in PyTorch, with output shapes that do not depend on the data.

m = number of rows, V = vocabulary size, k = number of draws.
"""

import numpy as np
import torch


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of the k largest entries of each row, largest first, int64 [m, k]."""
    # For k = 1, `max` takes a quarter of the time of `topk`.
    return values.max(-1, keepdim=True).indices if k == 1 else values.topk(k, dim=-1).indices


def row_uniforms(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw a uniform number in [0, 1) for each row, float64 [m, 1]."""
    return torch.rand(len(like), 1, dtype=torch.float64, device=like.device, generator=generator)


def race_after_first(
    probs: torch.Tensor, noise: torch.Tensor, k: int, first: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """Draw one token per row from `first` using `uniforms`, float64 [m, 1] in [0, 1), and the rest by `race`."""
    apart = torch.where(first.sum(-1, keepdim=True) > 0.0, first, probs)
    drawn = invert(apart.cumsum(-1, dtype=torch.float64), uniforms)
    return torch.cat([drawn, race(probs, noise.scatter(-1, drawn, torch.inf), k - 1)], -1)


def race(probs: torch.Tensor, noise: torch.Tensor, k: int) -> torch.Tensor:
    """Draw k tokens per row by an exponential race with noise from `exponential`; zero-probability tokens come last."""
    noise = noise.clamp_min(torch.finfo(torch.float32).tiny)
    arrived = probs / noise
    # Zero-probability tokens follow in the order of their noise, which is uniformly random.
    return largest(torch.where(arrived > 0, arrived, -noise), k)


def exponential(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw standard exponential noise in the shape of a tensor, in double precision; return it as float32.

    CUDA's float32 noise is never below 6e-8, so rarer tokens would never be drawn. On CPU, NumPy's ziggurat method,
    seeded from the generator, takes a fifth of the time that torch takes.
    """
    if like.device.type == "cpu":
        seed = int(torch.randint(2**62, (), generator=generator))
        draws = np.random.Generator(np.random.SFC64(seed)).standard_exponential(tuple(like.shape))
        return torch.from_numpy(draws).float()
    return torch.empty_like(like, dtype=torch.float64).exponential_(generator=generator).float()


def invert(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the index where each row of cumulative sums, [m, V], first exceeds its total times `uniforms`, [m, k].

    The result is int64 [m, k]; it is V - 1 for a row without mass or with NaN.
    """
    indices = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
    return indices.clamp_max(cumulative.shape[1] - 1)
