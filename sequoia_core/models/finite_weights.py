"""Check that weights are finite, and determine whether the file or the loading dtype is at fault."""

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
    """Raise ValueError for a model with non-finite weights; `files` returns its safetensors files, if needed."""
    for key, weights in model.named_parameters():
        if weights.is_floating_point() and not weights.is_meta:
            # A sum takes one pass and no extra memory; elements are checked only if it is not finite.
            if not weights.sum(dtype=torch.float32).isfinite() and not weights.isfinite().all():
                stored = _stored_as({key, f"{model.base_model_prefix}.{key}"}, files())
                raise ValueError(f"{name}: {non_finite_message(key, stored, weights.dtype)}")


def non_finite_message(key: str, stored: torch.Tensor | None, dtype: torch.dtype) -> str:
    """Return the error message for a tensor that is non-finite in `dtype`; `stored` is the tensor in its file."""
    name = str(dtype).removeprefix("torch.")
    if stored is None or not stored.isfinite().all():
        return f"found non-finite numbers in {key}, loaded as {name}, expected finite weights"
    largest = float(stored.abs().max())
    most = torch.finfo(dtype).max
    others = [spelt for spelt, other in TORCH_DTYPES.items() if stored.to(other).isfinite().all()]
    instead = f": use a dtype that can represent them ({' or '.join(others)})" if others else ""
    return f"found numbers up to {largest:.3g} in {key}, expected at most {most:.5g} in {name}{instead}"


def overflow_advice(dtypes: Iterable[torch.dtype | str]) -> str:
    """Return advice on non-finite logits, in parentheses; empty if none of the dtypes is float16."""
    narrow = any(str(dtype).removeprefix("torch.") == "float16" for dtype in dtypes)
    return " (float16 is limited to 65,504, which some models exceed: try bfloat16 or float32)" if narrow else ""


def _stored_as(keys: set[str], paths: Iterable[Path]) -> torch.Tensor | None:
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for key in keys & set(file.keys()):
                return file.get_tensor(key)
    return None
