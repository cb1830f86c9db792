"""Loads `text_index.c`, which looks up earlier text; `plain_index` in dynamic_trees does the same in Python."""

from functools import lru_cache
from typing import Any

from .compile_c import load_library


@lru_cache(maxsize=1)
def text_index_kernels() -> Any:
    """Return the functions of `text_index.c`, or None if they cannot be built."""
    return load_library(["text_index.c"], ["-march=native"], headers=["text_index.h"])[0]
