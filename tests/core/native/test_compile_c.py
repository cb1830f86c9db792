"""Compiling the C files: once for each content, atomically, and with a reason where it cannot be done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sequoia_core.native import compile_c as native
from sequoia_core.native import notices

ADD = "int add(int a, int b) { return a + b; }\n"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "add.c"
    path.write_text(ADD)
    return path


@pytest.fixture
def load(source, tmp_path, monkeypatch):
    """Load add.c, with a cache of its own."""
    monkeypatch.delenv("SEQUOIA_NATIVE", raising=False)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return lambda functions=(): native.load(["add.c"], [], dict(functions))


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
    header = tmp_path / "read.h"
    for content in ("", "int two;"):
        header.write_text(content)
        native.build([source], [], tmp_path / "cache", reads=[header])
    found = sorted(path.suffix for path in (tmp_path / "cache").iterdir())
    assert found == [".sha256"] * 4 + [".so"] * 4  # and nothing half-made


START = """
import ctypes, sys
from pathlib import Path
from sequoia_core.native import compile_c as native
from sequoia_core.native import notices
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


@needs_compiler
@pytest.mark.parametrize("ending", [".so", ".sha256"])
def test_a_damaged_cache_is_built_anew_and_never_loaded(ending, source, tmp_path):
    """Cut after the headers, a library kills the process that loads it: SIGBUS. The other file is lost."""
    home = tmp_path / "home"
    assert start(tmp_path, home) == "5"
    library = next((home / "sequoia-studio").glob("*.so"))
    whole = library.read_bytes()
    file = library.with_suffix(ending)
    file.write_bytes(whole[:4096]) if ending == ".so" else file.unlink()
    assert start(tmp_path, home) == "5"
    assert native.is_whole(library) and len(library.read_bytes()) == len(whole)


@needs_compiler
def test_what_does_not_compile_or_load_is_a_reason_not_an_error(source, load, monkeypatch):
    library, reason = load({"subtract": (native.ctypes.c_int,)})
    assert library is None and "subtract" in reason
    source.write_text("int add(int a { return a; }")
    library, reason = load()
    assert library is None and "failed: " in reason and "add.c" in reason
    real = subprocess.run

    def compile_nothing(command, **options):  # a whole file that is no library, as a broken compiler leaves it
        Path(command[command.index("-o") + 1]).write_bytes(b"no library")
        return real(["true"], **options)

    monkeypatch.setattr(native.subprocess, "run", compile_nothing)
    source.write_text(ADD + "/* another content */")
    library, reason = load()
    assert library is None and "add-" in reason


@needs_compiler
def test_a_cache_that_can_only_be_read_is_used_as_far_as_it_goes(source, load, monkeypatch):
    """What was built before is loaded; what was not is a reason, and the work goes on without it."""

    def refused(**options):
        raise OSError("Read-only file system")

    assert load()[1] == ""
    monkeypatch.setattr(native.tempfile, "TemporaryDirectory", refused)
    assert load()[1] == ""
    source.write_text(ADD + "/* another content */")
    assert load() == (None, "Read-only file system")


def test_no_compiler_and_one_that_hangs_are_reasons(load, monkeypatch):
    def hang(command, *, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert load() == (None, "found no C compiler (cc, gcc or clang)")
    monkeypatch.setattr(native.shutil, "which", lambda name: "/bin/cc")
    monkeypatch.setattr(native.subprocess, "run", hang)
    assert load() == (None, "/bin/cc took more than 300 s")


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


def test_switched_off(load, monkeypatch):
    assert native.can_compile() == has_compiler()
    monkeypatch.setenv("SEQUOIA_NATIVE", "0")
    assert load() == (None, "switched off by SEQUOIA_NATIVE=0") and not native.can_compile()


@needs_compiler
@pytest.mark.parametrize("home", ["a file", "below a file"])
def test_a_folder_that_cannot_be_used_is_named_once(home, source, load, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / ("" if home == "a file" else "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    monkeypatch.setattr(notices, "_said", [])
    with pytest.warns(notices.Notice) as found:
        assert load()[0] is None and load()[0] is None
    (sentence,) = [str(each.message) for each in found]
    assert sentence.startswith(
        f"compiled code could not be built or loaded, so this run is slower: {place / 'sequoia-studio'}: cannot keep"
    )
    assert notices.said() == [sentence]
