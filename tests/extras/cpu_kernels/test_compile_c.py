"""Building C files: once per content, atomically, and with a reason if it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sequoia_core.files import notices
from sequoia_extras.cpu_kernels import compile_c

ADD = "int add(int a, int b) { return a + b; }\n"
needs_compiler = pytest.mark.skipif(compile_c.find_compiler() is None, reason="no C compiler")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "add.c"
    path.write_text(ADD)
    return path


@pytest.fixture
def load(source, tmp_path, monkeypatch):
    """Return a function that loads add.c with a cache of its own."""
    monkeypatch.delenv("SEQUOIA_NATIVE", raising=False)
    monkeypatch.setattr(compile_c, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return lambda: compile_c.load_library(["add.c"], [])


@needs_compiler
def test_rebuilds_only_when_sources_flags_or_headers_change(source, tmp_path):
    def build(flags=(), headers=()):
        return compile_c.build([source], flags, tmp_path / "cache", headers=headers)

    first = build()
    before = first.stat().st_mtime_ns
    assert build() == first and first.stat().st_mtime_ns == before
    header = tmp_path / "read.h"
    built = {first, build(["-O1"])}
    for content in ("int one;", "int two;"):
        header.write_text(content)
        built.add(build(headers=[header]))
    source.write_text(ADD.replace("a + b", "a - b"))
    built.add(build())
    suffixes = sorted(path.suffix for path in (tmp_path / "cache").iterdir())
    assert suffixes == [".sha256"] * len(built) + [".so"] * len(built) and len(built) == 5


LOAD_AND_ADD = """
import sys
from pathlib import Path
from sequoia_extras.cpu_kernels import compile_c
compile_c.FOLDER = Path(sys.argv[1])
library, reason = compile_c.load_library(["add.c"], [])
print(library and library.add(2, 3), reason)
"""


def load_in_subprocess(folder, home) -> str:
    """Load add.c in another process, which a damaged library would kill, and return its output."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "SEQUOIA_NATIVE": "1"}
    command = [sys.executable, "-c", LOAD_AND_ADD, str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, (run.returncode, run.stderr)
    return run.stdout.strip()


@needs_compiler
@pytest.mark.parametrize("suffix", [".so", ".sha256"])
def test_damaged_library_is_rebuilt_instead_of_loaded(suffix, source, tmp_path):
    """A library truncated after its headers kills the process that loads it (SIGBUS)."""
    home = tmp_path / "home"
    assert load_in_subprocess(tmp_path, home) == "5"
    library = next((home / "sequoia-studio").glob("*.so"))
    intact = library.read_bytes()
    file = library.with_suffix(suffix)
    file.write_bytes(intact[:4096]) if suffix == ".so" else file.unlink()
    assert load_in_subprocess(tmp_path, home) == "5"
    assert compile_c.is_intact(library) and len(library.read_bytes()) == len(intact)


@needs_compiler
def test_code_that_does_not_compile_or_load_gives_a_reason(source, load, monkeypatch):
    source.write_text("int add(int a { return a; }")
    library, reason = load()
    assert library is None and "failed: " in reason and "add.c" in reason

    def compile_nothing(command, **options):
        Path(command[command.index("-o") + 1]).write_bytes(b"no library")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(compile_c.subprocess, "run", compile_nothing)
    source.write_text(ADD)
    library, reason = load()
    assert library is None and "add-" in reason


@needs_compiler
def test_read_only_cache_serves_what_was_built_before(source, load, monkeypatch):
    def refuse(**options):
        raise OSError("Read-only file system")

    assert load()[1] == ""
    monkeypatch.setattr(compile_c.tempfile, "TemporaryDirectory", refuse)
    assert load()[1] == ""
    source.write_text(ADD + "/* another content */")
    assert load() == (None, "Read-only file system")


def test_missing_disabled_or_hanging_compiler_gives_a_reason(load, monkeypatch):
    def hang(command, *, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(compile_c.shutil, "which", lambda name: None)
    assert load() == (None, "found no C compiler (cc, gcc or clang)") and not compile_c.can_compile()
    monkeypatch.setattr(compile_c.shutil, "which", lambda name: "/bin/cc")
    monkeypatch.setattr(compile_c.subprocess, "run", hang)
    assert load() == (None, "/bin/cc took more than 300 s") and compile_c.can_compile()
    monkeypatch.setenv("SEQUOIA_NATIVE", "0")
    assert load() == (None, "switched off by SEQUOIA_NATIVE=0") and not compile_c.can_compile()


@needs_compiler
def test_code_that_another_user_could_have_written_is_not_run(source, tmp_path):
    built = compile_c.build([source], [], tmp_path / "cache")
    for path in (built, tmp_path / "cache"):
        path.chmod(0o777)
        with pytest.raises(OSError, match="can be written by others"):
            compile_c.build([source], [], tmp_path / "cache")
        path.chmod(0o755)


@needs_compiler
def test_unusable_cache_folder_is_reported_once(load, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(notices, "_notices", [])
    with pytest.warns(notices.Notice) as warned:
        assert load()[0] is None and load()[0] is None
    (sentence,) = [str(each.message) for each in warned]
    assert "this run is slower" in sentence and str(tmp_path / "file" / "sequoia-studio") in sentence
