"""Hardware profiles: what passes of a pair cost on one device, t(n) and draft cost, and the file that keeps them.

Knows seconds, not acceptance; `studies.measure_profile` takes the times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..files.safe_files import checked, json_bytes, read_bytes, read_json, write_atomic
from .tree import MAX_SIZE

FORMAT, VERSION = "sequoia-profile", 1
MAX_FILE_BYTES = 1_000_000
MIN_SEC, MAX_SEC = 1e-12, 1e9  # beyond, ratios of two times overflow


def _vector(name: str, values, kinds: str, low: float, high: float, what: str) -> np.ndarray:
    """Return numbers from `low` to `high` as a read-only array; `kinds` are the kinds of dtype taken."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError) as error:  # rows of different lengths
        raise ValueError(f"{name}: found {_short(values)}, expected {what}") from error
    if array.size == 0:
        array = array.astype(kinds[0])
    if array.ndim != 1 or array.dtype.kind not in kinds or not np.all((low <= array) & (array <= high)):
        raise ValueError(f"{name}: found {_short(values)}, expected {what}")
    array = array.astype(np.float64 if "f" in kinds else np.int64)
    array.setflags(write=False)
    return array


def _whole(name: str, values) -> np.ndarray:
    return _vector(name, values, "iu", 1, MAX_SIZE, f"a list of positive whole numbers, at most {MAX_SIZE:,}")


def _seconds(name: str, values) -> np.ndarray:
    return _vector(name, values, "fiu", MIN_SEC, MAX_SEC, "a list of positive finite numbers, of seconds")


def _short(values) -> str:
    text = str(values if len(str(values)) < 10_000 else type(values).__name__)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True, eq=False)
class HardwareProfile:
    """Measured pass times of a pair on one device.

    Args:
        sizes: int64 [k], tokens in one target pass, increasing, starting at 1.
        verify_sec: float64 [k], seconds of a target pass over that many tokens.
        draft_sec: seconds of one draft pass over one token.
        device, dtype: what was measured, in words.
        context: tokens already in the cache during measurement.
        draft_widths, draft_width_sec: int64 [j] and float64 [j], draft passes over several tokens; may be empty.
        verify_samples: float64 [k][r] raw seconds, for the spread; may be empty.
        meta: anything else worth keeping, such as model names and versions.

    Raises:
        ValueError: naming the field, what was found and what was expected.
    """

    sizes: np.ndarray
    verify_sec: np.ndarray
    draft_sec: float
    device: str = "unknown"
    dtype: str = "unknown"
    context: int = 0
    draft_widths: np.ndarray = ()
    draft_width_sec: np.ndarray = ()
    verify_samples: tuple[tuple[float, ...], ...] = ()
    meta: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("sizes", "draft_widths"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in ("verify_sec", "draft_width_sec"):
            object.__setattr__(self, name, _seconds(name, getattr(self, name)))
        if len(self.sizes) < 2 or self.sizes[0] != 1 or np.any(np.diff(self.sizes) <= 0):
            raise ValueError(
                f"sizes: found {self.sizes.tolist()[:8]}, expected at least two increasing sizes from 1 up"
            )
        if len(self.verify_sec) != len(self.sizes):
            raise ValueError(
                f"verify_sec: found {len(self.verify_sec)} times, expected one for each of {len(self.sizes)} sizes"
            )
        if len(self.draft_width_sec) != len(self.draft_widths):
            raise ValueError(
                f"draft_width_sec: found {len(self.draft_width_sec)} times, expected one for each of "
                f"{len(self.draft_widths)} widths"
            )
        if np.any(np.diff(self.draft_widths) <= 0):
            raise ValueError(f"draft_widths: found {self.draft_widths.tolist()[:8]}, expected increasing widths")
        draft = self.draft_sec
        if isinstance(draft, bool) or not isinstance(draft, (int, float)) or not MIN_SEC <= draft <= MAX_SEC:
            raise ValueError(f"draft_sec: found {_short(draft)}, expected a positive number of seconds")
        if self.context < 0:
            raise ValueError(f"context: found {self.context}, expected 0 or more tokens")
        if self.verify_samples and len(self.verify_samples) != len(self.sizes):
            raise ValueError(
                f"verify_samples: found {len(self.verify_samples)} rows, expected one for each of "
                f"{len(self.sizes)} sizes"
            )
        for row in self.verify_samples:
            _seconds("verify_samples", row)
        object.__setattr__(self, "verify_samples", tuple(map(tuple, self.verify_samples)))
        if not isinstance(self.meta, dict):
            raise ValueError(f"meta: found {type(self.meta).__name__}, expected names with values")

    @property
    def max_size(self) -> int:
        """Largest tree the profile can speak about."""
        return int(self.sizes[-1])

    @property
    def smooth_verify_sec(self) -> np.ndarray:
        """Closest never-decreasing times (isotonic regression): noise must not make a larger pass look cheaper."""
        from scipy.optimize import isotonic_regression

        return isotonic_regression(self.verify_sec).x

    def t(self, n: int | np.ndarray) -> np.ndarray:
        """Return t(n), a target pass over n tokens ÷ over one, interpolated between measured sizes.

        Args:
            n: tokens, any shape, 1 to `max_size`.

        Returns:
            float64, same shape.

        Raises:
            ValueError: beyond what was measured.
        """
        n = np.asarray(n)
        if n.size and (n.min() < 1 or n.max() > self.max_size):
            raise ValueError(f"size: found {n.min()} to {n.max()}, expected 1 to {self.max_size} as profiled")
        smooth = self.smooth_verify_sec
        return np.interp(n, self.sizes, smooth) / smooth[0]

    @property
    def c(self) -> float:
        """One draft pass over one token ÷ one target pass over one token."""
        return float(self.draft_sec / self.smooth_verify_sec[0])

    def draft_cost(self, tokens: float | np.ndarray) -> np.ndarray:
        """Return one draft pass over some tokens ÷ a target pass over one; `c` where only single tokens were timed."""
        if len(self.draft_widths) == 0:
            return np.full(np.shape(tokens), self.c)
        return np.interp(tokens, self.draft_widths, self.draft_width_sec) / self.smooth_verify_sec[0]

    def differences(self, *, target: str, draft: str, dtype: str, device: str) -> list[str]:
        """Return what keeps these times from predicting that pair there; empty when they were measured on it.

        Args:
            target, draft: names as `model_names.pair_names` gives them.
            dtype: such as "float32".
            device: the name of the processor or GPU, with or without its number of threads.

        Returns:
            One phrase for each difference, such as "measured in bfloat16, not float32".
        """
        found = []
        for role, name in (("target", target), ("draft", draft)):
            measured = self.meta.get(role)
            if measured is None:
                found.append(f"the profile does not name its {role}")
            elif measured != name:
                found.append(f"{role} {measured}, not {name}")
        if self.dtype != dtype:
            found.append(f"measured in {self.dtype}, not {dtype}")
        if self.device.split(", ")[0] != device.split(", ")[0]:
            found.append(f"measured on {self.device}, not on {device}")
        return found

    def to_json(self) -> dict:
        return {
            "format": FORMAT, "version": VERSION, "sizes": self.sizes.tolist(), "verify_sec": self.verify_sec.tolist(),
            "draft_sec": self.draft_sec, "device": self.device, "dtype": self.dtype, "context": self.context,
            "draft_widths": self.draft_widths.tolist(), "draft_width_sec": self.draft_width_sec.tolist(),
            "verify_samples": [list(row) for row in self.verify_samples], "meta": self.meta,
        }  # fmt: skip

    def to_bytes(self) -> bytes:
        """Return the native JSON file's content."""
        return json_bytes(self.to_json())

    def save(self, path: str | Path) -> None:
        """Write native JSON; the file appears whole or not at all."""
        write_atomic(path, self.to_bytes())

    @classmethod
    def loads(cls, data: bytes, name: str) -> HardwareProfile:
        """Read native JSON from bytes; errors name `name`."""
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"{name}: found {len(data)} bytes, expected a profile of at most {MAX_FILE_BYTES}")
        try:
            content = read_json(data)
            found = content.get("format") if isinstance(content, dict) else type(content).__name__
            if found != FORMAT:
                raise ValueError(f"found {str(found)[:40]!r}, expected a file with format {FORMAT!r}")
            if content.get("version") != VERSION:
                raise ValueError(f"found version {_short(content.get('version'))}, expected {VERSION}")
            fields = checked(_schema(), content)
            return cls(**{name: getattr(fields, name) for name in cls.__dataclass_fields__})
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> HardwareProfile:
        """Read a native JSON profile.

        Raises:
            ValueError: naming the file, what was found and what was expected.
        """
        return cls.loads(read_bytes(path, limit=MAX_FILE_BYTES), str(path))


@cache
def _schema():
    """Return the file's pydantic model: fields and types. `HardwareProfile` itself checks the numbers."""
    from pydantic import BaseModel, ConfigDict

    class Schema(BaseModel):
        model_config = ConfigDict(strict=True, allow_inf_nan=False)
        format: str
        version: int
        sizes: list[int]
        verify_sec: list[float]
        draft_sec: float
        device: str = "unknown"
        dtype: str = "unknown"
        context: int = 0
        draft_widths: list[int] = []
        draft_width_sec: list[float] = []
        verify_samples: list[list[float]] = []
        meta: dict[str, Any] = {}

    return Schema
