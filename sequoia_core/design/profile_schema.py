"""The fields of a hardware profile's file."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from .conditions import MAX_NAME

Name = Annotated[str, Field(max_length=MAX_NAME)]


class _Meta(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    target: Name | None = None
    draft: Name | None = None
    instructions: Name | None = None
    bound_sec: list[float] = []


class ProfileFile(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    format: str
    version: int
    sizes: list[int]
    verify_sec: list[float]
    draft_sec: float
    device: Name = "unknown"
    dtype: Name = "unknown"
    context: int = 0
    draft_widths: list[int] = []
    draft_width_sec: list[float] = []
    verify_samples: list[list[float]] = []
    meta: _Meta = _Meta()
    overhead_sec: list[float] = []
    sampling_sec: list[float] = []
    draft_samples: list[list[float]] = []
    overhead_samples: list[list[float]] = []
    verify_growth_sec: list[float] = []
    draft_growth_sec: float = 0.0
    growing_sec: list[float] = []
