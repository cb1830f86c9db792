"""Top-k and top-p filtering of probability rows, in PyTorch."""

import numpy as np
import torch

FLOORS = (1e-3, 1e-5, 0.0)  # lower bounds, tried in turn, on the probabilities of the tokens to sort
SUM_ERROR = 1e-6  # largest rounding error of a row's float32 sum


def cut(probs: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Apply top-k (0 for none) and then top-p to rows, float32 [m, V], and renormalize them."""
    if 0 < top_k < probs.shape[-1]:
        smallest_kept = probs.topk(top_k, dim=-1).values[..., -1:]
        probs = probs.masked_fill(probs < smallest_kept, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if top_p < 1.0:
        probs = _most_likely_mass(probs, top_p)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _most_likely_mass(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero each entry of float32 [m, V] for which the larger entries of its row already sum to `top_p`."""
    if probs.device.type != "cpu":
        ordered, index = probs.sort(dim=-1, descending=True)
        return probs.scatter(-1, index, ordered.masked_fill(_ahead(ordered) >= top_p, 0.0))
    filtered = torch.zeros_like(probs)
    for row, filtered_row in zip(probs, filtered, strict=True):
        for floor in FLOORS:  # sorting the whole vocabulary would be a hundred times slower
            index = torch.from_numpy(np.flatnonzero(row.numpy() >= floor))
            ordered, order = row[index].sort(descending=True, stable=True)
            ahead = _ahead(ordered)
            if len(index) and ahead[-1] > top_p + SUM_ERROR:
                break
        filtered_row[index[order]] = ordered.masked_fill(ahead >= top_p, 0.0)
    return filtered


def _ahead(ordered: torch.Tensor) -> torch.Tensor:
    return ordered.cumsum(-1, dtype=torch.float64) - ordered
