"""bfloat16 draft heads run by `llama_x86.c`: layers and output layer in one call, given features."""

import ctypes
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sequoia_core.models.plain_decoder import MAX_ROTATIONS
from sequoia_core.models.protocol import parent_slots

from ..cpu_kernels.kernel_session import CompiledSession
from ..cpu_kernels.llama_x86 import (
    MAX_HEAD_SIZE,
    MAX_PACKED_BYTES,
    CompiledLlama,
    LlamaShape,
    llama_kernels,
    norm_and_bias_tables,
)
from ..cpu_kernels.sampling_ops import tensor_address
from .eagle3 import Eagle3Head
from .features import TargetFeatures


class CompiledHead(CompiledLlama):
    """A head's weights, copied into tiles for compiled passes.

    Args:
        head: a head that `supports` accepts.
    """

    def __init__(self, head: Eagle3Head) -> None:
        self._load_kernels()
        self.head = head
        settings = head.settings
        shape = LlamaShape(
            hidden=settings.hidden,
            inner=settings.inner,
            layers=settings.layers,
            heads=settings.heads,
            key_heads=settings.key_heads,
            head_size=settings.head_dim,
            vocab=settings.vocab,
            context=settings.context,
            eps=settings.eps,
            outputs=settings.draft_vocab,
            draft_head=1 | 2 * settings.norm_before_residual | 4 * settings.norm_output,
        )
        angles = torch.arange(settings.context)[:, None].float() * head.frequencies
        layers = list[Any](head.layers)
        tables = [
            (angles.cos() * head.rotary_scaling).contiguous(),
            (angles.sin() * head.rotary_scaling).contiguous(),
            *norm_and_bias_tables(layers, head.norm, settings.biases, settings.head_norms),
        ]
        embedding, output = head.embedding_and_output_weights()
        self._copy_weights(
            shape,
            embedding,
            tables,
            layers,
            output,
            feature_norm=layers[0].hidden_norm.weight.detach().float(),
            tokens=None if head.tokens is None else head.tokens.to(torch.int32),
        )

    @staticmethod
    def supports(head: torch.nn.Module) -> bool:
        if not isinstance(head, Eagle3Head):
            return False
        settings = head.settings
        ends = head.embedding_and_output_weights()
        sizes = (settings.hidden, settings.inner, settings.head_dim)
        return (
            all(weight.dtype == torch.bfloat16 and weight.device.type == "cpu" for weight in (*ends, head.fc.weight))
            and all(size % 32 == 0 for size in sizes)
            and settings.head_dim <= MAX_HEAD_SIZE
            and sum(2 * weight.numel() for weight in (*ends, *head.layers.parameters())) <= MAX_PACKED_BYTES
            and settings.context * settings.head_dim <= MAX_ROTATIONS
            and llama_kernels()[0] is not None
        )


class CompiledHeadSession(TargetFeatures, CompiledSession):
    """One sequence in a `CompiledHead`; the compiled counterpart of `HeadSession`."""

    parents_first = True

    def __init__(self, model: CompiledHead, capacity: int, vocab_size: int) -> None:
        super().__init__(model, capacity, vocab_size)
        shape = (capacity + 1, model.hidden)
        self._init_features(model.head, torch.zeros(shape))
        # The head's outputs by slot, initialized to NaN to expose reads before writes.
        self._outputs = torch.full(shape, torch.nan)
        addresses = (tensor_address(rows, torch.float32, *shape) for rows in (self._features, self._outputs))
        model.functions.sequoia_features(self.address, *addresses, ctypes.addressof(self._last_known))

    def forward(self, ids: Tensor, positions: Tensor, tree_mask: Tensor, *, keep: int) -> Tensor:
        start = self.length
        count, covered = tree_mask.shape
        # A drafted token must be read in a later pass than its parent, since it reads the parent's output.
        cuts = [0]
        if count > 1 and start + count - 1 > self._last_known.value:
            for index, parent in enumerate((parent_slots(tree_mask.numpy(), start) - start).tolist()):
                if start + index > self._last_known.value and parent >= cuts[-1]:
                    cuts.append(index)
        rows = []
        for first, stop in pairwise([*cuts, count]):
            mask = tree_mask[first:stop, : covered - count + stop]
            wanted = max(0, stop - max(first, count - keep))
            rows.append(super().forward(ids[first:stop], positions[first:stop], mask, keep=wanted))
        return rows[0] if len(rows) == 1 else torch.cat(rows)
