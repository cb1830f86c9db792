"""Prompts are read from common file layouts; damaged files and decompression bombs are refused."""

import csv
import gzip
import io
import json
import subprocess
import sys

import pytest

from sequoia_core.files.prompt_files import load_prompts, prompt_columns, prompts_from_bytes
from sequoia_core.files.prompt_rows import Chat
from sequoia_core.files.safe_files import MAX_BYTES
from tests.hostile_files import damaged

CSV = b'id,question,answer\n1,"why, though?",because\n2,"two\nlines",\n3,,empty\n'


def parquet(**columns) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(arrow.table(columns), buffer)
    return buffer.getvalue()


def test_prompts_are_read_from_jsonl_and_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one\\ntwo"}\n\n{"prompt": "three"}\n')
    (tmp_path / "b.txt").write_text("first\n\nsecond\n")
    assert load_prompts(tmp_path / "a.jsonl") == ["one\ntwo", "three"]
    assert load_prompts(tmp_path / "b.txt") == ["first", "second"]


def test_the_column_option_selects_the_prompts():
    assert prompts_from_bytes(CSV, "a.csv", "question", count=2) == ["why, though?", "two\nlines"]
    assert prompts_from_bytes(CSV.replace(b",", b"\t"), "a.tsv", "answer", count=1) == ["because"]
    rows = b'{"id": "x", "question": "why?", "text": "no"}\n{"question": "how?"}'
    assert prompts_from_bytes(rows, "a.jsonl", "question") == ["why?", "how?"]


def test_the_default_column_has_a_usual_name_or_is_the_only_text():
    assert prompts_from_bytes(b"id,Prompt,note\n1,hello,x\n", "a.CSV") == ["hello"]
    assert prompts_from_bytes(b"id,words,score\n1,hello,0.5\n2,7,1e3\n", "a.csv") == ["hello", "7"]
    assert prompts_from_bytes("\ufefftext\ngrüße\n".encode(), "a.csv") == ["grüße"]


CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}]
ASKED = Chat((("system", "Be short."), ("user", "Why?")))
SHAPES = {  # layout -> (rows, prompts)
    "messages": ([{"id": "a", "messages": ANSWERED}], [ASKED]),
    "bare chats": ([CHAT, ANSWERED], [ASKED] * 2),
    "prompt as chat": ([{"prompt": CHAT, "chosen": "x"}], [ASKED]),
    "ShareGPT": (
        [{"id": "7", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}],
        ["Why?"],
    ),
    "ShareGPT that begins with an answer": (
        [{"conversations": [{"from": "gpt", "value": "Yes?"}, {"from": "human", "value": "Why?"}]}],
        [Chat((("assistant", "Yes?"), ("user", "Why?")))],
    ),
    "MT-bench": ([{"question_id": 9, "category": "maths", "turns": ["Add 1.", "Add 2."]}], ["Add 1."]),
    "Alpaca": (
        [{"instruction": "Add.", "input": "1 2", "output": "3"}, {"instruction": "Sing.", "input": "", "output": "La"}],
        ["Add.\n1 2", "Sing."],
    ),
    "Alpaca as the hub has it": (
        [{"instruction": "Add.", "input": "1 2", "output": "3", "text": "Add. 1 2 ### Response: 3"}],
        ["Add.\n1 2"],
    ),
    "rendered chats": ([{"text": "Q: Why? A: So.", "messages": ANSWERED}], [ASKED]),
    "Dolly": (
        [{"instruction": "Name it.", "context": "A fish.", "response": "Cod", "category": "open_qa"}],
        ["Name it.\nA fish."],
    ),
    "HumanEval": ([{"task_id": "H/0", "prompt": "def f():", "canonical_solution": "1", "test": "x"}], ["def f():"]),
    "UltraChat": ([{"prompt": "Why?", "prompt_id": "9", "messages": ANSWERED}], ["Why?"]),
    "a system prompt": ([{"system_prompt": "Be short.", "prompt": "Why?", "answer": "So."}], [ASKED]),
    "a system prompt of a chat": ([{"system": "Be short.", "messages": ANSWERED[1:]}], [ASKED]),
    "a chat with a system prompt of its own": ([{"system": "Be long.", "messages": ANSWERED}], [ASKED]),
    "no system prompt": ([{"system": "", "instruction": "Why?"}], ["Why?"]),
    "texts": ([{"text": "one"}, {"text": "two"}], ["one", "two"]),
}


@pytest.mark.sample(len(SHAPES))
@pytest.mark.parametrize("shape", SHAPES)
def test_common_dataset_layouts_are_read_in_every_format(shape):
    rows, prompts = SHAPES[shape]
    lines = "\n".join(map(json.dumps, rows)).encode()
    assert prompts_from_bytes(lines, "a.jsonl") == prompts
    if len(rows) > 1 or isinstance(rows[0], dict):  # a list with one chat is that chat
        assert prompts_from_bytes(json.dumps(rows, indent=1).encode(), "a.json") == prompts
    if isinstance(rows[0], dict):
        table = {name: [row[name] for row in rows] for name in rows[0]}
        assert prompts_from_bytes(parquet(**table), "a.parquet") == prompts
        cells = [[cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values()] for row in rows]
        written = io.StringIO()
        csv.writer(written).writerows([list(rows[0]), *cells])
        if shape != "prompt as chat":  # such a cell is plain text
            assert prompts_from_bytes(written.getvalue().encode(), "a.csv") == prompts


LINES = b'{"prompt": "one"}\n{"prompt": "two"}\n'


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("name", "data", "prompts"),
    [
        ("a.jsonlines", LINES, ["one", "two"]),
        ("a.jsonl.txt", LINES, ["one", "two"]),
        ("a.csv", LINES, ["one", "two"]),
        ("a.txt", b'[\n {"prompt": "one"}\n]', ["one"]),
        ("a.txt", b'["one",\n "two"]\n', ["one", "two"]),
        ("a.csv", b'["one, two", "three"]', ["one, two", "three"]),
        ("a.json", b'["one"]', ["one"]),
        ("a.txt", b'["one"] and\n<|user|> two', ['["one"] and', "<|user|> two"]),
        ("a.txt", b'{"a": 1} is what?\n{name}, hi', ['{"a": 1} is what?', "{name}, hi"]),
        ("a.jsonl", LINES.decode().encode("utf-16"), ["one", "two"]),
        ("a.csv", "prompt,id\ngr\xfc\xdfe,1\n".encode("utf-16"), ["gr\xfc\xdfe"]),
        ("a.txt", "gr\xfc\xdfe\ntwo".encode("utf-16"), ["gr\xfc\xdfe", "two"]),
        ("a.csv", b'id;prompt\n1;"one; 1,5"\n2;a, b\n', ["one; 1,5", "a, b"]),
        ("a.csv", b"id\tprompt\n1\tone, two\n", ["one, two"]),
        ("a.tsv", b"id,prompt\n1,one\n", ["one"]),
    ],
)
def test_the_content_overrides_the_suffix(name, data, prompts):
    assert prompts_from_bytes(data, name) == prompts


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("name", "data", "rows"),
    [
        ("a.jsonl", b'{"prompt": null}\n{"prompt": "x"}\n{"prompt": " "}', 3),
        ("a.jsonl", b'{"messages": [{"role": "tool", "content": "y"}]}\n{"prompt": "x"}', 2),
        ("a.csv", b"id,prompt\n1,\n2,x\n", 2),
        ("a.jsonl", b'{"text": "y", "role": "assistant"}\n{"text": "x", "role": "prompter"}', 2),
        ("a.csv", b"Role,text\nsystem,y\nuser,x\nassistant,z\n", 3),
        ("a.parquet", None, 2),
    ],
)
def test_rows_without_a_prompt_are_skipped_with_a_warning(name, data, rows):
    data = parquet(prompt=[None, "x"]) if data is None else data
    with pytest.warns(
        UserWarning,
        match=f"{name}: {rows - 1} of {rows} rows have no prompt and were skipped; the first is (line|row) [12] ",
    ):
        assert prompts_from_bytes(data, name) == ["x"]


def test_reading_stops_after_the_requested_count():
    assert prompts_from_bytes(LINES + b"{broken", "a.jsonl", count=2) == ["one", "two"]
    assert prompts_from_bytes(parquet(prompt=["one", "two"]), "a.parquet", count=1) == ["one"]
    assert prompts_from_bytes(b"one\n\ntwo\nthree", "a.txt", count=2) == ["one", "two"]


def test_a_context_is_appended_to_its_question():
    data = json.dumps({"question": "Who?", "context": "A fish.", "answer": "Cod"}).encode()
    assert prompts_from_bytes(data, "a.jsonl", "question") == ["Who?\nA fish."]
    assert prompts_from_bytes(b'[{"text": "x", "role": "prompter"}]', "a.json") == ["x"]


def test_text_columns_are_listed():
    rows, prompts = SHAPES["Alpaca"]
    data = "\n".join(map(json.dumps, rows)).encode()
    assert prompt_columns(data, "a.jsonl").texts == ["instruction", "input", "output"]
    assert prompts_from_bytes(data, "a.jsonl", "instruction") == prompts  # with its input
    assert prompts_from_bytes(data, "a.jsonl", "output") == ["3", "La"]
    assert prompt_columns(CSV, "a.csv").texts == ["question", "answer"]
    assert prompt_columns(b'{"id": 1, "a": "x", "b": "y"}\n{"a": "z"}', "a.jsonl").texts == ["a"]
    assert prompt_columns(parquet(id=[1], words=["x"], flags=[True]), "a.parquet").usual == "words"


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.sample(30)
@pytest.mark.parametrize(
    ("name", "data", "column", "message"),
    [
        ("a.jsonl", b"{", None, "line 1: found invalid JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"words": 1}', None, "line 2 .keys: words"),
        ("a.jsonl", b'{"text": "x", "id": 1}', "words", 'keys: text, id.*expected an object with the key "words"'),
        ("a.jsonl", b'{"source_url": "x"}', None, "or a column selected"),  # the only text column, but a label
        ("a.jsonl", b"", None, "no prompts"),
        ("a.txt", b"PK\x03\x04\0\0", None, "binary data"),
        ("a.csv", POINTER, None, "found a Git LFS pointer, not the file itself, expected text, JSONL"),
        ("a.parquet", POINTER, None, "found a Git LFS pointer"),
        ("a.txt", b"<!DOCTYPE html>\n<p>Sign in</p>", None, "found HTML or XML, expected text"),
        ("a.jsonl", b"\n<HTML lang=en>\n", None, "found HTML or XML, expected text"),
        ("a.txt", b"text", "words", "found plain text, which has no column 'words'"),
        ("a.csv", CSV, None, "found columns id, question, answer, expected one named prompt, turns"),
        (
            "a.json",
            b'{"schema": "v1", "cases": [{"prompt": "x"}]}',
            None,
            "schema, cases .lists or objects: cases.",
        ),
        ("a.json", b'[{"schema": "x", "cases": {"a": 1}}]', None, "schema, cases .lists or objects: cases."),
        ("a.jsonl", b'{"name": "eval", "data": {"a": "x"}}', None, "name, data .lists or objects: data."),
        ("a.parquet", None, None, "schema, cases .lists or objects: cases."),
        ("a.jsonl", b'{"text": "Why? So.", "output": "So."}', None, "found columns text, output, expected .*--column"),
        ("a.csv", b"text,answer\nWhy? So.,So.\n", None, "found columns text, answer, expected .*--column"),
        ("a.jsonl", b'{"prompt": null}', None, "line 1 .prompt.: found an empty prompt"),
        ("a.csv", b"prompt,prompt\nA,B\n", None, "found the column 'prompt' twice, expected it once"),
        ("a.tsv", b"id\tid\tprompt\n1\t2\tB\n", None, "found the column 'id' twice"),
        ("a.csv", b"id;a\tprompt\n1;x\ty\n", "prompt", "columns id, a.prompt, expected one named 'prompt'"),
        ("a.csv", b"id;prompt, of mine\n1;x\n", None, "line 2: found 1 cells, expected 2 as in the header"),
        ("a.txt", "caf\xe9".encode("cp1252"), None, "found text that is not UTF-8"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "x"}', mtime=0), None, "found a gzip archive"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd\0", None, "a Zstandard archive"),
        ("a.csv", b"text,id\nx\n", None, "line 2: found 1 cells, expected 2 as in the header"),
        ("a.parquet", b"PAR1 not really", None, "expected a Parquet file"),
    ],
)
def test_invalid_prompt_files_are_refused(name, data, column, message):
    data = parquet(schema=["v1"], cases=[[{"prompt": "x"}]]) if data is None else data
    with pytest.raises(ValueError, match=f"{name}: .*{message}") as caught:
        prompts_from_bytes(data, name, column)
    assert "\n" not in str(caught.value)


def test_the_file_size_is_limited(monkeypatch):
    with pytest.raises(ValueError, match="a.txt: found 67,108,865 bytes, expected at most 67,108,864"):
        prompts_from_bytes(b"x" * (MAX_BYTES + 1), "a.txt")
    monkeypatch.setattr("sequoia_core.files.parquet_reading.MAX_TEXT_CHARS", 1000)
    with pytest.raises(ValueError, match="expected at most 1,000 characters"):
        prompts_from_bytes(parquet(text=["x" * 6] * 200), "a.parquet")  # two batches that are small enough individually


def test_a_missing_pyarrow_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"a.parquet: pyarrow is not installed: .*sequoia-studio\[parquet\]"):
        prompts_from_bytes(b"PAR1", "a.parquet")


def test_unicode_line_separators_do_not_end_a_line():
    """str.splitlines would split at these, even inside JSON strings."""
    text = "one\u2028two\x0cthree"
    data = json.dumps({"text": text}, ensure_ascii=False).encode()
    assert prompts_from_bytes(data + b"\r\n" + data + b"\n", "a.jsonl") == [text, text]
    assert prompts_from_bytes(f"{text}\n\n  \nfour\r\nfive\rsix".encode(), "a.txt") == [text, "four", "five", "six"]
    assert prompts_from_bytes(f"id,text\n1,{text}\n".encode(), "a.csv") == [text]


def test_too_many_columns_are_refused():
    names = [f"c{i}" for i in range(1001)]
    data = parquet(**dict.fromkeys(names, ["x"]))
    for read in (prompts_from_bytes, prompt_columns):
        with pytest.raises(ValueError, match="a.parquet: .*found 1,001 columns, expected at most 1,000"):
            read(data, "a.parquet")


MEASURED = """
import re, sys
from pathlib import Path
import pyarrow.parquet
from sequoia_core.files.prompt_files import load_prompts
def peak_memory():  # getrusage would start at the peak of the parent process
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_memory()
try:
    load_prompts(sys.argv[1])
except ValueError as error:
    print(error)
print(peak_memory() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda arrow: ["x" * 80_000_000], "found too much text, expected at most 67,108,864 characters"),
        (
            lambda arrow: arrow.DictionaryArray.from_arrays([0] * 1000, ["x" * 30_000_000]),
            "found too much text, expected at most 67,108,864 characters",
        ),
        (lambda arrow: arrow.nulls(50_000_000, arrow.string()), "found 50,000,000 rows"),
    ],
    ids=["compressed", "one text in many rows", "empty rows"],
)
def test_parquet_bombs_are_refused_in_little_memory(column, said, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(arrow.table({"text": column(arrow)}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 200_000
    run = subprocess.run([sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, timeout=120)
    message, memory = run.stdout.strip().splitlines()
    assert message.startswith(f"{path}: found ") and said in message and int(memory) < 600_000_000, memory


def test_damaged_parquet_raises_only_value_errors():
    data = parquet(text=[f"{i}" * 9 for i in range(300)])
    for each in damaged(data, 7, flips=(0xFF, 0x01)):
        try:
            prompts_from_bytes(each, "a.parquet")
        except ValueError as error:
            assert "\n" not in str(error)
    assert prompts_from_bytes(data, "a.parquet")


def test_row_groups_after_the_last_prompt_are_not_decoded(monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    written = io.BytesIO()
    table = arrow.table({"prompt": ["why?", None, "how?", "x" * 2000]})
    pyarrow.parquet.write_table(table, written, row_group_size=2)
    monkeypatch.setattr("sequoia_core.files.parquet_reading.MAX_UNPACKED", 600)
    assert prompts_from_bytes(written.getvalue(), "a.parquet", count=1) == ["why?"]
    with pytest.raises(ValueError, match="a.parquet: found Parquet data that is too large, expected at most 600"):
        prompts_from_bytes(written.getvalue(), "a.parquet", count=2)
