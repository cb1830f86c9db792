"""The file of a hardware profile: which fields it has and of which types, in both versions.

Version 1 had neither overhead nor growth with the context nor samples of draft passes. `profile` checks the numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..files.safe_files import checked, read_json
from .conditions import MAX_NAME

FORMAT, VERSION = "sequoia-profile", 2
MAX_FILE_BYTES = 1_000_000


def read_profile(data: bytes) -> dict[str, Any]:
    """Read the fields of a profile from a file's content.

    Raises:
        ValueError: in one line, what was found and what was expected.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"found {len(data)} bytes, expected a profile of at most {MAX_FILE_BYTES}")
    content = read_json(data)
    found = content.get("format") if isinstance(content, dict) else type(content).__name__
    if found != FORMAT:
        raise ValueError(f"found {str(found)[:40]!r}, expected a file with format {FORMAT!r}")
    version = content.get("version")
    if isinstance(version, bool) or version not in range(1, VERSION + 1):
        raise ValueError(f"found version {str(version)[:40]}, expected 1 to {VERSION}")
    fields = checked(_schema(), content).model_dump(exclude_unset=True)
    del fields["format"], fields["version"]
    return fields


@cache
def _schema():
    """Return the file's pydantic model: fields and types."""
    from pydantic import BaseModel, ConfigDict, Field

    class Meta(BaseModel):
        model_config = ConfigDict(strict=True, extra="allow")
        target: str | None = Field(None, max_length=MAX_NAME)
        draft: str | None = Field(None, max_length=MAX_NAME)
        instructions: str | None = Field(None, max_length=MAX_NAME)
        bound_sec: list[float] = []

    class Schema(BaseModel):
        model_config = ConfigDict(strict=True, allow_inf_nan=False)
        format: str
        version: int
        sizes: list[int]
        verify_sec: list[float]
        draft_sec: float
        device: str = Field("unknown", max_length=MAX_NAME)
        dtype: str = Field("unknown", max_length=MAX_NAME)
        context: int = 0
        draft_widths: list[int] = []
        draft_width_sec: list[float] = []
        verify_samples: list[list[float]] = []
        meta: Meta = Meta()
        overhead_sec: list[float] = []
        sampling_sec: list[float] = []
        draft_samples: list[list[float]] = []
        overhead_samples: list[list[float]] = []
        verify_growth_sec: list[float] = []
        draft_growth_sec: float = 0.0
        growing_sec: list[float] = []

    return Schema
