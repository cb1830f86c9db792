"""What people paste from benchmarks, printouts and other engines: each form is recognised and its counts are right."""

import json

import pytest

from sequoia_extras.servers.diagnosis import diagnose
from sequoia_extras.servers.fitted_acceptance import plan_acceptance
from sequoia_extras.servers.flags import flags_by_batch, method_from_name, server_flags
from sequoia_extras.servers.readings import READERS
from sequoia_extras.servers.request_spread import exclude_collapse, find_collapse
from sequoia_extras.servers.words import doctor_report
from tests.extras.servers.samples import SGLANG_TEXT, read, step_record, vllm_text
from tests.extras.servers.test_records import VLLM_LOG

HEAD = """============ Serving Benchmark Result ============
Successful requests:                     100
Total generated tokens:                  12800
Output token throughput (tok/s):         {speed:.2f}
---------------Time to First Token----------------
Mean TTFT (ms):                          31.20
"""


def report(speed: float, drafts: int, *rates: float) -> str:
    accepted = sum(rates) / 100
    lines = [f"  Position {n}:                            {rate:.2f}" for n, rate in enumerate(rates)]
    return (
        HEAD.format(speed=speed)
        + f"""---------------Speculative Decoding---------------
Acceptance rate (%):                     {100 * accepted / len(rates):.2f}
Acceptance length:                       {1 + accepted:.2f}
Drafts:                                  {drafts}
Draft tokens:                            {drafts * len(rates)}
Accepted tokens:                         {drafts * accepted:.0f}
Per-position acceptance (%):
"""
        + "\n".join([*lines, f"{'=' * 50}\n"])
    )


REPORT = report(106.2, 4000, 80.0, 70.0, 60.0)
SECOND = report(410.8, 6000, 75.0, 50.0, 25.0)
PLAIN = HEAD.format(speed=70.0)
UNTITLED = SECOND.partition("\n")[2]
TOTALS = REPORT[: REPORT.index("Per-position")]
SAVED = {
    "backend": "vllm",
    "model_id": "big",
    "request_throughput": 0.83,
    "output_throughput": 106.2,
    "spec_decode_acceptance_rate": 70.0,
    "spec_decode_acceptance_length": 3.1,
    "spec_decode_num_drafts": 4000,
    "spec_decode_draft_tokens": 12000,
    "spec_decode_accepted_tokens": 8400,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.7, 0.6],
}
SGLANG_REPORT = HEAD.format(speed=95.62) + "Concurrency:       1.00\nAccept length:                           2.91\n"


@pytest.mark.parametrize(
    "content", [REPORT, REPORT.replace("\n", "   \n"), REPORT.replace("\n", "\r\n"), SAVED, [SAVED]], ids=str
)
def test_the_report_of_vllm_bench_serve(content):
    counts = read(content)
    assert (counts.engine, counts.source, counts.drafts) == ("vllm", "benchmark report", 4000)
    assert counts.positions == (3200, 2800, 2400) and counts.draft_tokens == 12_000
    assert plan_acceptance(counts).tokens(3).value == pytest.approx(3.1)
    assert counts.model == ("" if isinstance(content, str) else "big")
    assert "3.10 tokens per step at K = 3." in list(doctor_report(counts, diagnose(counts), None, ()))


def test_a_report_without_positions_or_counts():
    totals = read(TOTALS)
    assert (totals.drafts, totals.tokens_per_step, totals.positions) == (4000, 3.1, ())
    fitted, counted = map(plan_acceptance, (totals, read(REPORT)))
    assert fitted.fitted and fitted.current is None and fitted.tokens(3).value == pytest.approx(3.1)
    for k in (1, 2):  # a smaller K is not in the totals, so its interval covers the counts by position
        assert fitted.tokens(k).low < counted.tokens(k).value < fitted.tokens(k).high
        assert fitted.tokens(k).high - fitted.tokens(k).low > 0.06
    rates = read("Acceptance length: 3.06\nPer-position acceptance (%):\nPosition 0: 76.56\nPosition 1: 68.76\n")
    assert rates.published and rates.positions == (7656, 6876) and "no interval" in rates.notes[0]
    assert read("Acceptance length: 3.06\n").mean_length == 3.06
    for content in (PLAIN, {"request_throughput": 1.5, "duration": 2}):
        with pytest.raises(
            ValueError, match="^after: found a benchmark report without figures on speculative decoding"
        ):
            read(content)
    with pytest.raises(ValueError, match="found acceptance rates .8.0, 0.7, 0.6., expected shares"):
        read(REPORT.replace("80.00", "800.00"))
    with pytest.raises(ValueError, match="found 0.5 tokens per step, expected 1 or more"):
        read("Acceptance length: 0.5\n")


@pytest.mark.parametrize("content", [f"{REPORT}\n{SECOND}", f"{PLAIN}\n{REPORT}\nand\n{UNTITLED}"])
def test_two_reports_are_named_and_not_summed(content):
    counts = read(content)
    assert (counts.source, counts.drafts, counts.positions) == ("report 2", 6000, (4500, 3000, 1500))
    assert "report 1 (4,000 drafts, 3.10 tokens per step, 106.2 tokens per second), report 2 (6,000" in counts.notes[0]
    assert "not summed; only report 2 is used" in counts.notes[0]
    first = read(content, model="report 1")
    assert '(--model "report 1")' in counts.notes[0] and '(--model "report 2")' in first.notes[0]
    assert (first.source, first.drafts) == ("report 1", 4000)
    with pytest.raises(ValueError, match="--model: found counts of an unnamed model, expected 'report 3'"):
        read(content, model="report 3")


def test_the_report_of_sglang():
    for content in (SGLANG_REPORT, {"backend": "sglang", "request_throughput": 2.3, "accept_length": 2.91}):
        counts = read(content)
        assert (counts.engine, counts.drafts, counts.mean_length) == ("sglang", None, 2.91)
    runs = "\n".join(json.dumps({"accept_length": length, "output_throughput": 9.0}) for length in (2.0, 3.0))
    assert "report 2 (3.00 tokens per step, 9.0 tokens per second)" in read(runs).notes[0]


LABELS = "labels={'engine': '0', 'model_name': 'm, 4-bit}'}"
PRINTED = [
    "Gauge(name='vllm:num_requests_running', labels={}, value=0.0)",
    f"Counter(name='vllm:spec_decode_num_drafts', {LABELS}, value=100)",
    f"Counter(name='vllm:spec_decode_num_draft_tokens', {LABELS}, value=300)",
    f"Counter(name='vllm:spec_decode_num_accepted_tokens', {LABELS}, value=180)",
    f"Vector(name='vllm:spec_decode_num_accepted_tokens_per_pos', {LABELS},\n values=[90, 60, 30])",
    f"Counter(name='vllm:generation_tokens', {LABELS}, value=290)",
]


def test_a_printout_of_metrics():
    for content in ("\n".join(PRINTED), f"[{', '.join(PRINTED)}]"):
        counts = read(content)
        assert (counts.engine, counts.model, counts.drafts, counts.tokens) == ("vllm", "m, 4-bit}", 100, 290)
        assert counts.positions == (90, 60, 30)
    twice = "\n".join(PRINTED).replace("=100)", "=150)").replace("[90", "[95").replace("=180", "=185")
    later = read(twice.replace("=300", "=450"), before="\n".join(PRINTED))
    assert (later.drafts, later.accepted_tokens, later.positions) == (50, 5, (5, 0, 0))
    with pytest.raises(ValueError, match="the earlier reading: found no metrics"):
        read(twice, before=vllm_text(1, 3, 1, (1, 0, 0), 4, 1))
    with pytest.raises(ValueError, match="found a printout of metrics without counters"):
        read(PRINTED[0])


def sglang(tokens: int, steps: int, **more) -> dict:
    return {"text": "x", "meta_info": {"completion_tokens": tokens, "spec_verify_ct": steps, **more}}


HISTOGRAM = {
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}


def test_answers_of_sglang_are_totals_over_all_steps():
    counts = read([sglang(130, 50, spec_accept_length=2.6), sglang(70, 40, spec_accept_length=1.75)])
    assert (counts.engine, counts.drafts, counts.steps) == ("sglang", 90, 90)
    assert counts.tokens_per_step == pytest.approx(200 / 90)
    many = read([sglang(260, 100)] * 9)
    assert diagnose(many).verdict.title == "Cannot tell" and "not broken down" in diagnose(many).verdict.says
    assert plan_acceptance(many, draft_length=3).fitted
    binned = read(sglang(106, 43, **HISTOGRAM))
    assert binned.positions == (32, 18, 7, 3, 3) and binned.draft_tokens == 215
    assert binned.tokens_per_step == pytest.approx(106 / 43)
    tree = read(sglang(106, 43, **HISTOGRAM | {"spec_num_proposed_drafts": 430}))
    assert (tree.positions, tree.draft_tokens, tree.tokens_per_step) == ((), 430, pytest.approx(106 / 43))
    chat = {"usage": {"completion_tokens": 106}, "sglext": {"spec_tokens_details": {"spec_verify_ct": 43} | HISTOGRAM}}
    assert read(chat).positions == binned.positions
    assert read([sglang(1, 0), sglang(12, 4)]).drafts == 4


def test_ranks_of_sglang_that_have_not_drafted_are_left_out():
    ranks = [{"avg_spec_accept_length": None}, {}, {"avg_spec_accept_length": 2.8}, {"avg_spec_accept_length": 3.6}]
    counts = read({"internal_states": ranks})
    assert counts.mean_length == pytest.approx(3.2) and "Average over 2 of 4 ranks" in " ".join(counts.notes)
    with pytest.raises(ValueError, match="expected metrics, a log, answers"):
        read({"internal_states": [{}]})


def test_answers_of_mlx_vlm_count_rounds():
    timings = {"predicted_n": 121, "draft_kind": "mtp", "draft_rounds": 40, "draft_n": 120, "draft_n_accepted": 81}
    counts = read({"timings": timings})
    assert (counts.engine, counts.steps, counts.draft_tokens, counts.drafter) == ("mlx-vlm", 40, 120, "mtp")
    assert counts.tokens_per_step == pytest.approx(121 / 40)
    plain = read({"timings": {"predicted_n": 121} | dict.fromkeys(("draft_kind", "draft_rounds", "draft_n"))})
    assert (plain.drafts, plain.tokens) == (0, 121)


AIPERF = {"pooled_spec_decode_acceptance_histogram": {"0": 20, "1": 30, "2": 50}, "total_draft_tokens": {"avg": 300.0}}
SCRAPED = {
    "vllm:spec_decode_num_drafts": 100,
    "vllm:spec_decode_num_draft_tokens": 300,
    "vllm:spec_decode_num_accepted_tokens": 180,
    "vllm:generation_tokens": 290,
}


def scraped(**gauges: float) -> dict:
    """Return AIPerf's server metrics of a run."""
    metrics = {
        name: {"type": "counter", "series": [{"labels": {}, "stats": {"total": n}}]} for name, n in SCRAPED.items()
    }
    by_position = [{"labels": {"position": str(n)}, "stats": {"total": 90.0 - 30 * n}} for n in range(3)]
    metrics["vllm:spec_decode_num_accepted_tokens_per_pos"] = {"type": "counter", "series": by_position}
    for name, value in gauges.items():
        metrics = {f"sglang:{name}": {"type": "gauge", "series": [{"labels": None, "stats": {"avg": value}}]}}
    return {"schema_version": "1.0", "metrics": metrics}


def test_results_of_aiperf():
    pooled = read(AIPERF)
    assert (pooled.drafts, pooled.positions, pooled.draft_tokens) == (100, (80, 50, 0), 300)
    record = step_record("2052") | {"acceptance_histogram": {"0": 1, "2": 2, "5": 1}, "engine": "trtllm"}
    record = {name: value for name, value in record.items() if "per_step" not in name}
    counts = read(f"{json.dumps({'spec_decode_acceptance': record | {'completion_tokens': 14}})}\n")
    assert (counts.engine, counts.drafts, counts.positions[:3], counts.tokens) == ("trtllm", 4, (3, 3, 1), 14)
    server = read(scraped())
    assert (server.drafts, server.positions, server.tokens) == (100, (90, 60, 30), 290)
    assert not any("one reading" in note for note in server.notes)
    assert read(scraped(spec_accept_length=2.5)).mean_length == 2.5


def test_results_of_speed_bench():
    run = {
        "Request_AL": {"0": {"0": 2.3}},
        "Average_AL": 2.5,
        "Acceptance_Length_Histogram": {"1": 20, "2": 30, "3": 50},
    }
    counts = read([run])
    assert (counts.drafts, counts.positions, counts.tokens_per_step) == (100, (80, 50), 2.3)
    assert "2 reports were found" in read([run, run]).notes[0]
    profile = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance_length_histogram": {"1": 20, "3": 80}}
    assert read(profile).positions == (80, 80, 0) and read(profile).drafter == "eagle3"
    with pytest.raises(ValueError, match="histogram: found"):
        read({"acceptance_length_histogram": {"1": "many"}})


def window(accepted: int, drafted: int, *rates: float) -> str:
    listed = ", ".join(f"{rate:.3f}" for rate in rates)
    return (
        f"INFO SpecDecoding metrics: Mean acceptance length: 2.20, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {listed}, Avg Draft acceptance rate: 60.0%\n"
    )


def test_a_collapse_within_a_log_is_named_and_not_planned():
    counts = read(window(600, 1000, 0.75, 0.45) + window(8, 1000, 0.016, 0.0) + window(0, 700, 0.0, 0.0))
    verdict = diagnose(counts).verdict
    assert verdict.title == "Acceptance collapses" and "75% of the drafts in line 1, but in only 1%" in verdict.says
    assert plan_acceptance(exclude_collapse(counts)).survival[0] == 0.75
    averages = read("".join(f"accept len: {length:.2f}, x\n" for length in (3.2, 3.1, 1.0, 1.0)))
    verdict = diagnose(averages).verdict
    assert (
        verdict.title == "Acceptance collapses"
        and "3.15 tokens per step in lines 1 to 2, but only 1.00" in verdict.says
    )
    assert plan_acceptance(exclude_collapse(averages), draft_length=4).tokens(4).value == pytest.approx(3.15)
    for lengths in ((3.2, 3.1, 3.0, 1.0), (3.2, 1.0, 3.1, 1.0), (3.2, 3.1, 2.4, 2.3), (1.0, 1.0)):
        assert find_collapse(read("".join(f"accept len: {length:.2f}, x\n" for length in lengths))) is None


def test_a_changed_draft_length_is_named():
    counts = read(window(180, 300, 0.8, 0.6, 0.4) + window(260, 400, 0.8, 0.5))
    assert [part.positions for part in counts.periods] == [(80, 60, 40), (160, 100)]
    assert "K = 3 (300 draft tokens, accepted up to each position: 0.80, 0.60, 0.40), K = 2 (400" in counts.notes[0]
    dead = read(window(0, 640, 0.0, 0.0) * 3)
    assert dead.drafts == 960 and diagnose(dead).verdict.title == "Wired wrong"


def test_counters_at_zero_are_no_baseline():
    verdict = diagnose(read(vllm_text(0, 0, 0, (), 5000, 10))).verdict
    assert verdict.title == "Never drafted"
    assert "not a baseline: measure K = 0 on a server started without the speculative option" in verdict.says


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("draft-mtp", "--spec-type draft-mtp --spec-draft-n-max 2 "),
        ("draft-dflash", "--spec-type draft-dflash --model-draft <draft.gguf> --spec-draft-n-max 2 "),
        ("draft-eagle3", "--spec-type draft-eagle3 --model-draft <draft.gguf> --spec-draft-n-max 2 "),
        ("ngram-mod", "--spec-type ngram-mod --spec-ngram-mod-n-max 2"),
    ],
)
def test_a_log_names_the_drafter_for_the_settings(name, options, call, tmp_path):
    log = tmp_path / "log"
    log.write_text(
        f"statistics {name}: #calls(b,g,a) = 1 60 60, #gen drafts = 60, #acc drafts = 54, #gen tokens = 120, "
        "#acc tokens = 93, #mean acc len = 2.55, #acc rate/pos = (0.900, 0.650), dur(b,g,a) = 0.1, 130.0, 0.1 ms\n"
    )
    plan = call("server-plan", "--after", str(log), "--timed", "0=31,1=38,2=41.3", "--batch", "1")
    assert [text for text in plan["flags"].values() if text.startswith(options)] and plan["best"] == {"1": 2}
    log.write_text(window(93, 120, 0.9, 0.65).replace("SpecDecoding", f"--method {name} SpecDecoding"))
    chosen = call("server-plan", "--after", str(log), "--method", name, "--timed", "0=31,1=38,2=41.3")
    (flags,) = chosen["flags"].values()
    assert f'"method": "{name.split("-")[name.startswith("draft")]}"' in flags
    assert options.strip() in server_flags("llama.cpp", 2, method=method_from_name(name), drafter=name)


def test_settings_for_mlx_vlm_name_the_block():
    timings = {"predicted_n": 121, "draft_kind": "mtp", "draft_rounds": 40, "draft_n": 120, "draft_n_accepted": 81}
    counts = read({"timings": timings})
    settings = flags_by_batch(counts.engine, {1: 3}, method=method_from_name(counts.drafter), drafter=counts.drafter)
    assert list(settings.values()) == ["--draft-model <draft> --draft-kind mtp --draft-block-size 4"]
    assert server_flags("mlx-vlm", 2) == "--draft-model <draft> --draft-block-size 3"
    assert "--draft-kind eagle3 " in server_flags("mlx-vlm", 2, method="eagle3")
    assert server_flags("mlx-vlm", 0) == "(leave out --draft-model)"


def test_speeds_at_different_batch_sizes_are_not_compared(call, tmp_path):
    log = tmp_path / "log"
    log.write_text(window(1800, 3000, 0.8, 0.6, 0.4))
    mixed = call("doctor", "--after", str(log), "--timed", "0=900,1=500@8,2=510@8")
    assert mixed["verdict"] == "healthy" and "speeds are not compared" in mixed["warnings"][0]
    for timed in ("0=900@8,1=500@8,2=510@8", "0=900@8,1=500@8,3=510@8"):
        assert call("doctor", "--after", str(log), "--timed", timed)["verdict"] == "fine but costs too much"


FORMS = (
    vllm_text(1, 3, 1, (1, 0, 0), 4, 1),
    "\n".join(PRINTED),
    json.dumps(scraped()),
    json.dumps({"internal_states": []}),
    json.dumps(SAVED),
    json.dumps(sglang(4, 2)),
    REPORT,
    VLLM_LOG,
)


def test_each_reader_claims_its_own_form():
    claimed = [next(reader.form for reader in READERS if reader.claims(text)) for text in FORMS]
    assert claimed == [reader.form for reader in READERS]
    assert [reader.subtracts for reader in READERS] == [True, True, *[False] * 6]
    for text in (SGLANG_TEXT, VLLM_LOG.replace("SpecDecoding", "request: {}"), json.dumps({"text": REPORT})):
        assert sum(reader.claims(text) for reader in READERS) <= 2
    with pytest.raises(ValueError, match="decoding .most like a log., expected metrics"):
        read("Mean acceptance length 2.7, Per-position acceptance rate 0.9 0.7, Accepted 16 Drafted 20\n")
    with pytest.raises(ValueError, match="found no line about speculative decoding, expected metrics"):
        read("good morning\n")
    assert (
        server_flags("vllm", 2, method="mtp")
        == """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'"""
    )
