"""Prefill: read a text into a session in chunks, so that memory stays bounded and a cancel takes effect soon."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from .protocol import Session, causal_mask

CHUNK = 512  # tokens: bounds the mask of a long text to 512 x context


@torch.inference_mode()
def prefill(
    session: Session,
    ids: Sequence[int] | torch.Tensor,
    *,
    reader: Session | None = None,
    cancel: threading.Event | None = None,
) -> bool:
    """Append a text int [L] to a session, each token seeing all before it; return whether nobody cancelled.

    `cancel` is looked at before every chunk of 512 tokens and after the last one.

    Args:
        reader: the session of a draft head, which takes the states that this one keeps.
    """
    ids = torch.as_tensor(ids, dtype=torch.int64)
    for start in range(0, len(ids), CHUNK):
        if cancel is not None and cancel.is_set():
            return False
        chunk = ids[start : start + CHUNK]
        first = session.length
        session.forward(chunk, torch.arange(len(chunk)) + first, causal_mask(len(chunk)), keep=1)
        if reader is not None and session.states is not None:
            reader.see(first, session.states)
    return cancel is None or not cancel.is_set()
