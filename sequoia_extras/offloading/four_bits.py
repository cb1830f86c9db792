"""4-bit matrices in the compressed-tensors format ("pack-quantized", weights only, symmetric).

Each word of `weight_packed`, int32 [n, k / 8], contains eight codes from 0 to 15, the first in the lowest bits;
`weight_scale` is [n, groups]. A weight is (code - 8) * scale, computed in float32 and rounded once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cpu_kernels.llama_x86 import MATRICES
from .tensor_files import StoredTensor, TensorFiles

NUMBERS_PER_WORD = 8
ZERO = 8  # the code of a zero weight
TILE_COLUMNS = 32  # number of columns that compiled passes multiply at once
TILE_DEPTH = 32  # number of weights per column of a tile


@dataclass(frozen=True, slots=True)
class FourBitMatrix:
    """A 4-bit matrix [n, k]; `name` is the weight's name in the model."""

    name: str
    packed: StoredTensor
    scale: StoredTensor

    @property
    def shape(self) -> tuple[int, ...]:
        rows, words = self.packed.shape
        return rows, words * NUMBERS_PER_WORD

    @property
    def parts(self) -> tuple[StoredTensor, StoredTensor]:
        return self.packed, self.scale

    @property
    def group_size(self) -> int:
        """The number of consecutive weights in a row that share a scale."""
        return self.shape[1] // self.scale.shape[1]

    def read_parts(self, files: TensorFiles) -> list[torch.Tensor]:
        """Return the packed codes and the scales in their stored form."""
        packed, scale = (files.read(part, part.dtype) for part in self.parts)
        if not scale.isfinite().all():
            raise ValueError(f"found values that are not finite in {self.scale.name}, expected finite scales")
        return [packed, scale]


def dequantize(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return the weights [n, k] that packed codes and their scales represent, in the given dtype."""
    from compressed_tensors.compressors import unpack_from_int32

    packed, scale = parts
    rows, words = packed.shape
    codes = unpack_from_int32(packed, 4, torch.Size((rows, words * NUMBERS_PER_WORD)))
    weights = codes.view(*scale.shape, -1).float().mul_(scale.float()[..., None])
    return weights.view(rows, -1).to(dtype)


def read_weights(files: TensorFiles, stored: StoredTensor | FourBitMatrix, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix on the CPU in the given dtype, dequantized if necessary."""
    if isinstance(stored, FourBitMatrix):
        return dequantize(stored.read_parts(files), dtype)
    return files.read(stored, dtype)


def check_quantization(name: str, config: Any) -> None:
    """Raise ValueError if the transformers config describes an unsupported quantization format."""
    settings = config.quantization_config
    groups = settings.get("config_groups")
    schemes = [_describe(scheme) for scheme in groups.values()] if isinstance(groups, dict) else []
    found = [str(settings.get("quant_method")), str(settings.get("format") or ""), *schemes]
    supported = {f"4 bits int, scales by {strategy}" for strategy in ("group", "channel")}
    if found[:2] != ["compressed-tensors", "pack-quantized"] or not schemes or not supported.issuperset(schemes):
        raise ValueError(
            f"{name}: found weights quantized with {', '.join(filter(None, found))[:200]}; expected unquantized "
            "weights or a format that can be streamed: compressed-tensors, pack-quantized, 4 bits int, symmetric, "
            "scales by group or channel"
        )


def _describe(scheme: Any) -> str:
    """Return a description of an entry of `config_groups`, which may be malformed."""
    scheme = scheme if isinstance(scheme, dict) else {}
    weights = scheme.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    text = f"{weights.get('num_bits')} bits {weights.get('type')}, scales by {weights.get('strategy')}"
    if not weights.get("symmetric", True):
        text += ", with zero points"
    if weights.get("actorder") in ("group", True):
        text += ", reordered columns"
    if scheme.get("input_activations"):
        text += ", quantized activations"
    return text


def collect_matrices(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor | FourBitMatrix]:
    """Return a model's stored tensors, combining the parts of each 4-bit matrix into one `FourBitMatrix`."""
    collected: dict[str, StoredTensor | FourBitMatrix] = {}
    for name, tensor in stored.items():
        if name.endswith("weight_packed"):
            weight = name.removesuffix("_packed")
            collected[weight] = _four_bit_matrix(weight, tensor, stored.get(f"{weight}_scale"))
        elif not name.endswith("weight_scale"):
            collected[name] = tensor
    return collected


def _four_bit_matrix(name: str, packed: StoredTensor, scale: StoredTensor | None) -> FourBitMatrix:
    match packed.shape, () if scale is None else scale.shape:
        case (rows, words), (scaled, groups) if rows == scaled and groups and words * NUMBERS_PER_WORD % groups == 0:
            if scale is not None and packed.dtype == torch.int32:
                return FourBitMatrix(name, packed, scale)
    raise ValueError(
        f"found {name} packed as {packed.dtype} {list(packed.shape)} with "
        f"{'no scales' if scale is None else f'scales {list(scale.shape)}'}, expected int32 [n, k / 8] and [n, groups]"
    )


def common_group_size(stored: Mapping[str, StoredTensor | FourBitMatrix]) -> int | None:
    """Return the number of weights that share a scale in the layers' matrices, encoded for compiled passes.

    Args:
        stored: a plain decoder's matrices by parameter name.

    Returns:
        0 if no matrix is in 4 bits; -1 if each row has one scale; None if compiled passes cannot run the matrices,
        because only some of them are in 4 bits or their group sizes are unequal or unsupported.
    """
    quantized = {name: matrix for name, matrix in stored.items() if isinstance(matrix, FourBitMatrix)}
    if not quantized:
        return 0
    if quantized.keys() != {name for name in stored if name.endswith(MATRICES)}:
        return None
    if all(matrix.group_size == matrix.shape[1] for matrix in quantized.values()):
        return -1
    sizes = {matrix.group_size for matrix in quantized.values()}
    return sizes.pop() if len(sizes) == 1 and min(sizes) % TILE_DEPTH == 0 else None


def pack_layer(matrices: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    """Arrange a layer's matrices for compiled passes; return uint8 [bytes].

    Each matrix is given as its packed codes and scales; the order is that of `MATRICES`.
    """
    queries, keys, values, output, gate, up, down = matrices
    projections = [torch.cat(parts) for parts in zip(queries, keys, values, strict=True)]
    # Blocks alternate: 16 rows of the gate, then the same 16 rows of the up projection.
    gate_up = [
        torch.stack([part.view(-1, TILE_COLUMNS // 2, part.shape[1]) for part in parts], 1).view(-1, parts[0].shape[1])
        for parts in zip(gate, up, strict=True)
    ]
    return torch.cat([_pack_matrix(*parts) for parts in (projections, output, gate_up, down)])


def _pack_matrix(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Arrange codes, int32 [n, k / 8], and scales, [n, groups], in the layout read by `expand` in llama_x86.c."""
    groups = scales.shape[1]
    steps = words.shape[1] * NUMBERS_PER_WORD // groups // TILE_DEPTH
    weights = words.view(-1, 2, TILE_COLUMNS // 2, groups, steps, TILE_DEPTH // NUMBERS_PER_WORD)
    # The dimensions are blocks of 32 columns, groups, steps along k, tiles, words, and columns in a tile.
    weights = weights.permute(0, 3, 4, 1, 5, 2)
    zeros = torch.full_like(scales, ZERO, dtype=torch.int16)
    headers = [part.view(-1, TILE_COLUMNS, groups).transpose(1, 2) for part in (scales.float(), zeros)]
    parts = [part.contiguous().view(len(weights), groups, -1).view(torch.uint8) for part in (*headers, weights)]
    return torch.cat(parts, -1).flatten()
