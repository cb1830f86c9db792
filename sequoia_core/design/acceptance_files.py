"""Read acceptance vectors (native JSON, CSV, NumPy, safetensors, PyTorch) and check their numbers."""

import io
from typing import Any

import numpy as np

from ..files.file_kinds import kind_of
from ..files.json_models import checked, naming
from ..files.number_tables import number_column
from ..files.safe_files import load_torch, one_line, read_json, unpacked_json
from .calibration import Calibration
from .conditions import MAX_RANKS, Conditions

MAX_BYTES = 8 * 2**20
MAX_TEXT_BYTES = 2**20
SUM_TOLERANCE = 1e-3  # float16 files and rounded decimals overshoot a little
MATRIX_VERSION = 3  # of the native JSON: a matrix, which `matrix_files` reads
LAYOUT_TOLERANCE = 2.5e-3  # entries saved as bfloat16 are off by up to 2**-9 of their value

ENTRIES = {  # what the entries of a file are -> those of its ranks
    "ranks": slice(None),
    "padded": slice(1, None),
    "rest-first": slice(1, None),
    "rest-last": slice(None, -1),
    "padded-rest-last": slice(1, -1),
}
CHANGED_BY_HAND = {"edited", "share", "p1"}  # keys that edited and supposed vectors carry in `meta`
EXPECTED = "a 1-D real vector of probabilities"


def read_vector(data: bytes, entries: str | None = None) -> dict[str, Any]:
    """Read the fields of an acceptance vector from a file's content, which shows its format.

    Args:
        entries: one of `ENTRIES`; None takes what the numbers show, and asks where they may mean two things.

    Returns:
        `probs` (1-D, not yet checked) and the other fields of `AcceptanceVector` that the file gives.
    """
    kind = kind_of(data)
    if entries is not None and entries not in ENTRIES:
        raise ValueError(f"entries: found {entries[:40]!r}, expected one of {', '.join(ENTRIES)}")
    limit = MAX_TEXT_BYTES if kind == "text" else MAX_BYTES
    if len(data) > limit:
        raise ValueError(f"found {len(data):,} bytes, expected at most {limit:,}")
    if kind == "JSON":
        return _from_json(data, entries)
    if kind == "text":
        return _from_text(data, entries)
    if kind == "a NumPy array":
        values = _npy_values(data)
    elif kind == "a safetensors file":
        values = _safetensors_values(data)
    else:  # what is no such file is refused by its kind
        values = _tensor_values(load_torch(data, EXPECTED))
    return _from_layout(values, entries)


def _from_layout(values: np.ndarray, entries: str | None) -> dict[str, Any]:
    """Leave out what is no rank: the reference implementation writes `[0, p1..pW]` or `[0, p1..pW, rejection]`."""
    if values.ndim != 1 or not values.size or values.dtype.kind not in "fiu":  # the vector refuses it
        return {"probs": values}
    whole = abs(float(values.sum(dtype=np.float64)) - 1) <= LAYOUT_TOLERANCE
    layout, why = entries, ", as declared"
    if layout is None and values.size > 1 and values[0] == 0 and values[1] > 0:
        layout = "padded-rest-last" if whole and values.size > 2 else "padded"
        why = ", because all entries sum to 1" if layout == "padded-rest-last" else ""
    elif layout is None and whole and values.size > 1:
        raise ValueError(
            f"found {values.size} entries that sum to 1: the first ({values[0]:.4g}) or the last ({values[-1]:.4g}) "
            "may be the chance that none is accepted, expected to know which: --entries rest-first, rest-last or ranks"
        )
    if layout is None or layout == "ranks":
        return {"probs": values}
    if ("padded" in layout and values[0] != 0) or ("rest" in layout and not whole):
        raise ValueError(
            f"entries {layout}: found a first entry {values[0]:.4g} and a sum of {values.sum():.4g}, expected "
            + " and ".join(["a leading 0"] * ("padded" in layout) + ["a sum of 1"] * ("rest" in layout))
        )
    parts = ["the leading 0 as padding"] if "padded" in layout else []
    parts += [f"its {layout.rsplit('-')[-1]} entry as the rejection probability"] if "rest" in layout else []
    probs = values[ENTRIES[layout]]
    return {
        "probs": probs, "note": f"Read {values.size} entries: {' and '.join(parts)}{why}; {probs.size} ranks remain."
    }  # fmt: skip


def _from_json(data: bytes, entries: str | None) -> dict[str, Any]:
    from .acceptance_schema import NUMBERS, VectorFile  # needs pydantic, which a rented GPU lacks

    content = read_json(data)
    if isinstance(content, list):
        numbers = checked(NUMBERS, content)
        return _from_layout(np.array(numbers), entries)
    if isinstance(content, dict) and content.get("version") == MATRIX_VERSION:
        raise ValueError(
            "found acceptance by depth (version 3), expected a vector of all ranks: a server tells of rank 1 alone, "
            "from which its draft length can be planned (server-plan), but no tree"
        )
    read = checked(VectorFile, content)
    sums = read.prompt_sums
    if sums is not None and any(len(row) != len(read.probs) for row in sums):
        raise ValueError(f"prompt_sums: found rows of other lengths, expected {len(read.probs)} numbers in each")
    probs = np.array(read.probs, dtype=np.float64)
    # What this program measured or wrote is ranks; version 1 without a sample was written by hand or by others.
    by_others = read.version == 1 and read.trials is None and sums is None
    laid_out = _from_layout(probs, entries) if by_others or entries is not None else {"probs": probs}
    plain = ("trials", "prompt_sums", "prompt_trials", "prompt_ranks", "prompt_matched", "meta")
    return {name: getattr(read, name) for name in plain} | {
        "note": read.note or "",
        **laid_out,
        "holds_for": _conditions(read.version, read.holds_for, read.meta),
        "calibration": None if read.calibration is None else _calibration(read.calibration),
        "by_depth": None if read.by_depth is None else _by_depth(read.by_depth.model_dump()),
    }


def _by_depth(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a matrix, whose numbers in lists have rows of one length."""
    arrays = {name: stored[name] for name in ("matrix", "trials", "prompt_sums", "prompt_trials")}
    ranks = stored["prompt_ranks"]
    try:
        found = {name: None if rows is None else np.array(rows) for name, rows in arrays.items()}
        kept = None if ranks is None else tuple(np.array(rows, dtype=np.int16) for rows in ranks)
        return {"probs": found.pop("matrix"), **found, "meta": stored["meta"], "prompt_ranks": kept}
    except ValueError as error:
        raise ValueError("by_depth: found rows of several lengths, expected one number for each entry") from error


def _conditions(version: int, stated: dict[str, Any] | None, meta: dict[str, Any]) -> Conditions | None:
    """Return what a vector holds for: version 2 states it, a measurement in version 1 left its settings in `meta`."""
    if version == 1:
        return None if CHANGED_BY_HAND & set(meta) else Conditions.recorded_in(meta)
    with naming("holds_for"):
        return None if stated is None else Conditions.from_json(stated)


def _calibration(stored: dict[str, Any] | str) -> Calibration:
    """Read a calibration, packed or (as older files have it) plain."""
    return Calibration.from_json(unpacked_json(stored) if isinstance(stored, str) else stored)


def _npy_values(data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    try:
        values = np.load(stream, allow_pickle=False)
    except Exception as error:  # NumPy reads the header as a Python literal: anything may come out of that
        raise ValueError(f"found a damaged NumPy array ({one_line(error)}), expected {EXPECTED}") from error
    if stream.tell() != len(data):
        raise ValueError(f"found {len(data) - stream.tell()} bytes after the array, expected {EXPECTED} alone")
    return values


def _safetensors_values(data: bytes) -> np.ndarray:
    from safetensors.torch import load

    try:
        tensors = load(data)
    except Exception as error:  # a dtype or shape that torch has not may raise anything
        raise ValueError(f"found a damaged safetensors file ({one_line(error)}), expected {EXPECTED}") from error
    if len(tensors) != 1 and "probs" not in tensors:
        raise ValueError(f"found {len(tensors)} tensors, expected one, or one named 'probs'")
    return _tensor_values(tensors["probs"] if "probs" in tensors else next(iter(tensors.values())))


def _tensor_values(tensor: Any) -> np.ndarray:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"found a {type(tensor).__name__}, expected {EXPECTED}")
    # A stride of 0 lets four bytes claim a billion entries: refuse by shape, before copying.
    if tensor.numel() > MAX_RANKS + 2:
        raise ValueError(f"found {tensor.numel():,} entries, expected 1 to {MAX_RANKS:,} ranks")
    tensor = tensor.detach()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def _from_text(data: bytes, entries: str | None) -> dict[str, Any]:
    """Read one column of probabilities, or ranks and probabilities."""
    values, first, header = number_column(data)
    if any(name.startswith("pos") for name in header):
        raise ValueError("found rates by position, expected ranks: what survives each position is for server-plan")
    probs = np.array(values)
    if first is None or entries is not None or (first == 0 and values[0] == 0):
        return _from_layout(probs, entries)
    note = "Ranks count from 0 in the file; they were shifted to start at 1." if first == 0 else ""
    return {"probs": probs, "note": note}


def checked_prompts(raw_sums: Any, raw_trials: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return sums and trials by prompt, float64 [m, *shape] and int64 [m, *shape[:-1]], read-only; None without."""
    if (raw_sums is None) != (raw_trials is None):
        raise ValueError("found only one of prompt_sums and prompt_trials, expected both or neither")
    if raw_sums is None:
        return None
    sums, trials = np.array(raw_sums, dtype=np.float64), np.array(raw_trials, dtype=np.int64)
    if not sums.size or sums.shape[1:] != shape or trials.shape != sums.shape[:-1]:
        raise ValueError(
            f"prompt_sums: found shape {sums.shape} and trials of shape {trials.shape}, expected {shape} sums for each "
            "prompt"
        )
    if not np.isfinite(sums).all() or (sums < 0).any() or (trials < 0).any() or trials.sum() < 1:
        raise ValueError("prompt_sums: found values below 0, not finite or without trials, expected sums of trials")
    if (sums.sum(axis=-1) > trials * (1 + SUM_TOLERANCE)).any():
        raise ValueError("prompt_sums: found a row above its number of trials, expected at most 1 per trial")
    for array in (sums, trials):
        array.setflags(write=False)
    return sums, trials


def checked_ranks(raw: Any, counts: np.ndarray, largest: int, name: str) -> tuple[np.ndarray, ...]:
    """Return the accepted ranks of each prompt as read-only int16 arrays."""
    lists = tuple(np.array(ranks, dtype=np.int64) for ranks in raw)
    if [ranks.shape for ranks in lists] != [(count,) for count in counts]:
        raise ValueError(f"{name}: found {len(lists)} lists, expected one rank for each of prompt_trials' positions")
    if any(ranks.size and not 0 <= ranks.min() <= ranks.max() <= largest for ranks in lists):
        raise ValueError(f"{name}: found a rank outside 0 to {largest}, expected one that the vector has, or 0")
    lists = tuple(ranks.astype(np.int16) for ranks in lists)
    for ranks in lists:
        ranks.setflags(write=False)
    return lists


def checked_probs(raw: Any) -> np.ndarray:
    """Return the probabilities as float64 [B]."""
    raw = np.asarray(raw)
    if raw.ndim != 1 or raw.dtype.kind not in "fiu":
        raise ValueError(f"found shape {raw.shape} of {str(raw.dtype)[:40]}, expected {EXPECTED}")
    if not 1 <= raw.size <= MAX_RANKS:
        raise ValueError(f"found {raw.size:,} entries, expected 1 to {MAX_RANKS:,} ranks")
    probs = raw.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(probs) & (probs >= 0) & (probs <= 1 + SUM_TOLERANCE)))
    if wrong.size:
        raise ValueError(f"rank {wrong[0] + 1}: found {probs[wrong[0]]:g}, expected a probability from 0 to 1")
    total = float(probs.sum())
    if total > 1 + SUM_TOLERANCE:
        falls = probs.size > 1 and bool((np.diff(probs) <= 0).all())
        raise ValueError(
            f"found a sum of {total:.6g}, expected at most 1: each entry is the probability that this rank is the one "
            "accepted, so they exclude each other"
            + ("; numbers that fall may be survival by position, which server-plan --after reads" if falls else "")
        )
    return probs / total if total > 1 else probs
