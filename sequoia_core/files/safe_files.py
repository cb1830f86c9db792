"""Read files that may be hostile; write files atomically."""

import base64
import io
import json
import math
import os
import pickletools
import re
import secrets
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from .file_kinds import decode_text, describe, kind_of

MAX_BYTES = 64 * 2**20
MAX_JSON_VALUES = 8_000_000  # what a tree file of full size holds; at most half a gigabyte in memory
MAX_PICKLE = 2 * 2**20  # of a .pt file, beside the tensors' own bytes
MAX_PACKED = 32 * 2**20  # bytes of JSON within a text
MAX_DIGITS = 300  # of an integer: about what a float64 can hold
MAX_LEVELS = 64  # of nested lists and objects: parsing could take more, hashing and copying could not

_BOXES = (dict, list)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACES = dict.fromkeys(map(ord, "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")

# What torch.save writes for plain dense tensors; anything else (a call, another kind of tensor) is refused.
_TENSOR_PARTS = re.compile(
    r"torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage|collections OrderedDict|torch Size"
)


def read_bytes(path: str | Path, *, limit: int = MAX_BYTES) -> bytes:
    """Return a file's content, refusing one that is missing, not a plain file, or larger than `limit` bytes."""
    path = Path(path)
    try:
        if not path.exists():
            raise ValueError(f"{path}: found no such file, expected a readable file")
        if not path.is_file():
            raise ValueError(f"{path}: found a folder or device, expected a plain file")
        if path.stat().st_size > limit:
            raise ValueError(f"{path}: found {path.stat().st_size:,} bytes, expected at most {limit:,}")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}), expected a readable file") from error


def check_replaceable(path: str | Path) -> None:
    """Refuse a path that holds anything but a regular file: a folder, device, pipe or socket would be lost."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}), expected a writable place") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: found a folder or device, expected a plain file or a new name")


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all: to a temporary file beside it, then rename.

    A file that was there gives its mode to the new one; a symbolic link stays, and its target is replaced.
    """
    check_replaceable(path)
    real = Path(os.path.realpath(path))
    temporary = real.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                if real.exists():
                    os.fchmod(descriptor, stat.S_IMODE(real.stat().st_mode))
                stream.write(data)
            os.replace(temporary, real)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}), expected a writable place") from error


def json_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object with one line per key: readable, and short even for long arrays."""
    try:
        lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in fields.items()]
    except TypeError as error:
        raise ValueError(f"found a value without a JSON form ({error}), expected plain numbers and text") from error
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_json(data: bytes) -> Any:
    """Parse JSON, and refuse content on which parsers disagree or which fills memory.

    Not read: NaN and infinities, a key given twice, half of a surrogate pair, deep nesting, numbers beyond float64,
    more than `MAX_JSON_VALUES` values.
    """
    # An empty list is two characters of text and 64 bytes of memory: counted before anything is built.
    values = sum(map(data.count, (b",", b"[", b"{")))
    if values > MAX_JSON_VALUES:
        raise ValueError(f"found JSON of about {values:,} values, expected at most {MAX_JSON_VALUES:,}")
    text = decode_text(data, "JSON")
    try:
        value = json.loads(
            text, object_pairs_hook=unique_keys, parse_constant=_no_number, parse_float=_finite, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"found no readable JSON ({error.msg} at {where}), expected a complete JSON object") from error
    except RecursionError as error:
        raise ValueError("found JSON nested too deep, expected a flat object") from error
    _check_levels(value)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("found half of a surrogate pair, expected text that has a UTF-8 form") from error
    return value


def _check_levels(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(MAX_LEVELS + 1):
        inside = chain.from_iterable(box.values() if type(box) is dict else box for box in level)
        level = [child for child in inside if type(child) in _BOXES]
        if not level:
            return
    raise ValueError(f"found JSON nested too deep, expected at most {MAX_LEVELS} levels")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, as a hook of json.loads; refuse a key given twice, of which readers take either."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in unique if keys.count(key) > 1)
        raise ValueError(f"found the key {twice[:40]!r} twice, expected it once")
    return unique


def _no_number(word: str) -> None:
    raise ValueError(f"found {word}, expected finite numbers")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"found {digits[:20]}, expected numbers that a float64 can hold")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"found a number of {len(digits):,} digits, expected at most {MAX_DIGITS}")
    return int(digits)


def packed_json(value: Any) -> str:
    """Return JSON values as a short text, which a JSON file may hold; `unpacked_json` reads it."""
    return base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)).decode()


def unpacked_json(text: str) -> Any:
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(base64.b64decode(text, validate=True), MAX_PACKED)
    except (ValueError, zlib.error) as error:
        raise ValueError(
            f"found text that is no packed JSON ({one_line(error)}), expected JSON, zlib, base64"
        ) from error
    if not unpack.eof:
        raise ValueError(f"found packed JSON cut short or of more than {MAX_PACKED:,} bytes, expected all of it")
    return read_json(data)


def load_torch(data: bytes, expected: str) -> Any:
    """Load a `.pt` file on the CPU, running no code and reserving no memory that the file does not fill.

    `expected` is what the caller wants, for the error message.
    """
    if kind_of(data) != "a zip archive":
        raise ValueError(f"found {describe(data)}, expected {expected} (.pt and .bin: of torch.save 1.6 or later)")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            unpacked = sum(entry.file_size for entry in entries)
            if unpacked > len(data) or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ValueError(f"an archive of {unpacked:,} bytes compressed to {len(data):,}")
            code = b"".join(archive.read(entry) for entry in entries if entry.filename.endswith("/data.pkl"))
        if len(code) > MAX_PICKLE:
            raise ValueError(f"a pickle of {len(code):,} bytes where at most {MAX_PICKLE:,} are read")
        # torch lets a pickle call a few things that take memory, such as bytearray: only tensors are let through
        for opcode, name, _ in pickletools.genops(code):
            if opcode.name == "GLOBAL" and not _TENSOR_PARTS.fullmatch(str(name)):
                raise ValueError(f"a pickled {str(name).replace(' ', '.')[:60]}")

        import torch

        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file may raise anything in zipfile and torch; the user needs one line
        raise ValueError(f"found a damaged or foreign file ({one_line(error)}), expected {expected}") from error


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:160]


def visible(text: str) -> str:
    """Return text in one line, with a mark for each control character and change of writing direction."""
    spaced = text.translate(_SPACES)
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") else c for c in spaced)
