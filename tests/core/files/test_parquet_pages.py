"""Page headers written by hand: each kind of page, and every way a header can be cut or lie."""

import pytest

from sequoia_core.files.parquet_pages import MAX_PAGES, Page, pages


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(value: int) -> bytes:
    return varint(value * 2 if value >= 0 else -value * 2 - 1)  # zigzag


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Write (field number, kind, content) in Thrift's compact form, numbers as steps from the one before."""
    out, before = b"", 0
    for field, kind, content in fields:
        step = field - before
        out += (bytes([step << 4 | kind]) if 1 <= step <= 15 else bytes([kind]) + number(field)) + content
        before = field
    return out + b"\0"


def i32(field: int, value: int) -> tuple[int, int, bytes]:
    return field, 5, number(value)


def header(kind: int, size: int, packed: int, *more: tuple[int, int, bytes]) -> bytes:
    return struct(i32(1, kind), i32(2, size), i32(3, packed), *more)


def data_page(size: int, packed: int, values: int, encoding: int = 0) -> bytes:
    statistics = (5, 12, struct((1, 8, varint(3) + b"abc"), (7, 1, b"")))
    return header(0, size, packed, (5, 12, struct(i32(1, values), i32(2, encoding), statistics)))


def read(data: bytes, start: int = 0, length: int | None = None) -> list[Page]:
    return list(pages(data, start, len(data) - start if length is None else length))


def test_each_kind_of_page():
    dictionary = header(2, 1000, 3, (7, 12, struct(i32(1, 50), i32(2, 2), (3, 2, b""))))
    second = header(3, 70, 2, (8, 12, struct(i32(1, 9), i32(2, 1), i32(3, 9), i32(4, 8), i32(5, 0), i32(6, 0))))
    data = b"PAR1" + dictionary + b"xyz" + data_page(300, 4, 7, 6) + b"wxyz" + second + b"uv"
    assert read(data, 4) == [Page(1000, 0, 2, True), Page(300, 7, 6, False), Page(70, 9, 8, False)]
    assert [page.encoding_name for page in read(data, 4)] == [
        "PLAIN_DICTIONARY", "DELTA_LENGTH_BYTE_ARRAY", "RLE_DICTIONARY",
    ]  # fmt: skip
    assert read(b"") == []


def test_the_size_that_a_reader_believes_is_the_one_that_counts():
    """A second field of the same number but of another type is skipped by Thrift's readers."""
    body = (5, 12, struct(i32(1, 1), i32(2, 0)))
    long = struct(i32(1, 0), i32(2, 2**31 - 1), (2, 6, number(5)), i32(3, 0), body)
    assert read(long)[0].size == 2**31 - 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (data_page(10, 5, 1) + b"1234", "longer than its column"),
        (data_page(10, 5, 1)[:-3], "cut off"),
        (header(0, 10, 0), "without its number of values"),
        (header(3, 10, 0, (5, 12, struct(i32(1, 1), i32(2, 0)))), "without its number of values"),
        (data_page(-1, 0, 1), "without its sizes"),
        (data_page(1, -1, 1), "without its sizes"),
        (data_page(1, 0, -1), "without its number of values"),
        (header(9, 5, 0, (5, 12, struct(i32(1, 4), i32(2, 0)))), "without its number of values"),  # of no known kind
        (struct(i32(1, 0), i32(2, 5)), "without its sizes"),
        (b"\x15" + b"\xff" * 12, "more than 64 bits"),
        (b"\x1c" * 40, "nested too deep"),
        (b"\x19\x00", "kind 9"),
        (b"\x18\xff\xff\xff\xff\x0f", "cut off"),
        (data_page(0, 0, 1) * (MAX_PAGES + 1), "more than 100,000 pages"),
    ],
)
def test_headers_that_are_damaged(data, message):
    with pytest.raises(ValueError, match=f"found .*{message}.*, expected"):
        read(data)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 99), (5, 1), (2, -1)])
def test_a_column_outside_the_file(start, length):
    with pytest.raises(ValueError, match="expected one inside the file"):
        read(b"1234", start, length)
