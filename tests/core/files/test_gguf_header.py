"""Heads of GGUF files written here byte by byte: what they tell, and fields of wrong kinds in one line."""

import struct

import pytest

from sequoia_core.files import gguf_header
from sequoia_core.files.gguf_header import read_gguf_header

U16, U32, F32, TEXT, LIST = 2, 4, 6, 8, 9
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


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"llama.attention.key_length": (TEXT, "wide")}, "llama.attention.key_length = 'wide', no whole number"),
        ({"llama.attention.head_count_kv": (LIST, (F32, [2.0]))}, "llama.attention.head_count_kv = '.2.0.', no whole"),
        ({"tokenizer.ggml.tokens": (LIST, (TEXT, ["a", "", "", "b", "a"]))}, "the token 'a' twice"),
        ({"split.count": (TEXT, "two")}, "split.no = 0 and split.count = 'two', no part of a file"),
        ({"split.no": (TEXT, "0"), "split.count": (U16, 2)}, "split.no = '0' and split.count = 2, no part"),
        ({"split.count": (U16, 0)}, "split.no = 0 and split.count = 0"),
        ({"split.no": (U16, 3), "split.count": (U16, 3)}, "split.no = 3 and split.count = 3"),
        ({"split.count": (U32, 10**6)}, "split.no = 0 and split.count = 1000000"),
        ({"tokens": (LIST, (TEXT, [""] * 6))}, "an array of 6 texts"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_head_that_nothing_can_count_with_is_named(fields, said, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_header, "MAX_ENTRIES", 5)
    with pytest.raises(ValueError, match=f"a.gguf: found {said}.*, expected a GGUF file"):
        read_gguf_header(written(tmp_path / "a.gguf", SOUND | fields))


def test_a_split_file_is_given_by_its_first_part_and_counts_with_all(tmp_path):
    names = [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for number, name in enumerate(names):
        split = {"split.no": (U16, number), "split.count": (U16, 3), "split.tensors.count": (U32, 9)}
        written(tmp_path / name, split if number else SOUND | split)
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert read_gguf_header(tmp_path / names[0]).file_bytes == sum(sizes)
    with pytest.raises(ValueError, match=f"{names[2]}: found part 3 of 3, expected the first part, {names[0]}"):
        read_gguf_header(tmp_path / names[2])
    (tmp_path / "b-00001-of-00003.gguf").write_bytes((tmp_path / names[1]).read_bytes())
    with pytest.raises(ValueError, match="b-00001-of-00003.gguf: found part 2 of 3, expected the first part"):
        read_gguf_header(tmp_path / "b-00001-of-00003.gguf")
    (tmp_path / names[0]).rename(tmp_path / "first.gguf")
    with pytest.raises(ValueError, match="first.gguf: found part 1 of 3, expected the first part, first-00001-of-"):
        read_gguf_header(tmp_path / "first.gguf")
    (tmp_path / "first.gguf").rename(tmp_path / names[0])
    (tmp_path / names[1]).unlink()
    with pytest.raises(ValueError, match=f"{names[0]}: found no {names[1]}, expected all 3 parts"):
        read_gguf_header(tmp_path / names[0])


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(ValueError, match="a.gguf: found a Git LFS pointer, not the file itself, expected a GGUF file"):
        read_gguf_header(tmp_path / "a.gguf")


def test_a_key_is_given_once_and_texts_may_be_empty(tmp_path):
    with pytest.raises(ValueError, match="found 'llama.block_count' twice"):
        read_gguf_header(written(tmp_path / "b.gguf", [*SOUND.items(), ("llama.block_count", (U32, 2))]))
    empty = {"tokenizer.ggml.tokens": (LIST, (TEXT, ["a", "", "b", "", "c"]))}
    assert read_gguf_header(written(tmp_path / "c.gguf", SOUND | empty)).fields["tokenizer.ggml.tokens"] == 5


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
def test_a_size_of_0_tells_nothing_of_the_cache(key, tmp_path):
    head = read_gguf_header(written(tmp_path / "a.gguf", SOUND | {f"llama.{key}": (U32, 0)}))
    assert head.cache_bytes(10) is None
