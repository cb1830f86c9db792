"""What the pages of a parquet column say about themselves, read without unpacking any of them.

A file's footer may lie about sizes; the reader believes the headers of the pages, so these are what counts. They are
Thrift structs in its compact form (parquet-format, `parquet.thrift`, `PageHeader`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_PAGES = 100_000  # of one column: a page usually holds 1 MB
MAX_DEPTH = 16  # of structs inside structs

# Encodings of texts by number, but not those where one text repeats part of the text before it.
ENCODINGS = {0: "PLAIN", 2: "PLAIN_DICTIONARY", 6: "DELTA_LENGTH_BYTE_ARRAY", 8: "RLE_DICTIONARY"}
REFUSED = {7: "DELTA_BYTE_ARRAY"}
DICTIONARY = 2  # kinds of pages: 0 and 3 hold data
_BODIES = {0: 5, DICTIONARY: 7, 3: 8}  # kind -> number of the field that describes such a page


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a column.

    Attributes:
        size: bytes when unpacked.
        values: entries it claims, empty ones included; 0 for a dictionary.
        encoding: number of the encoding of its values.
        is_dictionary: whether it holds the values that the other pages refer to.
    """

    size: int
    values: int
    encoding: int
    is_dictionary: bool

    @property
    def encoding_name(self) -> str:
        return ENCODINGS.get(self.encoding) or REFUSED.get(self.encoding, f"number {self.encoding}")


def pages(data: bytes, start: int, length: int) -> Iterator[Page]:
    """Yield the pages of a column chunk.

    Args:
        data: the whole file.
        start, length: where the chunk lies in it, in bytes.

    Raises:
        ValueError: for headers that are damaged or lead out of the chunk.
    """
    stop = start + length
    if not 0 <= start <= stop <= len(data):
        raise ValueError(f"found a column from byte {start} to {stop} of {len(data)}, expected one inside the file")
    count = 0
    while start < stop:
        count += 1
        if count > MAX_PAGES:
            raise ValueError(f"found more than {MAX_PAGES:,} pages in a column, expected fewer")
        reader = _Compact(data, start, stop)
        header = reader.struct()
        sizes = [header.get(2), header.get(3)]
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError("found a page without its sizes, expected complete page headers")
        kind = header.get(1)
        body = header.get(_BODIES.get(kind, 0)) or {}
        encoding, values = body.get(4 if kind == 3 else 2), body.get(1)
        if not all(isinstance(found, int) and found >= 0 for found in (encoding, values)):
            raise ValueError("found a page without its number of values, expected complete page headers")
        yield Page(sizes[0], 0 if kind == DICTIONARY else values, encoding, kind == DICTIONARY)
        start = reader.place + sizes[1]
        if start > stop:
            raise ValueError("found a page longer than its column, expected whole pages")


class _Compact:
    """Reads one struct of Thrift's compact protocol: field number -> 32-bit integer or nested struct, the rest skipped.

    A field of another type is skipped as well, as Thrift's own readers do, even where the same number came before.
    """

    def __init__(self, data: bytes, place: int, stop: int) -> None:
        self.data, self.place, self.stop = data, place, stop

    def byte(self) -> int:
        if self.place >= self.stop:
            raise ValueError("found a page header that is cut off, expected whole pages")
        self.place += 1
        return self.data[self.place - 1]

    def varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("found a number of more than 64 bits in a page header, expected whole pages")

    def signed(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("found a page header nested too deep, expected whole pages")
        found: dict[int, Any] = {}
        number = 0
        while (head := self.byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self.signed()
            kind = head & 0x0F
            if kind == 5:
                found[number] = self.signed()
            elif kind == 12:
                found[number] = self.struct(depth + 1)
            elif kind in (4, 6):
                self.varint()
            elif kind in (3, 7, 8):  # a byte, a double, text
                self.skip({3: 1, 7: 8}.get(kind) or self.varint())
            elif kind not in (1, 2):  # true and false have no content; no list, set or map is part of a page header
                raise ValueError(f"found a field of kind {kind} in a page header, expected whole pages")
        return found

    def skip(self, count: int) -> None:
        self.place += count
        if self.place > self.stop:
            raise ValueError("found a page header that is cut off, expected whole pages")
