"""Compiling the C files: once for each content, atomically, and with a reason where it cannot be done."""

import subprocess

import pytest

from sequoia_core import native

ADD = "int add(int a, int b) { return a + b; }\n"


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
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".so"] * 3  # and nothing half-made


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
    assert native.load(["rows.c"], [], {}) == (None, "Could not determine home directory.")


def test_switched_off(monkeypatch):
    monkeypatch.setenv("SEQUOIA_NATIVE", "0")
    assert native.load(["rows.c"], [], {}) == (None, "switched off by SEQUOIA_NATIVE=0")
