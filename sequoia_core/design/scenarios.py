"""Scenarios: a pair and a machine to look at before anything is measured, as files in `assets/scenarios`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..files.json_models import checked, naming
from ..files.model_names import ASSETS
from ..files.safe_files import read_bytes, read_json

Text = Annotated[str, Field(min_length=1)]


class Reported(BaseModel):
    """A speedup that somebody measured on the pair and machine of a scenario."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    size: Annotated[int, Field(ge=1)]
    depth: Annotated[int, Field(ge=1)]
    tokens_per_step: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    source: Text

    def distance(self, speedup: float, tokens: float) -> tuple[float, float]:
        """Return the speedup that predicted times give a tree with the reported tokens, and how far off it is."""
        predicted = speedup * self.tokens_per_step / tokens
        return predicted, predicted / self.speedup - 1


class Scenario(BaseModel):
    """A pair and a machine, as its file says it.

    Args:
        acceptance, profile: the files, by their paths inside the assets.
        vector: measured by this project, published by somebody else, or fitted to agree with what they say.
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
    reported: list[Reported] = []


def list_scenarios(assets: Path = ASSETS) -> list[Scenario]:
    """Return the scenarios of a folder of assets in their order."""
    return sorted(map(_read, (assets / "scenarios").glob("*.json")), key=lambda scenario: scenario.order)


def _read(path: Path) -> Scenario:
    with naming(str(path)):
        fields = read_json(read_bytes(path))
        return checked(Scenario, fields | {"name": path.stem} if isinstance(fields, dict) else fields)
