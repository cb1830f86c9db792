"""Read untrusted files safely, and write files atomically."""

import base64
import io
import json
import math
import os
import pickle
import secrets
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import platformdirs

from .file_types import decode_text, describe, file_type

APP_NAME = "sequoia-studio"
MAX_BYTES = 64 * 2**20
MAX_JSON_VALUES = 8_000_000  # enough for the largest tree file; takes up to half a gigabyte of memory
MAX_PICKLE_BYTES = 2 * 2**20  # size limit of the pickle in a .pt file, which excludes the tensor data
MAX_PACKED_JSON_BYTES = 32 * 2**20  # size limit after decompression
MAX_DIGITS = 300  # maximum number of digits of an integer, about as many as in the largest float64
MAX_LEVELS = 64  # maximum nesting depth; deeper values can be parsed, but neither hashed nor copied

_SPACES = dict.fromkeys(map(ord, "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def read_bytes(path: str | Path, *, limit: int = MAX_BYTES) -> bytes:
    """Return a file's content; raise ValueError if it is missing, not a regular file, or larger than `limit` bytes."""
    path = Path(path)
    try:
        if not path.exists():
            raise ValueError(f"{path}: no such file")
        if not path.is_file():
            raise ValueError(f"{path}: found a folder or device, expected a regular file")
        if path.stat().st_size > limit:
            raise ValueError(f"{path}: found {path.stat().st_size:,} bytes, expected at most {limit:,}")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error


def check_replaceable(path: str | Path) -> None:
    """Refuse to replace anything other than a regular file, such as a folder, device, pipe or socket."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}), expected a writable path") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: found a folder or device, expected a regular file or a new name")


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a file completely or not at all, using a temporary file in the same folder.

    An existing file's mode is preserved. A symbolic link is kept, and its target is replaced.
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
        raise ValueError(f"{path}: cannot be written ({error.strerror}), expected a writable path") from error


def json_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object formatted with one line per key, which keeps long arrays compact and readable."""
    try:
        lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in fields.items()]
    except TypeError as error:
        raise ValueError(
            f"found a value that cannot be written as JSON ({error}), expected plain numbers and text"
        ) from error
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_json(data: bytes) -> Any:
    """Parse JSON, refusing content on which parsers disagree or which would exhaust memory.

    Raises ValueError for NaN and infinities, duplicate keys, deep nesting, numbers beyond float64, and more than
    `MAX_JSON_VALUES` values.
    """
    # Count before parsing, because an empty list takes two characters of text but 64 bytes of memory.
    values = sum(map(data.count, (b",", b"[", b"{")))
    if values > MAX_JSON_VALUES:
        raise ValueError(f"found JSON of about {values:,} values, expected at most {MAX_JSON_VALUES:,}")
    text = decode_text(data, "JSON")
    try:
        value = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"found invalid JSON ({error.msg} at {where}), expected a complete JSON object") from error
    except RecursionError as error:
        raise ValueError("found JSON nested too deeply, expected a flat object") from error
    _check_nesting(value)
    return value


def _check_nesting(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(MAX_LEVELS + 1):
        children = chain.from_iterable(parent.values() if type(parent) is dict else parent for parent in level)
        level = [child for child in children if type(child) in (dict, list)]
        if not level:
            return
    raise ValueError(f"found JSON nested too deeply, expected at most {MAX_LEVELS} levels")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from key-value pairs, refusing duplicate keys; an `object_pairs_hook` for json.loads."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in unique if keys.count(key) > 1)
        raise ValueError(f"found the key {duplicate[:40]!r} twice, expected it once")
    return unique


def _refuse_constant(word: str) -> None:
    raise ValueError(f"found {word}, expected finite numbers")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"found {digits[:20]}, expected numbers that a float64 can hold")
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"found a number of {len(digits):,} digits, expected at most {MAX_DIGITS}")
    return int(digits)


def packed_json(value: Any) -> str:
    """Compress a JSON value to a string that can be embedded in a JSON file; `unpacked_json` decodes it."""
    return base64.b64encode(zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)).decode()


def unpacked_json(text: str) -> Any:
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(base64.b64decode(text, validate=True), MAX_PACKED_JSON_BYTES)
    except (ValueError, zlib.error) as error:
        raise ValueError(
            f"found text that is not packed JSON ({one_line(error)}), expected JSON compressed by zlib, in base64"
        ) from error
    if not unpack.eof:
        raise ValueError(
            f"found packed JSON that is truncated or too large, expected at most {MAX_PACKED_JSON_BYTES:,} bytes"
        )
    return read_json(data)


def load_torch(data: bytes, expected: str) -> Any:
    """Load a `.pt` file on the CPU without running code from it.

    `expected` describes the expected content in error messages.
    """
    if file_type(data) != "a zip archive":
        raise ValueError(
            f"found {describe(data)}, expected {expected} (.pt and .bin files: saved by PyTorch 1.6 or later)"
        )
    import torch

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > len(data):
            raise ValueError(f"an archive of {unpacked:,} bytes compressed to {len(data):,}")
        pickled = sum(entry.file_size for entry in entries if entry.filename.endswith("/data.pkl"))
        if pickled > MAX_PICKLE_BYTES:
            raise ValueError(f"a pickle of {pickled:,} bytes, more than {MAX_PICKLE_BYTES:,}")
        loaded = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
        for value in loaded.values() if isinstance(loaded, dict) else [loaded]:
            if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_quantized):
                raise ValueError("a sparse or quantized tensor")
        return loaded
    except pickle.UnpicklingError as error:  # PyTorch's own message advises loading the file unsafely.
        raise ValueError(f"found a pickle that contains more than tensors, expected {expected}") from error
    except Exception as error:  # zipfile and torch raise many types of errors on damaged files.
        raise ValueError(f"found a damaged or unsupported file ({one_line(error)}), expected {expected}") from error


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:160]


def visible(text: str) -> str:
    """Return text on one line, replacing control characters and changes of text direction."""
    spaced = text.translate(_SPACES)
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") else c for c in spaced)


def cache_folder() -> Path:
    """Return the folder for data that can be made again: compiled code, pass times and packed layers."""
    return platformdirs.user_cache_path(APP_NAME, appauthor=False)


def data_folder() -> Path:
    """Return the folder for the user's data: the installation id and kept results."""
    return platformdirs.user_data_path(APP_NAME, appauthor=False)
