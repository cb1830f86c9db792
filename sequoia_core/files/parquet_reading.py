"""Read the columns of text in a parquet file; imported only where pyarrow is installed.

The sizes that a file's metadata states are limited before anything is decoded, the texts while they are. Other sizes
are not limited, such as the length of a list of missing values.
"""

import io
from collections.abc import Iterator
from typing import Any

import pyarrow
import pyarrow.parquet

from .file_kinds import kind_of
from .prompt_rows import SECOND_PARTS, SYSTEMS, Columns, Rows, check_columns, listed, usual_column
from .safe_files import one_line

MAX_ROWS = 1_000_000  # empty rows take no space
MAX_UNPACKED = 512 * 2**20  # bytes of all columns in the row groups that are read
MAX_TEXT_CHARS = 64 * 2**20  # a text that is repeated is stored once, so the characters are limited too
BATCH = 100  # rows decoded at a time, before their texts are counted


def parquet_columns(data: bytes) -> Columns:
    return _columns(_opened(data).schema_arrow)


def parquet_rows(data: bytes, column: str | None, count: int | None) -> Rows:
    """Yield location, cells and column of prompts of each row; row groups after the last that is used stay packed."""
    file = _opened(data)
    columns = _columns(file.schema_arrow)
    name = columns.choose(column)
    if name not in columns.texts:
        kind = str(file.schema_arrow.field(name).type)[:80]
        raise ValueError(f"found column {name} of {kind}, expected text (there is: {listed(columns.texts)})")
    if file.metadata.num_rows > MAX_ROWS and count is None:
        raise ValueError(f"found {file.metadata.num_rows:,} rows, expected at most {MAX_ROWS:,}")
    parts = {"role", *SYSTEMS, *SECOND_PARTS.get(name.strip().lower(), ())} - {name.strip().lower()}
    names = [name, *(other for other in (*columns.texts, *columns.nested) if other.strip().lower() in parts)]
    paths = [part.path for part in file.schema if part.path in names or part.path.partition(".")[0] in names]
    chars = 0
    for number, row in enumerate(_cells(_opened(data, paths), names), start=1):
        chars += sum(len(str(value)) for value in row.values())
        if chars > MAX_TEXT_CHARS:
            raise ValueError(f"found more than {MAX_TEXT_CHARS:,} characters, expected at most that")
        yield f"row {number}", row, name


def _opened(data: bytes, repeated: list[str] | None = None) -> pyarrow.parquet.ParquetFile:
    """Open a file; a text that the parts of columns in `repeated` store once is decoded once."""
    try:
        return pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False, read_dictionary=repeated)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"found {kind_of(data)} that is no parquet ({one_line(error)}), expected parquet") from error


def _columns(fields: pyarrow.Schema) -> Columns:
    check_columns(fields.names)
    lists = [field.name for field in fields if _is_list(field.type)]
    chats = [name for name in lists if usual_column([name])]
    texts = [field.name for field in fields if _is_text(field.type) or field.name in chats]
    nested = [field.name for field in fields if field.name in lists or pyarrow.types.is_struct(field.type)]
    return Columns(fields.names, texts, [name for name in nested if name not in chats])


def _is_list(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind  # as its writer had it in memory
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _cells(file: pyarrow.parquet.ParquetFile, names: list[str]) -> Iterator[dict[str, Any]]:
    unpacked = 0
    try:
        for group in range(file.num_row_groups):
            unpacked += file.metadata.row_group(group).total_byte_size
            if unpacked > MAX_UNPACKED:
                raise ValueError(f"found parquet of more than {MAX_UNPACKED:,} bytes unpacked, expected at most that")
            for batch in file.iter_batches(BATCH, row_groups=[group], columns=names, use_threads=False):
                for index in range(batch.num_rows):
                    yield {name: batch[name][index].as_py() for name in names}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"found damaged parquet ({one_line(error)}), expected parquet") from error
