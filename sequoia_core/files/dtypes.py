"""The dtypes that models run in."""

from typing import Any, NamedTuple


class Dtype(NamedTuple):
    """Bytes of one number, and the dtype's name in safetensors files."""

    bytes: int
    stored: str


DTYPES = {"float32": Dtype(4, "F32"), "bfloat16": Dtype(2, "BF16"), "float16": Dtype(2, "F16")}


def check_dtype(name: Any) -> str:
    """Return one of the names in `DTYPES`."""
    if not isinstance(name, str) or name not in DTYPES:
        raise ValueError(f"dtype: found {str(name)[:40]!r}, expected one of {', '.join(DTYPES)}")
    return name


def bytes_of(dtype: str) -> int:
    """Return the bytes of one number."""
    return DTYPES[check_dtype(dtype)].bytes
