"""Read acceptance vectors from the files people have (native JSON, CSV, NumPy, safetensors, PyTorch) and check them.

Knows the layouts, how such files can be wrong or hostile, and the rules that the numbers obey.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Annotated, Any, Literal

import numpy as np

from ..files.safe_files import checked, kind_of, load_torch, one_line, read_json
from .calibration import Calibration
from .conditions import Conditions

MAX_BYTES = 8 * 2**20
MAX_TEXT_BYTES = 2**20
MAX_RANKS = 4096
SUM_TOLERANCE = 1e-3  # float16 files and rounded decimals overshoot a little
MATRIX_VERSION = 3  # of the native JSON: a matrix, which `matrix_files` reads
LAYOUT_TOLERANCE = 2.5e-3  # entries saved as bfloat16 are off by up to 2**-9 of their value

CHANGED_BY_HAND = {"edited", "share", "p1"}  # keys that edited and supposed vectors carry in `meta`
EXPECTED = "a 1-D real vector of probabilities"
_KINDS = {
    ".json": "JSON",
    ".csv": "text",
    ".tsv": "text",
    ".txt": "text",
    ".npy": "a NumPy array",
    ".safetensors": "a safetensors file",
    ".pt": "a zip archive",
    ".pth": "a zip archive",
}


def read_vector(data: bytes, suffix: str) -> dict[str, Any]:
    """Read the fields of an acceptance vector from a file's content.

    Args:
        data: the content.
        suffix: the file's ending, `.json` and so on; the content must be what it says.

    Returns:
        `probs` (1-D, not yet checked by `checked_probs`) and whichever of `trials`, `prompt_sums`,
        `prompt_trials`, `prompt_ranks`, `meta`, `note`, `holds_for` and `calibration` the file gives.

    Raises:
        ValueError: in one line, what was found and what was expected.
    """
    kind = kind_of(data)
    if suffix not in _KINDS:
        raise ValueError(f"found the ending {suffix or 'none'!r}, expected one of {', '.join(_KINDS)}")
    limit = MAX_TEXT_BYTES if kind == "text" else MAX_BYTES
    if len(data) > limit:
        raise ValueError(f"found {len(data):,} bytes, expected at most {limit:,}")
    if kind != _KINDS[suffix]:
        raise ValueError(f"found {kind}, expected {_KINDS[suffix]} because of the ending {suffix}")
    if kind == "JSON":
        return _from_json(data)
    if kind == "text":
        return _from_text(data)
    readers = {"a NumPy array": _npy_values, "a safetensors file": _safetensors_values, "a zip archive": _torch_values}
    return _from_layout(readers[kind](data))


def _from_layout(values: np.ndarray) -> dict[str, Any]:
    """Undo the reference implementation's padding: `[0, p1..pW]` or `[0, p1..pW, rejection]`.

    Which of the two it is shows in the sum: only with the rejection does everything sum to 1.
    """
    if values.ndim != 1 or values.size < 2 or values[0] != 0 or not values[1] > 0:
        return {"probs": values}
    if values.size > 2 and abs(float(values.sum(dtype=np.float64)) - 1) <= LAYOUT_TOLERANCE:
        probs, tail = values[1:-1], ", and its last entry as the rejection probability, because all entries sum to 1"
    else:
        probs, tail = values[1:], ""
    note = f"Read {values.size} entries: the leading 0 as padding{tail}; {probs.size} ranks remain."
    return {"probs": probs, "note": note}


def _from_json(data: bytes) -> dict[str, Any]:
    from pydantic import BaseModel, ConfigDict, Field

    Count = Annotated[int, Field(ge=0, le=2**53)]

    class Schema(BaseModel):
        model_config = ConfigDict(strict=True)
        format: Literal["sequoia-acceptance"]
        version: int = Field(ge=1, le=2)
        probs: list[float] = Field(max_length=MAX_RANKS)
        trials: Count | None = None
        prompt_sums: list[list[float]] | None = None
        prompt_trials: list[Count] | None = None
        prompt_ranks: list[list[Annotated[int, Field(ge=0, le=MAX_RANKS)]]] | None = None
        meta: dict[str, Any] = {}
        note: str | None = None
        holds_for: dict[str, Any] | None = None
        calibration: dict[str, Any] | None = None

    content = read_json(data)
    if isinstance(content, dict) and content.get("version") == MATRIX_VERSION:
        raise ValueError(
            "found acceptance by depth (version 3), expected a vector of all ranks: a server tells of rank 1 alone, "
            "from which its draft length can be planned (server-plan), but no tree"
        )
    read = checked(Schema, content)
    sums = read.prompt_sums
    if sums is not None and any(len(row) != len(read.probs) for row in sums):
        raise ValueError(f"prompt_sums: found rows of other lengths, expected {len(read.probs)} numbers in each")
    arrays = {"probs": np.array(read.probs, dtype=np.float64)}
    if sums is not None:
        arrays["prompt_sums"] = np.array(sums, dtype=np.float64)
    if read.prompt_trials is not None:
        arrays["prompt_trials"] = np.array(read.prompt_trials, dtype=np.int64)
    return arrays | {
        "prompt_ranks": None if read.prompt_ranks is None else tuple(map(np.array, read.prompt_ranks)),
        "trials": read.trials,
        "meta": read.meta,
        "note": read.note or "",
        "holds_for": _conditions(read.version, read.holds_for, read.meta),
        "calibration": None if read.calibration is None else Calibration.from_json(read.calibration),
    }


def _conditions(version: int, stated: dict[str, Any] | None, meta: dict[str, Any]) -> Conditions | None:
    """Return what a vector holds for: version 2 states it, a measurement in version 1 left its settings in `meta`."""
    if version == 1:
        return None if CHANGED_BY_HAND & set(meta) else Conditions.recorded_in(meta)
    try:
        return None if stated is None else Conditions.from_json(stated)
    except ValueError as error:
        raise ValueError(f"holds_for: {error}") from error


def _npy_values(data: bytes) -> np.ndarray:
    stream, header = io.BytesIO(data), np.lib.format
    try:
        version = header.read_magic(stream)
        shape, _, dtype = (header.read_array_header_1_0 if version == (1, 0) else header.read_array_header_2_0)(stream)
    except Exception as error:  # NumPy reads it as a Python literal: anything may come out of that
        raise ValueError(f"found a damaged header ({one_line(error)}), expected {EXPECTED}") from error
    # The header's claim is checked against the bytes that are there, before any memory is taken.
    present = len(data) - stream.tell()
    if len(shape) != 1 or dtype.kind not in "fiu":
        raise ValueError(f"found shape {shape} of {dtype}, expected {EXPECTED}")
    if shape[0] * dtype.itemsize != present:
        raise ValueError(f"found {present} bytes for a claimed {shape[0]:,} x {dtype}, expected a complete file")
    return np.frombuffer(data, dtype=dtype, offset=stream.tell()).astype(np.float64)


def _safetensors_values(data: bytes) -> np.ndarray:
    import safetensors

    try:
        tensors = dict(safetensors.deserialize(data))
    except safetensors.SafetensorError as error:
        raise ValueError(f"found a damaged safetensors file ({error}), expected {EXPECTED}") from error
    if len(tensors) != 1 and "probs" not in tensors:
        raise ValueError(f"found {len(tensors)} tensors, expected one, or one named 'probs'")
    tensor = tensors["probs"] if "probs" in tensors else next(iter(tensors.values()))
    dtypes = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
    if len(tensor["shape"]) != 1 or tensor["dtype"] not in dtypes:
        raise ValueError(f"found shape {tuple(tensor['shape'])} of {tensor['dtype']}, expected {EXPECTED}")
    values = np.frombuffer(tensor["data"], dtype=dtypes[tensor["dtype"]])
    if tensor["dtype"] == "BF16":  # bfloat16 is the upper half of a float32
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


def _torch_values(data: bytes) -> np.ndarray:
    tensor = load_torch(data, EXPECTED)
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"found a {type(tensor).__name__}, expected {EXPECTED}")
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.dim() != 1 or tensor.layout != torch.strided or tensor.is_complex() or kind == "bool":
        raise ValueError(f"found shape {tuple(tensor.shape)} of {kind}, expected {EXPECTED}")
    # A stride of 0 lets four bytes claim a billion entries: refuse by shape, before copying.
    if tensor.numel() > MAX_RANKS + 2:
        raise ValueError(f"found {tensor.numel():,} entries, expected 1 to {MAX_RANKS:,} ranks")
    return tensor.detach().to(torch.float64).numpy()


def _from_text(data: bytes) -> dict[str, Any]:
    """Read one column of probabilities, or the columns rank and probability; decimal commas and headers are fine."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"found bytes that are not UTF-8 at {error.start}, expected numbers as text") from error
    lines = [line.strip() for line in text.lstrip("\ufeff").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    delimiter = next((mark for mark in ";\t" if any(mark in line for line in lines)), ",")
    if delimiter == "," and _has_decimal_commas(lines):
        delimiter = ";"
    if delimiter == "," and not any("," in line for line in lines):
        lines = [",".join(line.split()) for line in lines]
    try:
        rows = [[cell.strip() for cell in row if cell.strip()] for row in csv.reader(lines, delimiter=delimiter)]
    except csv.Error as error:
        raise ValueError(f"found text that is no table ({error}), expected {EXPECTED}") from error
    rows = [row for row in rows if row]
    if rows and not any(_number(cell) is not None for cell in rows[0]):
        rows = rows[1:]  # the header
    table: list[list[float]] = []
    for row in rows:
        numbers = [_number(cell) for cell in row]
        if None in numbers:
            raise ValueError(f"found {row[numbers.index(None)][:40]!r}, expected a number")
        table.append([number for number in numbers if number is not None])
    if not table:
        raise ValueError(f"found no numbers, expected {EXPECTED}")
    if all(len(row) == 1 for row in table):
        return _from_layout(np.array([row[0] for row in table]))
    if len(table) == 1 and not (len(table[0]) == 2 and table[0][0] == 1):
        return _from_layout(np.array(table[0]))
    if any(len(row) != 2 for row in table):
        raise ValueError("found rows of other lengths, expected one column of probabilities, or rank and probability")
    return _from_ranked(np.array(table))


def _from_ranked(table: np.ndarray) -> dict[str, Any]:
    """Read rows of (rank, probability), float64 [rows, 2], in any order; ranks count from 1, or from 0."""
    table = table[np.argsort(table[:, 0], kind="stable")]
    first = table[0, 0]
    if first not in (0, 1) or not np.array_equal(table[:, 0], np.arange(len(table)) + first):
        raise ValueError("found ranks with gaps or repeats, expected 1, 2, 3, ... (or 0, 1, 2, ...)")
    if first == 1:
        return {"probs": table[:, 1]}
    if table[0, 1] == 0:
        return _from_layout(table[:, 1])
    return {"probs": table[:, 1], "note": "Ranks count from 0 in the file; they were shifted to start at 1."}


def _has_decimal_commas(lines: list[str]) -> bool:
    """Tell `0,77` (one number) from `1,0.77` (rank and probability): ranks run upwards, decimals do not."""
    numbers = [line for line in lines if re.match(r"[\d\"]", line)]
    if not numbers or not all(re.fullmatch(r"[01],\d+", line) for line in numbers):
        return False
    whole = [int(line[0]) for line in numbers]
    return whole != [1] and (len(whole) == 1 or whole != [whole[0] + i for i in range(len(whole))])


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", "."))
    except ValueError:
        return None


def checked_ranks(raw: Any, counts: np.ndarray, largest: int) -> tuple[np.ndarray, ...]:
    """Return the accepted ranks of each prompt as read-only int16 arrays, or raise ValueError."""
    found = tuple(np.array(ranks, dtype=np.int64) for ranks in raw)
    if [ranks.shape for ranks in found] != [(count,) for count in counts]:
        raise ValueError(
            f"prompt_ranks: found {len(found)} lists, expected one rank for each of prompt_trials' positions"
        )
    if any(ranks.size and not 0 <= ranks.min() <= ranks.max() <= largest for ranks in found):
        raise ValueError(f"prompt_ranks: found a rank outside 0 to {largest}, expected one that the vector has, or 0")
    found = tuple(ranks.astype(np.int16) for ranks in found)
    for ranks in found:
        ranks.setflags(write=False)
    return found


def checked_probs(raw: Any) -> np.ndarray:
    """Return the probabilities as float64 [B], or raise ValueError with the rule that is broken."""
    raw = np.asarray(raw)
    if raw.ndim != 1 or raw.dtype.kind not in "fiu":
        raise ValueError(f"found shape {raw.shape} of {raw.dtype}, expected {EXPECTED}")
    if not 1 <= raw.size <= MAX_RANKS:
        raise ValueError(f"found {raw.size:,} entries, expected 1 to {MAX_RANKS:,} ranks")
    probs = raw.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(probs) & (probs >= 0) & (probs <= 1 + SUM_TOLERANCE)))
    if wrong.size:
        raise ValueError(f"rank {wrong[0] + 1}: found {probs[wrong[0]]:g}, expected a probability from 0 to 1")
    total = float(probs.sum())
    if total > 1 + SUM_TOLERANCE:
        raise ValueError(
            f"found a sum of {total:.6g}, expected at most 1: each entry is the probability that this rank is the one "
            "accepted, so they exclude each other"
        )
    return probs / total if total > 1 else probs
