"""A plain decoder in compiled passes whose packed layers stream, one C call for each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from ctypes import byref
from functools import cached_property

import torch
from transformers import PreTrainedModel

from ...native import instruction_sets
from ...native.llama_x86 import SlotSession, compiled, fits, shape_of, table_addresses, tables_of
from ...native.sampling_ops import address
from .four_bits import FourBits, shared_weights
from .layer_ring import LayerRing
from .layer_sources import PackedSource, host_buffer
from .packed_content import parts_of
from .packed_layers import packed_copy
from .tensor_files import StoredTensor, TensorFiles


class StreamedLlama:
    """Runs a plain decoder from its packed copy (`protocol.Backend`).

    Args:
        model: one that `supports` accepts, whose norms and biases are loaded.
        files, stored, progress: for its packed copy, see `packed_layers.packed_copy`.

    Attributes:
        copy: the file that streams.
        ring: the layers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        files: TensorFiles,
        stored: Mapping[str, StoredTensor | FourBits],
        *,
        progress: Callable[[float, str], None] | None = None,
    ) -> None:
        self.functions, self.instructions = compiled()[0], instruction_sets.instructions_in_use()
        self.copy = packed_copy(model, files, stored, progress=progress)
        four_bits = shared_weights(stored) or 0
        self._shape, self._parts = shape_of(model, four_bits=four_bits), parts_of(model, four_bits=four_bits)
        self._tables, self._bits = tables_of(model), " in 4 bits" if four_bits else ""
        self.layer_bytes = self._parts.layer_bytes
        self.hidden, self.vocab, self.context = self._shape.hidden, self._shape.vocab, self._shape.context
        self.ring = LayerRing(PackedSource(self.copy, self._parts.layer_count, self._parts.layer_bytes))

    @cached_property
    def address(self) -> int:
        """The model in C; embedding and head are loaded when the first session is opened."""
        parts = self._parts
        self._head, self._embedding = self._resident(parts.layer_count), None
        if parts.embedding_bytes:
            self._embedding = self._resident(parts.layer_count + 1)
        found = self.functions.sequoia_streamed_model(
            byref(self._shape), None if self._embedding is None else self._embedding.data_ptr(),
            *table_addresses(self._tables, self._shape), self._head.data_ptr(),
        )  # fmt: skip
        if not found:
            raise MemoryError("found no memory for a model")
        weakref.finalize(self, self.functions.sequoia_model_free, found).atexit = False
        return found

    def _resident(self, part: int) -> torch.Tensor:
        begin, end = self._parts.bounds[part : part + 2]
        memory = host_buffer(end - begin)
        self.copy.read(memory.numpy().data, begin, end - begin)
        self.copy.compare(part, memory)
        return memory

    @staticmethod
    def supports(model: torch.nn.Module, stored: Mapping[str, StoredTensor | FourBits]) -> bool:
        """Whether compiled passes can run a model here, stored like this; its weights need not be there."""
        return fits(model) and shared_weights(stored) is not None

    @property
    def description(self) -> str:
        return f"compiled code for {self.instructions}, layers streamed from disk{self._bits}"

    def open(self, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> StreamedLlamaSession:
        return StreamedLlamaSession(self, capacity, vocab_size, states)


class StreamedLlamaSession(SlotSession):
    """One sequence in a `StreamedLlama`. All passes share memory for logits, which is large for large vocabularies."""

    def __init__(self, model: StreamedLlama, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> None:
        super().__init__(model, capacity, vocab_size, states)
        self._logits = torch.empty(0, self.model.vocab, dtype=torch.float32)

    def _room(self, keep: int) -> torch.Tensor:
        if keep > len(self._logits):
            self._logits = torch.empty(0)  # freed before more is allocated
            self._logits = torch.empty(keep, self.model.vocab, dtype=torch.float32)
        return self._logits[:keep]

    @property
    def read_wait_sec(self) -> float:  # type: ignore[override]
        return self.model.ring.wait_sec

    def _pass(self, request: tuple, logits: torch.Tensor) -> int:
        functions, threads = self.model.functions, request[1]
        done = functions.sequoia_enter(*request)
        if done == 1:
            with closing(self.model.ring.layers()) as layers:  # an interrupt ends the pass, too
                for index, layer in enumerate(layers):
                    self.model.copy.compare(index, layer)
                    packed = address(layer, torch.uint8, self.model.layer_bytes)
                    functions.sequoia_layer(self.address, threads, index, packed)
            functions.sequoia_leave(self.address, threads, logits.data_ptr())
        return done
