"""The head of a GGUF file, the format of llama.cpp: what the model is and what it takes, without its weights."""

import mmap
import os
import re
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .file_kinds import HEAD_BYTES, describe

LLAMA_CPP = "llama.cpp"  # the engine that reads such files, as profiles and counts name it
MOST_SEQUENCES = 256  # of one llama.cpp context (LLAMA_MAX_SEQ)
NUMBERS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))  # kind -> its letter in `struct`
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)
MAX_FIELDS = 65_536
MAX_ENTRIES = 2**21  # of an array of texts: lists of tokens and of merges of the largest vocabularies are half of it
MAX_PARTS = 99_999  # of a split file: their names have five digits
MAX_COUNT = 2**40  # of what a model counts: more would overflow what is made of it
WHOLE_FIELDS = ("context_length", "embedding_length", "block_count", "attention.key_length", "attention.value_length")
BY_LAYER = ("attention.head_count", "attention.head_count_kv")  # one number, or one for each layer
MAX_TEXT_BYTES = 2**24  # bytes
MAX_KEPT_NUMBERS = 4096  # numbers of an array; longer arrays, and those of strings, are kept as their length
# By the number of llama_ftype; formats that llama.cpp dropped have none.
FILE_TYPES = """
    F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS
    Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 MXFP4 NVFP4
""".replace("-", "GGUF").split()


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """The metadata of a GGUF file.

    Attributes:
        fields: metadata by key; of long arrays and arrays of strings their length.
        file_bytes: of all its parts, where it is split.
    """

    fields: dict[str, Any]
    file_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.fields["general.architecture"])

    @property
    def dtype(self) -> str:
        """The format of most weights in llama.cpp's words, such as "Q4_K_M"."""
        number = self.fields.get("general.file_type", len(FILE_TYPES))
        return FILE_TYPES[number] if number < len(FILE_TYPES) else "GGUF"

    def of_model(self, key: str) -> Any:
        """Return a field of the architecture, such as `block_count`; None where the file has none."""
        return self.fields.get(f"{self.architecture}.{key}")

    def cache_bytes(self, tokens: int) -> int | None:
        """Return the bytes that keys and values of a text take in 16 bits; None where the file does not tell."""
        layers, heads, width = (self.of_model(k) for k in ("block_count", "attention.head_count", "embedding_length"))
        groups = self.of_model("attention.head_count_kv") or heads
        if not all(isinstance(value, int) and value > 0 for value in (layers, heads, width)):
            return None
        per_layer = sum(groups) / len(groups) if isinstance(groups, list) and groups else groups
        if not isinstance(per_layer, int | float):
            return None
        lengths = (self.of_model(f"attention.{k}_length") or width // heads for k in ("key", "value"))
        return int(2 * tokens * layers * per_layer * sum(lengths))


def is_gguf(name: str | os.PathLike) -> bool:
    """Whether a model's name means a GGUF file."""
    return os.fspath(name).lower().endswith(".gguf")


def read_gguf_header(path: str | os.PathLike) -> GGUFHeader:
    """Read the head of a GGUF file, of the first part where it is split; OSError for a file that cannot be read."""
    path = Path(path).expanduser()
    about = path.stat()
    if not path.is_file() or about.st_size < 24:
        raise ValueError(f"{path.name}: found {about.st_size} bytes, expected a GGUF file")
    header = _read_once(path, about.st_size, about.st_mtime_ns)
    return replace(header, file_bytes=sum(part.stat().st_size for part in _parts(path, header.fields)))


@lru_cache(maxsize=8)  # a page asks several times in each of its runs, and a head may list 150,000 tokens
def _read_once(path: Path, size: int, _changed: int) -> GGUFHeader:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        try:
            return _read(held, size)
        except (ValueError, struct.error, RecursionError) as error:
            found = "a file that ends within its head" if isinstance(error, struct.error) else f"{error}"
            raise ValueError(f"{path.name}: found {found}, expected a GGUF file of version 2 or 3") from error


@dataclass(slots=True)
class _Cursor:
    """A place in a file; struct.error for what the file does not have."""

    data: mmap.mmap
    at: int = 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        start = self.at
        self.skip(struct.calcsize("<" + form))
        return struct.unpack_from("<" + form, self.data, start)

    def text(self) -> bytes:
        (length,) = self.numbers("Q")
        if length > MAX_TEXT_BYTES:
            raise ValueError(f"a text of {length:,} bytes")
        self.skip(length)
        return self.data[self.at - length : self.at]

    def skip(self, length: int) -> None:
        self.at += length
        if self.at > len(self.data):
            raise struct.error


def _read(held: mmap.mmap, size: int) -> GGUFHeader:
    cursor = _Cursor(held)
    magic, version, tensors, count = cursor.numbers("4sIQQ")
    if magic != b"GGUF":
        raise ValueError(describe(held[:HEAD_BYTES]))
    if version not in VERSIONS:
        raise ValueError(f"version {version}")
    if count > MAX_FIELDS or tensors > size:
        raise ValueError(f"{count:,} fields and {tensors:,} tensors")
    fields: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text().decode("utf-8", "replace")[:200]
        (kind,) = cursor.numbers("I")
        if key in fields:
            raise ValueError(f"{key[:60]!r} twice")
        fields[key] = _value(cursor, kind, key)
    number, count = fields.get("split.no", 0), fields.get("split.count", 1)
    if type(number) is not int or type(count) is not int or not 0 <= number < count <= MAX_PARTS:
        raise ValueError(f"split.no = {number!r:.40} and split.count = {count!r:.40}, no part of a file")
    if not number:  # other parts have none of the fields that are checked
        _check(fields)
    return GGUFHeader(fields, size)


def _parts(path: Path, fields: dict[str, Any]) -> list[Path]:
    """Return all files of a model by the names that llama.cpp gives them; refuse another than the first."""
    number, count = fields.get("split.no", 0), fields.get("split.count", 1)
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


def _check(fields: dict[str, Any]) -> None:
    """Refuse a field of a kind that nothing here could count with."""
    name = fields.get("general.architecture")
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise ValueError("no general.architecture")
    if f"{name}.context_length" not in fields:
        raise ValueError(f"no {name}.context_length")
    by_layer = [f"{name}.{key}" for key in BY_LAYER]
    for key in ["general.file_type", *(f"{name}.{key}" for key in WHOLE_FIELDS), *by_layer]:
        value = fields.get(key, 0)
        numbers = value if isinstance(value, list) and value and key in by_layer else [value]
        if not all(type(number) is int and 0 <= number <= MAX_COUNT for number in numbers):
            raise ValueError(f"{key} = {str(value)[:40]!r}, no whole number")


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    """Return a value; a list of tokens that has one twice, which ends llama.cpp, is refused."""
    if kind in NUMBERS:
        return cursor.numbers(NUMBERS[kind])[0]
    if kind == STRING:
        return cursor.text().decode("utf-8", "replace")
    if kind != ARRAY:
        raise ValueError(f"a value of kind {kind}")
    inner, count = cursor.numbers("IQ")
    if inner in NUMBERS:
        if count <= MAX_KEPT_NUMBERS:
            return list(cursor.numbers(f"{count}{NUMBERS[inner]}"))
        cursor.skip(count * struct.calcsize("<" + NUMBERS[inner]))
        return count
    if inner != STRING:
        raise ValueError(f"an array of kind {inner}")
    if count > MAX_ENTRIES:
        raise ValueError(f"an array of {count:,} texts")
    known = set[bytes]()
    for _ in range(count):
        text = cursor.text()
        if key == "tokenizer.ggml.tokens" and text:
            if text in known:
                raise ValueError(f"the token {text[:40].decode('utf-8', 'replace')!r} twice")
            known.add(text)
    return count
