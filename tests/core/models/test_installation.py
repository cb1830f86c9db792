"""The id of an installation: created once, stored, and unique."""

from pathlib import Path

import pytest

from sequoia_core.models.installation import installation_id


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """Return a function that reads the id of an installation in a folder, like a new process."""

    def found(folder: str) -> str:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / folder))
        return installation_id.__wrapped__()

    return found


def test_an_installation_has_a_stable_unique_id(installation):
    first = installation("first")
    assert installation("first") == first
    assert installation("second") not in (first, "")


@pytest.mark.parametrize("content", [b"", b"\xff" * 32, b"g" * 32])
def test_a_damaged_id_is_replaced(content, installation, tmp_path):
    (tmp_path / "damaged" / "sequoia-studio").mkdir(parents=True)
    (tmp_path / "damaged" / "sequoia-studio" / "installation-id").write_bytes(content)
    made = installation("damaged")
    assert len(made) == 32 and installation("damaged") == made


@pytest.mark.parametrize("obstacle", ["file", "folder"])
def test_a_process_gets_a_temporary_id_if_none_can_be_stored(obstacle, installation, tmp_path: Path):
    if obstacle == "file":
        (tmp_path / "unusable").write_text("in the way")
    else:
        (tmp_path / "unusable" / "sequoia-studio" / "installation-id").mkdir(parents=True)
    assert len({installation("unusable") for _ in range(3)}) == 3
    assert installation_id() == installation_id()
