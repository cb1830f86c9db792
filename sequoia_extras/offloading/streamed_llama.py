"""A plain decoder run by compiled passes over streamed packed layers, with one C call per layer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from ctypes import byref
from functools import cached_property

import torch
from transformers import PreTrainedModel

from ..cpu_kernels import instruction_sets
from ..cpu_kernels.kernel_session import KernelSession
from ..cpu_kernels.llama_x86 import can_run_compiled, float_tables, llama_kernels, llama_shape, table_addresses
from ..cpu_kernels.sampling_ops import tensor_address
from .four_bits import FourBitMatrix, common_group_size
from .layer_ring import LayerRing
from .layer_sources import PackedSource, host_buffer
from .packed_content import packed_layout
from .packed_layers import packed_copy
from .tensor_files import StoredTensor, TensorFiles


class StreamedLlama:
    """Runs a plain decoder from its packed copy (`protocol.Backend`).

    Args:
        model: a model that `supports` accepts, with its norms and biases loaded.
        files, stored, progress: arguments of `packed_layers.packed_copy`.

    Attributes:
        copy: the packed copy, from which the layers stream.
        ring: the layer buffers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        files: TensorFiles,
        stored: Mapping[str, StoredTensor | FourBitMatrix],
        *,
        progress: Callable[[float, str], None] | None = None,
    ) -> None:
        self.functions = llama_kernels()[0]
        self.instructions = instruction_sets.instructions_in_use()
        self.copy = packed_copy(model, files, stored, progress=progress)
        four_bits = common_group_size(stored) or 0
        self._four_bits = bool(four_bits)
        self._shape = llama_shape(model, four_bits=four_bits)
        self._layout = packed_layout(model, four_bits=four_bits)
        self._tables = float_tables(model)
        self.layer_bytes = self._layout.layer_bytes
        self.hidden = self._shape.hidden
        self.vocab = self._shape.vocab
        self.context = self._shape.context
        self.ring = LayerRing(PackedSource(self.copy, self._layout.layer_count, self.layer_bytes))

    @cached_property
    def address(self) -> int:
        """The address of the C model; its first use, when a session is opened, loads the embedding and the head."""
        layers = self._layout.layer_count
        self._head = self._read_resident(layers)
        self._embedding = self._read_resident(layers + 1) if self._layout.embedding_bytes else None
        model = self.functions.sequoia_streamed_model(
            byref(self._shape),
            None if self._embedding is None else self._embedding.data_ptr(),
            *table_addresses(self._tables, self._shape),
            self._head.data_ptr(),
        )
        if not model:
            raise MemoryError("not enough memory for the model")
        weakref.finalize(self, self.functions.sequoia_model_free, model).atexit = False
        return model

    def _read_resident(self, part: int) -> torch.Tensor:
        begin, end = self._layout.bounds[part : part + 2]
        memory = host_buffer(end - begin)
        self.copy.read(memory.numpy().data, begin, end - begin)
        self.copy.compare(part, memory)
        return memory

    @staticmethod
    def supports(model: torch.nn.Module, stored: Mapping[str, StoredTensor | FourBitMatrix]) -> bool:
        """Return whether compiled passes can run a model stored like this; its weights need not be loaded."""
        return can_run_compiled(model) and common_group_size(stored) is not None

    @property
    def description(self) -> str:
        four_bits = " in 4 bits" if self._four_bits else ""
        return f"compiled code for {self.instructions}, layers streamed from disk{four_bits}"

    def open(self, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> StreamedLlamaSession:
        return StreamedLlamaSession(self, capacity, vocab_size, state_indices)


class StreamedLlamaSession(KernelSession):
    """One sequence in a `StreamedLlama`. Passes share one logits buffer, because a large vocabulary makes it large."""

    def __init__(self, model: StreamedLlama, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> None:
        super().__init__(model, capacity, vocab_size, state_indices)
        self._logits = torch.empty(0, self.model.vocab, dtype=torch.float32)

    def _allocate_logits(self, keep: int) -> torch.Tensor:
        if keep > len(self._logits):
            # Free the old buffer first.
            self._logits = torch.empty(0)
            self._logits = torch.empty(keep, self.model.vocab, dtype=torch.float32)
        return self._logits[:keep]

    @property
    def read_wait_sec(self) -> float:  # type: ignore[override]
        return self.model.ring.wait_sec

    def _run_pass(self, arguments: tuple, logits: torch.Tensor) -> int:
        functions = self.model.functions
        threads = arguments[1]
        done = functions.sequoia_enter(*arguments)
        if done == 1:
            # `closing` ends the pass even if it is interrupted.
            with closing(self.model.ring.layers()) as layers:
                for index, layer in enumerate(layers):
                    self.model.copy.compare(index, layer)
                    packed = tensor_address(layer, torch.uint8, self.model.layer_bytes)
                    functions.sequoia_layer(self.address, threads, index, packed)
            functions.sequoia_leave(self.address, threads, logits.data_ptr())
        return done
