"""What top-k and top-p leave of rows of probabilities; compiled on CPU where that can be built."""

import numpy as np
import torch

from ..native import sampling_ops

FLOORS = (1e-3, 1e-5, 0.0)  # of probability; tokens above one are looked at first
SUM_ERROR = 1e-6  # of a row's total in float32


def cut(probs: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Return rows float32 [m, V] cut by top-k (0 for none), then by top-p, and scaled to sum to 1."""
    if sampling_ops.supports(probs):
        return sampling_ops.cut(probs, top_p, top_k)
    if 0 < top_k < probs.shape[-1]:
        smallest_kept = probs.topk(top_k, dim=-1).values[..., -1:]
        probs = probs.masked_fill(probs < smallest_kept, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if top_p < 1.0:
        probs = _most_likely_mass(probs, top_p)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _most_likely_mass(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return rows float32 [m, V] without the tokens that at least `top_p` of mass is ahead of, in descending order."""
    if probs.device.type != "cpu":
        ordered, index = probs.sort(dim=-1, descending=True)
        return probs.scatter(-1, index, ordered.masked_fill(_ahead(ordered) >= top_p, 0.0))
    kept = torch.zeros_like(probs)
    for row, rest in zip(probs, kept, strict=True):
        for floor in FLOORS:  # sorting all of a large vocabulary takes a hundred times as long as what has mass
            index = torch.from_numpy(np.flatnonzero(row.numpy() >= floor))
            ordered, order = row[index].sort(descending=True, stable=True)
            ahead = _ahead(ordered)
            if len(index) and ahead[-1] > top_p + SUM_ERROR:
                break
        rest[index[order]] = ordered.masked_fill(ahead >= top_p, 0.0)
    return kept


def _ahead(ordered: torch.Tensor) -> torch.Tensor:
    return ordered.cumsum(-1, dtype=torch.float64) - ordered
