"""Scenarios: a pair and a machine to look at before anything is measured, each an acceptance vector, a profile and a
sentence.

Knows the files in `assets/scenarios` and what they point to; says of both whether they were measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..files.model_names import ASSETS
from ..files.safe_files import checked, read_bytes, read_json

Text = Annotated[str, Field(min_length=1)]


class Scenario(BaseModel):
    """A pair and a machine, as its file says it.

    Args:
        name: of the file, without its ending.
        order: its place in a list, lowest first.
        title, sentence: what it is, for people.
        acceptance, profile: the files, by their paths inside the assets.
        vector: measured by this project, published by somebody else, or fitted to agree with what they say.
        times: pages show modelled times unlike measured ones.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    format: Literal["sequoia-scenario"]
    version: Literal[1]
    name: str
    order: int
    title: Text
    sentence: Text
    acceptance: Text
    profile: Text
    vector: Literal["measured", "published", "fitted"]
    times: Literal["measured", "modelled"]


def list_scenarios(assets: Path = ASSETS) -> list[Scenario]:
    """Return the scenarios of a folder of assets in their order.

    Raises:
        ValueError: for a file that is no scenario, naming it, what was found and what was expected.
    """
    return sorted(map(_read, (assets / "scenarios").glob("*.json")), key=lambda scenario: scenario.order)


def _read(path: Path) -> Scenario:
    try:
        fields = read_json(read_bytes(path))
        return checked(Scenario, fields | {"name": path.stem} if isinstance(fields, dict) else fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
