"""Headers of GGUF files written byte by byte: their metadata, and one-line errors for invalid fields."""

import struct

import pytest

from sequoia_extras.gguf import header as gguf_header
from sequoia_extras.gguf.header import read_gguf_header

U16 = 2
U32 = 4
F32 = 6
TEXT = 8
LIST = 9
SOUND = {
    "general.architecture": (TEXT, "llama"),
    "general.file_type": (U32, 7),
    "llama.context_length": (U32, 512),
    "llama.block_count": (U32, 2),
    "llama.embedding_length": (U32, 64),
    "llama.attention.head_count": (U32, 4),
    "llama.attention.head_count_kv": (LIST, (U32, [2, 4])),
    "llama.attention.key_length": (U32, 16),
}


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def value(kind: int, content) -> bytes:
    if kind == TEXT:
        return text(content)
    if kind == LIST:
        inner, entries = content
        return struct.pack("<IQ", inner, len(entries)) + b"".join(value(inner, entry) for entry in entries)
    return struct.pack("<" + gguf_header.NUMBER_TYPES[kind], content)


def written(path, fields):
    pairs = fields.items() if isinstance(fields, dict) else fields
    body = b"".join(text(key) + struct.pack("<I", kind) + value(kind, content) for key, (kind, content) in pairs)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(fields)) + body)
    return path


def test_header_gives_format_and_settings(tmp_path):
    head = read_gguf_header(written(tmp_path / "a.gguf", SOUND))
    assert (head.architecture, head.dtype, head.architecture_field("context_length")) == ("llama", "Q8_0", 512)


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"llama.attention.key_length": (TEXT, "wide")}, "llama.attention.key_length = 'wide', not a whole number"),
        (
            {"llama.attention.head_count_kv": (LIST, (F32, [2.0]))},
            "llama.attention.head_count_kv = '.2.0.', not a",
        ),
        ({"tokenizer.ggml.tokens": (LIST, (TEXT, ["a", "", "", "b", "a"]))}, "the token 'a' twice"),
        ({"split.count": (TEXT, "two")}, "split.no = 0 and split.count = 'two', not a valid part"),
        ({"split.no": (TEXT, "0"), "split.count": (U16, 2)}, "split.no = '0' and split.count = 2, not a valid part"),
        ({"split.count": (U16, 0)}, "split.no = 0 and split.count = 0"),
        ({"split.no": (U16, 3), "split.count": (U16, 3)}, "split.no = 3 and split.count = 3"),
        ({"split.count": (U32, 10**6)}, "split.no = 0 and split.count = 1000000"),
        ({"tokens": (LIST, (TEXT, [""] * 6))}, "an array of 6 strings"),
        (
            {"five": (LIST, (TEXT, [""] * 5)), "long": (TEXT, "a" * 40), "longer": (TEXT, "a" * 41)},
            "a string of 41 bytes",
        ),
        ({name: (LIST, (TEXT, [""] * 3)) for name in ("tokens", "merges")}, "arrays with more than 5 entries"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_unusable_fields_are_rejected(fields, said, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_header, "MAX_ENTRIES", 5)
    monkeypatch.setattr(gguf_header, "MAX_STRING_BYTES", 40)
    with pytest.raises(ValueError, match=f"a.gguf: found {said}.*, expected a GGUF file"):
        read_gguf_header(written(tmp_path / "a.gguf", SOUND | fields))


def test_split_files_are_named_by_their_first_part(tmp_path):
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


def test_other_file_types_are_named(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(ValueError, match="a.gguf: found a Git LFS pointer, not the file itself, expected a GGUF file"):
        read_gguf_header(tmp_path / "a.gguf")


def test_duplicate_keys_are_rejected_and_empty_tokens_allowed(tmp_path):
    with pytest.raises(ValueError, match="found 'llama.block_count' twice"):
        read_gguf_header(written(tmp_path / "b.gguf", [*SOUND.items(), ("llama.block_count", (U32, 2))]))
    empty = {"tokenizer.ggml.tokens": (LIST, (TEXT, ["a", "", "b", "", "c"]))}
    assert read_gguf_header(written(tmp_path / "c.gguf", SOUND | empty)).fields["tokenizer.ggml.tokens"] == 5
