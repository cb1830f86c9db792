"""The content of a packed copy: a plain decoder's matrices in the layout of the compiled passes.

The layers come first, then the head, then the embedding unless it is tied to the head. Each part begins at a block
boundary, so that it can be read directly into the buffer that the passes use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import byref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..cpu_kernels.llama_x86 import MATRICES, addresses, join_qkv, llama_kernels, llama_shape, matrix_shapes
from ..cpu_kernels.sampling_ops import tensor_address
from .direct_reads import round_up
from .four_bits import FourBitMatrix, pack_layer, read_weights
from .layer_sources import host_buffer
from .tensor_files import StoredTensor, TensorFiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS_PER_BLOCK = 2**12  # number of rows of the head packed at once; must be a multiple of 32


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The sizes of a packed copy's parts in bytes, each a multiple of 4,096.

    Attributes:
        embedding_bytes: size of the embedding; 0 if the embedding is tied to the head.
    """

    layer_count: int
    layer_bytes: int
    head_bytes: int
    embedding_bytes: int

    @property
    def bounds(self) -> list[int]:
        """Byte offsets at which each layer, the head and the embedding begin, followed by the end of the last part."""
        head = self.layer_count * self.layer_bytes
        embedding = head + self.head_bytes
        return [*range(0, head, self.layer_bytes), head, embedding, embedding + self.embedding_bytes]

    @property
    def total(self) -> int:
        return self.bounds[-1]

    @property
    def file_bytes(self) -> int:
        """The size of the file: all parts, followed by their checksums."""
        return self.total + round_up(8 * (self.layer_count + 2))


def packed_layout(model: PreTrainedModel, *, four_bits: int = 0) -> PackedLayout:
    """Return the layout of a model's packed copy; the weights need not be loaded.

    Args:
        four_bits: the group size as returned by `four_bits.common_group_size`.
    """
    functions = llama_kernels()[0]
    shape = llama_shape(model, four_bits=four_bits)
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    return PackedLayout(
        layer_count=shape.layers,
        layer_bytes=round_up(functions.sequoia_layer_bytes(byref(shape))),
        head_bytes=round_up(functions.sequoia_head_bytes(byref(shape))),
        embedding_bytes=0 if tied else round_up(2 * shape.vocab * shape.hidden),
    )


def packed_content(
    model: PreTrainedModel,
    files: TensorFiles,
    stored: Mapping[str, StoredTensor | FourBitMatrix],
    layout: PackedLayout,
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the file's content in order: part numbers and bytes, uint8, which are valid until the next item."""
    functions = llama_kernels()[0]
    shape = llama_shape(model)
    buffer = host_buffer(layout.layer_bytes)
    for index in range(layout.layer_count):
        matrices = [stored[f"model.layers.{index}.{name}"] for name in MATRICES]
        quantized = [matrix.read_parts(files) for matrix in matrices if isinstance(matrix, FourBitMatrix)]
        if quantized:
            content = pack_layer(quantized)
            buffer[: len(content)] = content
        else:
            weights = join_qkv([read_weights(files, matrix, torch.bfloat16) for matrix in matrices])
            pointers = addresses([weight.contiguous() for weight in weights], torch.bfloat16, matrix_shapes(shape))
            functions.sequoia_pack_layer(
                byref(shape), pointers, tensor_address(buffer, torch.uint8, layout.layer_bytes)
            )
        yield index, buffer
    del buffer
    embedding = stored["model.embed_tokens.weight"]
    head = stored.get("lm_head.weight", embedding)
    assert isinstance(embedding, StoredTensor) and isinstance(head, StoredTensor), "checked by `common_group_size`"
    for content in _packed_head(head, files, layout.head_bytes):
        yield layout.layer_count, content
    if layout.embedding_bytes:
        part = layout.layer_count + 1
        for start in range(0, shape.vocab, ROWS_PER_BLOCK):
            rows = files.read(embedding, torch.bfloat16, slice(start, start + ROWS_PER_BLOCK))
            yield part, rows.flatten().view(torch.uint8)
        yield part, torch.zeros(layout.embedding_bytes - 2 * shape.vocab * shape.hidden, dtype=torch.uint8)


def _packed_head(head: StoredTensor, files: TensorFiles, size: int) -> Iterator[torch.Tensor]:
    rows, width = head.shape
    done = 0
    for start in range(0, rows, ROWS_PER_BLOCK):
        block = files.read(head, torch.bfloat16, slice(start, start + ROWS_PER_BLOCK))
        packed = torch.zeros(round_up(len(block), 32) * width, dtype=torch.bfloat16)
        source = tensor_address(block, torch.bfloat16, len(block), width)
        llama_kernels()[0].sequoia_pack_rows(source, len(block), width, packed.data_ptr())
        yield packed.view(torch.uint8)
        done += 2 * len(packed)
    yield torch.zeros(size - done, dtype=torch.uint8)
