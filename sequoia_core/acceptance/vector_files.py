"""Read acceptance vectors (native JSON, CSV, NumPy, safetensors, PyTorch) and validate their numbers."""

import io
from typing import Any

import numpy as np

from ..files.file_types import file_type
from ..files.json_models import prefix_errors, validate_model
from ..files.number_tables import number_column
from ..files.safe_files import load_torch, one_line, read_json, unpacked_json
from .calibration import Calibration
from .conditions import MAX_RANKS, Conditions

MAX_BYTES = 8 * 2**20
MAX_TEXT_BYTES = 2**20
SUM_TOLERANCE = 1e-3  # float16 and rounded decimals can make a sum exceed 1 by this much
MATRIX_VERSION = 3  # native JSON version that contains a matrix, which `matrix_files` reads
LAYOUT_TOLERANCE = 2.5e-3  # a sum this close to 1 counts as 1; bfloat16 has a relative error of up to 2**-9

ENTRY_LAYOUTS = {  # layout of a file's entries -> those entries that are ranks
    "ranks": slice(None),
    "padded": slice(1, None),
    "rest-first": slice(1, None),
    "rest-last": slice(None, -1),
    "padded-rest-last": slice(1, -1),
}
CHANGED_BY_HAND = {"edited", "share", "p1"}  # `meta` keys in edited and assumed vectors
REAL_VECTOR = "a 1-D real vector of probabilities"
PLAIN_FIELDS = ("trials", "prompt_sums", "prompt_trials", "prompt_ranks", "prompt_matched", "meta")


class PercentageError(ValueError):
    """Raised for values that exceed 1 and would be valid as percentages; `percent` reads them as such."""


def read_vector(data: bytes, entries: str | None = None, percent: bool = False) -> dict[str, Any]:
    """Parse the fields of an acceptance vector from a file's content, detecting its format.

    Args:
        entries: a key of `ENTRY_LAYOUTS`; None infers it from the values and raises ValueError if they are ambiguous.
        percent: whether values without % signs are percentages. If they are but this is False, `PercentageError` is
            raised; if they are probabilities but this is True, ValueError.

    Returns:
        `probs` (1-D, not yet validated) and the other fields of `AcceptanceVector` that the file contains.
    """
    form = file_type(data)
    if entries is not None and entries not in ENTRY_LAYOUTS:
        raise ValueError(f"entries: found {entries[:40]!r}, expected one of {', '.join(ENTRY_LAYOUTS)}")
    limit = MAX_TEXT_BYTES if form == "text" else MAX_BYTES
    if len(data) > limit:
        raise ValueError(f"found {len(data):,} bytes, expected at most {limit:,}")
    if form == "JSON":
        fields = _fields_from_json(data, entries, percent)
    elif form in ("text", "an empty file"):
        fields = _fields_from_text(data, entries, percent)
    else:
        if form == "a NumPy array":
            values = _npy_values(data)
        elif form == "a safetensors file":
            values = _safetensors_values(data)
        else:
            values = _tensor_values(load_torch(data, REAL_VECTOR))
        fields = _fields_from_entries(_fractions(values, percent), entries)
    if percent and fields["probs"].size:
        first = fields["probs"][0]
        fields["note"] = f"{100 * first:g} → {first:g}, read as percentages. {fields.get('note', '')}".rstrip()
    return fields


def _fractions(values: np.ndarray, percent: bool) -> np.ndarray:
    """Return values without % signs as fractions; those that may be percentages are converted only on request."""
    may_be_percentages = (
        values.ndim == 1
        and values.size > 0
        and values.dtype.kind in "fiu"
        and 1 + SUM_TOLERANCE < values.max() <= 100
        and values.min() >= 0
        and values.sum(dtype=np.float64) <= 100 * (1 + SUM_TOLERANCE)
    )
    if percent and may_be_percentages:
        return values.astype(np.float64) / 100
    if percent:
        raise ValueError("found no percentages, expected values that exceed 1 and have a sum of at most 100")
    if may_be_percentages:
        raise PercentageError(
            f"found values up to {values.max():g}, expected probabilities from 0 to 1: divide percentages by 100 or "
            "add % signs"
        )
    return values


def _fields_from_entries(values: np.ndarray, entries: str | None) -> dict[str, Any]:
    """Drop entries that are not ranks: the reference code writes `[0, p1..pW]` or `[0, p1..pW, rejection]`."""
    if values.ndim != 1 or not values.size or values.dtype.kind not in "fiu":  # rejected later by `validate_probs`
        return {"probs": values}
    sums_to_one = abs(float(values.sum(dtype=np.float64)) - 1) <= LAYOUT_TOLERANCE
    layout = entries
    why = ", as declared"
    if layout is None and values.size > 1:
        if values[0] == 0 and values[1] > 0:
            layout = "padded-rest-last" if sums_to_one and values.size > 2 else "padded"
            why = ", because all entries sum to 1" if layout == "padded-rest-last" else ""
        elif sums_to_one:
            raise ValueError(
                f"found {values.size} entries that sum to 1, so the first ({values[0]:.4g}) or the last "
                f"({values[-1]:.4g}) may be the rejection probability, expected --entries rest-first, rest-last or "
                "ranks"
            )
    if layout is None or layout == "ranks":
        return {"probs": values}
    padded = "padded" in layout
    rest = "rest" in layout
    if (padded and values[0] != 0) or (rest and not sums_to_one):
        raise ValueError(
            f"entries {layout}: found a first entry {values[0]:.4g} and a sum of {values.sum():.4g}, expected "
            "a leading 0 if padded, and a sum of 1 if the rest is included"
        )
    parts = []
    if padded:
        parts.append("the leading 0 as padding")
    if rest:
        parts.append(f"the {layout.rsplit('-')[-1]} entry as the rejection probability")
    probs = values[ENTRY_LAYOUTS[layout]]
    note = f"Read {values.size} entries: {' and '.join(parts)}{why}; {probs.size} ranks remain."
    return {"probs": probs, "note": note}


def _fields_from_json(data: bytes, entries: str | None, percent: bool) -> dict[str, Any]:
    from .vector_schema import NUMBER_LIST, VectorFile  # pydantic may be missing on a rented GPU

    content = read_json(data)
    if isinstance(content, list):
        return _fields_from_entries(_fractions(np.array(validate_model(NUMBER_LIST, content)), percent), entries)
    if isinstance(content, dict) and content.get("version") == MATRIX_VERSION:
        raise ValueError(
            "found acceptance by depth (version 3), expected a vector of all ranks: servers report only rank 1, "
            "which is enough to plan a draft length (server-plan) but not a tree"
        )
    read = validate_model(VectorFile, content)
    if any(len(row) != len(read.probs) for row in read.prompt_sums or []):
        raise ValueError(f"prompt_sums: found a row of the wrong length, expected {len(read.probs)} numbers in each")
    fields = {name: getattr(read, name) for name in PLAIN_FIELDS}
    fields |= {"note": read.note or "", "probs": _fractions(np.array(read.probs, dtype=np.float64), percent)}
    # Measured vectors contain only ranks; a version 1 file without a sample was written by hand or by another program.
    if entries is not None or (read.version == 1 and read.trials is None and read.prompt_sums is None):
        fields |= _fields_from_entries(fields["probs"], entries)
    return fields | {
        "holds_for": _conditions(read.version, read.holds_for, read.meta),
        "calibration": None if read.calibration is None else _calibration(read.calibration),
        "by_depth": None if read.by_depth is None else _matrix_fields(read.by_depth.model_dump()),
    }


def _matrix_fields(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an `AcceptanceMatrix` from its stored form."""
    try:
        fields = {
            name: None if stored[name] is None else np.array(stored[name])
            for name in ("matrix", "trials", "prompt_sums", "prompt_trials")
        }
        ranks = stored["prompt_ranks"] and tuple(np.array(rows, dtype=np.int16) for rows in stored["prompt_ranks"])
    except ValueError as error:
        raise ValueError("by_depth: found rows of different lengths, expected rows of equal length") from error
    return {"probs": fields.pop("matrix"), **fields, "meta": stored["meta"], "prompt_ranks": ranks}


def _conditions(version: int, stated: dict[str, Any] | None, meta: dict[str, Any]) -> Conditions | None:
    """Return the conditions: a field of version 2, but part of a measured vector's `meta` in version 1."""
    if version == 1:
        return None if CHANGED_BY_HAND & set(meta) else Conditions.from_meta(meta)
    with prefix_errors("holds_for"):
        return None if stated is None else Conditions.from_json(stated)


def _calibration(stored: dict[str, Any] | str) -> Calibration:
    """Parse a calibration, which is packed in current files and plain JSON in older ones."""
    return Calibration.from_json(unpacked_json(stored) if isinstance(stored, str) else stored)


def _npy_values(data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    try:
        values = np.load(stream, allow_pickle=False)
    except Exception as error:  # NumPy parses the header as a Python literal, which may raise any error
        raise ValueError(f"found a damaged NumPy array ({one_line(error)}), expected {REAL_VECTOR}") from error
    if stream.tell() != len(data):
        raise ValueError(f"found {len(data) - stream.tell()} bytes after the array, expected {REAL_VECTOR} alone")
    return values


def _safetensors_values(data: bytes) -> np.ndarray:
    from safetensors.torch import load

    try:
        tensors = load(data)
    except Exception as error:  # an unsupported dtype or shape may raise any error
        raise ValueError(f"found a damaged safetensors file ({one_line(error)}), expected {REAL_VECTOR}") from error
    if len(tensors) != 1 and "probs" not in tensors:
        raise ValueError(f"found {len(tensors)} tensors, expected a single tensor or one named 'probs'")
    return _tensor_values(tensors["probs"] if "probs" in tensors else next(iter(tensors.values())))


def _tensor_values(tensor: Any) -> np.ndarray:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"found a {type(tensor).__name__}, expected {REAL_VECTOR}")
    # A broadcast tensor of a few bytes can claim any number of entries, so check its shape before copying it.
    if tensor.numel() > MAX_RANKS + 2:
        raise ValueError(f"found {tensor.numel():,} entries, expected 1 to {MAX_RANKS:,} ranks")
    tensor = tensor.detach()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def _fields_from_text(data: bytes, entries: str | None, percent: bool) -> dict[str, Any]:
    """Read a column of probabilities, or two columns of ranks and probabilities."""
    values, first, header, has_signs = number_column(data)
    if any(name.startswith("pos") for name in header):
        raise ValueError("found rates by position, expected probabilities by rank; use server-plan for such rates")
    probs = np.array(values) if has_signs else _fractions(np.array(values), percent)
    if first is None or entries is not None or (first == 0 and values[0] == 0):
        fields = _fields_from_entries(probs, entries)
    else:
        note = "Ranks in the file start at 0; they were shifted to start at 1." if first == 0 else ""
        fields = {"probs": probs, "note": note}
    if has_signs:
        fields["note"] = f"The values have % signs and were read as percentages. {fields.get('note', '')}".rstrip()
    return fields


def json_value(value: np.ndarray | tuple[np.ndarray, ...] | None) -> list | None:
    """Return an array as a list, or several arrays as a list of lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value if value is None else [array.tolist() for array in value]


def validate_prompts(raw_sums: Any, raw_trials: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return each prompt's sums, float64 [m, *shape], and trials, int64 [m, *shape[:-1]], read-only; None if none."""
    if (raw_sums is None) != (raw_trials is None):
        raise ValueError("found only one of prompt_sums and prompt_trials, expected both or neither")
    if raw_sums is None:
        return None
    sums = np.array(raw_sums, dtype=np.float64)
    trials = np.array(raw_trials, dtype=np.int64)
    if not sums.size or sums.shape[1:] != shape or trials.shape != sums.shape[:-1]:
        raise ValueError(
            f"prompt_sums: found shape {sums.shape} and trials of shape {trials.shape}, expected sums of shape "
            f"{shape} for each prompt"
        )
    if not np.isfinite(sums).all() or (sums < 0).any() or (trials < 0).any() or trials.sum() < 1:
        raise ValueError("prompt_sums: found negative or infinite values or no trials, expected sums over trials")
    if (sums.sum(axis=-1) > trials * (1 + SUM_TOLERANCE)).any():
        raise ValueError("prompt_sums: found a row whose sum exceeds its trials, expected at most 1 per trial")
    for array in (sums, trials):
        array.setflags(write=False)
    return sums, trials


def validate_ranks(raw: Any, counts: np.ndarray, largest: int, name: str) -> tuple[np.ndarray, ...]:
    """Return each prompt's accepted ranks as a read-only int16 array."""
    lists = [np.array(ranks, dtype=np.int64) for ranks in raw]
    if [ranks.shape for ranks in lists] != [(count,) for count in counts]:
        raise ValueError(f"{name}: found lists that do not match prompt_trials, expected one rank per position")
    if any(ranks.size and not 0 <= ranks.min() <= ranks.max() <= largest for ranks in lists):
        raise ValueError(f"{name}: found a rank outside 0 to {largest}, expected a rank of the vector, or 0 for none")
    small = tuple(ranks.astype(np.int16) for ranks in lists)
    for ranks in small:
        ranks.setflags(write=False)
    return small


def validate_probs(raw: Any) -> np.ndarray:
    """Return the probabilities as float64 [B], scaled back to a sum of 1 if rounding made it larger."""
    raw = np.asarray(raw)
    if raw.ndim != 1 or raw.dtype.kind not in "fiu":
        raise ValueError(f"found shape {raw.shape} and dtype {str(raw.dtype)[:40]}, expected {REAL_VECTOR}")
    if not 1 <= raw.size <= MAX_RANKS:
        raise ValueError(f"found {raw.size:,} entries, expected 1 to {MAX_RANKS:,} ranks")
    probs = raw.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(probs) & (probs >= 0) & (probs <= 1 + SUM_TOLERANCE)))
    if wrong.size:
        raise ValueError(f"rank {wrong[0] + 1}: found {probs[wrong[0]]:g}, expected a probability from 0 to 1")
    total = float(probs.sum())
    if total > 1 + SUM_TOLERANCE:
        hint = ""
        if probs.size > 1 and (np.diff(probs) <= 0).all():
            hint = "; descending numbers may be survival by position: pass those to server-plan --after"
        raise ValueError(
            f"found a sum of {total:.6g}, expected at most 1: each entry is the probability that its rank is "
            f"accepted, and at most one rank is{hint}"
        )
    return probs / total if total > 1 else probs
