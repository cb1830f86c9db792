"""Operations on vocabulary rows on the CPU, using `sampling_ops.c`.

m = number of rows, V = vocabulary size, k = number of draws, W = number of ranks. A call takes microseconds, about a
tenth of PyTorch's time. `RowOperations` in the core does the same without compiled code. Dtype, shape and contiguity
are checked before a pointer is passed to C.
"""

import sys
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .compile_c import load_library

ARITHMETIC_FLAGS: tuple[str, ...] = ("-fno-math-errno", "-fno-trapping-math")
# Compilers on other systems lack OpenMP; rows are then processed one by one.
if sys.platform == "linux":
    ARITHMETIC_FLAGS += ("-fopenmp",)
FLAGS = ("-march=native", *ARITHMETIC_FLAGS)
# Rules in the order of sampling_ops.c: `rows_traverse` implements traversal, `rows_walk` the others.
TRAVERSAL = "traversal"
RULES = ("sequoia", "specinfer", "topk", TRAVERSAL)


@lru_cache(maxsize=1)
def sampling_kernels() -> Any:
    """Return the functions of `sampling_ops.c`, or None if they cannot be built."""
    return load_library(["sampling_ops.c"], FLAGS)[0]


def supports(rows: Tensor) -> bool:
    """Return whether C functions can read these rows: float32 [m, V] on the CPU, with each row contiguous."""
    return rows.dtype == torch.float32 and rows.is_cpu and rows.ndim == 2 and rows.stride(1) == 1 and len(rows) > 0


def tensor_address(tensor: Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    """Return a tensor's data pointer, None for None; ValueError unless it is contiguous with this dtype and shape."""
    if tensor is None:
        return None
    if tensor.dtype != dtype or tensor.shape != shape or not (tensor.is_cpu and tensor.is_contiguous()):
        raise ValueError(
            f"found {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device}, "
            f"expected contiguous {dtype} {list(shape)} on cpu"
        )
    return tensor.data_ptr()


def array_address(array: np.ndarray, dtype: type, *shape: int) -> int:
    """Return an array's data pointer; ValueError unless it is contiguous with this dtype and shape."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        expected = f"expected contiguous {np.dtype(dtype)} {list(shape)}"
        raise ValueError(f"found {array.dtype} {list(array.shape)} with strides {list(array.strides)}, {expected}")
    return _address(array)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def rows_address(logits: Tensor) -> int:
    """Return the data pointer of rows with any row stride; ValueError if `supports` rejects them."""
    if not supports(logits):
        raise ValueError(f"found {logits.dtype} {list(logits.shape)} on {logits.device}, expected float32 rows on cpu")
    return logits.data_ptr()


def _check_draws(count: int, size: int) -> None:
    if not 0 <= count <= size:
        raise ValueError(f"found {count} tokens to select in each row, expected at most {size}")


def check_status(result: int) -> None:
    """Raise an error if a C function returned a negative status."""
    if result == -2:
        raise ValueError("found a token or node out of range, expected tokens in the vocabulary and nodes of one tree")
    if result < 0:
        raise MemoryError("not enough memory to copy a row")


def inverse_temperature(temperature: float) -> float:
    """Return the factor that scales logits, 1 / temperature."""
    return 1.0 / max(temperature, 1e-30)


def softmax_rows(logits: Tensor, temperature: float) -> Tensor:
    """Return softmax(logits / temperature) of float32 [m, V]; all NaN if a row has NaN or no finite maximum."""
    count, size = logits.shape
    probs = torch.empty(count, size, dtype=torch.float32)
    is_finite = sampling_kernels().rows_softmax(
        rows_address(logits),
        logits.stride(0),
        count,
        size,
        inverse_temperature(temperature),
        probs.data_ptr(),
        torch.get_num_threads(),
    )
    return probs if is_finite else probs.fill_(torch.nan)


def token_probabilities(
    logits: Tensor, temperature: float, which: np.ndarray, starts: np.ndarray, tokens: Tensor
) -> Tensor | None:
    """Return the probabilities of selected tokens without computing whole rows.

    Args:
        logits: float32 [rows, V].
        which: int64 [m], indices of the rows to read.
        starts: int64 [m + 1]; tokens[starts[i]] to tokens[starts[i + 1] - 1] belong to row `which[i]`.
        tokens: int64 [c], the selected tokens.

    Returns:
        The probabilities, float32 [c]; None if a row contains NaN or has no finite maximum.
    """
    probabilities = torch.empty(len(tokens), dtype=torch.float32)
    is_finite = sampling_kernels().rows_probabilities(
        rows_address(logits),
        logits.stride(0),
        len(logits),
        array_address(which, np.int64, len(which)),
        array_address(starts, np.int64, len(which) + 1),
        len(which),
        logits.shape[1],
        inverse_temperature(temperature),
        tensor_address(tokens, torch.int64, len(tokens)),
        len(tokens),
        probabilities.data_ptr(),
        torch.get_num_threads(),
    )
    check_status(is_finite)
    return probabilities if is_finite else None


def distribution(logits: Tensor, temperature: float) -> np.ndarray | None:
    """Return a float32 row's softmax, float64 [V]; None if the row contains NaN or has no finite maximum."""
    probs = np.empty(len(logits))
    scratch = np.empty(len(logits), dtype=np.float32)
    row = rows_address(logits[None])
    scale = inverse_temperature(temperature)
    is_finite = sampling_kernels().rows_distribution(row, len(logits), scale, _address(scratch), _address(probs))
    return probs if is_finite else None


def largest(values: Tensor, k: int) -> Tensor:
    """Return the indices of each row's k largest values, int64 [m, k], in descending order, ties ordered by index."""
    values = values.contiguous()
    _check_draws(k, values.shape[1])
    indices = torch.empty(len(values), k, dtype=torch.int64)
    status = sampling_kernels().rows_largest_shared(
        rows_address(values), *values.shape, k, indices.data_ptr(), torch.get_num_threads()
    )
    check_status(status)
    return indices


def cut(probs: Tensor, top_p: float, top_k: int) -> Tensor:
    """Return rows, float32 [m, V], after top-k filtering (0 disables it) and top-p filtering, renormalized."""
    probs = probs.contiguous()
    filtered = torch.empty(probs.shape)
    status = sampling_kernels().rows_cut(
        rows_address(probs), *probs.shape, top_k, top_p, filtered.data_ptr(), torch.get_num_threads()
    )
    check_status(status)
    return filtered


def draw_tokens(probs: Tensor, uniforms: Tensor, *, first: Tensor | None = None, replace: bool = False) -> Tensor:
    """Draw indices from each row one by one.

    Args:
        probs: float32 [m, V].
        first: rows for the first draws, shaped like `probs`, used where they have mass; None to use `probs`.
        replace: whether to draw with replacement. Otherwise, once a row's mass is used up, draws are uniform over the
            remaining indices.
        uniforms: float64 [m, k] in [0, 1), one number for each draw.

    Returns:
        The indices, int64 [m, k].
    """
    probs = probs.contiguous()
    uniforms = uniforms.contiguous()
    first = None if first is None else first.contiguous()
    if not replace:
        _check_draws(uniforms.shape[-1], probs.shape[-1])
    indices = torch.empty(uniforms.shape, dtype=torch.int64)
    status = sampling_kernels().rows_draw_shared(
        rows_address(probs),
        tensor_address(first, torch.float32, *probs.shape),
        *probs.shape,
        uniforms.shape[1],
        replace,
        tensor_address(uniforms, torch.float64, len(probs), uniforms.shape[1]),
        indices.data_ptr(),
        torch.get_num_threads(),
    )
    check_status(status)
    return indices


def rank_acceptance(target: Tensor, draft: Tensor, children: Tensor, first: Tensor | None) -> Tensor:
    """Return the probability that each child is accepted, float64 [m, W] (see `rank_acceptance_given_draws`)."""
    children = children.contiguous()
    accepts = torch.empty(children.shape, dtype=torch.float64)
    drawn = tensor_address(children, torch.int64, len(target), children.shape[1])
    _accept_ranks(target, draft, first, children.shape[1], drawn, accepts.data_ptr(), None, False, None, None)
    return accepts


def accepted_ranks(
    target: Tensor, draft: Tensor, tokens: Tensor, first: Tensor | None, uniforms: Tensor, *, replace: bool
) -> Tensor:
    """Draw the rank of each row's accepted child, int64 [m], with two uniforms per rank, float64 [m, 2 W]."""
    ranks = torch.empty(len(tokens), dtype=torch.int64)
    tokens = tokens.contiguous()
    uniforms = uniforms.contiguous()
    width = uniforms.shape[1] // 2
    committed = tensor_address(tokens, torch.int64, len(target))
    numbers = tensor_address(uniforms, torch.float64, len(target), 2 * width)
    _accept_ranks(target, draft, first, width, None, None, committed, replace, numbers, ranks.data_ptr())
    return ranks


def _accept_ranks(target: Tensor, draft: Tensor, first: Tensor | None, width: int, *options: int | None) -> None:
    if target.ndim != 2:
        raise ValueError(f"found shape {list(target.shape)}, expected rows")
    rows = [None if tensor is None else tensor.contiguous() for tensor in (target, draft, first)]
    addresses = [tensor_address(tensor, torch.float32, *target.shape) for tensor in rows]
    status = sampling_kernels().rows_accepted(*addresses, *target.shape, width, *options, torch.get_num_threads())
    check_status(status)


def to_float64(row: Tensor) -> np.ndarray:
    """Convert a float32 row to float64 [V] and normalize it to sum to 1."""
    wide = np.empty(len(row))
    sampling_kernels().rows_to_float64(tensor_address(row, torch.float32, len(row)), len(row), _address(wide))
    return wide


def residual(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return the normalized max(target - draft, 0), float64 [V], or `target` itself if nothing remains."""
    target = np.ascontiguousarray(target, np.float64)
    draft = np.ascontiguousarray(draft, np.float64)
    remainder = np.empty_like(target)
    addresses = (array_address(row, np.float64, len(target)) for row in (target, draft))
    sampling_kernels().rows_residual(*addresses, len(target), _address(remainder))
    return remainder


class CompiledSurplus:
    """Computes row sums of max(target - scale * draft - offset, 0) repeatedly.

    Scales and offsets never decrease between calls, so once an entry is 0, later calls skip it.

    Args:
        target, draft: float32 [m, V].
    """

    def __init__(self, target: Tensor, draft: Tensor) -> None:
        count, size = target.shape
        self._shape = target.shape
        # Keep references, so that the addresses stay valid.
        self._rows = (target.contiguous(), draft.contiguous())
        self._remaining = torch.empty(2, count, size)
        self._addresses = [tensor_address(rows, torch.float32, count, size) for rows in self._rows]
        self.counts = torch.full((count,), size)

    def sums(self, scale: Tensor, offset: Tensor) -> Tensor:
        """Return the sums, float64 [m, 1] like `scale` and `offset`; 0 for an infinite offset."""
        sums = torch.empty_like(scale)
        sampling_kernels().rows_surplus(
            *self._addresses,
            *self._shape,
            tensor_address(scale, torch.float64, self._shape[0], 1),
            tensor_address(offset, torch.float64, self._shape[0], 1),
            self._remaining.data_ptr(),
            self.counts.data_ptr(),
            sums.data_ptr(),
            torch.get_num_threads(),
        )
        return sums


def remove_token(probs: np.ndarray, token: int) -> float:
    """Set an entry of `probs`, float64 [V], to 0 and renormalize in place; return the sum before normalizing."""
    if not 0 <= token < len(probs):
        raise ValueError(f"found entry {token}, expected 0 to {len(probs) - 1}")
    return sampling_kernels().rows_remove(array_address(probs, np.float64, len(probs)), len(probs), token)


def invert(probs: np.ndarray, uniform: float) -> int:
    """Return the index of nonzero mass where the running sum of `probs`, float64 [V], exceeds `uniform` * total."""
    probs = np.ascontiguousarray(probs, np.float64)
    return sampling_kernels().rows_invert(array_address(probs, np.float64, len(probs)), len(probs), uniform)
