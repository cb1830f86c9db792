"""The file of a hardware profile: which fields it has and of which types, in both versions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..files.file_kinds import describe
from ..files.json_models import checked
from ..files.safe_files import read_json
from .tree import MAX_SIZE

FORMAT, VERSION = "sequoia-profile", 2
MAX_FILE_BYTES = 1_000_000
MIN_SEC, MAX_SEC = 1e-12, 1e9  # beyond, ratios of two times overflow
MAX_CONTEXT = 10**9  # tokens
MAX_JUMP = 1.15  # times more than tokens in proportion: less is a machine's noise
MIN_FALL = 0.75  # of the longest time over fewer tokens: noise, and kernels that suit one size, take less


class Streaming(NamedTuple):
    """How layers stream through a few buffers during every target pass."""

    layers: int
    buffers: int
    layer_read_sec: float

    @property
    def pass_sec(self) -> float:
        """Seconds in which all layers of a pass arrive."""
        return self.layers * self.layer_read_sec

    @property
    def ahead_sec(self) -> float:
        """Seconds of reading that fit into the buffers while no pass runs."""
        return self.buffers * self.layer_read_sec

    @classmethod
    def recorded_in(cls, meta: dict[str, Any]) -> Streaming | None:
        """Return the streaming in a profile's `meta`; None where it is missing or implausible."""
        try:
            fields = meta["streaming"]
            told = cls(int(fields["layers"]), int(fields["buffers"]), float(fields["layer_read_sec"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        plausible = 1 <= told.layers <= MAX_SIZE and 1 <= told.buffers <= MAX_SIZE
        return told if plausible and MIN_SEC <= told.layer_read_sec <= MAX_SEC else None


def odd_times(sizes: np.ndarray, verify_sec: np.ndarray) -> str | None:
    """Say that passes over more tokens take much less time than over fewer, or much more than one by one."""
    grown = verify_sec[1:] / verify_sec[:-1]
    jumps = np.flatnonzero(grown > MAX_JUMP * sizes[1:] / sizes[:-1])
    if jumps.size:
        few, many, times = sizes[jumps[0]], sizes[jumps[0] + 1], sizes[jumps[0] + 1] / sizes[jumps[0]]
        return (
            f"A pass over {many} tokens takes {grown[jumps[0]]:.2f} times one over {few}, and {times:.3g} times is the "
            "most that weights or experts explain: the software changes its kernel there. Plans hold where times were "
            "taken, and not between these two."
        )
    longest = np.maximum.accumulate(verify_sec)
    fallen = np.flatnonzero(verify_sec < MIN_FALL * longest)
    if not fallen.size:
        return None
    last, before = fallen[0], int(verify_sec[: fallen[0]].argmax())
    return (
        f"A pass over {sizes[last]} tokens takes {1e3 * verify_sec[last]:.3g} ms, one over {sizes[before]} takes "
        f"{1e3 * verify_sec[before]:.3g}: these may be times per token, or of a disturbed machine; measure again."
    )


def read_profile(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"found {len(data)} bytes, expected a profile of at most {MAX_FILE_BYTES}")
    if (form := describe(data)) != "JSON":
        raise ValueError(f"found {form}, expected a profile written by the profile command")
    content = read_json(data)
    found = content.get("format") if isinstance(content, dict) else type(content).__name__
    if found != FORMAT:
        raise ValueError(f"found {str(found)[:40]!r}, expected a file with format {FORMAT!r}")
    version = content.get("version")
    if isinstance(version, bool) or version not in range(1, VERSION + 1):
        raise ValueError(f"found version {str(version)[:40]}, expected 1 to {VERSION}")
    from .profile_schema import ProfileFile  # needs pydantic, which a rented GPU lacks

    fields = checked(ProfileFile, content).model_dump(exclude_unset=True)
    del fields["format"], fields["version"]
    return fields


def _vector(name: str, values, kinds: str, low: float, high: float, what: str) -> np.ndarray:
    """Return numbers from `low` to `high` as a read-only array; `kinds` are the kinds of dtype taken."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError) as error:  # rows of different lengths
        raise ValueError(f"{name}: found {short(values)}, expected {what}") from error
    if array.size == 0:
        array = array.astype(kinds[0])
    if array.ndim != 1 or array.dtype.kind not in kinds or not np.all((low <= array) & (array <= high)):
        raise ValueError(f"{name}: found {short(values)}, expected {what}")
    array = array.astype(np.float64 if "f" in kinds else np.int64)
    array.setflags(write=False)
    return array


def whole_numbers(name: str, values) -> np.ndarray:
    return _vector(name, values, "iu", 1, MAX_SIZE, f"a list of positive whole numbers, at most {MAX_SIZE:,}")


def seconds_above_0(name: str, values) -> np.ndarray:
    return _vector(name, values, "fiu", MIN_SEC, MAX_SEC, "a list of positive finite numbers, of seconds")


def seconds_from_0(name: str, values) -> np.ndarray:
    return _vector(name, values, "fiu", 0.0, MAX_SEC, "a list of finite numbers of seconds, 0 or more")


def tokens_cached(context: float) -> float:
    if not 0 <= context <= MAX_CONTEXT:
        raise ValueError(f"context: found {short(context)}, expected 0 to {MAX_CONTEXT:,} tokens")
    return context


def short(values) -> str:
    text = str(values if len(str(values)) < 10_000 else type(values).__name__)
    return text if len(text) <= 60 else text[:57] + "..."
