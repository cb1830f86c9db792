"""Prompts from a column of a parquet file, bounded before anything is unpacked.

Needs pyarrow, which is asked for only when such a file comes.
"""

from __future__ import annotations

import io
from typing import Any

from . import parquet_pages
from .prompt_columns import check_few, choose_column, listed
from .safe_files import kind_of, one_line

MAX_TEXT_CHARS = 64 * 2**20  # parquet is compressed: what comes out is bounded too
MAX_ROWS = 1_000_000  # empty rows take no space


def _parquet_file(data: bytes, **options: Any):
    """Open a parquet file; nothing of its columns is unpacked yet."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ValueError(
            "found parquet but no pyarrow to read it, expected it installed: pip install pyarrow"
        ) from error
    try:
        return parquet.ParquetFile(io.BytesIO(data), **options)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"found {kind_of(data)} that is no parquet ({one_line(error)}), expected parquet") from error


def parquet_columns(data: bytes) -> list[str]:
    """Return the columns of type string."""
    schema = _parquet_file(data).schema_arrow
    check_few(schema.names)
    return [field.name for field in schema if _is_text(field.type)]


def _is_text(kind) -> bool:
    import pyarrow

    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind  # as its writer had it in memory
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def parquet_prompts(data: bytes, column: str | None) -> list[str]:
    file = _parquet_file(data)
    import pyarrow

    candidates = parquet_columns(data)
    name = choose_column(file.schema_arrow.names, candidates, column)
    if name not in candidates:
        kind = file.schema_arrow.field(name).type
        raise ValueError(f"found column {name} of {kind}, expected text (there is: {listed(candidates)})")
    # A dictionary stays one: a text that is repeated takes its memory once.
    file = _parquet_file(data, read_dictionary=[name] if _has_dictionary(data, file.metadata, name) else None)
    prompts, total = [], 0
    try:
        for batch in file.iter_batches(batch_size=1024, columns=[name]):
            for cell in batch.column(0):
                text = cell.as_py()
                if text is None or not text.strip():
                    continue
                prompts.append(text)
                total += len(text)
                if total > MAX_TEXT_CHARS:
                    raise ValueError(f"found more than {MAX_TEXT_CHARS:,} characters, expected at most that")
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"found damaged parquet ({one_line(error)}), expected parquet") from error
    return prompts


def _has_dictionary(data: bytes, metadata: Any, name: str) -> bool:
    """Whether a column's texts stand in a dictionary, after checking that it can be unpacked at all.

    Raises:
        ValueError: for a column of more than `MAX_TEXT_CHARS` bytes or `MAX_ROWS` rows, by the footer or by its pages,
            or in an encoding whose unpacked size the page headers do not give.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema == name or chunk.path_in_schema.startswith(name + ".")]
    _check_size(sum(chunk.total_uncompressed_size for chunk in chunks), metadata.num_rows)
    found = []
    for chunk in chunks:
        start = chunk.data_page_offset
        if chunk.dictionary_page_offset is not None and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        found.extend(parquet_pages.pages(data, start, chunk.total_compressed_size))
    odd = next((page.encoding_name for page in found if page.encoding not in parquet_pages.ENCODINGS), None)
    if odd is not None:
        raise ValueError(f"found the encoding {odd}, expected one of {', '.join(parquet_pages.ENCODINGS.values())}")
    _check_size(sum(page.size for page in found), sum(page.values for page in found))
    return any(page.is_dictionary for page in found)


def _check_size(size: int, rows: int) -> None:
    if size > MAX_TEXT_CHARS:
        raise ValueError(f"found {size:,} bytes of text when unpacked, expected at most {MAX_TEXT_CHARS:,}")
    if rows > MAX_ROWS:
        raise ValueError(f"found {rows:,} rows, expected at most {MAX_ROWS:,}")
