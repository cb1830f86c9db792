"""The results of a sweep: a folder with one Parquet dataset, `rows`; a row per prompt and setting, by its key."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..design.acceptance import AcceptanceVector
from ..design.calibration import Calibration
from ..design.conditions import SEQUOIA, Conditions
from ..design.profile import HardwareProfile
from ..files.safe_files import one_line, read_bytes, write_atomic
from ..studies.measure_acceptance import TARGET_TEXT, vector_from_prompts, with_depths

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS = "rows"
MAX_ROWS, MAX_BYTES = 1_000_000, 2**30  # of one file, unpacked
PLAIN_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED"}  # encodings of text that do not repeat what came before
FIRST_UNCUT = 1  # the last version of rows at top-p < 1 whose first children were drawn from uncut rows
PROMPT = ["domain", "prompt_hash"]  # what tells prompts from others
PROMPTED = ["prompt_ending", "template_arguments"]  # how prompts were made, as `Prompting.record` has it


def schema() -> pa.Schema:
    """Return the columns of the dataset; a column that a row's kind does not have is null.

    `fault` says why a prompt could not be measured; such a row has only the columns of its setting beside.
    """
    import pyarrow as pa

    text, number, real = pa.string(), pa.int64(), pa.float64()
    columns = dict.fromkeys(
        ("key", "kind", "pair", "target", "draft", "target_hash", "draft_hash", "tokenizer_hash", "dtype", "offload",
         "device", "domain", "prompt", "prompt_hash", "dtype_used", "passes_by", "worker", "calibration", "result",
         *PROMPTED, "fault"),
        text,
    )  # fmt: skip
    columns |= dict.fromkeys(
        ("seed", "new_tokens", "width", "max_size", "threads", "version", "positions", "tokens", "steps"), number
    )
    columns |= dict.fromkeys(("temperature", "top_p", "seconds"), real)
    columns |= {
        "sums": pa.list_(real), "ranks": pa.list_(pa.int16()), "nodes": pa.list_(pa.int32()),
        "draft_widths": pa.list_(pa.list_(pa.int32())),
    }  # fmt: skip
    return pa.schema(list(columns.items()))


class Results:
    """A folder of results; it is made when the first row is written."""

    def __init__(self, folder: str | Path) -> None:
        if find_spec("pyarrow") is None:
            raise ValueError("found no pyarrow to write results with, expected it installed: pip install pyarrow")
        self.folder, shown = Path(folder), f"{str(folder)[:200]!r}"
        try:
            inside = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        except (OSError, ValueError) as error:
            raise ValueError(f"{shown}: found no folder ({error}), expected one or a new name") from error
        if not str(folder) or (inside and ROWS not in inside):
            raise ValueError(f"{shown}: found other things in it, expected results of a sweep, or a new name")
        above = self.folder if self.folder.exists() else self.folder.absolute().parent
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ValueError(f"{shown}: found no folder {above} to write in, expected one")

    def add(self, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write rows as one more file of the dataset, whole or not at all, and named by its content."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        table = pa.Table.from_pylist([dict(row) for row in rows], schema())
        # Without statistics and dictionaries a file of a few rows is half as long.
        pq.write_table(
            table, buffer, compression="zstd", compression_level=9, use_dictionary=False, write_statistics=False
        )
        path = self.folder / ROWS / f"{_digest(buffer.getvalue())}.parquet"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{path.parent}: cannot be written ({error.strerror}), expected a folder") from error
        write_atomic(path, buffer.getvalue())
        return path

    def read_keys(self) -> tuple[set[str], dict[str, str]]:
        """Return the keys of measured rows, and key -> why it could not be measured for those that never were."""
        if not (self.folder / ROWS).is_dir():
            return set(), {}
        rows = _read(self.folder, ["key", "fault"])
        failed = rows["fault"].notna()
        measured = set(rows["key"][~failed])
        return measured, {row.key: row.fault for row in rows[failed].itertuples() if row.key not in measured}


def read_rows(folder: str | Path) -> pd.DataFrame:
    """Return the measured rows of a folder in the order of keys: each once, of timed ones each that differs."""
    rows = _read(folder, schema().names)
    measured = rows[rows["fault"].isna()].drop(columns="fault").drop_duplicates(["key", "result"])
    return measured.sort_values("key", ignore_index=True, kind="stable")


def _read(folder: str | Path, columns: list[str]) -> pd.DataFrame:
    import pyarrow as pa

    inside = Path(folder) / ROWS
    if not inside.is_dir():
        raise ValueError(f"{folder}: found no folder {ROWS}, expected the results of a sweep")
    tables = [_read_file(path, columns) for path in sorted(inside.glob("*.parquet"))]
    nothing = schema().empty_table().select(columns)
    return pa.concat_tables([nothing, *tables], promote_options="default").to_pandas()


def _read_file(path: Path, columns: list[str]) -> pa.Table:
    """Read a file of the dataset, refusing one that is damaged, foreign, or would fill memory.

    Files of older versions lack columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = read_bytes(path)
    try:
        called = re.search(r"[0-9a-f]{16}$", path.stem)
        if called and called[0] != _digest(data):  # which pyarrow may end the process on
            raise ValueError("a damaged file: its content is not the one in its name")
        file = pq.ParquetFile(io.BytesIO(data))
        names, known = file.schema_arrow.names, list(schema())
        if not {"key", "kind"} <= set(names) or any(field not in known for field in file.schema_arrow):
            raise ValueError("its columns are not those of a sweep")
        groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
        held = sum(_unpacked(group.column(column)) for group in groups for column in range(group.num_columns))
        if file.metadata.num_rows > MAX_ROWS or held > MAX_BYTES:
            raise ValueError(f"{file.metadata.num_rows:,} rows of {held:,} bytes in a file, too many")
        return file.read([name for name in columns if name in names])
    except (pa.ArrowException, LookupError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: found no rows of a sweep ({one_line(error)}), expected a results file; delete it: its rows are "
            "measured again"
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _unpacked(part: pq.ColumnChunkMetaData) -> int:
    """Return the most bytes that a column's part takes in memory, by the file's footer.

    An entry without a value is a bit in the file, a number that repeats less than one; a text that does may be nearly
    the whole part.
    """
    repeats = part.physical_type == "BYTE_ARRAY" and not set(part.encodings) <= PLAIN_ENCODINGS
    return part.total_uncompressed_size + part.num_values * (part.total_uncompressed_size if repeats else 8)


def cuts_first(kind: Any, temperature: Any, top_p: Any) -> Any:
    """Return whether a row depends on the cut that first children are drawn from; for single values or columns."""
    return (kind != "lookup") & (kind != "profile") & (temperature > 0.0) & (top_p < 1.0)


def vector_of(rows: pd.DataFrame) -> AcceptanceVector:
    """Return the acceptance vector of rows of kind "model", of one pair and way of sampling.

    Names are those of the first row: folders may have moved.
    """
    same = "target_hash", "draft_hash", "dtype_used", "offload", "temperature", "top_p", "width", "new_tokens", "seed"
    first = _alike(rows, (*same, "version"))
    if rows.duplicated(PROMPT).any():
        raise ValueError("prompt_hash: found a prompt twice, expected each once (chat or threads may differ)")
    holds_for = Conditions(
        first["target"], first["draft"], first["temperature"], first["top_p"], SEQUOIA,
        first_cut=bool(not cuts_first("model", first["temperature"], first["top_p"]) or first["version"] > FIRST_UNCUT),
    )  # fmt: skip
    meta = {
        "source": TARGET_TEXT, "target": first["target"], "draft": first["draft"], "dtype": first["dtype_used"],
        "verifier": SEQUOIA, "temperature": first["temperature"], "top_p": first["top_p"],
        "width": int(first["width"]), "max_new_tokens": int(first["new_tokens"]), "seed": int(first["seed"]),
        "prompts": len(rows),
        **_prompted(rows),
    }  # fmt: skip
    calibrations = [_calibration(text) for text in rows["calibration"]]
    sums = sums_of(rows)
    ranks = [np.reshape(each, (len(own), -1)) for each, own in zip(rows["ranks"], sums, strict=True)]
    vector = vector_from_prompts(
        [each[0] for each in sums], rows["positions"].to_numpy(), meta=meta, holds_for=holds_for,
        ranks=[each[0] for each in ranks], calibration=Calibration.joined(calibrations),
    )  # fmt: skip
    return with_depths(vector, sums, ranks)


def sums_of(rows: pd.DataFrame) -> list[np.ndarray]:
    """Return of each row of kind "model" the acceptance summed over positions, float64 [L, W]; L = 1 but for a head."""
    width = int(rows["width"].iloc[0])
    if any(len(sums) == 0 or len(sums) % width for sums in rows["sums"]):
        raise ValueError(f"sums: found lists of another length, expected {width} ranks for each depth")
    return [np.reshape(sums, (-1, width)) for sums in rows["sums"]]


def _prompted(rows: pd.DataFrame) -> dict[str, Any]:
    """Return how the prompts of some rows were made; rows of older versions do not say it."""
    endings, arguments = (sorted(rows[name].dropna().unique()) for name in PROMPTED)
    if not endings:
        return {}
    given = json.loads(arguments[0]) if len(arguments) == 1 else " and ".join(arguments)
    return {"prompt_ending": " and ".join(endings), "template_arguments": given}


def profiles_of(rows: pd.DataFrame) -> tuple[HardwareProfile, ...]:
    """Return the profiles among some rows; their `meta` has the content hashes of the models, and the host."""
    profiles = []
    for row in rows[rows["kind"] == "profile"].itertuples():
        profile = HardwareProfile.loads(str(row.result).encode(), f"profile of {row.pair}")
        hashes = {"target_hash": row.target_hash, "draft_hash": row.draft_hash}
        profiles.append(replace(profile, meta=profile.meta | hashes | {"host": str(row.worker).rpartition(":")[0]}))
    return tuple(profiles)


def races_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each race among some rows, and a column for each way of decoding raced.

    `predicted` is the speedup predicted of `sequoia`, the planned tree; measured ones are over the target alone.
    """
    import pandas as pd

    races = []
    for row in rows[rows["kind"] == "race"].itertuples():
        try:
            result = json.loads(row.result)
            methods = {name: each for name, each in result.items() if isinstance(each, dict)}
            device, prompts = str(methods["settings"]["device"]), int(methods["settings"]["prompts"])
            rates = {name: float(each["tokens_per_sec"]) for name, each in methods.items() if "tokens_per_sec" in each}
            alone = rates.pop("autoregressive")
            speedups = {"predicted": float(result["predicted_speedup"])} | {
                n: rate / alone for n, rate in rates.items()
            }
        except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"race of {row.pair}: found none ({one_line(error)}), expected what bench says") from error
        where = {"pair": row.pair, "domain": row.domain, "temperature": row.temperature, "top_p": row.top_p}
        races.append(where | {"device": device, "prompts": prompts} | speedups)
    return pd.DataFrame(races)


def _calibration(text: str) -> Calibration:
    try:
        return Calibration.from_json(json.loads(text))  # not `read_json`: there are thousands, within a file's limit
    except RecursionError as error:
        raise ValueError("calibration: found JSON nested too deep, expected a table") from error


def _alike(rows: pd.DataFrame, columns: Iterable[str]) -> pd.Series:
    if rows.empty:
        raise ValueError("rows: found none, expected some of one pair and setting")
    for column in columns:
        if rows[column].nunique(dropna=False) > 1:
            raise ValueError(f"{column}: found {sorted(rows[column].unique())[:4]}, expected rows with one value")
    return rows.iloc[0]
