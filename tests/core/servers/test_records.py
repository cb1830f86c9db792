"""What servers say outside their metrics: answers by step and by request, totals, tables, logs; junk in one line."""

import json

import pytest

from sequoia_core.servers import records
from tests.core.servers.samples import AFTER, STEPS, read, step_record, step_records, vllm_text

TIMINGS = {"prompt_n": 6, "predicted_n": 32, "predicted_ms": 29.092, "draft_n": 29, "draft_n_accepted": 23}
TABLE = """subset,num_drafts,num_draft_tokens,acceptance_length,acceptance_at_pos_0,acceptance_at_pos_1
code,1000.0,2000.0,1.9,0.6,0.3
qa,500.0,1000.0,1.8,0.5,0.3
"""
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


def test_records_by_step_keep_every_request():
    counts = read(step_records())
    assert (counts.engine, counts.source, counts.ordered, counts.drafts) == ("vllm", "records by step", True, 567)
    assert counts.positions == (370, 274, 222, 185, 152, 125, 104, 93)
    assert [len(request.accepted) for request in counts.requests] == list(map(len, STEPS))


def test_whole_answers_tell_how_long_they_are():
    answer = {
        "model": "demo",
        "usage": {"completion_tokens": 40},
        "metrics": {"speculative_decoding": step_record("205")},
    }
    for shape in (answer, [answer], {"response": answer}, f"{json.dumps(answer)}\n{json.dumps(answer)}"):
        counts = read(shape)
        assert counts.requests[0] == ((2, 0, 5), (8, 8, 8), 39) and counts.model == "demo"
    other = {"metrics": {"speculative_decoding": None}}
    assert "1 answers without counts" in read([answer, other]).notes[0]


def test_histograms_alone_cannot_be_replayed():
    row = step_record("3125")
    del row["per_step_accepted"], row["per_step_drafted"]
    counts = read([row])
    assert counts.source == "records by request" and not counts.ordered
    assert counts.positions == (4, 3, 2, 1, 1, 0, 0, 0) and "order" in counts.notes[0]


def test_timings_of_llama_cpp_are_totals():
    counts = read({"model": "target.gguf", "timings": TIMINGS})
    assert (counts.engine, counts.source, counts.drafts, counts.positions) == ("llama.cpp", "totals", None, ())
    assert counts.mean_length == pytest.approx(31 / 8)  # 32 tokens, the first by the prompt's pass, 23 accepted


def test_speculators_table_adds_up_over_subsets():
    counts = read(TABLE)
    assert (counts.drafts, counts.draft_tokens, counts.positions) == (1500, 3000, (850, 450))
    assert counts.notes == ("2 subsets, summed.",)


def test_windows_of_a_vllm_log_add_up():
    counts = read(VLLM_LOG * 2)
    assert (counts.source, counts.drafts, counts.draft_tokens) == ("log windows", 198, 396)
    assert counts.positions == (182, 156) and "rounded" in counts.notes[0]


def test_a_llama_cpp_log_tells_totals_of_requests():
    counts = read(LLAMA_LOG)
    assert (counts.source, counts.accepted_tokens, counts.draft_tokens, counts.tokens) == ("totals", 144, 433, 256)
    assert counts.drafts == 109 and counts.mean_length == pytest.approx(1 + 144 / 109, abs=0.01)


def test_an_sglang_log_begins_with_the_time_in_brackets_and_is_no_json():
    counts = read(SGLANG_LOG * 3)
    assert (counts.engine, counts.source, counts.mean_length) == ("sglang", "averages", 2.5)


def changed(**fields):
    return [step_record("205") | fields]


@pytest.mark.sample(40)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "found an empty file"),
        (b"\x00\x01binary", "found binary data, expected text"),
        (b"\xff\xfe\xfa", "found text that is not UTF-16"),
        ("<html>404</html>", "found HTML or XML"),
        ("hello", "found no line of speculative decoding"),
        ("[{}, 3]", "found 2 objects without counts"),
        ('{"num_spec_steps": 1e400}', "found 1e400"),
        (changed(num_spec_steps=4), "request 1: num_spec_steps: found 4, expected 3"),
        (changed(per_step_accepted=[9, 0, 0]), "step 1: found 9 accepted of 8"),
        (changed(per_step_accepted=[1.5, 0, 0]), "per_step_accepted: found"),
        (changed(per_step_accepted=[0, 0]), "found 2 steps accepted and 3 drafted"),
        (changed(num_spec_tokens=10**9), "num_spec_tokens: found '1000000000'"),
        (changed(per_step_accepted=None, acceptance_histogram=[2**50]), "acceptance_histogram: found"),
        ([step_record("2"), step_record("2", 4)], r"found num_spec_tokens \[4, 8\]"),
        ([step_record("2"), {"timings": TIMINGS}], "found llama.cpp and vllm"),
        ({"timings": TIMINGS | {"draft_n": "x"}}, "request 1: draft_n: found 'x'"),
        ({"timings": TIMINGS | {"draft_n_accepted": 40}}, "expected answers that were speculated"),
        (TABLE.replace("0.6", "1.6"), "line 2: found no row of counts"),
        (TABLE.replace("500.0", ""), "line 3: found no row of counts"),
        (TABLE.splitlines()[0], "found another table"),
        (VLLM_LOG.replace("0.919", "9.19"), "expected numbers from 0 to 1"),
        (VLLM_LOG + VLLM_LOG.replace("0.919, 0.788", "0.9"), "found 2 and 1 positions"),
        (VLLM_LOG.replace("Drafted: 198", "Drafted: 98"), "found a window of .* accepted of"),
        (LLAMA_LOG.replace("/   157", "/    57"), "line 2: found 86 accepted of 57 draft tokens"),
        (LLAMA_LOG.replace("mean len", "acceptance rate per position = (0.5, 1.5), mean len"), "line 2: found rates"),
        (SGLANG_LOG.replace("2.50", "0.00"), "line 1: accept len: found 0"),
        (SGLANG_LOG.replace("0.50", "1.50"), "line 1: accept rate: found 1.50"),
        (SGLANG_LOG + "accept len: " + " " * 20_000 + "2.5", "line 2: found 20,015 characters"),
    ],
    ids=str,
)
def test_junk_is_refused_in_one_line(content, said):
    with pytest.raises(ValueError, match=said) as error:
        read(content)
    assert str(error.value).startswith("after: ") and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_only_metrics_have_an_earlier_reading():
    with pytest.raises(ValueError, match="expected two readings of metrics"):
        read(step_records(), vllm_text(*AFTER))


def test_an_engine_that_is_named_refuses_others():
    assert read(step_records(), engine="vllm").drafts == 567
    with pytest.raises(ValueError, match="found what vllm writes, expected sglang"):
        read(step_records(), engine="sglang")
    with pytest.raises(ValueError, match="engine: found 'triton', expected auto, vllm"):
        read(step_records(), engine="triton")


def test_too_many_steps_are_refused(monkeypatch):
    monkeypatch.setattr(records, "MAX_STEPS", 100)
    with pytest.raises(ValueError, match="found more than 100 steps"):
        read(step_records())
