"""Rows of a vocabulary on CPU, by `sampling_ops.c` where it can be built.

A call takes microseconds here and ten times as long in a framework. Every function has a twin in `decoding.sampling`,
`walker` in `decoding.walk`: they do the same without compiled code. Knows arrays only. m = rows, V = vocabulary.
"""

import ctypes
import sys
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from .compile_c import load

_POINTER, _COUNT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_SINGLE, _REAL = ctypes.c_float, ctypes.c_double
ARITHMETIC_FLAGS: tuple[str, ...] = ("-fno-math-errno", "-fno-trapping-math")
if sys.platform == "linux":  # compilers of other systems lack OpenMP, and rows are computed one by one
    ARITHMETIC_FLAGS += ("-fopenmp",)
FLAGS = ("-march=native", *ARITHMETIC_FLAGS)
_FUNCTIONS = {
    "rows_softmax": (_FLAG, _POINTER, _COUNT, _COUNT, _COUNT, _SINGLE, _POINTER, _FLAG),
    "rows_probabilities": (
        _FLAG, _POINTER, *[_COUNT] * 2, *[_POINTER] * 2, *[_COUNT] * 2, _SINGLE, _POINTER, _COUNT, _POINTER, _FLAG,
    ),
    "rows_distribution": (_FLAG, _POINTER, _COUNT, _SINGLE, _POINTER, _POINTER),
    "rows_largest_shared": (_FLAG, _POINTER, _COUNT, _COUNT, _COUNT, _POINTER, _FLAG),
    "rows_draw_shared": (_FLAG, *[_POINTER] * 2, *[_COUNT] * 3, _FLAG, *[_POINTER] * 2, _FLAG),
    "rows_cut": (_FLAG, _POINTER, _COUNT, _COUNT, _COUNT, _REAL, _POINTER, _FLAG),
    "rows_accepted": (_FLAG, *[_POINTER] * 3, *[_COUNT] * 3, *[_POINTER] * 3, _FLAG, *[_POINTER] * 2, _FLAG),
    "rows_to_float64": (None, _POINTER, _COUNT, _POINTER),
    "rows_residual": (None, _POINTER, _POINTER, _COUNT, _POINTER),
    "rows_surplus": (None, _POINTER, _POINTER, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _FLAG),
    "rows_remove": (_REAL, _POINTER, _COUNT, _COUNT),
    "rows_walk": (
        _FLAG, _FLAG, _COUNT, _POINTER, *[_COUNT] * 2, _SINGLE, *[_POINTER] * 4, _COUNT, *[_POINTER] * 7,
    ),
    "rows_traverse": (
        _FLAG, _COUNT, _POINTER, *[_COUNT] * 2, _SINGLE, *[_POINTER] * 4, _COUNT, *[_POINTER] * 6,
    ),
    "rows_follow": (_FLAG, _COUNT, _POINTER, *[_COUNT] * 2, *[_POINTER] * 6),
    "rows_invert": (_COUNT, _POINTER, _COUNT, _REAL),
}  # fmt: skip
TRAVERSAL = "traversal"  # rows_traverse; the others are the rules of rows_walk, in the order of sampling_ops.c
RULES = ("sequoia", "specinfer", "topk", TRAVERSAL)


@lru_cache(maxsize=1)
def compiled() -> Any:  # called before every use: the cache makes it a look-up
    """Return the functions of `sampling_ops.c`, or None where they cannot be built."""
    return load(["sampling_ops.c"], FLAGS, _FUNCTIONS)[0]


def supports(rows: torch.Tensor) -> bool:
    """Whether these rows can be given to the C functions: float32 [m, V] on CPU, each row contiguous."""
    plain = rows.dtype == torch.float32 and rows.is_cpu and rows.ndim == 2
    return compiled() is not None and plain and rows.stride(1) == 1 and len(rows) > 0


def address(tensor: torch.Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    """Return where a tensor begins, None for None; ValueError unless it is as the C code that gets it expects."""
    if tensor is None:
        return None
    if tensor.dtype != dtype or tensor.shape != shape or not (tensor.is_cpu and tensor.is_contiguous()):
        raise ValueError(
            f"found {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device}, "
            f"expected contiguous {dtype} {list(shape)} on cpu"
        )
    return tensor.data_ptr()


def array_address(array: np.ndarray, dtype: type, *shape: int) -> int:
    """Do as `address` does, for an array of NumPy."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        expected = f"expected contiguous {np.dtype(dtype)} {list(shape)}"
        raise ValueError(f"found {array.dtype} {list(array.shape)} with strides {list(array.strides)}, {expected}")
    return array.__array_interface__["data"][0]


def lines_address(logits: torch.Tensor) -> int:
    """Return where rows begin, which need not follow one another; ValueError for what `supports` refuses."""
    if not supports(logits):
        raise ValueError(
            f"found {logits.dtype} {list(logits.shape)} on {logits.device}, expected rows of float32 on cpu"
        )
    return logits.data_ptr()


def _check_draws(count: int, size: int) -> None:
    if not 0 <= count <= size:
        raise ValueError(f"found {count} tokens of each row, expected at most its {size}")


def granted(result: int) -> None:
    if result == -2:
        raise ValueError("found a token or a node out of range, expected tokens of the rows and nodes of one tree")
    if result < 0:
        raise MemoryError("no memory for a copy of a row")


def inverse(temperature: float) -> float:
    """Return the factor by which logits are multiplied."""
    return 1.0 / max(temperature, 1e-30)


def softmax_rows(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the softmax of float32 [m, V] over a temperature; NaN throughout when a row has no finite largest."""
    count, size = logits.shape
    probs = torch.empty(count, size, dtype=torch.float32)
    fine = compiled().rows_softmax(
        lines_address(logits), logits.stride(0), count, size, inverse(temperature), probs.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return probs if fine else probs.fill_(torch.nan)


def token_probabilities(
    logits: torch.Tensor, temperature: float, which: np.ndarray, starts: np.ndarray, tokens: torch.Tensor
) -> torch.Tensor | None:
    """Return the probabilities of certain tokens without making whole rows of them.

    Args:
        logits: float32 [rows, V].
        which: int64 [m], the rows to read.
        starts: int64 [m + 1]; row `which[i]` is asked for tokens starts[i] to starts[i + 1] - 1.
        tokens: int64 [c].

    Returns:
        float32 [c]; None when a row has NaN or nothing finite.
    """
    found = torch.empty(len(tokens), dtype=torch.float32)
    fine = compiled().rows_probabilities(
        lines_address(logits), logits.stride(0), len(logits), array_address(which, np.int64, len(which)),
        array_address(starts, np.int64, len(which) + 1), len(which), logits.shape[1], inverse(temperature),
        address(tokens, torch.int64, len(tokens)), len(tokens), found.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    granted(fine)
    return found if fine else None


def distribution(logits: torch.Tensor, temperature: float) -> np.ndarray | None:
    """Return the softmax of one float32 row [V] in double precision; None for one with NaN or nothing finite."""
    wide, scratch = np.empty(len(logits)), np.empty(len(logits), dtype=np.float32)
    fine = compiled().rows_distribution(
        lines_address(logits[None]), len(logits), inverse(temperature), _address(scratch), _address(wide)
    )  # fmt: skip
    return wide if fine else None


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of the k largest of each row, largest first and equal ones in order, int64 [m, k]."""
    values = values.contiguous()
    _check_draws(k, values.shape[1])
    indices = torch.empty(len(values), k, dtype=torch.int64)
    threads = torch.get_num_threads()
    granted(compiled().rows_largest_shared(lines_address(values), *values.shape, k, indices.data_ptr(), threads))
    return indices


def cut(probs: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Return rows float32 [m, V] cut by top-k (0 for none), then by top-p, and scaled to sum to 1."""
    probs, kept = probs.contiguous(), torch.empty(probs.shape)
    granted(
        compiled().rows_cut(
            lines_address(probs), *probs.shape, top_k, top_p, kept.data_ptr(), torch.get_num_threads()
        )
    )  # fmt: skip
    return kept


def draw(
    probs: torch.Tensor, uniforms: torch.Tensor, *, first: torch.Tensor | None = None, replace: bool = False
) -> torch.Tensor:
    """Draw indices from each row one by one.

    Args:
        probs: float32 [m, V].
        first: what the first draw of each row is from, shaped as `probs`, where it has mass; None for `probs`.
        replace: an index can be drawn again; otherwise draws are uniform over the rest when a row's mass is used up.
        uniforms: float64 [m, k] in [0, 1), one for each draw.

    Returns:
        int64 [m, k].
    """
    probs, uniforms = probs.contiguous(), uniforms.contiguous()
    first = None if first is None else first.contiguous()
    if not replace:
        _check_draws(uniforms.shape[-1], probs.shape[-1])
    indices = torch.empty(uniforms.shape, dtype=torch.int64)
    granted(
        compiled().rows_draw_shared(
            lines_address(probs), address(first, torch.float32, *probs.shape), *probs.shape, uniforms.shape[1],
            replace, address(uniforms, torch.float64, len(probs), uniforms.shape[1]), indices.data_ptr(),
            torch.get_num_threads(),
        )
    )  # fmt: skip
    return indices


def rank_acceptance(
    target: torch.Tensor, draft: torch.Tensor, children: torch.Tensor, first: torch.Tensor | None
) -> torch.Tensor:
    """Return how likely each child is the accepted one, float64 [m, W], see `rank_acceptance_of_drawn`."""
    accepts, children = torch.empty(children.shape, dtype=torch.float64), children.contiguous()
    drawn = address(children, torch.int64, len(target), children.shape[1])
    _accepted(target, draft, first, children.shape[1], drawn, accepts.data_ptr(), None, False, None, None)
    return accepts


def accepted_ranks(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, first: torch.Tensor | None,
    uniforms: torch.Tensor, *, replace: bool,
) -> torch.Tensor:  # fmt: skip
    """Draw the rank of each row's accepted child, int64 [m], by two uniforms for each rank, float64 [m, 2 W]."""
    ranks = torch.empty(len(tokens), dtype=torch.int64)
    tokens, uniforms = tokens.contiguous(), uniforms.contiguous()
    width = uniforms.shape[1] // 2
    committed = address(tokens, torch.int64, len(target))
    drawn = address(uniforms, torch.float64, len(target), 2 * width)
    _accepted(target, draft, first, width, None, None, committed, replace, drawn, ranks.data_ptr())
    return ranks


def _accepted(
    target: torch.Tensor, draft: torch.Tensor, first: torch.Tensor | None, width: int, *given: int | None
) -> None:
    rows = [None if part is None else part.contiguous() for part in (target, draft, first)]
    if target.ndim != 2:
        raise ValueError(f"found {list(target.shape)}, expected rows")
    granted(
        compiled().rows_accepted(
            *(address(part, torch.float32, *target.shape) for part in rows), *target.shape, width, *given,
            torch.get_num_threads(),
        )
    )  # fmt: skip


def _address(row: np.ndarray) -> int:
    return row.__array_interface__["data"][0]


def to_float64(row: torch.Tensor) -> np.ndarray:
    """Return a float32 row [V] in double precision, summing to 1."""
    wide = np.empty(len(row))
    compiled().rows_to_float64(address(row, torch.float32, len(row)), len(row), _address(wide))
    return wide


def residual(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return max(target - draft, 0), float64 [V], summing to 1; `target` where nothing is left."""
    target, draft = np.ascontiguousarray(target, np.float64), np.ascontiguousarray(draft, np.float64)
    rest = np.empty_like(target)
    given = (array_address(row, np.float64, len(target)) for row in (target, draft))
    compiled().rows_residual(*given, len(target), _address(rest))
    return rest


class Surplus:
    """Sums max(target - scale * draft - offset, 0) over rows, time and again.

    Scales and offsets never fall from one call to the next, so entries that were below 0 once are not looked at again.

    Args:
        target, draft: float32 [m, V].
    """

    def __init__(self, target: torch.Tensor, draft: torch.Tensor) -> None:
        self._shape = count, size = target.shape
        self._rows, self._kept = (target.contiguous(), draft.contiguous()), torch.empty(2, count, size)
        self._addresses = [address(part, torch.float32, count, size) for part in self._rows]
        self.counts = torch.full((count,), size)

    def sums(self, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """Return the sums, float64 [m, 1] as `scale` and `offset` are; 0 for an infinite offset."""
        found, count = torch.empty_like(scale), self._shape[0]
        given = (address(part, torch.float64, count, 1) for part in (scale, offset))
        compiled().rows_surplus(
            *self._addresses, *self._shape, *given, self._kept.data_ptr(), self.counts.data_ptr(), found.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return found


def remove_token(probs: np.ndarray, place: int) -> float:
    """Take one entry out of float64 [V], in place, the others scaled to sum to 1 -> what they summed to before."""
    if not 0 <= place < len(probs):
        raise ValueError(f"found entry {place}, expected one of {len(probs)}")
    return compiled().rows_remove(array_address(probs, np.float64, len(probs)), len(probs), place)


def invert(probs: np.ndarray, uniform: float) -> int:
    """Return where the running sum of float64 [V] passes `uniform` of its total; never an entry without mass."""
    probs = np.ascontiguousarray(probs, np.float64)
    return compiled().rows_invert(array_address(probs, np.float64, len(probs)), len(probs), uniform)
