"""Only regular files are replaced, JSON is parsed strictly, and errors are one line."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sequoia_core.files import safe_files as files
from sequoia_core.files.safe_files import check_replaceable, read_json, write_atomic


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_replacing_a_file_preserves_its_mode(tmp_path):
    path = tmp_path / ("n" * 255)  # the longest name that the system allows
    usual = tmp_path / "usual"
    write_atomic(path, b"one")
    usual.write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)  # according to the umask
    path.chmod(0o600)
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert left_behind(tmp_path) == [path.name, "usual"]


def test_writing_through_a_symlink_replaces_its_target(tmp_path):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target.json"
    link = tmp_path / "link.json"
    link.symlink_to(target)
    write_atomic(link, b"new")  # a link to a missing file
    assert link.is_symlink() and target.read_bytes() == b"new"
    write_atomic(link, b"newer")
    assert link.is_symlink() and target.read_bytes() == b"newer"
    assert left_behind(tmp_path) == ["folder", "link.json"] and left_behind(tmp_path / "folder") == ["target.json"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_only_regular_files_are_replaced(make, tmp_path):
    path = tmp_path / "out"
    make(path)
    before = path.lstat()
    for refuse in (check_replaceable, lambda place: write_atomic(place, b"data")):
        with pytest.raises(ValueError, match="out: found a folder or device, expected a regular file or a new name"):
            refuse(path)
    assert path.lstat() == before and left_behind(tmp_path) == ["out"]


def test_a_planted_temporary_file_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "guessed")
    (tmp_path / ".guessed.tmp").symlink_to(victim)
    with pytest.raises(ValueError, match="cannot be written"):
        write_atomic(tmp_path / "out", b"data")
    assert victim.read_bytes() == b"precious"


FULL_DISK = """
import resource, sys
from sequoia_core.files.safe_files import write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_atomic(sys.argv[1], b"x" * 100_000)
except ValueError as error:
    print(error)
"""


def test_a_failed_write_leaves_the_old_file(tmp_path):
    """The limit on file sizes interrupts the write like a full disk."""
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True)
    assert "out.json: cannot be written (File too large)" in done.stdout, done.stderr
    assert path.read_bytes() == b"old" and left_behind(tmp_path) == ["out.json"]


def test_json_is_read():
    assert read_json(b'\xef\xbb\xbf{"a": [1, 2.5, null, "x"]}') == {"a": [1, 2.5, None, "x"]}
    assert read_json(rb'["\ud83d\ude00", "\\ud83d", "\u00e9"]') == ["\U0001f600", "\\ud83d", "é"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "invalid JSON"),
        (b"[" * 65 + b"]" * 65, "at most 64 levels"),
        (b"[1e999]", "found 1e999"),
    ],
)
def test_invalid_or_huge_json_is_refused(data, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_json(data)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
