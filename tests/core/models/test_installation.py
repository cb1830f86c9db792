"""The id of an installation: made once, kept, and claimed by nobody else."""

import os
from pathlib import Path

import pytest

from sequoia_core.models.installation import installation_id


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """Return the id of an installation that keeps its files in a folder, as a new process finds it."""

    def found(folder: str) -> str:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
        return installation_id.__wrapped__()

    return found


def test_an_installation_keeps_its_id_and_no_other_has_it(installation):
    first = installation("first")
    assert installation("first") == first
    assert installation("second") not in (first, "")


@pytest.mark.parametrize("content", [b"", b"0123", b"not an id\n", b"\xff" * 32, b"g" * 32])
def test_a_damaged_id_is_replaced(content, installation, tmp_path):
    (tmp_path / "damaged" / "sequoia-studio").mkdir(parents=True)
    (tmp_path / "damaged" / "sequoia-studio" / "installation-id").write_bytes(content)
    made = installation("damaged")
    assert len(made) == 32 and installation("damaged") == made


@pytest.mark.parametrize("obstacle", ["file", "read-only", "folder"])
def test_a_process_has_its_own_id_where_none_can_be_kept(obstacle, installation, tmp_path: Path):
    if obstacle == "file":
        (tmp_path / "unusable").write_text("in the way")
    elif obstacle == "folder":
        (tmp_path / "unusable" / "sequoia-studio" / "installation-id").mkdir(parents=True)
    else:
        (tmp_path / "unusable" / "sequoia-studio").mkdir(parents=True)
        (tmp_path / "unusable" / "sequoia-studio").chmod(0o500)
        if os.access(tmp_path / "unusable" / "sequoia-studio", os.W_OK):
            pytest.skip("this user may write everywhere")
    assert len({installation("unusable") for _ in range(3)}) == 3
    assert installation_id() == installation_id()
