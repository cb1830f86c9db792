"""Answers by step and by request, totals and logs; junk is refused in one line."""

import json

import pytest

from tests.extras.servers.samples import STEPS, read, step_record, step_records, vllm_text

TIMINGS = {"prompt_n": 6, "predicted_n": 32, "predicted_ms": 29.092, "draft_n": 29, "draft_n_accepted": 23}
VLLM_LOG = (
    "(APIServer pid=1) INFO 06-01 22:00:52 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.71, "
    "Accepted throughput: 0.68 tokens/s, Drafted throughput: 0.80 tokens/s, Accepted: 169 tokens, Drafted: 198 tokens, "
    "Per-position acceptance rate: 0.919, 0.788, Avg Draft acceptance rate: 85.4%\n"
)
LLAMA_LOG = """0.00.542.015 I slot print_timing: id  0 | task 1 |  eval time = 201.17 ms /   128 tokens (  1.58 ms per token)
0.00.542.022 I slot print_timing: id  0 | task 1 | draft acceptance = 0.54777 (   86 accepted /   157 generated), mean len =  3.15
0.00.936.247 I slot print_timing: id  0 | task 44 |  prompt eval time = 14.85 ms /    59 tokens (  0.25 ms per token)
0.00.936.247 I slot print_timing: id  0 | task 44 |  eval time = 377.05 ms /   128 tokens (  2.97 ms per token)
0.00.936.266 I slot print_timing: id  0 | task 44 | draft acceptance = 0.21014 (   58 accepted /   276 generated), mean len =  1.84
"""  # noqa: E501
SGLANG_LOG = (
    "[2026-09-18 13:10:01 TP0] Decode batch, #running-req: 2, #token: 90, accept len: 2.50, accept rate: 0.50\n"
)


def test_records_by_step_include_every_request():
    counts = read(step_records())
    assert (counts.engine, counts.source, counts.ordered, counts.drafts) == ("vllm", "records by step", True, 567)
    assert counts.positions == (370, 274, 222, 185, 152, 125, 104, 93)
    assert [len(request.accepted) for request in counts.requests] == list(map(len, STEPS))


def test_answer_lengths_are_read_from_whole_answers():
    answer = {
        "model": "demo",
        "usage": {"completion_tokens": 40},
        "metrics": {"speculative_decoding": step_record("205")},
    }
    for shape in (answer, [answer], {"response": answer}, f"{json.dumps(answer)}\n{json.dumps(answer)}"):
        counts = read(shape)
        assert counts.requests[0] == ((2, 0, 5), (8, 8, 8), 39) and counts.model == "demo"
    assert read(step_record("205") | {"metrics": None, "usage": None}).requests[0].accepted == (2, 0, 5)
    other = {"metrics": {"speculative_decoding": None}}
    assert "1 answers without counts" in read([answer, other]).notes[0]


def test_llama_cpp_timings_are_totals():
    counts = read({"model": "target.gguf", "timings": TIMINGS})
    assert (counts.engine, counts.source, counts.drafts, counts.positions) == ("llama.cpp", "totals", None, ())
    assert counts.mean_length == pytest.approx(31 / 8)  # 32 tokens, the first by the prompt's pass, 23 accepted
    assert read({"timings": TIMINGS | {"predicted_n": 24}}).mean_length is None  # an end within the first step


def test_malformed_json_lines_are_skipped():
    row = json.dumps(step_record("205"))
    counts = read(f"{row}\n{row[:50]}\n{row}\n{row[:-9]}")
    assert counts.drafts == 6 and counts.notes[0].startswith("Skipped: line 2: found invalid JSON")
    assert counts.notes[1].startswith("Skipped: line 4:")


@pytest.mark.parametrize("time", [{}, {"time": "2026-01-01T00:00:00.1Z"}])
def test_a_docker_json_log_is_read(time):
    rows = [json.dumps({"log": f"{line}\n", "stream": "stderr"} | time) for line in LLAMA_LOG.splitlines()]
    assert read("\n".join(rows)) == read(LLAMA_LOG)
    assert read("\n".join([*rows, rows[0][:20]])).notes[-1].startswith("Skipped: line 6")


def test_chunks_of_a_stream_count_as_one_answer():
    """With timings_per_token every chunk has the totals so far."""
    chunks = [
        {"id": name, "timings": {"predicted_n": 4 * n, "draft_n": 5 * n, "draft_n_accepted": 2 * n}}
        for name in ("chatcmpl-a", "chatcmpl-b")
        for n in range(1, 9)
    ]
    counts = read("\n".join(map(json.dumps, chunks)))
    assert (counts.draft_tokens, counts.accepted_tokens, counts.tokens, counts.requests_done) == (80, 32, 64, 2)
    assert "14 stream chunks" in counts.notes[0]
    assert read([chunk["timings"] for chunk in chunks]).requests_done == 16
    own = [{"timings": chunk["timings"], "stop": n == 7} for n, chunk in enumerate(chunks[:8])]
    assert read(own).draft_tokens == 40 and read(own).notes[0] == "7 answers without counts were skipped."


def test_drafts_emptied_by_a_grammar_are_read():
    """vLLM takes their tokens off what it drafted, so that drafts may be more."""
    record = step_record("1010", 1) | {"per_step_drafted": [1, 0, 1, 1], "num_draft_tokens": 3}
    log = VLLM_LOG.replace("169", "800").replace("198", "990").replace("0.919, 0.788", "0.800")
    for content in (vllm_text(1000, 990, 800, (800,), 1810, 10), log):
        found = read(content)
        assert (found.drafts, found.draft_tokens, found.positions) == (1000, 990, (800,))
    assert (read([record]).drafts, read([record]).draft_tokens) == (4, 3)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_json_lines_are_decoded_by_their_byte_order_mark(encoding):
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in [step_record("205") | {"model": "é\u2028"}] * 2)
    assert read(lines.encode(encoding)) == read(lines)


def test_answers_without_a_draft_count_as_steps():
    """llama.cpp leaves out draft_n where nothing was drafted."""
    plain = {name: TIMINGS[name] for name in ("prompt_n", "predicted_n", "predicted_ms")}
    found = read([{"timings": TIMINGS}, {"timings": plain}])
    assert found.all_steps == 8 + 31 and found.requests_done == 2


def test_an_sglang_log_with_bracketed_times_is_not_json():
    counts = read(SGLANG_LOG * 3)
    assert (counts.engine, counts.source, counts.mean_length) == ("sglang", "averages", 2.5)


def changed(**fields):
    return [step_record("205") | fields]


@pytest.mark.sample(22)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "found an empty file"),
        (b"\x00\x01binary", "found binary data, expected text"),
        (b"\xff\xfe\xfa", "found text that is not UTF-16"),
        ("<html>404</html>", "found HTML or XML"),
        ("hello", "found no line about speculative decoding"),
        ([{"log": "b", "time": "2026-01-02"}, {"log": "a", "time": "2026-01-01"}], "begins with its newest line"),
        ('{"num_spec_steps": 1e400}', "found 1e400"),
        (changed(num_spec_steps=4), "request 1: num_spec_steps: found 4, expected 3"),
        (changed(per_step_accepted=[9, 0, 0]), "step 1: found 9 accepted of 8"),
        (changed(per_step_accepted=[0, 0]), "found accepted tokens for 2 steps and drafted tokens for 3"),
        (changed(num_spec_tokens=10**9), "num_spec_tokens: found '1000000000'"),
        (changed(per_step_accepted=None, acceptance_histogram=[2**50]), "acceptance_histogram: found"),
        (changed(num_draft_tokens=4), "request 1: num_draft_tokens: found 4, expected 24"),
        (changed(num_accepted_draft_tokens=6), "num_accepted_draft_tokens: found 6, expected 7"),
        (changed(acceptance_histogram=[3]), r"acceptance_histogram: found \[3\]"),
        (changed(per_step_accepted=None, num_draft_tokens=25), "found 25 draft tokens in 3 drafts of K = 8"),
        (changed(completion_tokens=2), "request 1: found 2 tokens generated by 3 drafts"),
        ([step_record("2"), {"timings": TIMINGS}], "found answers from llama.cpp and vllm"),
        ({"timings": TIMINGS | {"draft_n": "x"}}, "request 1: draft_n: found 'x'"),
        ({"timings": TIMINGS | {"draft_n_accepted": 40}}, "request 1: found 40 accepted of 29"),
        ("83.42\n51.3\n", "found numbers outside the range 0 to 1, .* divide percentages by 100"),
        (VLLM_LOG.replace("0.919", "9.19"), "expected numbers from 0 to 1"),
    ],
    ids=str,
)
def test_junk_is_refused_in_one_line(content, said):
    with pytest.raises(ValueError, match=said) as error:
        read(content)
    assert str(error.value).startswith("after: ") and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_named_engine_refuses_other_engines():
    assert read(step_records(), engine="vllm").drafts == 567
    with pytest.raises(ValueError, match="found output from vllm, expected sglang"):
        read(step_records(), engine="sglang")
    with pytest.raises(ValueError, match="engine: found 'triton', expected auto, vllm"):
        read(step_records(), engine="triton")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (VLLM_LOG, "an unnamed model"),
        ([step_record("205") | {"model": "demo"}], "demo"),
        ("statistics draft: #gen drafts = 2, #gen tokens = 8, #acc tokens = 3, \n", "draft"),
    ],
)
def test_an_unknown_model_is_refused(content, found):
    with pytest.raises(ValueError, match=f"^after: --model: found counts of {found}, expected 'nonsense'"):
        read(content, model="nonsense")
    assert read(content, model=None if " " in found else found).engine


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("83.4%\n71%\n", "percentages"),
        ("Speculative metrics: Draft acceptance rate: 0.5\n", "a log from vLLM's first engine"),
    ],
)
def test_an_unsupported_format_is_named(content, named):
    with pytest.raises(ValueError, match=f"^after: found {named}.*, expected metrics, a log"):
        read(content)
