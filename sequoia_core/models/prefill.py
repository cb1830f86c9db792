"""Reading a text into a model's cache, a chunk per forward, so that memory stays bounded and a cancel soon counts."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from .transformers_model import LanguageModel, TreeCache

CHUNK = 512  # tokens: bounds the mask of a long text to 512 x context


@torch.inference_mode()
def prefill(
    model: LanguageModel, ids: Sequence[int] | torch.Tensor, *, cache: TreeCache, cancel: threading.Event | None = None
) -> bool:
    """Append a text to a cache, each token seeing all before it.

    Args:
        ids: int [L]; may be empty. Positions go on from the cache's length.
        cancel: looked at before every chunk of 512 tokens and after the last one.

    Returns:
        Whether all of it was read and nobody cancelled.
    """
    ids = torch.as_tensor(ids, dtype=torch.int64)
    for start in range(0, len(ids), CHUNK):
        if cancel is not None and cancel.is_set():
            return False
        chunk = ids[start : start + CHUNK]
        positions = torch.arange(len(chunk)) + cache.length
        tail = torch.full((len(chunk), len(chunk)), -torch.inf, dtype=torch.float32).triu(1)
        model.forward(chunk, positions, cache=cache, tail=tail, keep=1)
    return cancel is None or not cancel.is_set()
