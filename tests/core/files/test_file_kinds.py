"""Files are named for error messages, and text is decoded or refused by its encoding."""

import pytest

from sequoia_core.files.file_kinds import decode_text, describe

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (POINTER, "a Git LFS pointer, not the file itself"),
        (b'{"probs": [0.5]}', "JSON"),
        (b"0.5\n0.25\n", "text"),
        (b"\x1f\x8b\x08\0", "a gzip archive"),
    ],
)
def test_a_form_is_named(data, named):
    assert describe(data) == named


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_text_is_decoded_as_its_mark_says(encoding):
    assert decode_text("é 日本\n".encode(encoding), "text") == "é 日本\n"


@pytest.mark.parametrize("data", ["naïve\n".encode("cp1252"), "é".encode("utf-16")[:3]])
def test_another_encoding_is_refused_by_name(data):
    with pytest.raises(ValueError, match=r"found text that is not UTF-(8|16) \(byte 0x\w\w at \d\), expected JSON"):
        decode_text(data, "JSON")
