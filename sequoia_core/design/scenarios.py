"""Scenarios: a pair and a machine to look at before anything is measured, each an acceptance vector, a profile and a
sentence.

Knows the files in `assets/scenarios` and what they point to; says of both whether they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from ..files.model_names import ASSETS
from ..files.safe_files import checked, read_bytes, read_json
from .acceptance import AcceptanceVector
from .profile import HardwareProfile

FORMAT, VERSION = "sequoia-scenario", 1
MAX_FILE_BYTES = 20_000
VECTORS = ("measured", "published", "fitted")  # by this project, by somebody else, or made to agree with what they say
TIMES = ("measured", "modelled")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pair and a machine.

    Args:
        name: of the file, without its ending.
        order: its place in a list, lowest first.
        title, sentence: what it is, for people.
        acceptance, profile: the files, which lie inside the assets.
        vector: one of `VECTORS`; times: one of `TIMES`. Pages show modelled times unlike measured ones.
    """

    name: str
    order: int
    title: str
    sentence: str
    acceptance: Path
    profile: Path
    vector: str
    times: str

    def load(self) -> tuple[AcceptanceVector, HardwareProfile]:
        """Return the vector and the profile.

        Raises:
            ValueError: for files that cannot be read, or times of another kind than the scenario says.
        """
        vector, profile = AcceptanceVector.load(self.acceptance), HardwareProfile.load(self.profile)
        found = "modelled" if profile.meta.get("modelled") else "measured"
        if found != self.times:
            raise ValueError(f"{self.name}: times: found a profile that was {found}, expected {self.times}")
        return vector, profile


def load_scenario(path: str | Path, *, assets: Path = ASSETS) -> Scenario:
    """Read a scenario file.

    Args:
        assets: the folder that its paths start from and must stay in.

    Raises:
        ValueError: naming the file, what was found and what was expected.
    """
    content = read_bytes(path, limit=MAX_FILE_BYTES)
    try:
        fields = checked(_schema(), read_json(content))
        for key, found, known in (("vector", fields.vector, VECTORS), ("times", fields.times, TIMES)):
            if found not in known:
                raise ValueError(f"{key}: found {found[:40]!r}, expected one of {', '.join(known)}")
        return Scenario(
            name=Path(path).stem, order=fields.order, title=fields.title, sentence=fields.sentence,
            acceptance=_inside(assets, "acceptance", fields.acceptance),
            profile=_inside(assets, "profile", fields.profile), vector=fields.vector, times=fields.times,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def list_scenarios(folder: Path = ASSETS / "scenarios", *, assets: Path = ASSETS) -> list[Scenario]:
    """Return the scenarios of a folder in their order.

    Raises:
        ValueError: for a file that is no scenario.
    """
    found = [load_scenario(path, assets=assets) for path in folder.glob("*.json")]
    return sorted(found, key=lambda scenario: (scenario.order, scenario.name))


def _inside(assets: Path, key: str, name: str) -> Path:
    """Return the file that a scenario names; links that lead out of the assets are refused too."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{key}: found {name[:80]!r}, expected a path inside the assets")
    path, root = (assets / relative).resolve(), assets.resolve()
    if not path.is_relative_to(root):
        raise ValueError(f"{key}: found {name[:80]!r}, expected a path inside the assets")
    if not path.is_file():
        raise ValueError(f"{key}: found no file {name[:80]!r} in the assets, expected one")
    return path


@cache
def _schema():
    """Return the file's pydantic model: fields, types and lengths."""
    from typing import Annotated, Literal

    from pydantic import BaseModel, ConfigDict, Field

    text = Annotated[str, Field(min_length=1, max_length=200)]

    class Schema(BaseModel):
        model_config = ConfigDict(strict=True, extra="forbid")
        format: Literal["sequoia-scenario"]
        version: Literal[1]
        order: int
        title: text
        sentence: Annotated[str, Field(min_length=1, max_length=600)]
        acceptance: text
        profile: text
        vector: str
        times: str

    return Schema
