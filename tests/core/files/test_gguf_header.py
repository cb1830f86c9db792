"""Heads of GGUF files written here byte by byte: what they tell, and fields of wrong kinds in one line."""

import struct
from contextlib import nullcontext

import pytest

from sequoia_core.files import gguf_header
from sequoia_core.files.gguf_header import read_gguf_header

U32, F32, BOOL, TEXT, LIST = 4, 6, 7, 8, 9
SOUND = {
    "general.architecture": (TEXT, "llama"), "general.file_type": (U32, 7), "llama.context_length": (U32, 512),
    "llama.block_count": (U32, 2), "llama.embedding_length": (U32, 64), "llama.attention.head_count": (U32, 4),
    "llama.attention.head_count_kv": (LIST, (U32, [2, 4])), "llama.attention.key_length": (U32, 16),
}  # fmt: skip


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def value(kind: int, content) -> bytes:
    if kind == TEXT:
        return text(content)
    if kind == LIST:
        inner, entries = content
        return struct.pack("<IQ", inner, len(entries)) + b"".join(value(inner, entry) for entry in entries)
    return struct.pack("<" + gguf_header.NUMBERS[kind], content)


def written(path, fields):
    pairs = fields.items() if isinstance(fields, dict) else fields
    body = b"".join(text(key) + struct.pack("<I", kind) + value(kind, content) for key, (kind, content) in pairs)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(fields)) + body)
    return path


def test_a_head_tells_format_and_cache(tmp_path):
    head = read_gguf_header(written(tmp_path / "a.gguf", SOUND))
    assert (head.architecture, head.dtype, head.of_model("context_length")) == ("llama", "Q8_0", 512)
    assert head.cache_bytes(10) == 2 * 10 * 2 * 3 * 32  # layers of 2 and 4 groups, keys and values of 16


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("llama.attention.key_length", (TEXT, "wide")),
        ("llama.attention.head_count_kv", (F32, float("inf"))),
        ("llama.attention.head_count_kv", (F32, float("nan"))),
        ("llama.attention.head_count_kv", (LIST, (F32, [2.0, 4.0]))),
        ("llama.attention.head_count", (BOOL, True)),
        ("llama.block_count", (LIST, (U32, [2]))),
        ("llama.context_length", (TEXT, "512")),
        ("general.file_type", (LIST, (U32, [7]))),
        ("general.file_type", (LIST, (TEXT, ["Q8_0"]))),
    ],
)
def test_a_field_of_a_wrong_kind_is_named(key, wrong, tmp_path):
    path = written(tmp_path / "a.gguf", SOUND | {key: wrong})
    if wrong == (LIST, (TEXT, ["Q8_0"])):  # a list of texts is kept as its length
        assert read_gguf_header(path).fields[key] == 1
        return
    with pytest.raises(ValueError, match=f"a.gguf: found {key} = .*, no whole number, expected a GGUF file"):
        read_gguf_header(path)


def test_what_is_missing_twice_or_too_much_is_named(tmp_path, monkeypatch):
    without = {key: field for key, field in SOUND.items() if key != "llama.context_length"}
    with pytest.raises(ValueError, match=r"found no llama.context_length"):
        read_gguf_header(written(tmp_path / "a.gguf", without))
    for given, twice in ((["a", "", "b", "", "c"], None), (["a", "", "", "b", "a"], "found the token 'a' twice")):
        path = written(
            tmp_path / f"{len(given[-1] + str(twice))}.gguf", SOUND | {"tokenizer.ggml.tokens": (LIST, (TEXT, given))}
        )
        with pytest.raises(ValueError, match=twice) if twice else nullcontext():
            read_gguf_header(path)
    with pytest.raises(ValueError, match="found 'llama.block_count' twice"):
        read_gguf_header(written(tmp_path / "b.gguf", [*SOUND.items(), ("llama.block_count", (U32, 2))]))
    monkeypatch.setattr(gguf_header, "MAX_ENTRIES", 5)
    with pytest.raises(ValueError, match="found an array of 6 texts"):
        read_gguf_header(written(tmp_path / "c.gguf", SOUND | {"tokens": (LIST, (TEXT, [""] * 6))}))
    several = SOUND | {name: (LIST, (TEXT, [""] * 3)) for name in ("tokens", "merges")}
    with pytest.raises(ValueError, match="found arrays of more than 5 entries"):
        read_gguf_header(written(tmp_path / "d.gguf", several))
