"""Operations of `sampling_ops.c` on float32 rows on the CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sequoia_core.decoding.residuals import Surplus
from sequoia_core.decoding.row_operations import RowOperations

from . import sampling_ops
from .sampling_ops import supports


class CompiledRows(RowOperations):
    """Compiled row operations; falls back to PyTorch and NumPy for other devices, dtypes and layouts."""

    residual = staticmethod(sampling_ops.residual)
    remove_token = staticmethod(sampling_ops.remove_token)
    invert = staticmethod(sampling_ops.invert)

    @staticmethod
    def works() -> bool:
        """Return whether the compiled code can be built here."""
        return sampling_ops.sampling_kernels() is not None

    def softmax(self, logits: Tensor, temperature: float) -> Tensor:
        if not supports(logits):
            return super().softmax(logits, temperature)
        return sampling_ops.softmax_rows(logits, temperature)

    def cut(self, probs: Tensor, top_p: float, top_k: int) -> Tensor:
        if not supports(probs):
            return super().cut(probs, top_p, top_k)
        return sampling_ops.cut(probs, top_p, top_k)

    def largest(self, values: Tensor, k: int) -> Tensor:
        return sampling_ops.largest(values, k) if supports(values) else super().largest(values, k)

    def surplus(self, target: Tensor, draft: Tensor) -> Any:
        surplus_class = sampling_ops.CompiledSurplus if supports(target) and supports(draft) else Surplus
        return surplus_class(target, draft)

    def draw_distinct(self, probs: Tensor, k: int, generator: torch.Generator | None, first: Tensor | None) -> Tensor:
        if not supports(probs):
            return super().draw_distinct(probs, k, generator, first)
        return sampling_ops.draw_tokens(probs, _uniforms(probs, k, generator), first=first)

    def draw_independent(
        self, probs: Tensor, k: int, generator: torch.Generator | None, first: Tensor | None
    ) -> Tensor:
        if not supports(probs):
            return super().draw_independent(probs, k, generator, first)
        return sampling_ops.draw_tokens(probs, _uniforms(probs, k, generator), first=first, replace=True)

    def to_float64(self, probs: Tensor) -> np.ndarray:
        return sampling_ops.to_float64(probs) if supports(probs[None]) else super().to_float64(probs)

    def distribution(self, logits: Tensor, temperature: float) -> np.ndarray | None:
        if not supports(logits[None]):
            return super().distribution(logits, temperature)
        return sampling_ops.distribution(logits, temperature)

    def token_probabilities(
        self, logits: Tensor, temperature: float, which: np.ndarray, starts: np.ndarray, tokens: Tensor
    ) -> Tensor | None:
        if not supports(logits):
            # Convert only the requested rows, for example if logits are in half precision.
            logits = logits[torch.from_numpy(which).to(logits.device)].float()
            which = np.arange(len(which))
        if not supports(logits):
            return super().token_probabilities(logits, temperature, which, starts, tokens)
        return sampling_ops.token_probabilities(logits, temperature, which, starts, tokens)

    def rank_acceptance(self, target: Tensor, draft: Tensor, children: Tensor, first: Tensor | None) -> Tensor:
        if not (supports(target) and supports(draft)):
            return super().rank_acceptance(target, draft, children, first)
        return sampling_ops.rank_acceptance(target, draft, children, first)

    def accepted_ranks(
        self,
        target: Tensor,
        draft: Tensor,
        tokens: Tensor,
        uniforms: Tensor,
        first: Tensor | None,
        replacement: bool,
    ) -> Tensor:
        if not (supports(target) and supports(draft)):
            return super().accepted_ranks(target, draft, tokens, uniforms, first, replacement)
        return sampling_ops.accepted_ranks(target, draft, tokens, first, uniforms, replace=replacement)


def _uniforms(probs: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(len(probs), k, dtype=torch.float64, generator=generator)
