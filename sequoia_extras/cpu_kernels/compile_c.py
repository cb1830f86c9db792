"""Compile and load this package's C files, cached by content, compiler and processor.

All compiled code is optional: without a compiler, Python computes the same results more slowly. Set SEQUOIA_NATIVE=0 to
disable it.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sequoia_core.files.notices import notify_once
from sequoia_core.files.safe_files import cache_folder
from sequoia_core.models.processor import processor_flags

from .c_declarations import declare_functions

FOLDER = Path(__file__).parent
# The largest file takes ten seconds to compile, but a minute if many processes share a core.
BUILD_TIMEOUT_SEC = 300


def find_compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def can_compile() -> bool:
    """Return whether there is a compiler and SEQUOIA_NATIVE does not disable compiled code."""
    return find_compiler() is not None and not _is_disabled()


def check_native_variable() -> None:
    """Raise ValueError if SEQUOIA_NATIVE is neither 0 nor 1."""
    if (value := os.environ.get("SEQUOIA_NATIVE", "")) not in ("", "0", "1"):
        raise ValueError(f"SEQUOIA_NATIVE: found {value[:40]!r}, expected 0 or 1")


def _is_disabled() -> bool:
    return os.environ.get("SEQUOIA_NATIVE") == "0"


def build(sources: Sequence[Path], flags: Sequence[str], folder: Path, *, headers: Sequence[Path] = ()) -> Path:
    """Compile C files into one shared library in `folder`, unless it is already there, and return the library's path.

    Args:
        headers: included files, whose content is hashed too, so that a changed header triggers a rebuild.

    Raises:
        OSError: there is no compiler, the compilation failed or timed out, or the folder is unusable.
    """
    compiler = find_compiler()
    if compiler is None:
        raise OSError("found no C compiler (cc, gcc or clang)")
    environment = " ".join([compiler, *flags, processor_flags(), *platform.libc_ver()]).encode()
    content = b"".join(file.read_bytes() for file in (*sources, *headers))
    library = folder / f"{sources[0].stem}-{hashlib.sha256(content + environment).hexdigest()[:16]}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise OSError(f"cannot create the folder {folder} for compiled code ({error.strerror})") from error
    _check_ownership(folder)
    if library.exists():
        _check_ownership(library)
        if is_intact(library):
            return library
    with tempfile.TemporaryDirectory(dir=folder) as build_folder:
        fresh = Path(build_folder) / library.name
        command = [compiler, "-O3", "-shared", "-fPIC", *flags, *map(str, sources), "-o", str(fresh), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=BUILD_TIMEOUT_SEC)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{compiler} took more than {BUILD_TIMEOUT_SEC} s") from error
        if done.returncode:
            raise OSError(f"{compiler} failed: {done.stderr.strip()[:300]}")
        _checksum_file(fresh).write_text(_checksum(fresh))
        # Move the library last: if the process dies in between, the checksum does not match and the library is rebuilt.
        for path in (_checksum_file(fresh), fresh):
            path.replace(folder / path.name)
    return library


def is_intact(library: Path) -> bool:
    """Return whether a library matches its checksum file.

    A full disk or a killed process can leave truncated files, which would crash the process that loads them.
    """
    try:
        return _checksum_file(library).read_text(errors="replace") == _checksum(library)
    except OSError:
        return False


def _checksum_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _checksum(library: Path) -> str:
    data = library.read_bytes()
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


def _check_ownership(path: Path) -> None:
    """Raise OSError if another user could have written the file or folder, since its code is executed."""
    if not hasattr(os, "geteuid"):
        return
    status = path.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{path} belongs to another user or can be written by others")


def load_library(names: Sequence[str], flags: Sequence[str], *, headers: Sequence[str] = ()) -> tuple[Any, str]:
    """Build and load some of this package's C files.

    Returns:
        The library with declared functions and an empty string, or None and the reason.
    """
    if _is_disabled():
        return None, "switched off by SEQUOIA_NATIVE=0"
    try:
        sources = [FOLDER / name for name in names]
        path = build(sources, flags, cache_folder(), headers=[FOLDER / name for name in headers])
        library = ctypes.CDLL(str(path))
        for source in sources:
            declare_functions(library, source)
    except (OSError, RuntimeError, AttributeError) as error:  # A RuntimeError means that the user has no home folder.
        reason = " ".join(str(error).split())
        if find_compiler() is not None:
            notify_once(f"could not build or load compiled code, so this run is slower: {reason}")
        return None, reason
    return library, ""
