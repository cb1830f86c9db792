"""Read text columns from Parquet files; this module is imported only if pyarrow is installed.

The sizes in the file's metadata are checked before anything is decoded, and the length of the text while it is decoded.
Other sizes, such as the length of a list of missing values, are not limited.
"""

import io
from typing import Any

import pyarrow
import pyarrow.parquet

from .file_types import file_type
from .prompt_rows import CONTEXT_COLUMNS, Columns, PromptRows, check_columns, find_prompt_column
from .safe_files import one_line

MAX_ROWS = 1_000_000  # limited because rows of missing values take no space in the file
MAX_UNPACKED = 512 * 2**20  # maximum uncompressed size in bytes, over all columns of the row groups that are read
MAX_TEXT_CHARS = 64 * 2**20  # limited separately because repeated text is stored only once
BATCH_ROWS = 100


def parquet_columns(data: bytes) -> Columns:
    """Return the file's columns."""
    fields = _open(data).schema_arrow
    check_columns(fields.names)
    nested = [field.name for field in fields if pyarrow.types.is_nested(field.type)]
    chats = [name for name in nested if find_prompt_column([name])]
    other_nested = [name for name in nested if name not in chats]
    texts = [name for name in fields.names if name in chats or "string" in str(fields.field(name).type)]
    return Columns(fields.names, [name for name in texts if name not in other_nested], other_nested)


def parquet_rows(data: bytes, column: str | None, count: int | None) -> PromptRows:
    """Yield each row's location, cells and prompt column, decoding only the row groups that are needed."""
    name = parquet_columns(data).choose(column)
    # Read columns dictionary-encoded, so that text stored once for many rows is decoded only once.
    file = _open(data, [part.path for part in _open(data).schema])
    metadata = file.metadata
    if metadata.num_rows > MAX_ROWS and count is None:
        raise ValueError(f"found {metadata.num_rows:,} rows, expected at most {MAX_ROWS:,}")
    names = [other for other in file.schema_arrow.names if other == name or other.strip().lower() in CONTEXT_COLUMNS]
    unpacked = chars = number = 0
    try:
        for group in range(file.num_row_groups):
            unpacked += metadata.row_group(group).total_byte_size
            if unpacked > MAX_UNPACKED:
                raise ValueError(
                    f"found Parquet data that is too large, expected at most {MAX_UNPACKED:,} uncompressed bytes"
                )
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=names, use_threads=False):
                for index in range(batch.num_rows):
                    row = {key: batch[key][index].as_py() for key in names}
                    chars += sum(len(str(value)) for value in row.values())
                    if chars > MAX_TEXT_CHARS:
                        raise ValueError(f"found too much text, expected at most {MAX_TEXT_CHARS:,} characters")
                    number += 1
                    yield f"row {number}", row, name
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"found damaged Parquet data ({one_line(error)}), expected a Parquet file") from error


def _open(data: bytes, dictionary_columns: Any = None) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False, read_dictionary=dictionary_columns)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"found {file_type(data)} ({one_line(error)}), expected a Parquet file") from error
