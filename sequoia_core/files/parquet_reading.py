"""Unpack a parquet file; imported only by the child process in which that happens."""

import io
import json
import os
from collections.abc import Iterator
from typing import Any

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the default reserves more addresses than are allowed

import pyarrow
import pyarrow.parquet

from .file_kinds import kind_of
from .prompt_rows import SECOND_PARTS, Columns, Taken, check_columns, listed, take_prompts, usual_column
from .safe_files import one_line

MAX_ROWS = 1_000_000  # empty rows take no space
BATCH = 100  # rows unpacked at a time, before their texts are counted


def read(request: bytes) -> Columns | Taken:
    """Return the columns, or the prompts of one column; see `prompt_files.request`."""
    question, _, data = request.partition(b"\n")
    wanted, column, count, most_chars = json.loads(question)
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False)
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"found {kind_of(data)} that is no parquet ({one_line(error)}), expected parquet") from error
    fields = list(file.schema_arrow)
    check_columns(field.name for field in fields)
    lists = [field.name for field in fields if _is_list(field.type)]
    chats = [name for name in lists if usual_column([name])]
    texts = [field.name for field in fields if _is_text(field.type) or field.name in chats]
    columns = Columns([field.name for field in fields], texts, [name for name in lists if name not in chats])
    if wanted == "columns":
        return columns
    name = columns.choose(column)
    if name not in texts:
        kind = str(file.schema_arrow.field(name).type)[:80]
        raise ValueError(f"found column {name} of {kind}, expected text (there is: {listed(texts)})")
    seconds = [other for other in texts if other.strip().lower() in SECOND_PARTS.get(name.strip().lower(), ())]
    if file.metadata.num_rows > MAX_ROWS and count is None:
        raise ValueError(f"found {file.metadata.num_rows:,} rows, expected at most {MAX_ROWS:,}")
    return take_prompts(_rows(file, [name, *seconds], most_chars), count)


def _is_list(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind  # as its writer had it in memory
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _rows(
    file: pyarrow.parquet.ParquetFile, names: list[str], most_chars: int
) -> Iterator[tuple[str, dict[str, Any], str]]:
    total = number = 0
    try:
        for batch in file.iter_batches(batch_size=BATCH, columns=names, use_threads=False):
            for row in batch.to_pylist():
                number += 1
                total += sum(len(str(value)) for value in row.values())
                if total > most_chars:
                    raise ValueError(f"found more than {most_chars:,} characters, expected at most that")
                yield f"row {number}", row, names[0]
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"found damaged parquet ({one_line(error)}), expected parquet") from error
