"""Matrices that compressed-tensors stores in 4 bits, and the weights that they stand for.

Its format "pack-quantized", weights only: `weight_packed` int32 [n, k / 8] holds eight numbers q from 0 to 15 each, the
first in the lowest bits; `weight_scale` is [n, groups]; `weight_zero_point` int32 [n / 8, groups], packed along n, is
there where 8 does not stand for zero. A weight is (q - 8 - zero point) * scale, here in float32 and rounded once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...native.llama_x86 import MATRICES
from .tensor_files import StoredTensor, TensorFiles

EACH, MIDDLE = 8, 8  # numbers in an int32; what stands for zero
COLUMNS, DEEP = 32, 32  # of a matrix that compiled passes multiply with at once; weights of a row in one tile
SUFFIXES = ("_packed", "_scale", "_zero_point")


@dataclass(frozen=True, slots=True)
class FourBits:
    """A matrix [n, k] in 4 bits.

    Attributes:
        name: of its weight in the model.
        parts: where the packed numbers, the scales and, if there are some, the zero points are stored.
    """

    name: str
    parts: tuple[StoredTensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        rows, words = self.parts[0].shape
        return rows, words * EACH

    @property
    def shared(self) -> int:
        """How many weights of a row share a scale."""
        return self.shape[1] // self.parts[1].shape[1]

    def read_parts(self, files: TensorFiles) -> list[torch.Tensor]:
        """Return the parts as they are stored."""
        found = [files.read(part, part.dtype) for part in self.parts]
        if not found[1].isfinite().all():
            raise ValueError(f"found numbers that are not finite in {self.parts[1].name}, expected finite scales")
        return found


def zeros_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the numbers that stand for zero, uint8 [n, groups], from the parts of a `FourBits`."""
    if len(parts) == 2:
        return torch.full_like(parts[1], MIDDLE, dtype=torch.uint8)
    return _unpacked(parts[2].T).T[: len(parts[1])]


def _unpacked(words: torch.Tensor) -> torch.Tensor:
    """Return the numbers of int32 [rows, words] -> uint8 [rows, 8 words]."""
    halves = words.contiguous().view(torch.uint8)  # the lower half of each byte comes first
    return torch.stack([halves & 15, halves >> 4], -1).view(len(words), -1)


def weights_of(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return the weights [n, k] of a matrix in a dtype, from the parts of a `FourBits`."""
    rows, groups = parts[1].shape
    numbers = _unpacked(parts[0]).view(rows, groups, -1).to(torch.float32)
    found = numbers.sub_(zeros_of(parts)[..., None]).mul_(parts[1].float()[..., None])
    return found.view(rows, -1).to(dtype)


def read_weights(files: TensorFiles, stored: StoredTensor | FourBits, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix, however it is stored, on the CPU in a dtype."""
    return weights_of(stored.read_parts(files), dtype) if isinstance(stored, FourBits) else files.read(stored, dtype)


def check_four_bits(name: str, config: Any) -> bool:
    """Refuse quantised weights of any other kind.

    Args:
        name: of the model.
        config: of transformers, with its `quantization_config`.

    Returns:
        Whether matrices have zero points.
    """
    settings = config.quantization_config
    groups = settings.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, dict) else []
    found, symmetric = [str(settings.get("quant_method")), str(settings.get("format") or "")], set()
    for group in groups:
        weights = group.get("weights") if isinstance(group, dict) else None
        weights = weights if isinstance(weights, dict) else {}
        found.append(f"{weights.get('num_bits')} bits {weights.get('type')}, scales by {weights.get('strategy')}")
        symmetric.add(str(weights.get("symmetric", True)))
        if weights.get("actorder") in ("group", True):
            found.append("columns in another order")
        if isinstance(group, dict) and group.get("input_activations"):
            found.append("activations too")
    if symmetric and symmetric not in ({"True"}, {"False"}):
        found.append(f"symmetric: {', '.join(sorted(symmetric))}")
    kinds = {f"4 bits int, scales by {strategy}" for strategy in ("group", "channel")}
    if found[:2] != ["compressed-tensors", "pack-quantized"] or not found[2:] or not set(found[2:]) <= kinds:
        raise ValueError(
            f"{name}: found weights quantised with {', '.join(filter(None, found))[:200]}; expected to "
            "stream compressed-tensors, pack-quantized, 4 bits int, scales by group or channel, or no quantised weights"
        )
    return symmetric == {"False"}


def joined_parts(stored: Mapping[str, StoredTensor], zero_points: bool) -> dict[str, StoredTensor | FourBits]:
    """Return a model's stored tensors with one `FourBits` for the parts of each matrix in 4 bits.

    Args:
        zero_points: whether each has some.
    """
    found: dict[str, StoredTensor | FourBits] = {}
    for name, tensor in stored.items():
        weight = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(f"weight{end}")), name)
        if weight == name:
            found[name] = tensor
        elif name == f"{weight}_packed":
            parts = [stored.get(weight + end) for end in SUFFIXES]
            found[weight] = _matrix(weight, parts[0], parts[1], parts[2], zero_points)
    return found


def _matrix(
    name: str, packed: Any, scales: StoredTensor | None, zeros: StoredTensor | None, zero_points: bool
) -> FourBits:
    rows, words = packed.shape if len(packed.shape) == 2 else (0, 0)
    groups = scales.shape[1] if scales is not None and len(scales.shape) == 2 and scales.shape[0] == rows else 0
    fits = packed.dtype == torch.int32 and groups and words * EACH % groups == 0 and (zeros is not None) == zero_points
    if zeros is not None:
        fits = fits and zeros.dtype == torch.int32 and zeros.shape == (-(-rows // EACH), groups)
    if not fits or scales is None:
        shapes = [f"{end} {'none' if part is None else list(part.shape)}" for end, part in zip(
            SUFFIXES, (packed, scales, zeros), strict=True)]  # fmt: skip
        raise ValueError(
            f"found {name} as {', '.join(shapes)}, expected int32 [n, k / 8], [n, groups] and "
            f"{'int32 [n / 8, groups]' if zero_points else 'no zero points, by config.json'}"
        )
    return FourBits(name, (packed, scales) if zeros is None else (packed, scales, zeros))


def shared_weights(stored: Mapping[str, StoredTensor | FourBits]) -> int | None:
    """Return how many weights share a scale, as compiled passes want to know it.

    Args:
        stored: the matrices of a plain decoder, by their names in it.

    Returns:
        0 where none is in 4 bits, -1 where whole rows share one; None where compiled passes cannot run them: they take
        all matrices of the layers in 4 bits, alike, and no others.
    """
    quantised = {name: matrix for name, matrix in stored.items() if isinstance(matrix, FourBits)}
    if not quantised:
        return 0
    if quantised.keys() != {name for name in stored if name.endswith(MATRICES)}:
        return None
    if all(matrix.shared == matrix.shape[1] for matrix in quantised.values()):
        return -1
    shared = {matrix.shared for matrix in quantised.values()}
    return shared.pop() if len(shared) == 1 and min(shared) % DEEP == 0 else None


def packed_layer(matrices: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    """Arrange the matrices of a layer as compiled passes read them -> uint8 [...].

    Args:
        matrices: the parts of each, in the order of `MATRICES`.
    """
    found = [(parts[0], parts[1].float(), zeros_of(parts).to(torch.int16)) for parts in matrices]
    project = [torch.cat(parts) for parts in zip(*found[:3], strict=True)]
    gate_up = [  # 16 rows of the one, then the same 16 of the other
        torch.stack([part.view(-1, COLUMNS // 2, part.shape[1]) for part in parts], 1).view(-1, parts[0].shape[1])
        for parts in zip(*found[4:6], strict=True)
    ]
    return torch.cat([_packed_columns(*parts) for parts in (project, found[3], gate_up, found[6])])


def _packed_columns(words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Arrange int32 [n, k / 8], float32 [n, groups] and int16 [n, groups] as `expand` in llama_x86.c reads them."""
    groups, steps = scales.shape[1], words.shape[1] * EACH // scales.shape[1] // DEEP
    weights = words.view(-1, 2, COLUMNS // 2, groups, steps, DEEP // EACH)
    weights = weights.permute(0, 3, 4, 1, 5, 2)  # 32 columns, groups, steps along k, tiles, words, columns of a tile
    facts = [part.view(-1, COLUMNS, groups).transpose(1, 2) for part in (scales, zeros)]
    parts = [part.contiguous().view(len(weights), groups, -1).view(torch.uint8) for part in (*facts, weights)]
    return torch.cat(parts, -1).flatten()
