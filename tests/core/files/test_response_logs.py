"""Recorded requests are read from common layouts; damaged and hostile logs are refused."""

import json

import pytest

from sequoia_core.files.response_logs import RecordedRequest, load_responses, responses_from_bytes

LAYOUTS = [  # of the same request
    {"prompt": "Hello", "response": "Hi"},
    {"question": "Hello", "answer": "Hi"},
    {"instruction": "Hello", "input": "", "output": "Hi"},
    {"prompt": [{"role": "user", "content": "Hello"}], "response": "Hi"},
    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": "Hi"},
        ]
    },
    {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]},
    {"prompt": "Hello", "choices": [{"text": "Hi"}]},
    {
        "request": {"messages": [{"role": "user", "content": "Hello"}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "Hi"}}]},
    },
    {
        "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
        "response": "Hi",
    },
    {
        "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}],
        "choices": [{"text": "Hi"}],
    },
    {"prompt": "Hello", "output": "Hi", "answer": "Hi"},
    {"prompt": "Hello", "response": "Hi", "output": None},
]


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows).encode()


@pytest.mark.parametrize("write", [lines, lambda *rows: json.dumps(rows).encode()], ids=["lines", "a list"])
def test_common_layouts_are_read(write):
    assert responses_from_bytes(write(*LAYOUTS), "log") == [RecordedRequest("Hello", "Hi")] * len(LAYOUTS)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
def test_encodings_are_detected(encoding):
    data = lines({"prompt": "H\xe9llo", "response": "Hi"}, {"text": "A", "output": "b"})
    assert responses_from_bytes(data.decode().encode(encoding), "log.jsonl") == [
        RecordedRequest("H\xe9llo", "Hi"),
        RecordedRequest("A", "b"),
    ]


def test_later_questions_are_not_part_of_the_first_prompt():
    data = lines({"turns": ["One?", "Two?"], "output": "1"})
    assert responses_from_bytes(data, "log") == [RecordedRequest("One?", "1")]


def test_system_prompts_and_contexts_are_read():
    rows = [
        {"system_prompt": "Be short.", "question": "A?", "response": "a"},
        {"system": "Be short.", "messages": [{"role": "user", "content": "A?"}], "response": "a"},
        {
            "System": "Be short.",
            "conversations": [{"from": "human", "value": "A?"}, {"from": "gpt", "value": "a"}],
        },
        {
            "system": "Be long.",
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "A?"}],
            "response": "a",
        },
        {"question": "Who?", "context": "Me.", "answer": "a"},
    ]
    assert responses_from_bytes(lines(*rows), "log") == [*[("Be short.\nA?", "a")] * 4, ("Who?\nMe.", "a")]


def test_all_choices_are_read():
    texts = [{"text": text} for text in "abcd"]
    both = lines({"prompt": "1", "choices": texts[:2]}, {"prompt": "2", "choices": texts[2:]})
    wanted = [("1", "a"), ("1", "b"), ("2", "c"), ("2", "d")]
    assert responses_from_bytes(both, "log") == wanted


def test_token_ids_are_read():
    found = responses_from_bytes(lines({"prompt_ids": [1, 2], "token_ids": [3], "prompt": "x", "response": "y"}), "a")
    assert found == [RecordedRequest([1, 2], [3])] and not found[0].is_text


def test_each_answer_of_a_chat_is_a_request():
    turns = [("system", "Be short"), ("user", "A?"), ("assistant", "a"), ("user", "B?"), ("assistant", "b")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    assert responses_from_bytes(lines(row), "log") == [
        RecordedRequest("Be short\nA?", "a"),
        RecordedRequest("Be short\nA?\na\nB?", "b"),
    ]


def test_empty_answers_are_skipped_with_a_warning(tmp_path):
    path = tmp_path / "log.jsonl"
    call = {"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": None}]}
    path.write_bytes(lines({"prompt": "1", "response": "a"}, {"prompt": "2", "response": ""}, call) + b"\n\n")
    with pytest.warns(UserWarning, match=r"2 of 3 answers are empty and were skipped"):
        assert load_responses(path) == [RecordedRequest("1", "a")]


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "log: found no answers"),
        (b'{"prompt": "a", "output": "b", "answer": "c"}', "found different answers in output, answer, expected one"),
        (b'{"prompt": ["a", "b"], "response": "c"}', """found prompt .*'a', 'b'.*, expected text"""),
        (b'{"prompt": ["a", "b"], "choices": [{"text": "c"}]}', """found prompt .*'a', 'b'.*, expected text"""),
        (
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "output": "c"}',
            "line 1: found a chat that ends with 'b' and a different answer, expected one answer",
        ),
        (b"prompt,response\na,b\n", "line 1: found 'prompt,response', expected JSON: .*.not CSV or Parquet"),
        (b'{"prompt": "a", "response": "b"}\n{"text": "c"}', "line 2: found keys text, expected prompt and response"),
        (b'{"prompt": 3, "response": "b"}', "line 1: found prompt '3', expected text"),
        (b'{"prompt_ids": [true], "token_ids": [1]}', "found prompt_ids"),
    ],
)
def test_invalid_logs_are_refused(data, message):
    with pytest.raises(ValueError, match=message) as error:
        responses_from_bytes(data, "log")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
