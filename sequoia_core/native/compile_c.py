"""Compile and load the C files beside this one: once per content, compiler and processor, kept in a cache folder.

Everything written in C is optional: without a compiler Python does the same, more slowly. SEQUOIA_NATIVE=0 in the
environment turns compiled code off.
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

from .notices import say_once
from .processor import processor_flags

FOLDER = Path(__file__).parent
BUILD_SEC = 300  # the largest file takes ten seconds, and a minute where many processes share a core


def cache_folder() -> Path:
    """Where compiled code is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sequoia-studio"


def find_compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def can_compile() -> bool:
    """Whether compiled code is available: there is a compiler, and SEQUOIA_NATIVE=0 does not turn it off."""
    return find_compiler() is not None and not _switched_off()


def check_switch() -> None:
    """Raise ValueError for a SEQUOIA_NATIVE that is neither yes nor no."""
    if (found := os.environ.get("SEQUOIA_NATIVE", "")) not in ("", "0", "1"):
        raise ValueError(f"SEQUOIA_NATIVE: found {found[:40]!r}, expected 0 or 1")


def _switched_off() -> bool:
    return os.environ.get("SEQUOIA_NATIVE") == "0"


def build(sources: Sequence[Path], flags: Sequence[str], folder: Path, *, reads: Sequence[Path] = ()) -> Path:
    """Compile C files into one library in a folder, unless that was done before.

    Args:
        reads: headers that the sources or flags name; they are hashed too, so that a changed header is compiled again.

    Raises:
        OSError: without a compiler, when it fails or takes too long, or for a folder that cannot be written; the
            message says which.
    """
    compiler = find_compiler()
    if compiler is None:
        raise OSError("found no C compiler (cc, gcc or clang)")
    facts = " ".join([compiler, *flags, processor_flags(), *platform.libc_ver()]).encode()
    content = b"".join(source.read_bytes() for source in (*sources, *reads))
    built = folder / f"{sources[0].stem}-{hashlib.sha256(content + facts).hexdigest()[:16]}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise OSError(f"{folder}: cannot keep compiled code there ({error.strerror})") from error
    _check_ours(folder)
    if built.exists():
        _check_ours(built)
        if is_whole(built):
            return built
    with tempfile.TemporaryDirectory(dir=folder) as place:
        fresh = Path(place) / built.name
        command = [compiler, "-O3", "-shared", "-fPIC", *flags, *map(str, sources), "-o", str(fresh), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=BUILD_SEC)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{compiler} took more than {BUILD_SEC} s") from error
        if done.returncode:
            raise OSError(f"{compiler} failed: {done.stderr.strip()[:300]}")
        _sum_file(fresh).write_text(_sum(fresh))
        # The library last: if the process dies in between, its checksum does not match and it is built again.
        for path in (_sum_file(fresh), fresh):
            path.replace(folder / path.name)
    return built


def is_whole(built: Path) -> bool:
    """Whether a library is complete, by the size and hash beside it.

    A full disk or a killed process leaves cut files, which crash the process that loads them.
    """
    try:
        return _sum_file(built).read_text(errors="replace") == _sum(built)
    except OSError:
        return False


def _sum_file(built: Path) -> Path:
    return built.with_suffix(".sha256")


def _sum(built: Path) -> str:
    data = built.read_bytes()
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


def _check_ours(path: Path) -> None:
    """Raise OSError for a file or folder that another user could have written, because its code would run."""
    if not hasattr(os, "geteuid"):
        return
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{path} belongs to another user or can be written by others")


def load(
    names: Sequence[str], flags: Sequence[str], functions: dict[str, tuple], *, reads: Sequence[str] = ()
) -> tuple[Any, str]:
    """Build and load C files.

    Args:
        names, reads: files beside this one, see `build`.
        functions: name -> (result type, argument types...).

    Returns:
        The library, a ctypes.CDLL whose functions have no types; or None and the reason why there is none.
    """
    if _switched_off():
        return None, "switched off by SEQUOIA_NATIVE=0"
    try:
        files, headers = ([FOLDER / name for name in group] for group in (names, reads))
        library = ctypes.CDLL(str(build(files, flags, cache_folder(), reads=headers)))
        for function, (result, *arguments) in functions.items():
            found = getattr(library, function)
            found.restype, found.argtypes = result, arguments
    except (OSError, RuntimeError, AttributeError) as error:  # a user without a home; a library without the function
        reason = " ".join(str(error).split())
        if find_compiler() is not None:  # compiled code was to be expected
            say_once(f"compiled code could not be built or loaded, so this run is slower: {reason}")
        return None, reason
    return library, ""
