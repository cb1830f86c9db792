"""Recognise Rust panics and out-of-memory errors, which libraries report in different ways."""

from collections.abc import Iterator
from contextlib import contextmanager


class Cancelled(RuntimeError):
    """Raised when work is cancelled before it has produced a result."""


OUT_OF_MEMORY = "out of memory. Try a smaller tree or a shorter prompt."

# Messages from PyTorch's allocators (CPU, shared memory, mapped files) and from accelerator libraries.
_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "unable to mmap",
    "failed to allocate",
    "storage size calculation overflowed",
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, indicates that a device ran out of memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
            return True
        may_be_memory = isinstance(error, RuntimeError | OSError) or type(error).__name__ == "SafetensorError"
        if may_be_memory and any(message in str(error).lower() for message in _MEMORY_MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_panic(error: BaseException) -> bool:
    """Return whether an exception is a Rust panic, which does not derive from `Exception`."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


@contextmanager
def panics_as_errors(source: str, expected: str) -> Iterator[None]:
    """Convert a panic inside the block to a ValueError that names the `source` and what was `expected`."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        text = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{source}: found content that crashes the library reading it ({text}), expected {expected}"
        ) from error
