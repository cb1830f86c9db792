"""Logs of requests: the usual shapes, each with the same content; damaged and hostile ones."""

import json

import pytest

from sequoia_core.files.response_logs import Recorded, load_responses, responses_from_bytes

SAME = [
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
def test_usual_shapes(write):
    assert responses_from_bytes(write(*SAME), "log") == [Recorded("Hello", "Hi")] * len(SAME)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
def test_logs_are_decoded(encoding):
    data = lines({"prompt": "H\xe9llo", "response": "Hi"}, {"text": "A", "output": "b"})
    assert responses_from_bytes(data.decode().encode(encoding), "log.jsonl") == [
        Recorded("H\xe9llo", "Hi"),
        Recorded("A", "b"),
    ]


def test_the_second_question_is_no_part_of_the_first_answers_prompt():
    data = lines({"turns": ["One?", "Two?"], "output": "1"})
    assert responses_from_bytes(data, "log") == [Recorded("One?", "1")]


def test_a_system_prompt_and_a_context_are_read():
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


def test_every_choice_of_a_request_is_read():
    texts = [{"text": text} for text in "abcd"]
    both = lines({"prompt": "1", "choices": texts[:2]}, {"prompt": "2", "choices": texts[2:]})
    wanted = [("1", "a"), ("1", "b"), ("2", "c"), ("2", "d")]
    assert responses_from_bytes(both, "log") == wanted


def test_token_ids_stay_what_they_are():
    found = responses_from_bytes(lines({"prompt_ids": [1, 2], "token_ids": [3], "prompt": "x", "response": "y"}), "a")
    assert found == [Recorded([1, 2], [3])] and not found[0].is_text


def test_each_answer_of_a_chat_is_a_request():
    turns = [("system", "Be short"), ("user", "A?"), ("assistant", "a"), ("user", "B?"), ("assistant", "b")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    assert responses_from_bytes(lines(row), "log") == [
        Recorded("Be short\nA?", "a"),
        Recorded("Be short\nA?\na\nB?", "b"),
    ]


def test_order_is_kept_and_empty_answers_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    call = {"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": None}]}
    path.write_bytes(lines({"prompt": "1", "response": "a"}, {"prompt": "2", "response": ""}, call) + b"\n\n")
    with pytest.warns(UserWarning, match=r"found 2 of 3 answers empty: they are left out"):
        assert load_responses(path) == [Recorded("1", "a")]


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
            "line 1: found a chat that ends with 'b' and another answer, expected one answer",
        ),
        (b"prompt,response\na,b\n", "line 1: found 'prompt,response', expected JSON: .*.not CSV or parquet"),
        (b'{"prompt": "a", "response": "b"}\n{"text": "c"}', "line 2: found keys text, expected prompt and response"),
        (b'{"prompt": 3, "response": "b"}', "line 1: found prompt '3', expected text"),
        (b'{"prompt_ids": [true], "token_ids": [1]}', "found prompt_ids"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(data, message):
    with pytest.raises(ValueError, match=message) as error:
        responses_from_bytes(data, "log")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
