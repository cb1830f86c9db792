"""llama.cpp's log in its three forms, with running totals, several drafters and requests that accepted nothing."""

import pytest

from sequoia_core.servers.logs import counts_of_log

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
        f"statistics {name:>12}: #calls(b,g,a) =    1     60     40, #gen drafts = {drafts:>6}, #acc drafts =     18, "
        f"#gen tokens = {tokens:>6}, #acc tokens = {accepted:>5}, #mean acc len =  3.80, #acc rate/pos = ({rates}), "
        "dur(b,g,a) = 0.001, 1.000, 0.010 ms\n"
    )


FIRST = running("draft", 20, 80, 56, "0.900, 0.750, 0.650, 0.500")
SECOND = running("draft", 22, 88, 56, "0.818, 0.682, 0.591, 0.455")


@pytest.mark.parametrize("line", [TOTALS, MEAN, RATES])
def test_the_three_forms_of_a_request_agree(line):
    found = counts_of_log(LENGTH + line + "\n")
    assert (found.accepted_tokens, found.draft_tokens, found.mean_length) == (56, 80, 3.8)
    assert found.positions == ((18, 15, 13, 10) if line is RATES else ())
    assert found.drafts == (None if line is TOTALS else 20)


def test_running_totals_count_once_and_with_a_request_that_accepted_nothing():
    found = counts_of_log(LENGTH + MEAN + "\n" + FIRST + NOTHING + SECOND)
    assert (found.source, found.drafts, found.draft_tokens) == ("running totals", 22, 88)
    assert found.positions == (18, 15, 13, 10) and found.coverage == 1.0 and found.requests_done == 2


def test_running_totals_that_begin_again_or_belong_elsewhere():
    again = running("draft", 10, 40, 28, "0.900, 0.750, 0.650, 0.500")
    restarted = counts_of_log(FIRST + again)
    assert (restarted.drafts, restarted.draft_tokens) == (30, 120)
    older = counts_of_log(LENGTH + MEAN + "\n" + running("draft", 200, 800, 560, "0.900, 0.750, 0.650, 0.500"))
    assert older.drafts == 200 and older.tokens is None and "since the server's start" in older.notes[0]
    partial = counts_of_log((LENGTH + MEAN + "\n") * 2 + FIRST)
    assert partial.draft_tokens == 160 and not partial.positions and "left out" in partial.notes[0]
    with pytest.raises(ValueError, match="found rates of 56 accepted tokens where 20 were counted"):
        counts_of_log(FIRST.replace(" 56,", " 20,"))


def test_drafters_are_told_apart():
    log = LENGTH + MEAN + "\n" + FIRST + running("ngram_mod", 5, 40, 10, "0.800, 0.600, 0.400, 0.200")
    with pytest.raises(ValueError, match=r"draft \(20 drafts\), ngram_mod \(5 drafts\), expected one: .*--model"):
        counts_of_log(log)
    assert (counts_of_log(log, "draft").drafts, counts_of_log(log, "ngram_mod").positions) == (20, (4, 3, 2, 1))
    idle = FIRST + running("ngram_mod", 0, 0, 0, "0.000")
    assert counts_of_log(idle).drafts == 20  # one that never drafted is none


def test_totals_of_the_first_vllm_engine_are_read_to_the_last():
    line = (
        "INFO 03-04 metrics.py:477] Speculative metrics: Draft acceptance rate: {}, System efficiency: 0.520, "
        "Number of speculative tokens: 4, Number of accepted tokens: {}, Number of draft tokens: {}, "
        "Number of emitted tokens: {}.\n"
    )
    found = counts_of_log(line.format("0.500", 20, 40, 28) + line.format("0.550", 66, 120, 84))
    assert (found.engine, found.drafts, found.accepted_tokens, found.draft_tokens) == ("vllm", 30, 66, 120)
    assert found.mean_length == pytest.approx(84 / 30) and not found.positions
    with pytest.raises(ValueError, match="line 1: found 50 accepted of 40 draft tokens"):
        counts_of_log(line.format("1.250", 50, 40, 28))
