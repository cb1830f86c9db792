"""Hardware profile files: read both versions, and check their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..acceptance.conditions import MAX_NAME
from ..files.file_types import describe
from ..files.safe_files import read_json
from ..trees.tree import MAX_TREE_SIZE

FORMAT = "sequoia-profile"
VERSION = 2
MAX_FILE_BYTES = 1_000_000
# Ratios of times outside these bounds could overflow.
MIN_SEC = 1e-12
MAX_SEC = 1e9
MAX_CONTEXT = 10**9  # largest number of cached tokens
# A time ratio of up to this multiple of the token ratio counts as noise.
MAX_JUMP = 1.15
# Noise or tuned kernels can reduce the time of a pass to this fraction of a smaller pass's time, but no further.
MIN_SHARE = 0.75


class Streaming(NamedTuple):
    """How the target's layers are streamed through a few buffers during each pass."""

    layers: int
    buffers: int
    layer_read_sec: float

    @property
    def pass_sec(self) -> float:
        """Seconds to read all layers."""
        return self.layers * self.layer_read_sec

    @property
    def ahead_sec(self) -> float:
        """Seconds of reading ahead between passes, until the buffers are full."""
        return self.buffers * self.layer_read_sec

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Streaming | None:
        """Return the streaming details in a profile's `meta`; None if they are missing or implausible."""
        try:
            fields = meta["streaming"]
            streaming = cls(int(fields["layers"]), int(fields["buffers"]), float(fields["layer_read_sec"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        plausible = all(1 <= count <= MAX_TREE_SIZE for count in streaming[:2])
        return streaming if plausible and MIN_SEC <= streaming.layer_read_sec <= MAX_SEC else None


class NumberRange(NamedTuple):
    """The numbers that an array field may contain: NumPy dtype kinds, bounds, and a description for error messages."""

    dtype_kinds: str
    low: float
    high: float
    expected: str


WHOLE_NUMBERS = NumberRange("iu", 1, MAX_TREE_SIZE, f"a list of positive whole numbers, at most {MAX_TREE_SIZE:,}")
POSITIVE_SECONDS = NumberRange("fiu", MIN_SEC, MAX_SEC, "a list of finite, positive times in seconds")
SECONDS = NumberRange("fiu", 0.0, MAX_SEC, "a list of finite, non-negative times in seconds")


def validate_array(name: str, values: Any, numbers: NumberRange) -> np.ndarray:
    """Return values as a read-only int64 or float64 array after checking that they are within a range."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError) as error:  # raised if rows differ in length
        raise ValueError(f"{name}: found {shortened(values)}, expected {numbers.expected}") from error
    if array.size == 0:
        array = array.astype(numbers.dtype_kinds[0])
    has_booleans = isinstance(values, list) and bool in map(type, values)  # NumPy would turn them into numbers
    within = (
        not has_booleans
        and array.dtype.kind in numbers.dtype_kinds
        and np.all((numbers.low <= array) & (array <= numbers.high))
    )
    if array.ndim != 1 or not within:
        raise ValueError(f"{name}: found {shortened(values)}, expected {numbers.expected}")
    array = array.astype(np.float64 if "f" in numbers.dtype_kinds else np.int64)
    array.setflags(write=False)
    return array


PER_SIZE = ("overhead_sec", "sampling_sec", "verify_growth_sec")
# Maps each array to its number range and the field with the same length. All but the first four may also be empty.
ARRAYS = {
    "sizes": (WHOLE_NUMBERS, "sizes"),
    "verify_sec": (POSITIVE_SECONDS, "sizes"),
    "draft_widths": (WHOLE_NUMBERS, "draft_widths"),
    "draft_width_sec": (POSITIVE_SECONDS, "draft_widths"),
    **dict.fromkeys(PER_SIZE, (SECONDS, "sizes")),
    "growing_sec": (SECONDS, None),
}
REQUIRED_ARRAYS = tuple(ARRAYS)[:4]
SAMPLES = {
    "verify_samples": (POSITIVE_SECONDS, "sizes"),
    "draft_samples": (POSITIVE_SECONDS, "draft_widths"),
    "overhead_samples": (SECONDS, "sizes"),
}


def validate_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Check the fields of a `HardwareProfile`, and return them with lists converted to arrays."""
    fields = dict(given)
    for name, (numbers, length_field) in ARRAYS.items():
        fields[name] = validate_array(name, fields[name], numbers)
        if length_field is not None and (len(fields[name]) or name in REQUIRED_ARRAYS):
            _check_length(name, fields, length_field)
    for name, (numbers, length_field) in SAMPLES.items():
        if not isinstance(fields[name], Sequence):
            raise ValueError(f"{name}: found {type(fields[name]).__name__}, expected a list of rows")
        if fields[name]:
            _check_length(name, fields, length_field)
        fields[name] = tuple(tuple(validate_array(name, row, numbers).tolist()) for row in fields[name])
    sizes, widths, growing = (fields[name] for name in ("sizes", "draft_widths", "growing_sec"))
    if len(sizes) < 2 or sizes[0] != 1 or np.any(np.diff(sizes) <= 0):
        raise ValueError(f"sizes: found {sizes.tolist()[:8]}, expected at least two increasing sizes, starting at 1")
    if np.any(np.diff(widths) <= 0):
        raise ValueError(f"draft_widths: found {widths.tolist()[:8]}, expected increasing widths")
    if len(growing) not in (0, 2):
        raise ValueError(f"growing_sec: found {len(growing)} times, expected 2 (at temperature 0 and above)")
    _check_plain_fields(fields)
    return fields


def _check_length(name: str, fields: dict[str, Any], length_field: str) -> None:
    found = len(fields[name])
    expected = len(fields[length_field])
    if found != expected:
        unit = "rows" if name in SAMPLES else "times"
        items = length_field.removeprefix("draft_")
        raise ValueError(f"{name}: found {found} {unit}, expected one for each of {expected} {items}")


def _check_plain_fields(fields: dict[str, Any]) -> None:
    for name, least in (("draft_sec", MIN_SEC), ("draft_growth_sec", 0.0), ("deeper_draft_share", 0.0)):
        value = fields[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MAX_SEC:
            raise ValueError(f"{name}: found {shortened(value)}, expected {least:g} to {MAX_SEC:g}")
    if type(fields["context"]) is not int:
        raise ValueError(f"context: found {shortened(fields['context'])}, expected a whole number of tokens")
    check_context(fields["context"])
    meta = fields["meta"]
    if not isinstance(meta, dict):
        raise ValueError(f"meta: found {type(meta).__name__}, expected a dictionary")
    texts = {f"meta.{key}": meta[key] for key in ("target", "draft", "instructions") if meta.get(key) is not None}
    for name, text in (texts | {"device": fields["device"], "dtype": fields["dtype"]}).items():
        if not isinstance(text, str) or len(text) > MAX_NAME:
            raise ValueError(f"{name}: found {shortened(text)}, expected text of at most {MAX_NAME} characters")


def check_context(context: float) -> float:
    """Return a number of cached tokens after checking its bounds."""
    if not 0 <= context <= MAX_CONTEXT:
        raise ValueError(f"context: found {shortened(context)}, expected 0 to {MAX_CONTEXT:,} tokens")
    return context


def shortened(value: Any) -> str:
    """Return a value as text for an error message, truncated to 60 characters."""
    text = str(value if len(str(value)) < 10_000 else type(value).__name__)
    return text if len(text) <= 60 else text[:57] + "..."


def describe_odd_times(sizes: np.ndarray, verify_sec: np.ndarray) -> str | None:
    """Return a warning if a pass takes much less time than one over fewer tokens, or disproportionately more."""
    grown = verify_sec[1:] / verify_sec[:-1]
    ratios = sizes[1:] / sizes[:-1]
    jumps = np.flatnonzero(grown > MAX_JUMP * ratios)
    if jumps.size:
        jump = jumps[0]
        return (
            f"A pass over {sizes[jump + 1]} tokens takes {grown[jump]:.2f} times as long as one over {sizes[jump]}, "
            f"but more tokens explain at most a factor of {ratios[jump]:.3g}: the software probably switches kernels. "
            "Plans are valid at the measured sizes, but not between these two."
        )
    longest = np.maximum.accumulate(verify_sec)
    fallen = np.flatnonzero(verify_sec < MIN_SHARE * longest)
    if not fallen.size:
        return None
    last = fallen[0]
    before = int(verify_sec[:last].argmax())
    return (
        f"A pass over {sizes[last]} tokens takes {1e3 * verify_sec[last]:.3g} ms, but one over {sizes[before]} "
        f"takes {1e3 * verify_sec[before]:.3g} ms: they may be times per token, or the machine was busy. Measure again."
    )


def read_profile(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a profile file; `HardwareProfile` checks its fields."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"found {len(data)} bytes, expected a profile of at most {MAX_FILE_BYTES}")
    if (form := describe(data)) != "JSON":
        raise ValueError(f"found {form}, expected a profile written by the profile command")
    content = read_json(data)
    found = content.get("format") if isinstance(content, dict) else type(content).__name__
    if found != FORMAT:
        raise ValueError(f"found {str(found)[:40]!r}, expected a file with format {FORMAT!r}")
    version = content.get("version")
    if type(version) is not int or version not in range(1, VERSION + 1):
        raise ValueError(f"found version {str(version)[:40]}, expected 1 to {VERSION}")
    for required in ("sizes", "verify_sec", "draft_sec"):
        if required not in content:
            raise ValueError(f"{required}: missing, expected in every profile")
    return content
