"""The scenarios in `assets/scenarios`: pairs and machines to explore before measuring anything."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sequoia_core.files.json_models import prefix_errors, validate_model
from sequoia_core.files.model_names import ASSETS
from sequoia_core.files.safe_files import read_bytes, read_json

Text = Annotated[str, Field(min_length=1)]


class Reported(BaseModel):
    """A published speedup for a scenario's pair and machine."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    size: Annotated[int, Field(ge=1)]
    depth: Annotated[int, Field(ge=1)]
    tokens_per_step: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    speedup: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    source: Text

    def distance(self, speedup: float, tokens: float) -> tuple[float, float]:
        """Scale a predicted speedup to the reported tokens per step; return it and its relative error."""
        predicted = speedup * self.tokens_per_step / tokens
        return predicted, predicted / self.speedup - 1


class Scenario(BaseModel):
    """A pair and a machine, as described by a scenario file.

    Args:
        acceptance, profile: paths of the vector and the profile, relative to the assets.
        vector: origin of the vector: measured by this project, published by others, or fitted to published results.
        times: origin of the profile's times: measured or modelled.
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
    """Return the scenarios in display order."""
    return sorted(map(_read, (assets / "scenarios").glob("*.json")), key=lambda scenario: scenario.order)


def _read(path: Path) -> Scenario:
    with prefix_errors(str(path)):
        fields = read_json(read_bytes(path))
        return validate_model(Scenario, fields | {"name": path.stem} if isinstance(fields, dict) else fields)
