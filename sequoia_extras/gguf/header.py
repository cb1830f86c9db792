"""The header of a GGUF file (llama.cpp's format): a model's metadata, read without its weights."""

import mmap
import os
import re
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sequoia_core.files.file_types import HEAD_BYTES, describe
from sequoia_core.files.model_names import model_source

# The format's type codes for numbers, with their `struct` characters.
NUMBER_TYPES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING = 8
ARRAY = 9
VERSIONS = (2, 3)
MAX_FIELDS = 65_536
# Maximum total number of entries in all arrays: twice the tokens and merges of the largest vocabularies.
MAX_ENTRIES = 2**21
# The names of split files have five-digit part numbers.
MAX_PARTS = 99_999
# Larger counts would overflow the sizes computed from them.
MAX_COUNT = 2**40
MAX_STRING_BYTES = 2**24
# Longer arrays of numbers, and all arrays of strings, are represented by their length.
MAX_ARRAY_NUMBERS = 4096
INTEGER_FIELDS = ("context_length", "embedding_length", "block_count", "attention.key_length", "attention.value_length")
# These fields contain one number or one number per layer.
PER_LAYER_FIELDS = ("attention.head_count", "attention.head_count_kv")
# Names of the members of enum llama_ftype, in order; "-" stands for removed members.
_FORMAT_NAMES = """
    F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS
    Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 MXFP4 NVFP4
"""
WEIGHT_FORMATS = {number: name for number, name in enumerate(_FORMAT_NAMES.split()) if name != "-"}


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """The metadata of a GGUF file.

    Attributes:
        fields: metadata by key; long arrays and arrays of strings are represented by their length.
        file_bytes: size of the file, or of all parts of a split file.
    """

    fields: dict[str, Any]
    file_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.fields["general.architecture"])

    @property
    def dtype(self) -> str:
        """Format of most weights, in llama.cpp's terms, such as "Q4_K_M"."""
        return WEIGHT_FORMATS.get(self.fields.get("general.file_type", -1), "GGUF")

    def architecture_field(self, key: str) -> Any:
        """Return an architecture field, such as `block_count`, or None."""
        return self.fields.get(f"{self.architecture}.{key}")


def is_gguf(name: str | os.PathLike) -> bool:
    """Return whether a model name refers to a GGUF file."""
    return os.fspath(name).lower().endswith(".gguf")


def gguf_path(name: str | os.PathLike) -> Path:
    """Return the path of the GGUF file that a model name refers to."""
    path = Path(model_source(name))
    if not path.is_file():
        raise ValueError(f"{str(name)[:200]}: found no such file, expected a GGUF file on this machine")
    return path


def read_gguf_header(path: str | os.PathLike) -> GGUFHeader:
    """Read the header of a GGUF file or of a split file's first part; OSError if the file cannot be read."""
    path = Path(path).expanduser()
    status = path.stat()
    if not path.is_file() or status.st_size < 24:
        raise ValueError(f"{path.name}: found {status.st_size} bytes, expected a GGUF file")
    header = _read_cached(path, status.st_size, status.st_mtime_ns)
    return replace(header, file_bytes=sum(part.stat().st_size for part in _part_paths(path, header.fields)))


# Cached because a page reads a header, which may list 150,000 tokens, several times per run.
@lru_cache(maxsize=8)
def _read_cached(path: Path, size: int, _changed: int) -> GGUFHeader:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _parse_header(data, size)
        except (ValueError, struct.error) as error:
            fault = "a file that ends inside its header" if isinstance(error, struct.error) else f"{error}"
            raise ValueError(f"{path.name}: found {fault}, expected a GGUF file of version 2 or 3") from error


@dataclass(slots=True)
class _Cursor:
    """A position in a file; reading past the end raises struct.error."""

    data: mmap.mmap
    position: int = 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        start = self.position
        self.skip(struct.calcsize("<" + form))
        return struct.unpack_from("<" + form, self.data, start)

    def string(self) -> bytes:
        (length,) = self.numbers("Q")
        if length > MAX_STRING_BYTES:
            raise ValueError(f"a string of {length:,} bytes")
        self.skip(length)
        return self.data[self.position - length : self.position]

    def skip(self, length: int) -> None:
        self.position += length
        if self.position > len(self.data):
            raise struct.error


def _parse_header(data: mmap.mmap, size: int) -> GGUFHeader:
    cursor = _Cursor(data)
    magic, version, tensors, count = cursor.numbers("4sIQQ")
    if magic != b"GGUF":
        raise ValueError(describe(data[:HEAD_BYTES]))
    if version not in VERSIONS:
        raise ValueError(f"version {version}")
    if count > MAX_FIELDS or tensors > size:
        raise ValueError(f"{count:,} fields and {tensors:,} tensors")
    fields: dict[str, Any] = {}
    entries = 0
    for _ in range(count):
        key = cursor.string().decode("utf-8", "replace")[:200]
        (value_type,) = cursor.numbers("I")
        if key in fields:
            raise ValueError(f"{key[:60]!r} twice")
        fields[key] = _read_value(cursor, value_type, key)
        if value_type == ARRAY and isinstance(fields[key], int):
            entries += fields[key]
        if entries > MAX_ENTRIES:
            raise ValueError(f"arrays with more than {MAX_ENTRIES:,} entries")
    number = fields.get("split.no", 0)
    parts = fields.get("split.count", 1)
    if type(number) is not int or type(parts) is not int or not 0 <= number < parts <= MAX_PARTS:
        raise ValueError(f"split.no = {number!r:.40} and split.count = {parts!r:.40}, not a valid part")
    # Only the first part contains the model's fields.
    if not number:
        _check_fields(fields)
    return GGUFHeader(fields, size)


def _part_paths(path: Path, fields: dict[str, Any]) -> list[Path]:
    """Return the paths of all parts, named by llama.cpp's scheme; reject a file that is not the first part."""
    number = fields.get("split.no", 0)
    count = fields.get("split.count", 1)
    if count == 1:
        return [path]
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    parts = [path.with_name(f"{stem}-{part:05d}-of-{count:05d}{path.suffix}") for part in range(1, count + 1)]
    if number or path != parts[0]:
        raise ValueError(f"{path.name}: found part {number + 1} of {count}, expected the first part, {parts[0].name}")
    missing = next((part.name for part in parts if not part.is_file()), None)
    if missing is not None:
        raise ValueError(f"{path.name}: found no {missing}, expected all {count} parts in one folder")
    return parts


def _check_fields(fields: dict[str, Any]) -> None:
    """Reject fields with a type or size that would break computations."""
    name = fields.get("general.architecture")
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise ValueError("no general.architecture")
    if f"{name}.context_length" not in fields:
        raise ValueError(f"no {name}.context_length")
    per_layer = [f"{name}.{key}" for key in PER_LAYER_FIELDS]
    for key in ["general.file_type", *(f"{name}.{key}" for key in INTEGER_FIELDS), *per_layer]:
        value = fields.get(key, 0)
        numbers = value if isinstance(value, list) and value and key in per_layer else [value]
        if not all(type(number) is int and 0 <= number <= MAX_COUNT for number in numbers):
            raise ValueError(f"{key} = {str(value)[:40]!r}, not a whole number")


def _read_value(cursor: _Cursor, value_type: int, key: str) -> Any:
    """Read a value; reject duplicates in the list of tokens, which would abort llama.cpp."""
    if value_type in NUMBER_TYPES:
        return cursor.numbers(NUMBER_TYPES[value_type])[0]
    if value_type == STRING:
        return cursor.string().decode("utf-8", "replace")
    if value_type != ARRAY:
        raise ValueError(f"a value of type {value_type}")
    element_type, count = cursor.numbers("IQ")
    if element_type in NUMBER_TYPES:
        form = NUMBER_TYPES[element_type]
        if count <= MAX_ARRAY_NUMBERS:
            return list(cursor.numbers(f"{count}{form}"))
        cursor.skip(count * struct.calcsize("<" + form))
        return count
    if element_type != STRING:
        raise ValueError(f"an array of type {element_type}")
    if count > MAX_ENTRIES:
        raise ValueError(f"an array of {count:,} strings")
    tokens = set[bytes]()
    for _ in range(count):
        text = cursor.string()
        if key == "tokenizer.ggml.tokens" and text:
            if text in tokens:
                raise ValueError(f"the token {text[:40].decode('utf-8', 'replace')!r} twice")
            tokens.add(text)
    return count
