"""Whether weights are finite, and whether their file or the dtype that they were loaded in is to blame if not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open

from .protocol import TORCH_DTYPES

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_finite(name: str, model: PreTrainedModel, files: Callable[[], Iterable[Path]]) -> None:
    """Refuse a model that holds numbers which are not finite.

    `files` returns its safetensors files; called only for such a model.
    """
    for key, weights in model.named_parameters():
        if weights.is_floating_point() and not weights.is_meta:
            # a sum takes one pass and no memory; single numbers are checked only where it is not finite
            if not weights.sum(dtype=torch.float32).isfinite() and not weights.isfinite().all():
                stored = _stored_as({key, f"{model.base_model_prefix}.{key}"}, files())
                raise ValueError(f"{name}: {not_finite(key, stored, weights.dtype)}")


def not_finite(key: str, stored: torch.Tensor | None, dtype: torch.dtype) -> str:
    """Say what was found and expected where the numbers of a tensor are not finite.

    `stored` is the tensor as its file holds it, `dtype` that in which it was loaded.
    """
    kind = str(dtype).removeprefix("torch.")
    if stored is None or not stored.isfinite().all():
        return f"found numbers that are not finite in {key}, loaded in {kind}, expected finite weights"
    largest, most = float(stored.abs().max()), torch.finfo(dtype).max
    others = [name for name, other in TORCH_DTYPES.items() if stored.to(other).isfinite().all()]
    instead = f": another dtype holds them ({' or '.join(others)})" if others else ""
    return f"found numbers up to {largest:.3g} in {key}, expected at most {most:.5g} in {kind}{instead}"


def overflow_words(dtypes: Iterable[torch.dtype | str]) -> str:
    """Return what to try where logits are not finite, to follow a sentence; empty where no dtype has a wider range."""
    narrow = any(str(dtype).removeprefix("torch.") == "float16" for dtype in dtypes)
    return " (float16 ends at 65,504, which some models exceed: try bfloat16 or float32)" if narrow else ""


def _stored_as(keys: set[str], paths: Iterable[Path]) -> torch.Tensor | None:
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for key in keys & set(file.keys()):
                return file.get_tensor(key)
    return None
