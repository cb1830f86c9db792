"""What a packed copy of a plain decoder holds: its matrices in the tiles of the compiled passes, or in 4 bits.

The layers lie one after the other, then the head, then the embedding where it is not tied to the head; each part begins
at a whole block, so that it is read directly into the buffer that the passes use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import byref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...native.llama_x86 import MATRICES, addresses, compiled, joined, matrix_shapes, shape_of
from ...native.sampling_ops import address
from .direct_reads import round_up
from .four_bits import FourBits, packed_layer, read_weights
from .layer_sources import host_buffer
from .tensor_files import StoredTensor, TensorFiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 2**12  # of the head, packed at a time: a multiple of 32


@dataclass(frozen=True, slots=True)
class PackedParts:
    """Where the parts of a packed copy begin, in bytes; each size is a multiple of 4,096.

    Attributes:
        embedding_bytes: 0 where the embedding is tied to the head.
    """

    layer_count: int
    layer_bytes: int
    head_bytes: int
    embedding_bytes: int

    @property
    def bounds(self) -> list[int]:
        """Where the parts begin (each layer, the head, the embedding), and the end of the last."""
        head = self.layer_count * self.layer_bytes
        embedding = head + self.head_bytes
        return [*range(0, head, self.layer_bytes), head, embedding, embedding + self.embedding_bytes]

    @property
    def total(self) -> int:
        return self.bounds[-1]

    @property
    def file_bytes(self) -> int:
        """Of all parts, and the checksum of each, which follow them."""
        return self.total + round_up(8 * (self.layer_count + 2))


def parts_of(model: PreTrainedModel, *, four_bits: int = 0) -> PackedParts:
    """Return how a model's packed copy is divided; its weights need not be there.

    Args:
        four_bits: as `four_bits.shared_weights` returns it.
    """
    functions, shape = compiled()[0], shape_of(model, four_bits=four_bits)
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    return PackedParts(
        layer_count=shape.layers,
        layer_bytes=round_up(functions.sequoia_layer_bytes(byref(shape))),
        head_bytes=round_up(functions.sequoia_head_bytes(byref(shape))),
        embedding_bytes=0 if tied else round_up(2 * shape.vocab * shape.hidden),
    )


def packed_content(
    model: PreTrainedModel, files: TensorFiles, stored: Mapping[str, StoredTensor | FourBits], parts: PackedParts
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the file's content from its beginning: the part that it belongs to, uint8 that is valid until the next."""
    functions, shape = compiled()[0], shape_of(model)
    buffer = host_buffer(parts.layer_bytes)
    for index in range(parts.layer_count):
        matrices = [stored[f"model.layers.{index}.{name}"] for name in MATRICES]
        quantised = [matrix.read_parts(files) for matrix in matrices if isinstance(matrix, FourBits)]
        if quantised:
            content = packed_layer(quantised)
            buffer[: len(content)] = content
        else:
            weights = joined([read_weights(files, matrix, torch.bfloat16) for matrix in matrices])
            given = addresses([weight.contiguous() for weight in weights], torch.bfloat16, matrix_shapes(shape))
            functions.sequoia_pack_layer(byref(shape), given, address(buffer, torch.uint8, parts.layer_bytes))
        yield index, buffer
    del buffer
    head, embedding = parts.layer_count, stored["model.embed_tokens.weight"]
    own_head = stored.get("lm_head.weight", embedding)
    assert isinstance(embedding, StoredTensor) and isinstance(own_head, StoredTensor), "see `shared_weights`"
    for content in _packed_head(own_head, files, parts.head_bytes):
        yield head, content
    if parts.embedding_bytes:
        for start in range(0, shape.vocab, ROWS):
            rows = files.read(embedding, torch.bfloat16, slice(start, start + ROWS))
            yield head + 1, rows.flatten().view(torch.uint8)
        yield head + 1, torch.zeros(parts.embedding_bytes - 2 * shape.vocab * shape.hidden, dtype=torch.uint8)


def _packed_head(head: StoredTensor, files: TensorFiles, size: int) -> Iterator[torch.Tensor]:
    rows, width = head.shape
    done = 0
    for start in range(0, rows, ROWS):
        block = files.read(head, torch.bfloat16, slice(start, start + ROWS))
        packed = torch.zeros(round_up(len(block), 32) * width, dtype=torch.bfloat16)
        begin = address(block, torch.bfloat16, len(block), width)
        compiled()[0].sequoia_pack_rows(begin, len(block), width, packed.data_ptr())
        yield packed.view(torch.uint8)
        done += 2 * len(packed)
    yield torch.zeros(size - done, dtype=torch.uint8)
