import copy
import csv
import importlib.util
import io
import json
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sequoia_core.files.bounded_process import BoundedProcess, LimitError
from sequoia_core.files.prompt_files import (
    MAX_PROMPT_BYTES,
    READER,
    check_text,
    load_prompts,
    prompts_from_bytes,
    request,
    split_lines,
    text_columns,
)
from sequoia_core.models.prompting import Prompting, encode_prompt
from tests.chat_pair import Reader

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = ROOT / "assets" / "prompts"
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


CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}]
SHAPES = {  # what people have -> its prompts
    "messages": ([{"id": "a", "messages": ANSWERED}], ["Be short.\nWhy?"]),
    "bare chats": ([CHAT, ANSWERED], ["Be short.\nWhy?"] * 2),
    "prompt as chat": ([{"prompt": CHAT, "chosen": "x"}], ["Be short.\nWhy?"]),
    "ShareGPT": (
        [{"id": "7", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}],
        ["Why?"],
    ),
    "MT-bench": ([{"question_id": 9, "category": "maths", "turns": ["Add 1.", "Add 2."]}], ["Add 1.\nAdd 2."]),
    "Alpaca": (
        [{"instruction": "Add.", "input": "1 2", "output": "3"}, {"instruction": "Sing.", "input": "", "output": "La"}],
        ["Add.\n1 2", "Sing."],
    ),
    "texts": ([{"text": "one"}, {"text": "two"}], ["one", "two"]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_of_chats_and_instructions_are_known_in_every_file(shape):
    rows, prompts = SHAPES[shape]
    lines = "\n".join(map(json.dumps, rows)).encode()
    assert prompts_from_bytes(lines, "a.jsonl") == prompts
    if len(rows) > 1 or isinstance(rows[0], dict):  # a list of one chat alone is that chat
        assert prompts_from_bytes(json.dumps(rows, indent=1).encode(), "a.json") == prompts
        assert prompts_from_bytes(json.dumps(rows).encode(), "a.json") == prompts
    if isinstance(rows[0], dict):
        table = {name: [row[name] for row in rows] for name in rows[0]}
        assert prompts_from_bytes(parquet(**table), "a.parquet") == prompts
        cells = [[cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values()] for row in rows]
        written = io.StringIO()
        csv.writer(written).writerows([list(rows[0]), *cells])
        if shape != "prompt as chat":  # a cell called prompt is text
            assert prompts_from_bytes(written.getvalue().encode(), "a.csv") == prompts


def test_an_instruction_that_is_asked_for_brings_its_input():
    rows, prompts = SHAPES["Alpaca"]
    data = "\n".join(map(json.dumps, rows)).encode()
    assert prompts_from_bytes(data, "a.jsonl", "instruction") == prompts
    assert prompts_from_bytes(data, "a.jsonl", "output") == ["3", "La"]
    assert text_columns(data, "a.jsonl") == ["instruction", "output"]


@pytest.mark.parametrize("rows", [[{"id": "a", "dialogue": [1]}], [{"category": "x", "n": 1}], [{"source_url": "x"}]])
def test_a_label_is_no_prompt_because_it_is_the_only_text(rows):
    for data, name in (
        (json.dumps(rows[0]).encode(), "a.jsonl"),
        (parquet(**{key: [value] for key, value in rows[0].items()}), "a.parquet"),
    ):
        with pytest.raises(ValueError, match="or a choice of column"):
            prompts_from_bytes(data, name)


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
        ("a.jsonl", b"{", "line 1: found no readable JSON"),
        ("a.jsonl", CSV, "line 1: found 'id,question,answer', expected JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"words": 1}', "line 2 .keys: words"),
        ("a.jsonl", b'{"text": 3}', "line 1"),
        ("a.jsonl", b"[1]", "entry 1"),
        ("a.jsonl", b"", "no prompts"),
        ("a.txt", b"\n\n", "no prompts"),
        ("a.txt", b"\xff\xfe\x00", "UTF-8"),
        ("a.txt", b"PK\x03\x04\0\0", "binary data"),
        ("a.csv", b"\xff\xfet\0e\0x\0t\0", "UTF-8"),
        ("a.csv", b"", "found columns none"),
        ("a.csv", b"text\n", "no prompts"),
        ("a.csv", CSV, "found columns id, question, answer, expected one named text, prompt, turns"),
        ("a.csv", b"text,id\nx\n", "line 2: found 1 cells, expected the header's 2"),
        ("a.csv", b'text\n"open', "line 2: found broken CSV"),
        ("a.csv", b'messages,id\n"[3]",1\n', "line 2: found a turn '3'"),
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


def test_size_is_bounded(monkeypatch):
    with pytest.raises(ValueError, match="a.txt: found 16,777,217 bytes, expected at most 16,777,216"):
        prompts_from_bytes(b"x" * (MAX_PROMPT_BYTES + 1), "a.txt")
    monkeypatch.setattr("sequoia_core.files.prompt_files.MAX_TEXT_CHARS", 1000)
    with pytest.raises(ValueError, match="more than 1,000 characters"):
        prompts_from_bytes(parquet(text=["x" * 100] * 20), "a.parquet")


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="a.parquet: .*pip install pyarrow"):
        prompts_from_bytes(b"PAR1", "a.parquet")


class Instruct:
    """A tokenizer with a chat template, as far as prompts care."""

    chat_template = "<{{ messages[0].content }}>"
    special_tokens_map = {}

    def encode(self, text, add_special_tokens=True):
        return [1, *range(len(text))] if add_special_tokens else [7, *range(len(text) - 2), 8]

    def get_chat_template(self):
        return self.chat_template


def test_instruct_models_get_their_chat_template():
    tokenizer = Instruct()
    assert (
        encode_prompt(Reader(tokenizer), "hi")
        == encode_prompt(Reader(tokenizer), "hi", Prompting(True))
        == [7, 0, 1, 8]
    )
    assert encode_prompt(Reader(tokenizer), "hi", Prompting(False)) == [1, 0, 1]
    tokenizer.chat_template = None
    assert encode_prompt(Reader(tokenizer), "hi") == [1, 0, 1]
    with pytest.raises(ValueError, match="without a chat template"):
        encode_prompt(Reader(tokenizer), "hi", Prompting(True))


def test_a_real_chat_template_is_applied_and_a_broken_one_is_named(demo_pair):
    tokenizer = copy.deepcopy(demo_pair.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    assert tokenizer.decode(encode_prompt(Reader(tokenizer), "x = 1")) == "<user>x = 1<assistant>"
    tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(ValueError, match="chat template that fails .*no such role"):
        encode_prompt(Reader(tokenizer), "x = 1")


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_only_line_feeds_end_a_line(mark):
    """str.splitlines also splits at these, in the middle of valid JSON or of a program with form feeds."""
    text = f"one{mark}two"
    if mark >= " ":
        data = json.dumps({"text": text}, ensure_ascii=False).encode()
        assert prompts_from_bytes(data + b"\r\n" + data + b"\n", "a.jsonl") == [text, text]
    assert prompts_from_bytes(f"{text}\nthree\r\nfour\rfive".encode(), "a.txt") == [text, "three", "four", "five"]
    assert prompts_from_bytes(f"id,text\n1,{text}\n".encode(), "a.csv") == [text]
    assert split_lines(f"{text}\n\n  \nthree") == [text, "three"]


@pytest.mark.parametrize("half", ["\ud800", "\udfff", "a\ud83d\ud83d\ude00", "\udce9"])
def test_half_of_a_surrogate_pair_is_refused_wherever_a_prompt_comes_in(half, demo_pair):
    with pytest.raises(ValueError, match="prompt: found half of a surrogate pair .U.D.* at character"):
        check_text(half)
    for chat in (None, False):
        with pytest.raises(ValueError, match="surrogate"):
            encode_prompt(demo_pair, half, Prompting(chat))
    for row in ({"text": half}, {"text": "fine", "note": half}, {half: "x", "text": "fine"}):
        with pytest.raises(ValueError, match="a.jsonl: line 2: found half of a surrogate pair") as caught:
            prompts_from_bytes(b'{"text": "fine"}\n' + json.dumps(row).encode(), "a.jsonl")
        str(caught.value).encode()  # can itself be shown
    check_text("\U0001f600 \u2028 \0 \u202e"), check_text("")


@pytest.mark.parametrize(
    "line",
    ['{"text": "x", "n": NaN}', '{"text": "x", "text": "y"}', '{"text": "x", "n": 1e999}', "{" * 10_000, "[" * 10_000],
)
def test_ambiguous_json_lines_are_named(line):
    with pytest.raises(ValueError, match="a.jsonl: line 2: found"):
        prompts_from_bytes(b'{"text": "fine"}\n' + line.encode(), "a.jsonl")


@pytest.mark.parametrize("value", [None, True, 3, 0.5, [1], [[]], {"text": "x"}, [], {}, 0, False])
@pytest.mark.parametrize("key", ["text", "prompt"])
def test_a_prompt_of_another_type_is_named(key, value):
    with pytest.raises(ValueError, match="a.jsonl: line 1 .keys: "):
        prompts_from_bytes(json.dumps({key: value}).encode(), "a.jsonl")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_columns_are_few_enough_to_choose_from(name):
    names = [f"c{i}" for i in range(1001)]
    data = {
        "a.csv": ",".join(names).encode() + b"\n",
        "a.jsonl": json.dumps(dict.fromkeys(names, "x")).encode(),
        "a.parquet": parquet(**dict.fromkeys(names, ["x"])) if name == "a.parquet" else b"",
    }[name]
    for read in (prompts_from_bytes, text_columns):
        with pytest.raises(ValueError, match=f"{name}: .*found 1,001 columns, expected at most 1,000"):
            read(data, name)


def peaks_of(code: str, path) -> tuple[str, int, int]:
    """Read a file in a process of its own: what it printed, how much memory it took, and its child, in bytes."""
    program = f"""
import resource, sys
from sequoia_core.files.prompt_files import load_prompts, text_columns
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {code}
except ValueError as error:
    print(error)
own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(1024 * (own - before), 1024 * child)
"""
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    *told, figures = run.stdout.strip().splitlines()
    own, child = map(int, figures.split())
    return " ".join(told), own, child


def refused(path) -> str:
    """Load a bomb, hold it to its limits, and return what was said."""
    told, own, child = peaks_of("load_prompts(sys.argv[1])", path)
    assert told.startswith(f"{path}: found ") and ", expected at most " in told
    assert own < 60_000_000 and child < 1_300_000_000
    return told


def written(tmp_path, columns, **options):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(arrow.table(columns), path, **options)
    return path


BOMB = 80_000_000  # characters


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize(
    ("compression", "options"),
    [
        ("zstd", {}),
        ("zstd", {"use_dictionary": False}),
        ("zstd", {"data_page_version": "2.0"}),
        ("gzip", {}),
        ("brotli", {"use_dictionary": False}),
    ],
)
def test_a_parquet_bomb_is_refused(compression, options, tmp_path):
    path = written(tmp_path, {"text": ["x" * BOMB]}, compression=compression, **options)
    assert path.stat().st_size < 1_000_000
    assert "found more than 67,108,864 characters" in refused(path)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("length, rows", [(100_000_000, 30), (1_000_000, 1_000_000), (67, 1_000_000)])
def test_a_text_that_is_repeated_without_end_is_refused(length, rows, tmp_path):
    """3 GB of one row group, 1 TB of many, and little more than is taken: a dictionary makes them a few bytes each."""
    arrow = pytest.importorskip("pyarrow")
    indices = arrow.array(np.zeros(rows, np.int32))
    path = written(
        tmp_path, {"text": arrow.DictionaryArray.from_arrays(indices, ["x" * length + " "])}, compression="zstd"
    )
    assert path.stat().st_size < 200_000
    assert "1024 MiB of memory" in refused(path) or length < 100_000_000


@pytest.mark.slow
def test_a_bomb_in_another_column_is_never_touched(tmp_path):
    path = written(tmp_path, {"text": ["fine"], "other": ["x" * BOMB]}, compression="zstd")
    told, own, child = peaks_of(
        "print(load_prompts(sys.argv[1]), text_columns(open(sys.argv[1], 'rb').read(), 'a.parquet'))", path
    )
    assert told == "['fine'] ['text', 'other']" and own < 60_000_000 and child < 200_000_000


def test_many_row_groups_are_counted_together(tmp_path):
    path = written(
        tmp_path, {"text": ["x" * 10_000_000] * 8}, compression="zstd", row_group_size=1, use_dictionary=False
    )
    refused(path)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_a_footer_that_lies_about_the_size_does_not_help(tmp_path):
    path = written(tmp_path, {"text": ["x" * BOMB]}, compression="zstd", use_dictionary=False)
    import pyarrow.parquet

    column = pyarrow.parquet.read_metadata(path).row_group(0).column(0)
    claimed = varint(2 * column.total_uncompressed_size)  # zigzag
    data = path.read_bytes()
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    small = bytearray(varint(2 * 100))
    small = bytes(
        [*(byte | 0x80 for byte in small[:-1]), small[-1] | 0x80, *[0x80] * (len(claimed) - len(small) - 1), 0]
    )
    assert data[footer:].count(claimed) >= 1 and len(small) == len(claimed)
    lying = data[:footer] + data[footer:].replace(claimed, small)
    path.write_bytes(lying)
    assert pyarrow.parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 100
    refused(path)


def test_endless_empty_rows_are_refused(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    path = written(tmp_path, {"text": arrow.nulls(50_000_000, arrow.string())})
    assert path.stat().st_size < 200_000
    assert "found 50,000,000 rows, expected at most 1,000,000" in refused(path)


def test_encodings_that_repeat_what_came_before_are_refused(tmp_path):
    """DELTA_BYTE_ARRAY says each text as what it shares with the last: 1 MB becomes 100 MB without any compression."""
    texts = ["x" * 1_000_000 + str(i) for i in range(100)]
    path = written(
        tmp_path, {"text": texts}, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY", compression="none"
    )
    assert path.stat().st_size < 4_000_000
    refused(path)


def test_a_schema_is_named_in_a_line(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    for levels, said in ((90, "found column text of struct<a: .*, expected text"), (600, "nested, .*expected parquet")):
        kind = arrow.string()
        for _ in range(levels):
            kind = arrow.struct([("a", kind)])
        path = written(tmp_path, {"text": arrow.nulls(1, kind)})
        with pytest.raises(ValueError, match=said) as caught:
            load_prompts(path, "text")
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_what_other_writers_write_is_read(encoding, version, compression, tmp_path):
    texts = [f"prompt {i} ü" for i in range(3000)]
    options = {"use_dictionary": False, "column_encoding": encoding, "data_page_version": version}
    columns = {"id": list(range(3000)), "text": texts, "a.b": texts}
    path = written(
        tmp_path,
        columns,
        compression=compression,
        data_page_size=2000,
        row_group_size=1000,
        **{**options, "column_encoding": {"text": encoding, "a.b": encoding}},
    )
    assert load_prompts(path) == texts and load_prompts(path, "a.b") == texts


def damaged_reads(data: bytes, damaged) -> None:
    """Read damaged files one after the other in one child process: a fault is one line, whatever the reader does."""
    with BoundedProcess(**READER) as reader:
        for each in damaged:
            try:
                reader.ask(request("prompts", each))
            except (ValueError, LimitError) as error:
                assert "\n" not in str(error)
        assert reader.ask(request("prompts", data))  # it still reads what is whole


def test_damaged_parquet_is_a_fault_at_worst():
    data = parquet(question=["why so?", "how?"])
    damaged_reads(data, (data[:i] + bytes([data[i] ^ 0x55]) + data[i + 1 :] for i in range(0, len(data), 7)))


def test_damaged_page_headers_are_a_fault_at_worst():
    data = parquet(text=[f"{i}" * 9 for i in range(300)])
    flips = ((i, flip) for i in range(4, 400) for flip in (0xFF, 0x01, 0x80))
    damaged_reads(data, (data[:i] + bytes([data[i] ^ flip]) + data[i + 1 :] for i, flip in flips))


@pytest.mark.parametrize("kind", ["prose", "chat"])
def test_shipped_prompts_outside_code_are_original_and_fit_the_demo_pair(kind, demo_pair):
    def passages(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return set(zip(*(words[start:] for start in range(8)), strict=False))

    rows = [json.loads(line) for line in (PROMPTS / f"{kind}.jsonl").read_text().splitlines()]
    texts = load_prompts(PROMPTS / f"{kind}.jsonl")
    assert texts == [row["text"] for row in rows] and len(texts) == 24
    assert {row["source"] for row in rows} == {"written for Sequoia Studio"}
    everywhere = Counter(
        each for file in PROMPTS.glob("*.jsonl") for text in load_prompts(file) for each in passages(text)
    )
    for text in texts:
        assert text == text.strip()  # the tokenizer joins a last space with what follows
        assert 24 <= len(encode_prompt(demo_pair, text)) <= 200
        assert all(everywhere[each] == 1 for each in passages(text)), text  # no eight words of another prompt
    if kind == "prose":
        assert all(40 <= len(text.split()) <= 120 for text in texts)


def test_the_card_has_a_row_for_every_kind_of_shipped_prompt(demo_pair, monkeypatch):
    spec = importlib.util.spec_from_file_location("recipe", ROOT / "scripts" / "make_demo_assets.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    assert set(recipe.KINDS_OF_TEXT) == {file.stem for file in PROMPTS.glob("*.jsonl")}
    card = (ROOT / "assets" / "demo" / "README.md").read_text()
    rows = {cells[1].strip(): cells for line in card.splitlines() if len(cells := line.split("|")) == 8}
    losses = {kind: float(rows[kind][2]) for kind in recipe.KINDS_OF_TEXT}
    assert min(losses["prose"], losses["chat"]) > 1.5 * max(losses["prompts"], losses["edits"])
    monkeypatch.setattr(recipe, "KIND_PROMPTS", 2)
    assert recipe.kind_row(demo_pair, "prose", new_tokens=24).count("|") == len(rows["prose"]) - 1
