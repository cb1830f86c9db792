"""The schema of an acceptance vector in native JSON."""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from ..files.file_model import FileModel
from .conditions import MAX_RANKS

Count = Annotated[int, Field(ge=0, le=2**53)]
Ranks = list[Annotated[int, Field(ge=0, le=MAX_RANKS)]]
NUMBER_LIST = TypeAdapter(list[Annotated[float, Field(strict=True)]])


class DepthFile(FileModel):
    """Acceptance by depth, as stored with a vector."""

    matrix: list[list[float]] = Field(min_length=1, max_length=MAX_RANKS)
    trials: list[list[Count]] | None = None
    meta: dict[str, Any] = Field(default_factory=dict)
    prompt_sums: list[list[list[float]]] | None = None
    prompt_trials: list[list[Count]] | None = None
    prompt_ranks: list[list[Ranks]] | None = None


class VectorFile(FileModel):
    """A vector in native JSON."""

    format: Literal["sequoia-acceptance"]
    version: int = Field(ge=1, le=2)
    probs: list[float] = Field(max_length=MAX_RANKS)
    trials: Count | None = None
    prompt_sums: list[list[float]] | None = None
    prompt_trials: list[Count] | None = None
    prompt_ranks: list[Ranks] | None = None
    prompt_matched: list[list[Annotated[int, Field(ge=0, le=1)]]] | None = None
    meta: dict[str, Any] = Field(default_factory=dict)
    note: str | None = None
    holds_for: dict[str, Any] | None = None
    calibration: dict[str, Any] | str | None = None
    by_depth: DepthFile | None = None
