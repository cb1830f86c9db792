import pytest

from sequoia_core.prompts import load_prompts


def test_prompts_from_jsonl_and_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one\\ntwo"}\n\n{"prompt": "three"}\n')
    (tmp_path / "b.txt").write_text("first\n\nsecond\n")
    assert load_prompts(tmp_path / "a.jsonl") == ["one\ntwo", "three"]
    assert load_prompts(tmp_path / "b.txt") == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b"{", "line 1: found no JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"words": 1}', "line 2"),
        ("a.jsonl", b"[1]", "line 1"),
        ("a.txt", b"\n\n", "no prompts"),
        ("a.txt", b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_broken_prompt_files_are_named(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        load_prompts(tmp_path / name)
