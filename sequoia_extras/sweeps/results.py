"""The results of a sweep: a folder that contains one Parquet dataset, `rows`, with a row per prompt and setting."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sequoia_core.acceptance.calibration import Calibration
from sequoia_core.acceptance.conditions import SEQUOIA, Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.files.libraries import missing_library_message
from sequoia_core.files.safe_files import one_line, write_atomic
from sequoia_core.measuring.measure_acceptance import TARGET_TEXT, add_depths, vector_from_prompts
from sequoia_core.planning.profile import HardwareProfile

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ROWS_FOLDER = "rows"
FIRST_UNCUT_VERSION = 1  # last version that drew first children from rows not truncated by top-p
PROMPT_COLUMNS = ["domain", "prompt_hash"]  # columns that identify a prompt
PROMPTING_COLUMNS = ["prompt_ending", "template_arguments"]  # how prompts were made, as in `Prompting.record`
TEXT_COLUMNS = (
    "key kind pair target draft target_hash draft_hash tokenizer_hash dtype offload device domain prompt prompt_hash "
    "dtype_used passes_by worker calibration result prompt_ending template_arguments fault"
)
NUMBER_COLUMNS = "seed new_tokens width max_size threads version positions tokens steps"


def schema() -> pa.Schema:
    """Return the columns of the dataset; those that do not apply to a row's kind are null.

    `fault` says why a prompt could not be measured; apart from it, such a row contains only its setting.
    """
    import pyarrow as pa

    columns = dict.fromkeys(TEXT_COLUMNS.split(), pa.string())
    columns |= dict.fromkeys(NUMBER_COLUMNS.split(), pa.int64())
    columns |= dict.fromkeys(("temperature", "top_p", "seconds"), pa.float64())
    columns |= {
        "sums": pa.list_(pa.float64()),
        "ranks": pa.list_(pa.int16()),
        "nodes": pa.list_(pa.int32()),
        "draft_widths": pa.list_(pa.list_(pa.int32())),
    }
    return pa.schema(list(columns.items()))


class Results:
    """A folder of results, created when the first row is written."""

    def __init__(self, folder: str | Path) -> None:
        if find_spec("pyarrow") is None:
            raise ValueError(f"results: {missing_library_message('pyarrow')}")
        self.folder = Path(folder)
        name = repr(str(folder)[:200])
        try:
            content = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: cannot read the folder ({error})") from error
        if not str(folder) or (content and ROWS_FOLDER not in content):
            raise ValueError(f"{name}: found other files in it, expected a sweep's results or a new folder")
        parent = self.folder if self.folder.exists() else self.folder.absolute().parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise ValueError(f"{name}: cannot write to the folder {parent}")

    def add(self, rows: Sequence[Mapping[str, Any]]) -> Path:
        """Write rows atomically as a new file of the dataset, named after its content."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        table = pa.Table.from_pylist([dict(row) for row in rows], schema())
        # Without statistics and dictionaries, a file of a few rows is half the size.
        pq.write_table(
            table,
            buffer,
            compression="zstd",
            compression_level=9,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )
        data = buffer.getvalue()
        path = self.folder / ROWS_FOLDER / f"{hashlib.sha256(data).hexdigest()[:16]}.parquet"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{path.parent}: cannot create the folder ({error.strerror})") from error
        write_atomic(path, data)
        return path

    def read_keys(self) -> tuple[set[str], dict[str, str]]:
        """Return the keys of measured rows, and a map from key to fault for rows that were never measured."""
        if not (self.folder / ROWS_FOLDER).is_dir():
            return set(), {}
        rows = _read_columns(self.folder, ["key", "fault"])
        failed = rows["fault"].notna()
        measured = set(rows["key"][~failed])
        return measured, {row.key: row.fault for row in rows[failed].itertuples() if row.key not in measured}


def read_rows(folder: str | Path) -> pd.DataFrame:
    """Return a folder's measured rows, sorted by key and without duplicates; timed rows that differ are all kept."""
    rows = _read_columns(folder, schema().names)
    measured = rows[rows["fault"].isna()].drop(columns="fault").drop_duplicates(["key", "result"])
    return measured.sort_values("key", ignore_index=True, kind="stable")


def _read_columns(folder: str | Path, columns: list[str]) -> pd.DataFrame:
    import pyarrow as pa

    inside = Path(folder) / ROWS_FOLDER
    if not inside.is_dir():
        raise ValueError(f"{folder}: found no folder {ROWS_FOLDER}, expected a sweep's results")
    tables = [_read_file(path, columns) for path in sorted(inside.glob("*.parquet"))]
    return pa.concat_tables([schema().empty_table().select(columns), *tables]).to_pandas()


def _read_file(path: Path, columns: list[str]) -> pa.Table:
    """Read a file of the dataset; columns that are missing in older versions are null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(
            path, columns=columns, schema=schema(), partitioning=None, page_checksum_verification=True
        )
        if table["key"].null_count:
            raise ValueError("found rows without a key")
        return table
    except (pa.ArrowException, LookupError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot read a sweep's rows ({one_line(error)}), expected a results file; delete it to measure "
            "its rows again"
        ) from error


def cuts_first(kind: Any, temperature: Any, top_p: Any) -> Any:
    """Return whether top-p truncates the rows that first children are drawn from, for single values or columns."""
    return (kind != "lookup") & (kind != "profile") & (temperature > 0.0) & (top_p < 1.0)


def build_vector(rows: pd.DataFrame) -> AcceptanceVector:
    """Return the acceptance vector for rows of kind "model" from one pair and sampling setting.

    Model names are taken from the first row; they may differ if folders have moved.
    """
    same = ("target_hash", "draft_hash", "dtype_used", "offload", "temperature", "top_p", "width", "new_tokens", "seed")
    first = _shared_values(rows, (*same, "version"))
    if rows.duplicated(PROMPT_COLUMNS).any():
        raise ValueError("prompt_hash: found a prompt twice, expected each once (chat or threads may differ)")
    uncut = cuts_first("model", first["temperature"], first["top_p"]) and first["version"] <= FIRST_UNCUT_VERSION
    holds_for = Conditions(
        first["target"], first["draft"], first["temperature"], first["top_p"], SEQUOIA, first_cut=not uncut
    )
    meta = {
        "source": TARGET_TEXT,
        "target": first["target"],
        "draft": first["draft"],
        "dtype": first["dtype_used"],
        "verifier": SEQUOIA,
        "temperature": first["temperature"],
        "top_p": first["top_p"],
        "width": int(first["width"]),
        "max_new_tokens": int(first["new_tokens"]),
        "seed": int(first["seed"]),
        "prompts": len(rows),
        **_prompting(rows),
    }
    sums = acceptance_sums(rows)
    ranks = [np.reshape(each, (len(levels), -1)) for each, levels in zip(rows["ranks"], sums, strict=True)]
    vector = vector_from_prompts(
        [each[0] for each in sums],
        rows["positions"].to_numpy(),
        meta=meta,
        holds_for=holds_for,
        ranks=[each[0] for each in ranks],
        calibration=Calibration.joined([_read_calibration(text) for text in rows["calibration"]]),
    )
    return add_depths(vector, sums, ranks)


def acceptance_sums(rows: pd.DataFrame) -> list[np.ndarray]:
    """Return each row's acceptance summed over positions, float64 [L, W]; L = 1 except for draft heads."""
    width = int(rows["width"].iloc[0])
    if any(len(sums) == 0 or len(sums) % width for sums in rows["sums"]):
        raise ValueError(f"sums: found lists of the wrong length, expected multiples of {width}")
    return [np.reshape(sums, (-1, width)) for sums in rows["sums"]]


def _prompting(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the prompting settings of the given rows; empty for rows from older versions."""
    endings, arguments = (sorted(rows[name].dropna().unique()) for name in PROMPTING_COLUMNS)
    if not endings:
        return {}
    given = json.loads(arguments[0]) if len(arguments) == 1 else " and ".join(arguments)
    return {"prompt_ending": " and ".join(endings), "template_arguments": given}


def extract_profiles(rows: pd.DataFrame) -> tuple[HardwareProfile, ...]:
    """Return the profiles in the given rows, with the models' content hashes and the host in `meta`."""
    profiles = []
    for row in rows[rows["kind"] == "profile"].itertuples():
        profile = HardwareProfile.loads(str(row.result).encode(), f"profile of {row.pair}")
        host = str(row.worker).rpartition(":")[0]
        meta = {"target_hash": row.target_hash, "draft_hash": row.draft_hash, "host": host}
        profiles.append(replace(profile, meta=profile.meta | meta))
    return tuple(profiles)


def extract_races(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per race, with a column for each method's measured speedup over the target alone.

    The column `predicted` contains the speedup predicted for `sequoia`, the planned tree.
    """
    import pandas as pd

    races = []
    for row in rows[rows["kind"] == "race"].itertuples():
        race = {"pair": row.pair, "domain": row.domain, "temperature": row.temperature, "top_p": row.top_p}
        try:
            result = json.loads(row.result)
            settings = result["settings"]
            race |= {"device": str(settings["device"]), "prompts": int(settings["prompts"])}
            race["predicted"] = float(result["predicted_speedup"])
            alone = result.pop("autoregressive")["tokens_per_sec"]
            for name, method in result.items():
                if isinstance(method, dict) and "tokens_per_sec" in method:
                    race[name] = method["tokens_per_sec"] / alone
        except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ValueError(
                f"race of {row.pair}: found no readable record ({one_line(error)}), expected the record of a race"
            ) from error
        races.append(race)
    return pd.DataFrame(races)


def _read_calibration(text: str) -> Calibration:
    try:
        # Because of its checks, `read_json` would be too slow for thousands of rows.
        return Calibration.from_json(json.loads(text))
    except RecursionError as error:
        raise ValueError("calibration: found JSON nested too deeply, expected a table") from error


def _shared_values(rows: pd.DataFrame, columns: Iterable[str]) -> pd.Series:
    """Return the first row after checking that all rows have the same values in the given columns."""
    if rows.empty:
        raise ValueError("rows: found none, expected at least one, from a single pair and setting")
    for column in columns:
        if rows[column].nunique(dropna=False) > 1:
            raise ValueError(f"{column}: found {sorted(rows[column].unique())[:4]}, expected a single value")
    return rows.iloc[0]
