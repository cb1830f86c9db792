"""Unpack a parquet file; imported only by the child process in which that happens."""

import io
import json
import os

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the default reserves more addresses than are allowed

import pyarrow
import pyarrow.parquet

from .file_kinds import kind_of
from .prompt_rows import SECOND_PARTS, check_few, choose_column, listed, prompt_of, usual_column
from .safe_files import one_line

MAX_ROWS = 1_000_000  # empty rows take no space
BATCH = 100  # rows unpacked at a time, before their texts are counted


def read(request: bytes) -> list[str]:
    """Return the columns of text, or the texts of one column; see `prompt_files.request`."""
    question, _, data = request.partition(b"\n")
    wanted, column, most_chars = json.loads(question)
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False)
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"found {kind_of(data)} that is no parquet ({one_line(error)}), expected parquet") from error
    check_few(file.schema_arrow.names)
    texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
    chats = [field.name for field in file.schema_arrow if _is_list(field.type) and usual_column([field.name])]
    candidates = [name for name in file.schema_arrow.names if name in {*texts, *chats}]
    if wanted == "columns":
        return candidates
    name = choose_column(file.schema_arrow.names, texts, column)
    if name not in candidates:
        kind = str(file.schema_arrow.field(name).type)[:80]
        raise ValueError(f"found column {name} of {kind}, expected text (there is: {listed(candidates)})")
    beside = [other for other in texts if other.strip().lower() == SECOND_PARTS.get(name.strip().lower())]
    return _texts(file, [name, *beside], most_chars)


def _is_list(kind: pyarrow.DataType) -> bool:
    return pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind  # as its writer had it in memory
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _texts(file: pyarrow.parquet.ParquetFile, names: list[str], most_chars: int) -> list[str]:
    if file.metadata.num_rows > MAX_ROWS:
        raise ValueError(f"found {file.metadata.num_rows:,} rows, expected at most {MAX_ROWS:,}")
    texts, total = [], 0
    try:
        for batch in file.iter_batches(batch_size=BATCH, columns=names, use_threads=False):
            prompts = (prompt_of(row, names[0]) for row in batch.to_pylist() if row[names[0]])
            filled = [text for text in prompts if text.strip()]
            total += sum(map(len, filled))
            if total > most_chars:
                raise ValueError(f"found more than {most_chars:,} characters, expected at most that")
            texts.extend(filled)
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"found damaged parquet ({one_line(error)}), expected parquet") from error
    return texts
