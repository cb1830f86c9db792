"""The doctor's verdicts: public reports rebuilt with small counts; false alarms and power."""

import pytest

from benchmarks.doctor import false_alarms, power
from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_extras.servers import rules
from sequoia_extras.servers.counts import ServerCounts, counts_from_survival
from sequoia_extras.servers.diagnosis import diagnose
from sequoia_extras.servers.evidence import Facts
from sequoia_extras.servers.speeds import find_speeds
from tests.extras.servers.samples import (
    LLAMA_PMIN,
    NGRAM,
    SGLANG_TEXT,
    llama_text,
    read,
    step_records,
    vllm_text,
)


def vllm(positions: tuple[int, ...], drafts: int, **options) -> str:
    accepted = sum(positions)
    return vllm_text(drafts, drafts * len(positions), accepted, positions, drafts + accepted + 10, 10, **options)


def answers(*rows: tuple[int, int, int, int], text: str = "") -> list:
    """Return answers of llama.cpp's server: prompt tokens, tokens predicted, drafted, accepted; with one text."""
    return [
        {"choices": [{"text": text}], "usage": {"prompt_tokens": prompt},
         "timings": {"predicted_n": many, "draft_n": drafted, "draft_n_accepted": accepted}}
        for prompt, many, drafted, accepted in rows
    ]  # fmt: skip


def llama_log(*requests: tuple[int, int, int]) -> str:
    """Return a log: tokens of the answer, drafted and accepted of each request."""
    lines = []
    for number, (many, drafted, accepted) in enumerate(requests):
        lines += [
            f"slot print_timing: id 0 | task {number} | prompt eval time = 40.00 ms / 12 tokens",
            f"slot print_timing: id 0 | task {number} |        eval time = 1000.00 ms / {many} tokens",
            f"slot print_timing: id 0 | task {number} | draft acceptance = {accepted / drafted:.5f} ( {accepted} "
            f"accepted / {drafted} generated), mean len = 2.00",
        ]
    return "\n".join(lines) + "\n"


def verdict(counts: ServerCounts, earlier: ServerCounts | None = None, *, timed=()) -> str:
    return diagnose(counts, earlier, find_speeds(counts, timed)).verdict.title


AT_30K = [(30_000 + n, 336, 600, 235) for n in range(8)]
SHORT_FINE = [(500 * n, 201, 210, 130) for n in range(1, 9)]
REPORTS = [  # a public report rebuilt with small counts, and its verdict
    # a block's layout read the other way: .9 % of all drafted tokens
    ("vllm#56792", vllm((55, 8, 2, 1, 0, 0, 0), 1000), "Wired wrong"),
    # 1 of 633 drafted tokens of a whole answer, three at a time; totals alone
    ("llama.cpp#27151", answers((20, 213, 633, 1)), "Wired wrong"),
    # near normal at the first position, a quarter after it
    ("vllm#51009", vllm((740, 185, 46, 12, 3), 1000), "Runs out at position 2"),
    ("a window read as all", vllm((600, 385, 215, 108, 60, 0, 0, 0), 1000), "Runs out at position 6"),
    # K above the layers that the head has: one is used again and again
    ("vllm#52688", vllm((3000, 1350, 350, 56, 6), 4000), "K too large for the head"),
    # beyond the draft's own context dummies are drafted
    ("vllm#58080", answers(*SHORT_FINE, *[(30_000 + n, 201, 600, 1) for n in range(8)]), "Falls with prompt length"),
    # K = 6, .649 of the drafted tokens at 2K, .391 at 30K
    ("vllm#47602", answers(*[(2000 + n, 491, 600, 390) for n in range(8)], *AT_30K), "Falls with prompt length"),
    # a minimum probability: what the draft doubts is not drafted
    ("llama.cpp#22506", llama_text(*LLAMA_PMIN), "Drafts rarely"),
    ("n-grams", vllm_text(*NGRAM), "Drafts rarely"),
    ("llama.cpp#24508", answers(*[(10, 200, 90, 88)] * 8), "K is the limit"),
    ("one token per step", "accept len: 1.00, x\n" * 3, "Wired wrong"),
    ("one average", SGLANG_TEXT.replace(" 2.65", " 1.1"), "Cannot tell"),
    ("one line of averages", "accept len: 1.10, x\n", "Cannot tell"),
    ("three short drafts", vllm_text(3, 6, 4, (2, 1, 1, 0), 8, 1), "Cannot tell"),
    ("three drafts in seven steps", vllm_text(3, 12, 4, (2, 1, 1, 0), 12, 1), "Cannot tell"),
    ("three drafts in 500 steps", vllm_text(3, 12, 4, (2, 1, 1, 0), 505, 1), "Drafts rarely"),
]


@pytest.mark.sample(len(REPORTS))
@pytest.mark.parametrize(("report", "text", "title"), REPORTS, ids=[row[0] for row in REPORTS])
def test_public_reports_get_their_verdicts(report, text, title):
    assert verdict(read(text)) == title


def test_a_draft_of_64_that_yields_4_is_too_long():
    """llama.cpp#25908: 96 of 1,378 drafted tokens, .07, by 22 drafts; with a minimum probability .9."""
    found = diagnose(read(answers((20, 119, 1378, 96))))
    assert found.verdict.title == "K too large for the head" and "K = 9, or" in found.verdict.check
    assert [round(each.value, 2) for each in found.verdict.evidence] == [0.07, 4.36, 62.64]
    assert rules.too_long(Facts(read(answers((20, 119, 900, 96))))) is None  # a ninth is used
    assert rules.too_long(Facts(read(answers((20, 219, 1378, 96))))) is None  # less than one of a draft


def test_a_longer_draft_that_yields_less_is_too_long():
    """vllm#41834: 2.16 tokens per step with drafts of 5, 1.75 with drafts of 7; a fitting head never yields less."""
    before = read(vllm((549, 301, 165, 91, 50), 1000))
    found = diagnose(read(vllm((434, 188, 82, 35, 15, 7, 3), 1000)), before)
    assert found.verdict.title == "K too large for the head" and "go back to K = 5" in found.verdict.check
    assert found.tokens_if_fixed == pytest.approx(before.tokens_per_step) == pytest.approx(2.16, 0.02)
    # longer drafts skip easy text: their first positions are accepted less (demo pair, vLLM), and nothing is wrong
    seen = read(step_records())
    one, eight = read(vllm((8680,), 11_730)), read(vllm(tuple(20 * each for each in seen.positions), 20 * seen.drafts))
    assert eight.positions[0] / eight.drafts < 0.93 * one.positions[0] / one.drafts
    assert verdict(eight, one) == "Healthy" == verdict(one, eight)


def test_an_update_that_loses_acceptance_is_worse_than_before():
    """llama.cpp#27106: .7 of the drafted tokens before, .5 after; logs alone."""
    before, after = llama_log(*[(241, 200, 140)] * 10), llama_log(*[(201, 200, 100)] * 10)
    found = diagnose(read(after), read(before))
    assert found.verdict.title == "Worse than before"
    assert [each.value for each in found.verdict.evidence] == [0.7, 0.5]
    assert verdict(read(before), read(after)) == "Healthy" == verdict(read(before), read(before))


def test_looping_answers_are_degenerate_text():
    """model-serving-minefield#108: one token again and again, nearly all accepted."""
    rows = [(20, 901, 800, 780)] * 8
    found = diagnose(read(answers(*rows, text="A sound beginning of an answer. " + "- word " * 60)))
    assert found.verdict.title == "Degenerate text" and found.verdict.evidence[0].of == 8
    fine = "".join(f"Line {n} says that {n * n} is the square of {n}, which is no loop. " for n in range(40))
    assert verdict(read(answers(*rows, text=fine))) == "K is the limit"


UNSURE = [  # counts -> the verdict, and what it says
    ({"drafts": 9, "draft_tokens": 323, "accepted_tokens": 163}, "Cannot tell", "9 drafts are too few: about 100"),
    (
        {"drafts": 9, "accepted_tokens": 163, "draft_tokens": 323, "tokens": 518, "requests_done": 6},
        "Drafts rarely",
        "",
    ),
    ({"mean_length": 9.0}, "Cannot tell", "These are averages"),
]


@pytest.mark.sample(len(UNSURE))
@pytest.mark.parametrize(("fields", "title", "says"), UNSURE)
def test_little_evidence_gives_no_verdict(fields, title, says):
    counts = ServerCounts("llama.cpp", "counters", **fields)
    found = diagnose(counts, speeds=find_speeds(counts, [(0, 65.0, 1), (4, 95.0, 1)]))
    assert found.verdict.title == title and says in found.verdict.says and not found.gain


@pytest.mark.parametrize("lengths", [(3.2, 1.0, 3.1, 1.0), (3.2, *[1.0] * 20), (1.0, 2.8, 2.9)])
def test_varying_averages_give_no_verdict(lengths):
    counts = read("".join(f"accept len: {length}, accept rate: 0.5\n" for length in lengths))
    found = diagnose(counts)
    assert found.verdict.title == "Cannot tell"
    said = " ".join([found.verdict.says, *map(str, found.verdict.evidence), *found.notes, *counts.notes])
    assert said.count(f"{max(lengths):.2f}") == 1 and f"1.00 to {max(lengths):.2f}" in said


@pytest.mark.parametrize(
    ("ks", "k", "note"),
    [
        ((2, 4), 4, "K = 4, the largest that was timed, is assumed"),
        ((2,), None, "2.68 tokens are drafted per step, more"),
    ],
)
def test_an_assumed_k_is_named_and_checked(ks, k, note):
    counts = read(answers((9, 300, 336, 185), (9, 300, 340, 196), (9, 300, 320, 144)))
    speeds = find_speeds(counts, [(0, 15.0, 1), *((each, 13.0 - each / 1.5, 1) for each in ks)])
    found = diagnose(counts, speeds=speeds)
    assert any(note in each for each in found.notes)
    assert (found.verdict.verdict == rules.COSTS) is (k is not None)
    assert not find_speeds(read(vllm((800, 640), 1000)), [(0, 15.0, 1), (2, 11.0, 1)]).doubt


def test_advice_matches_the_drafter_that_ran():
    def check(**fields) -> rules.Finding:
        return diagnose(ServerCounts("llama.cpp", "counters", 200, 1000, 160, **fields)).verdict

    few = {"tokens": 2000, "requests_done": 10}
    assert check(drafter="ngram-mod", **few).check == "n-grams, which match only in some texts"
    assert check(drafter="draft-simple", **few).check == "the counts with --spec-draft-p-min 0"
    vllm_counts = ServerCounts("vllm", "counters", 200, 1000, 160, **few)
    assert "--spec" not in diagnose(vllm_counts).verdict.check
    poor = {"positions": (10, 5), "drafts": 200, "draft_tokens": 400, "accepted_tokens": 15}
    assert diagnose(ServerCounts("llama.cpp", "counters", drafter="ngram-mod", **poor)).verdict.verdict == rules.MISFIT
    assert "quantised or missing weights" in diagnose(ServerCounts("llama.cpp", "counters", **poor)).verdict.check


def test_a_fall_within_the_earlier_uncertainty_is_ignored():
    """Few drafts before, many now: what is unsure is the earlier rate alone."""
    now = read(vllm((600_000,), 1_000_000))
    assert rules.worse(Facts(now, read(vllm((28,), 40)))) is None
    assert rules.worse(Facts(now, read(vllm((28_000,), 40_000)))) is not None


def test_a_speed_with_an_upper_bound_near_one_is_not_too_slow():
    counts = read(vllm((800,), 1000))
    assert rules.too_slow(Facts(counts), Estimate(0.9, 0.82, 0.99)) is None
    assert rules.too_slow(Facts(counts), Estimate(0.9, 0.86, 0.94)) is not None


@pytest.mark.slow
def test_healthy_drafts_rarely_fire_a_rule():
    """80 readings in each of 28 settings: a true share of 2 % exceeds 9 of 80 in one of 40,000."""
    found = false_alarms(80, drafts=(30, 1000), lengths=(1, 8))
    assert all(row["worst"] <= 9 / 80 and row["mean"] <= 0.01 for row in found.values()), found


def test_planted_faults_are_detected():
    """Of 1,000 drafts, 40 readings each; a true power of 80 % falls below 60 % in one of 500."""
    found = power(40, drafts=(1000,))
    assert {name: row["found"][1000] for name, row in found.items() if row["found"][1000] < 0.6} == {}


def test_published_rates_are_judged_without_bounds():
    assert verdict(counts_from_survival([0.03, 0.001], "a page")) == "Wired wrong"
    assert verdict(counts_from_survival([0.7, 0.5], "a page")) == "Healthy"


def test_positions_of_drafts_that_end_early_are_not_judged():
    early = read(vllm_text(1000, 2200, 1250, (800, 300, 100, 50), 2260, 10))
    assert rules.runs_out(Facts(early)) is None is rules.too_long(Facts(early)) and verdict(early) == "Drafts rarely"
