"""The dtypes in which models can run."""

from typing import Any, NamedTuple


class Dtype(NamedTuple):
    """Size of one element in bytes, and the dtype's name in safetensors files."""

    bytes: int
    stored: str


DTYPES = {"float32": Dtype(4, "F32"), "bfloat16": Dtype(2, "BF16"), "float16": Dtype(2, "F16")}


class DefaultDtype(NamedTuple):
    """A dtype, spelled as in command-line options, and a short reason for choosing it."""

    dtype: str
    reason: str


def check_dtype(name: Any) -> str:
    """Return `name` if it is one of `DTYPES`; otherwise raise ValueError."""
    if not isinstance(name, str) or name not in DTYPES:
        raise ValueError(f"dtype: found {str(name)[:40]!r}, expected one of {', '.join(DTYPES)}")
    return name


def dtype_bytes(dtype: str) -> int:
    """Return the size of one element in bytes."""
    return DTYPES[check_dtype(dtype)].bytes
