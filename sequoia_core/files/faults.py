"""Recognise two faults that libraries raise under many names: a panic of Rust code, and a lack of memory."""

from collections.abc import Iterator
from contextlib import contextmanager


class Cancelled(RuntimeError):
    """Work was cancelled before there was anything to return; the message says what was expected."""


OUT_OF_MEMORY = "out of memory. Try a smaller tree or a shorter prompt."

# RuntimeError texts of PyTorch's allocators (CPU, shared memory, mapped files) and of accelerators' libraries
_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "unable to mmap",
    "failed to allocate",
    "storage size calculation overflowed",
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception, or its cause, means that memory ran out on any device."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
            return True
        plain_fault = isinstance(error, RuntimeError | OSError) or type(error).__name__ == "SafetensorError"
        if plain_fault and any(words in str(error).lower() for words in _MEMORY_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_panic(error: BaseException) -> bool:
    """Return whether an exception is a panic of Rust code, which is no `Exception`, so that usual handlers miss it."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


@contextmanager
def panics_as_errors(source: str, expected: str) -> Iterator[None]:
    """Raise ValueError in place of a panic inside the block; `source` and `expected` are for the message."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        text = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{source}: found content that crashes the library reading it ({text}), expected {expected}"
        ) from error
