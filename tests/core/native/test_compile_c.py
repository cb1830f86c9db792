"""Compiling the C files: once for each content, atomically, and with a reason where it cannot be done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sequoia_core.native import compile_c as native

ADD = "int add(int a, int b) { return a + b; }\n"


@pytest.fixture(autouse=True)
def switched_on(monkeypatch):
    monkeypatch.delenv("SEQUOIA_NATIVE", raising=False)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "add.c"
    path.write_text(ADD)
    return path


def has_compiler() -> bool:
    return any(native.shutil.which(name) for name in ("cc", "gcc", "clang"))


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C compiler")


@needs_compiler
def test_built_once_for_each_content(source, tmp_path):
    first = native.build([source], [], tmp_path / "cache")
    before = first.stat().st_mtime_ns
    assert native.build([source], [], tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == before
    source.write_text(ADD.replace("a + b", "a - b"))
    assert native.build([source], [], tmp_path / "cache") != first
    assert native.build([source], ["-O1"], tmp_path / "cache") != first
    found = sorted(path.suffix for path in (tmp_path / "cache").iterdir())
    assert found == [".sha256"] * 3 + [".so"] * 3  # and nothing half-made


@needs_compiler
def test_headers_that_are_read_are_part_of_the_content(source, tmp_path):
    header = tmp_path / "plus.h"
    source.write_text('#include "plus.h"\nint add(int a, int b) { return PLUS(a, b); }\n')
    header.write_text("#define PLUS(a, b) ((a) + (b))\n")
    first = native.build([source], [], tmp_path / "cache", reads=[header])
    assert native.ctypes.CDLL(str(first)).add(2, 3) == 5
    header.write_text("#define PLUS(a, b) ((a) - (b))\n")
    assert native.build([source], [], tmp_path / "cache", reads=[header]) != first


@needs_compiler
def test_loaded_functions_are_called(source, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    library, reason = native.load(["add.c"], [], {"add": (native.ctypes.c_int, *[native.ctypes.c_int] * 2)})
    assert reason == "" and library.add(2, 3) == 5


@needs_compiler
def test_what_does_not_compile_is_a_reason_not_an_error(source, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    source.write_text("int add(int a { return a; }")
    library, reason = native.load(["add.c"], [], {})
    assert library is None and "failed: " in reason and "add.c" in reason


START = """
import ctypes, sys
from pathlib import Path
from sequoia_core.native import compile_c as native
native.FOLDER = Path(sys.argv[1])
library, reason = native.load(["add.c"], [], {"add": (ctypes.c_int, ctypes.c_int, ctypes.c_int)})
print(library and library.add(2, 3), reason)
"""


def start(folder, home) -> str:
    """Load add.c in a process of its own, since a bad library kills it; what it printed."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "SEQUOIA_NATIVE": "1"}
    run = subprocess.run([sys.executable, "-c", START, str(folder)], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, (run.returncode, run.stderr)
    return run.stdout.strip()


DAMAGES = {  # what becomes of the bytes of a file
    "cut": lambda data: data[:4096],  # the headers, and nothing of what they promise: SIGBUS when loaded
    "emptied": lambda data: b"",
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0xFF]) + data[len(data) // 2 + 1 :],
    "padded": lambda data: data + bytes(8),
    "lost": lambda data: None,
}


@needs_compiler
@pytest.mark.parametrize("ending", [".so", ".sha256"])
@pytest.mark.sample(5)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_built_anew_and_never_loaded(damage, ending, source, tmp_path):
    home = tmp_path / "home"
    assert start(tmp_path, home) == "5"
    library = next((home / "sequoia-studio").glob("*.so"))
    whole = library.read_bytes()
    file = library.with_suffix(ending)
    content = DAMAGES[damage](file.read_bytes())
    file.unlink() if content is None else file.write_bytes(content)
    assert start(tmp_path, home) == "5"
    assert native.is_whole(library) and len(library.read_bytes()) == len(whole)


@needs_compiler
def test_a_build_that_cannot_be_loaded_is_a_reason(source, tmp_path, monkeypatch):
    """A whole file that is no library, as a broken compiler leaves it, and one without the function asked for."""
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    library, reason = native.load(["add.c"], [], {"subtract": (native.ctypes.c_int,)})
    assert library is None and "subtract" in reason
    real = subprocess.run

    def compile_nothing(command, **options):
        Path(command[command.index("-o") + 1]).write_bytes(b"no library")
        return real(["true"], **options)

    monkeypatch.setattr(native.subprocess, "run", compile_nothing)
    source.write_text(ADD + "/* another content */")
    library, reason = native.load(["add.c"], [], {})
    assert library is None and "add-" in reason


@needs_compiler
def test_a_cache_that_can_only_be_read_is_used_as_far_as_it_goes(source, tmp_path):
    """What was built before is loaded; what was not is a reason, and the work goes on without it."""
    home = tmp_path / "home"
    home.mkdir()

    def read_only(on: bool) -> bool:
        return not subprocess.run(
            ["mount", "-o", f"remount,{'ro' if on else 'rw'},size=8m", home], capture_output=True
        ).returncode

    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", home], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs privileges")
    try:
        assert read_only(True)
        assert start(tmp_path, home).startswith("None ") and "Read-only file system" in start(tmp_path, home)
        assert read_only(False)
        assert start(tmp_path, home) == "5"
        assert read_only(True)
        assert start(tmp_path, home) == "5"
    finally:
        subprocess.run(["umount", home], check=True)


@needs_compiler
def test_a_folder_without_leave_to_write_is_a_reason(source, tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    if os.access(home, os.W_OK):
        pytest.skip("this user may write anywhere")
    assert start(tmp_path, home).startswith("None ")


def test_no_compiler_is_a_reason(source, tmp_path, monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    with pytest.raises(OSError, match="found no C compiler"):
        native.build([source], [], tmp_path / "cache")


def test_a_compiler_that_hangs_is_given_up(source, tmp_path, monkeypatch):
    def hang(command, *, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(native.shutil, "which", lambda name: "/bin/cc")
    monkeypatch.setattr(native.subprocess, "run", hang)
    with pytest.raises(OSError, match="took more than 60 s"):
        native.build([source], [], tmp_path / "cache")


def test_a_cache_folder_that_cannot_be_made_is_a_reason(source, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))  # a file, not a folder
    library, reason = native.load(["add.c"], [], {})
    assert library is None and reason


@needs_compiler
def test_code_that_others_could_have_written_is_not_run(source, tmp_path):
    built = native.build([source], [], tmp_path / "cache")
    built.chmod(0o777)
    with pytest.raises(OSError, match="can be written by others"):
        native.build([source], [], tmp_path / "cache")
    built.chmod(0o755)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(OSError, match="can be written by others"):
        native.build([source], [], tmp_path / "cache")


def test_a_user_without_a_home_is_a_reason(monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(native.Path, "home", none)
    assert native.load(["sampling_ops.c"], [], {}) == (None, "Could not determine home directory.")


def test_switched_off(monkeypatch):
    monkeypatch.setenv("SEQUOIA_NATIVE", "0")
    assert native.load(["sampling_ops.c"], [], {}) == (None, "switched off by SEQUOIA_NATIVE=0")
