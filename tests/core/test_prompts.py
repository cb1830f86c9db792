import copy
import io
import sys

import pytest

from sequoia_core.prompts import MAX_PROMPT_BYTES, encode_prompt, load_prompts, prompts_from_bytes, text_columns

CSV = b'id,question,answer\n1,"why, though?",because\n2,"two\nlines",\n3,,empty\n'


def parquet(**columns) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(arrow.table(columns), buffer)
    return buffer.getvalue()


def test_prompts_from_jsonl_and_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one\\ntwo"}\n\n{"prompt": "three"}\n')
    (tmp_path / "b.txt").write_text("first\n\nsecond\n")
    assert load_prompts(tmp_path / "a.jsonl") == ["one\ntwo", "three"]
    assert load_prompts(tmp_path / "b.txt") == ["first", "second"]


def test_a_column_is_chosen_by_name():
    assert prompts_from_bytes(CSV, "a.csv", "question") == ["why, though?", "two\nlines"]
    assert prompts_from_bytes(CSV.replace(b",", b"\t"), "a.tsv", "answer") == ["because", "empty"]
    rows = b'{"id": "x", "question": "why?", "text": "no"}\n{"question": "how?"}'
    assert prompts_from_bytes(rows, "a.jsonl", "question") == ["why?", "how?"]
    data = parquet(id=[1, 2, 3], question=["why?", None, "how?"], answer=["a", "b", "c"])
    assert prompts_from_bytes(data, "a.parquet", "question") == ["why?", "how?"]


def test_without_a_choice_the_usual_name_or_the_only_text_is_taken():
    assert prompts_from_bytes(b"id,Prompt,note\n1,hello,x\n", "a.CSV") == ["hello"]
    assert prompts_from_bytes(b"id,words,score\n1,hello,0.5\n2,7,1e3\n", "a.csv") == ["hello", "7"]
    assert prompts_from_bytes(b'{"id": 1, "words": "hello"}', "a.jsonl") == ["hello"]
    assert prompts_from_bytes(parquet(id=[1, 2], words=["a", "b"]), "a.parquet") == ["a", "b"]
    assert prompts_from_bytes("\ufefftext\ngrüße\n".encode(), "a.csv") == ["grüße"]


def test_candidate_columns_are_those_of_text():
    assert text_columns(CSV, "a.csv") == ["question", "answer"]
    assert text_columns(b'{"id": 1, "a": "x", "b": "y"}\n{"a": "z", "b": ""}', "a.jsonl") == ["a"]
    assert text_columns(parquet(id=[1], words=["x"], flags=[True]), "a.parquet") == ["words"]
    assert text_columns(b"one\ntwo", "a.txt") == [] and text_columns(b"", "a.csv") == []


def test_repeated_text_in_parquet_takes_its_memory_once():
    data = parquet(text=["a long prompt " * 1000] * 4000)
    assert len(data) < 100_000
    assert len(prompts_from_bytes(data, "a.parquet")) == 4000


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b"{", "line 1: found no JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"words": 1}', "line 2: .*keys: words"),
        ("a.jsonl", b'{"text": 3}', "line 1"),
        ("a.jsonl", b"[1]", "line 1"),
        ("a.jsonl", b"", "no prompts"),
        ("a.txt", b"\n\n", "no prompts"),
        ("a.txt", b"\xff\xfe\x00", "UTF-8"),
        ("a.txt", b"PK\x03\x04\0\0", "binary data"),
        ("a.csv", b"\xff\xfet\0e\0x\0t\0", "UTF-8"),
        ("a.csv", b"", "found columns none"),
        ("a.csv", b"text\n", "no prompts"),
        ("a.csv", CSV, "found columns id, question, answer, expected one named text or prompt"),
        ("a.csv", b"text,id\nx\n", "line 2: found 1 cells, expected the header's 2"),
        ("a.csv", b'text\n"open', "line 2: found broken CSV"),
        ("a.csv", b"text\n" + b"x" * 200_000, "broken CSV .*limit"),
        ("a.parquet", b"PAR1 not really", "no parquet"),
        ("a.parquet", b"", "no parquet"),
    ],
)
def test_broken_prompt_files_are_named(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name}: .*{message}") as caught:
        load_prompts(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", CSV, "found columns id, question, answer, expected one named 'words'"),
        ("a.jsonl", b'{"text": "x", "id": 1}', 'keys: text, id.*expected an object with a "words"'),
        ("a.txt", b"text", "found plain text for column 'words'"),
    ],
)
def test_a_missing_column_is_named_beside_those_there_are(name, data, message):
    with pytest.raises(ValueError, match=message):
        prompts_from_bytes(data, name, "words")


def test_parquet_columns_are_named_too():
    data = parquet(id=[1], question=["x"], answer=["y"])
    with pytest.raises(ValueError, match="found columns id, question, answer, expected one named 'words'"):
        prompts_from_bytes(data, "a.parquet", "words")
    with pytest.raises(ValueError, match="found column id of int64, expected text .*question, answer"):
        prompts_from_bytes(data, "a.parquet", "id")


def test_damaged_parquet_is_a_value_error_at_worst():
    data = parquet(id=[1, 2], question=["why so?", "how?"])
    for place in range(0, len(data), 7):
        damaged = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        try:
            prompts_from_bytes(damaged, "a.parquet", "question")
        except ValueError as error:
            assert str(error).startswith("a.parquet: ") and "\n" not in str(error)


def test_size_is_bounded(monkeypatch):
    with pytest.raises(ValueError, match="a.txt: found 16,777,217 bytes, expected at most 16,777,216"):
        prompts_from_bytes(b"x" * (MAX_PROMPT_BYTES + 1), "a.txt")
    monkeypatch.setattr("sequoia_core.prompts.MAX_TEXT_CHARS", 1000)
    with pytest.raises(ValueError, match="more than 1,000 characters"):
        prompts_from_bytes(parquet(text=["x" * 100] * 20), "a.parquet")


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="a.parquet: .*pip install pyarrow"):
        prompts_from_bytes(b"PAR1", "a.parquet")


class Instruct:
    """A tokenizer with a chat template, as far as prompts care."""

    chat_template = "{{ messages }}"

    def encode(self, text):
        return [1, *range(len(text))]

    def apply_chat_template(self, conversation, *, add_generation_prompt, tokenize, return_dict):
        assert add_generation_prompt and tokenize and not return_dict
        assert conversation == [{"role": "user", "content": "hi"}]
        return [7, 0, 1, 8]


def test_instruct_models_get_their_chat_template():
    tokenizer = Instruct()
    assert encode_prompt(tokenizer, "hi") == encode_prompt(tokenizer, "hi", chat=True) == [7, 0, 1, 8]
    assert encode_prompt(tokenizer, "hi", chat=False) == [1, 0, 1]
    tokenizer.chat_template = None
    assert encode_prompt(tokenizer, "hi") == [1, 0, 1]
    with pytest.raises(ValueError, match="without a chat template"):
        encode_prompt(tokenizer, "hi", chat=True)


def test_a_real_chat_template_is_applied_and_a_broken_one_is_named(demo_pair):
    tokenizer = copy.deepcopy(demo_pair.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    assert tokenizer.decode(encode_prompt(tokenizer, "x = 1")) == "<user>x = 1<assistant>"
    tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(ValueError, match="chat template that fails .*no such role"):
        encode_prompt(tokenizer, "x = 1")
