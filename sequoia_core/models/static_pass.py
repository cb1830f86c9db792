"""Passes of a fixed shape, as a CUDA graph needs them: what changes from step to step is in buffers on the device.

Nothing in a phase reads a number back from the device, or depends on one for a shape.
Shapes: q = tokens in one pass, t = slots that its tree mask covers, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .tree_cache import CacheSession


def padded(size: int) -> int:
    """Return the size of the pass that serves so many tokens: a power of two, or a multiple of 32."""
    return 1 << (size - 1).bit_length() if size <= 32 else -(-size // 32) * 32


class Phase:
    """Work that every step does in the same way on the same buffers: what a CUDA graph can replay."""

    def __init__(self, work: Callable[[], torch.Tensor]) -> None:
        self.work = work

    @torch.inference_mode()
    def __call__(self) -> torch.Tensor:
        return self.work()


class StaticPass:
    """One pass of a session, of fixed shape.

    Args:
        session: one that `is_static` accepts.
        tree_mask: float32 [q, t], over the slots from `first` on, of which the last q are this pass's own; every slot
            before them is visible.
        depths: int64 [q], positions counted from that of `first`.
        first: int64 [1] on the device; the caller changes it from step to step.
        positions: how many the model has; nodes beyond share the last one.

    Attributes:
        ids, depths, tree_mask: what the next pass reads, on the device.
    """

    def __init__(
        self,
        session: CacheSession,
        tree_mask: torch.Tensor,
        depths: torch.Tensor,
        *,
        first: torch.Tensor,
        positions: int,
    ) -> None:
        place, (width, covered) = session.device, tree_mask.shape
        self.session, self.first, self.positions = session, first, positions
        self.ids = torch.zeros(width, dtype=torch.int64, device=place)
        self.tree_mask, self.depths = tree_mask.to(place, session.logits_dtype, copy=True), depths.to(place, copy=True)
        self._covered = torch.arange(covered, device=place)
        self._slots = torch.arange(session.cache.capacity, device=place)
        self._hidden = torch.full((width, len(self._slots)), -torch.inf, dtype=session.logits_dtype, device=place)

    def logits(self) -> torch.Tensor:
        """Run the model over `ids`; return float [q, V]."""
        covered = self.first + self._covered
        mask = self._hidden.masked_fill(self._slots < self.first, 0.0).index_copy_(1, covered, self.tree_mask)
        positions = (self.first + self.depths).clamp_max(self.positions - 1)
        return self.session.logits_at(covered[-len(self.ids) :], self.ids, positions, mask[None, None])


def is_static(session: object) -> bool:
    """Whether a session can run passes of a fixed shape and gains by it: on a GPU."""
    return isinstance(session, CacheSession) and session.any_slot and session.device.type != "cpu"
