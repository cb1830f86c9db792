"""A draft head in bfloat16 by `llama_x86.c`: its layers and output layer in one call, from the target's features."""

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from ...native import instruction_sets
from ...native.llama_x86 import (
    LARGEST_HEAD,
    MAX_PACKED_BYTES,
    CompiledLlama,
    CompiledSession,
    Shape,
    compiled,
    norms_of_heads,
    projection_biases,
)
from ...native.plain_decoder import MAX_ROTATIONS
from ...native.sampling_ops import address
from ..protocol import parents_of
from .eagle3 import Eagle3Head
from .features import GivenFeatures


class CompiledHead(CompiledLlama):
    """A head's weights, copied into tiles for compiled passes.

    Args:
        head: one that `supports` accepts.
    """

    def __init__(self, head: Eagle3Head) -> None:
        self.functions, reason = compiled()
        if self.functions is None:
            raise OSError(reason)
        self.instructions, self.head = instruction_sets.instructions_in_use(), head
        settings, layers = head.settings, list[Any](head.layers)
        attentions = [layer.self_attn for layer in layers]
        kind = 1 | 2 * settings.norm_before_residual | 4 * settings.norm_output
        shape = Shape(
            settings.hidden, settings.inner, settings.layers, settings.heads, settings.key_heads, settings.head_dim,
            settings.vocab, settings.context, 0, settings.eps, settings.draft_vocab, kind,
        )  # fmt: skip
        angles = torch.arange(settings.context)[:, None].float() * head.frequencies
        norms = [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        tables = [
            (angles.cos() * head.rotary_scaling).contiguous(),
            (angles.sin() * head.rotary_scaling).contiguous(),
            torch.stack([norm.weight.detach().float() for norm in [*norms, head.norm]]),
            torch.stack([projection_biases(own) for own in attentions]) if settings.biases else None,
            norms_of_heads(attentions) if settings.head_norms else None,
        ]
        embedding, output = head.weights_at_ends()
        tokens = None if head.tokens is None else head.tokens.to(torch.int32)
        self._copy(shape, embedding, tables, layers, output, layers[0].hidden_norm.weight.detach().float(), tokens)

    @staticmethod
    def supports(head: torch.nn.Module) -> bool:
        if not isinstance(head, Eagle3Head):
            return False
        settings, ends = head.settings, head.weights_at_ends()
        sizes = (settings.hidden, settings.inner, settings.head_dim)
        return (
            all(weight.dtype == torch.bfloat16 and weight.device.type == "cpu" for weight in (*ends, head.fc.weight))
            and all(size % 32 == 0 for size in sizes)
            and settings.head_dim <= LARGEST_HEAD
            and sum(2 * weight.numel() for weight in (*ends, *head.layers.parameters())) <= MAX_PACKED_BYTES
            and settings.context * settings.head_dim <= MAX_ROTATIONS
            and compiled()[0] is not None
        )


class CompiledHeadSession(GivenFeatures, CompiledSession):
    """One sequence in a `CompiledHead`, as `HeadSession` has it."""

    def __init__(self, model: CompiledHead, capacity: int, vocab_size: int) -> None:
        super().__init__(model, capacity, vocab_size)
        self._take(model.head, torch.zeros(capacity + 1, model.hidden))
        self._own = torch.full_like(self._given, torch.nan)  # what is read before it is written is found
        shape = capacity + 1, model.hidden
        features = (address(kept, torch.float32, *shape) for kept in (self._given, self._own))
        model.functions.sequoia_features(self.address, *features, ctypes.addressof(self._known))

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, *, keep: int
    ) -> torch.Tensor:
        start, count, covered = self.length, *tree_mask.shape
        cuts = [0]
        if count > 1 and start + count - 1 > self._known.value:
            for index, parent in enumerate((parents_of(tree_mask.numpy(), start) - start).tolist()):
                if start + index > self._known.value and parent >= cuts[-1]:
                    cuts.append(index)  # a drafted token waits for its parent's output
        rows = [
            super(CompiledHeadSession, self).forward(
                ids[first:stop], positions[first:stop], tree_mask[first:stop, : covered - count + stop],
                keep=max(0, stop - max(first, count - keep)),
            )
            for first, stop in pairwise([*cuts, count])
        ]  # fmt: skip
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def commit(self, start: int, slots: Sequence[int]) -> None:
        super().commit(start, slots[:1])
        self._forget(start)
