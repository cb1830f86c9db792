"""Read the columns of text in a parquet file; imported only where pyarrow is installed.

The sizes that a file's metadata states are limited before anything is decoded, the texts while they are. Other sizes
are not limited, such as the length of a list of missing values.
"""

import io
from typing import Any

import pyarrow
import pyarrow.parquet

from .file_kinds import kind_of
from .prompt_rows import ADDED, Columns, Rows, check_columns, usual_column
from .safe_files import one_line

MAX_ROWS = 1_000_000  # empty rows take no space
MAX_UNPACKED = 512 * 2**20  # bytes of all columns in the row groups that are read
MAX_TEXT_CHARS = 64 * 2**20  # a text that is repeated is stored once, so the characters are limited too
BATCH = 100  # rows decoded at a time, before their texts are counted


def parquet_columns(data: bytes) -> Columns:
    fields = _opened(data).schema_arrow
    check_columns(fields.names)
    nested = [field.name for field in fields if pyarrow.types.is_nested(field.type)]
    chats = [name for name in nested if usual_column([name])]
    texts = [name for name in fields.names if name in chats or "string" in str(fields.field(name).type)]
    nested = [name for name in nested if name not in chats]
    return Columns(fields.names, [name for name in texts if name not in nested], nested)


def parquet_rows(data: bytes, column: str | None, count: int | None) -> Rows:
    """Yield location, cells and column of prompts of each row; row groups after the last that is used stay packed."""
    name = parquet_columns(data).choose(column)
    schema = _opened(data).schema
    # a text that is stored once for many rows is decoded once
    file = _opened(data, [part.path for part in schema])
    about = file.metadata
    if about.num_rows > MAX_ROWS and count is None:
        raise ValueError(f"found {about.num_rows:,} rows, expected at most {MAX_ROWS:,}")
    names = [other for other in file.schema_arrow.names if other == name or other.strip().lower() in ADDED]
    unpacked = chars = number = 0
    try:
        for group in range(file.num_row_groups):
            unpacked += about.row_group(group).total_byte_size
            if unpacked > MAX_UNPACKED:
                raise ValueError(f"found parquet of more than {MAX_UNPACKED:,} bytes unpacked, expected at most that")
            for batch in file.iter_batches(BATCH, row_groups=[group], columns=names, use_threads=False):
                for index in range(batch.num_rows):
                    row = {key: batch[key][index].as_py() for key in names}
                    chars += sum(len(str(value)) for value in row.values())
                    if chars > MAX_TEXT_CHARS:
                        raise ValueError(f"found more than {MAX_TEXT_CHARS:,} characters, expected at most that")
                    number += 1
                    yield f"row {number}", row, name
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"found damaged parquet ({one_line(error)}), expected parquet") from error


def _opened(data: bytes, repeated: Any = None) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False, read_dictionary=repeated)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"found {kind_of(data)} that is no parquet ({one_line(error)}), expected parquet") from error
