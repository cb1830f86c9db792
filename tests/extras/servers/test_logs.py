"""llama.cpp's log in its three forms, with running totals, several drafters and requests that accepted nothing."""

import pytest

from sequoia_extras.servers.evidence import Facts
from sequoia_extras.servers.logs import parse_server_log
from sequoia_extras.servers.rules import never_drafted

TOTALS, MEAN, RATES = (
    "draft acceptance rate = 0.70000 (   56 accepted /    80 generated)",
    "draft acceptance = 0.70000 (   56 accepted /    80 generated), mean len =  3.80",
    "draft acceptance = 0.70000 (   56 accepted /    80 generated), mean acceptance length =  3.80, "
    "acceptance rate per position = (0.900, 0.750, 0.650, 0.500)",
)
LENGTH = "slot print_timing: id 0 | task 1 |        eval time =     900.00 ms /    77 tokens\n"
NOTHING = (
    "slot print_timing: id 0 | task 2 |        eval time =      20.00 ms /     3 tokens\n"
    "draft acceptance = 0.00000 (    0 accepted /     8 generated), mean len =  1.00\n"
)


def running(name: str, drafts: int, tokens: int, accepted: int, rates: str) -> str:
    return (
        f"statistics {name:>12}: #calls(b,g,a) =    1 {drafts:>6}     40, #gen drafts = {drafts:>6}, "
        f"#acc drafts =     18, #gen tokens = {tokens:>6}, #acc tokens = {accepted:>5}, "
        f"#mean acc len =  3.80, #acc rate/pos = ({rates}), "
        "dur(b,g,a) = 0.001, 1.000, 0.010 ms\n"
    )


FIRST = running("draft", 20, 80, 56, "0.900, 0.750, 0.650, 0.500")
SECOND = running("draft", 22, 88, 56, "0.818, 0.682, 0.591, 0.455")


@pytest.mark.parametrize("line", [TOTALS, MEAN, RATES])
def test_the_three_request_formats_agree(line):
    found = parse_server_log(LENGTH + line + "\n")
    assert (found.accepted_tokens, found.draft_tokens, found.mean_length) == (56, 80, 3.8)
    assert found.positions == ((18, 15, 13, 10) if line is RATES else ())
    assert found.drafts == (None if line is TOTALS else 20)


def test_running_totals_count_once():
    found = parse_server_log(LENGTH + MEAN + "\n" + FIRST + NOTHING + SECOND)
    assert (found.source, found.drafts, found.draft_tokens) == ("running totals", 22, 88)
    assert found.positions == (18, 15, 13, 10) and found.coverage == 1.0 and found.requests_done == 2


def test_running_totals_may_reset_or_cover_other_requests():
    again = running("draft", 10, 40, 28, "0.900, 0.750, 0.650, 0.500")
    restarted = parse_server_log(FIRST + again)
    assert (restarted.drafts, restarted.draft_tokens) == (30, 120)
    assert restarted.notes[0] == "The totals of draft were reset; the 2 runs in the log are summed."
    further = parse_server_log(FIRST + running("draft", 21, 60, 42, "0.900, 0.500, 0.400, 0.200"))
    assert (further.drafts, further.draft_tokens) == (41, 140)  # more drafts, fewer tokens: another run
    older = parse_server_log((LENGTH + MEAN + "\n") * 2 + running("draft", 200, 800, 560, "0.900, 0.750, 0.650, 0.500"))
    assert older.drafts == 200 and older.tokens is None and "since the server's start" in older.notes[0]
    partial = parse_server_log((LENGTH + MEAN + "\n") * 2 + FIRST)
    assert partial.draft_tokens == 160 and not partial.positions and "ignored" in partial.notes[0]
    shorter = parse_server_log(FIRST.replace(" 56,", " 20,"))  # n-grams: rates of fewer positions than are drafted
    assert (shorter.accepted_tokens, shorter.positions) == (20, ())
    assert "line 1, its rates: found 56 accepted tokens, expected 20" in shorter.notes[-1]


@pytest.mark.parametrize("tokens, rates", [(88, "0.618, 0.682, 0.591, 0.655"), (188, "0.818, 0.682, 0.591, 0.455")])
def test_totals_are_used_without_inconsistent_rates(tokens, rates):
    found = parse_server_log(FIRST + running("draft", 22, tokens, 56, rates))
    assert (found.drafts, found.draft_tokens, found.positions) == (22, tokens, ())
    assert found.notes[-1].startswith("Skipped: line 2, its rates: found")


def test_idle_drafters_are_read_and_context_times_are_ignored():
    found = parse_server_log(running("draft", 0, 0, 0, "0.000").replace("  0     40", "  500     40"))
    assert (found.drafts, found.steps) == (0, 500)
    assert never_drafted(Facts(found)).verdict == "never drafted"
    context = "llama_perf_context_print:        eval time =     900.00 ms /    77 runs\n"
    assert parse_server_log(context + LENGTH + MEAN + "\n" + context).requests_done == 1


def test_several_drafters_are_separated():
    log = LENGTH + MEAN + "\n" + FIRST + running("ngram_mod", 5, 20, 10, "0.800, 0.600, 0.400, 0.200")
    with pytest.raises(ValueError, match=r"draft \(20 drafts\), ngram_mod \(5 drafts\), expected one: .*--model"):
        parse_server_log(log)
    assert (parse_server_log(log, "draft").drafts, parse_server_log(log, "ngram_mod").positions) == (20, (4, 3, 2, 1))
    idle = FIRST + running("ngram_mod", 0, 0, 0, "0.000")
    assert parse_server_log(idle).drafts == 20  # one that never drafted is none


def window(accepted: int, drafted: int, rates: str) -> str:
    return (
        f"INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.00, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 60.0%\n"
    )


def test_the_largest_setting_has_the_most_draft_tokens():
    text = (TOTALS + "\n") * 10 + RATES.replace("80 g", "800 g").replace("  56", " 560") + "\n"
    assert parse_server_log(text).draft_tokens == 800
    short = RATES + "\n" + TOTALS.replace("80 g", "60 g").replace("  56", "  26") + "\n"
    assert parse_server_log(short).drafts == 20


@pytest.mark.parametrize(
    ("text", "k", "drafts"),
    [
        (window(180, 300, "0.800, 0.600, 0.400") + window(260, 400, "0.800, 0.500"), 2, 200),
        (window(540, 900, "0.800, 0.600, 0.400") + window(80, 100, "0.800"), 3, 300),
        (RATES + "\n" + "draft acceptance = 0.5 ( 9 accepted / 18 generated), mean len = 2.00, "
         "acceptance rate per position = (0.667, 0.333)\n", 4, 20),
        (FIRST + running("draft", 10, 20, 15, "0.900, 0.600"), 4, 20),
    ],
    ids=["windows", "other order", "requests", "totals"],
)  # fmt: skip
def test_several_k_are_separated(text, k, drafts):
    found = parse_server_log(text)
    assert (len(found.positions), found.drafts) == (k, drafts)
    assert f"Only the counts of K = {k} are used." in found.notes[0] and len(found.periods) == 2


def test_steps_and_times_of_the_drafter_are_read():
    line = "statistics draft-mtp: #calls(b,g,a) = 1 40 20, #gen drafts = 20, #acc drafts = 18, #gen tokens = 80, "
    line += "#acc tokens = 56, dur(b,g,a) = 0.001, 30025.000, 0.200 ms\n"
    found = parse_server_log(LENGTH.replace("77", "97") + TOTALS + "\n" + line)
    assert (found.drafter, found.steps, found.draft_sec, found.run_sec) == ("draft-mtp", 40, 30.025, 0.9)
    assert found.coverage == 0.5 and found.tokens_per_step == found.mean_length == pytest.approx(2.4)
    beside = parse_server_log(line.replace(" 40 20,", " 15 20,"))  # one call drafts for several requests
    assert beside.steps is None and beside.tokens_per_step == 3.8
    text = LENGTH.replace("77", "97") + TOTALS + "\n" + line.replace(" 40 20,", " 30 20,")
    shared = parse_server_log(text)  # 30 calls for 40 steps of requests
    assert shared.steps is None and shared.coverage == 0.5


def test_a_request_without_a_draft_line_drafted_nothing():
    found = parse_server_log(LENGTH + LENGTH.replace("77", "500") + LENGTH + MEAN + "\n")
    assert (found.tokens, found.requests_done, found.drafts) == (654, 3, 20)
    assert found.coverage == pytest.approx(20 / 595)
    assert [each.steps for each in found.totals] == [76, 499, 20]


GOOD = window(120, 200, "0.800, 0.400")


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("good", "odd", "said"),
    [
        (GOOD, GOOD[:90], "found ' Mean acceptance length"),
        (GOOD, window(60, 30, "0.800, 0.400"), "found 60 accepted of 30 draft tokens"),
        (GOOD, window(30, 60, "0.800, 0.500"), "at rates that add up to 1.3"),
        (GOOD, window(30, 60, "0.800, 1.500"), "found rates '0.800, 1.500'"),
        (
            MEAN + "\n",
            MEAN.replace("56", "19").replace("80 g", "33 g").replace("3.80", "1.01") + "\n",
            "a mean length of 1.01",
        ),
        (MEAN + "\n", RATES[:-4], "found rates .* expected a list in parentheses"),
        (MEAN + "\n", LENGTH.replace("77", "7") + MEAN + "\n", "found 7 tokens generated"),
        (FIRST, FIRST[: FIRST.index(" 56,") + 3], "expected speculative decoding counts"),
        ("accept len: 2.50, x\n", "accept len: 2.5", "found ' 2.5'"),
        ("accept len: 2.50, x\n", "accept len: 0.0\n", "accept len: found 0, expected 1 or more"),
    ],
    ids=range(10),
)
def test_a_malformed_line_is_skipped(good, odd, said):
    alone, both = parse_server_log(good), parse_server_log(good + odd)
    assert (both.drafts, both.accepted_tokens, both.mean_length) == (
        alone.drafts,
        alone.accepted_tokens,
        alone.mean_length,
    )
    with pytest.raises(ValueError, match=said) as error:
        parse_server_log(odd)
    number = int(str(error.value).removeprefix("line ").partition(":")[0])
    assert both.notes[-1] == "Skipped: " + str(error.value).replace(f"line {number}:", f"line {number + 1}:")
