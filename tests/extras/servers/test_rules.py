"""The rules at their thresholds: the last counts for which each is silent, and the first for which it fires.

Exact bounds are where the binomial tails have 1 %; the counts next to them were found with scipy's test.
"""

import pytest

from sequoia_extras.servers.counts import RequestTotals, ServerCounts
from sequoia_extras.servers.diagnosis import diagnose
from sequoia_extras.servers.evidence import Facts
from sequoia_extras.servers.request_spread import by_prompt_length, compare_long_prompts, spread
from sequoia_extras.servers.rules import HEALTHY_RATE, runs_out, too_long, wired_wrong
from sequoia_extras.servers.speeds import find_speeds


def judged(fields: dict, earlier: dict | None = None, timed: tuple = ()) -> str:
    """Return the verdicts for counts, and the sentence of the first one."""
    before, now = (
        None if each is None else ServerCounts("vllm", "counters", **filled(each)) for each in (earlier, fields)
    )
    first, *others = diagnose(now, before, find_speeds(now, timed)).findings
    return "; ".join([first.title, *(each.verdict for each in others), first.says])


def filled(fields: dict) -> dict:
    """Add the totals that positions imply."""
    positions = fields.get("positions")
    if not positions:
        return fields
    drafts = fields.setdefault("drafts", 1000)
    return {"draft_tokens": len(positions) * drafts, "accepted_tokens": sum(positions)} | fields


def requests(short: int, long: int, count: int = 4) -> dict:
    """Return totals of requests of 100 steps, with the tokens accepted for short and for long prompts."""
    rows = [(prompt, short) for prompt in range(1, count + 1)] + [(900 + n, long) for n in range(4)]
    totals = tuple(RequestTotals(100, accepted, prompt) for prompt, accepted in rows)
    accepted = sum(each.accepted for each in totals)
    return {"drafts": 100 * len(rows), "accepted_tokens": accepted, "draft_tokens": 3 * accepted, "totals": totals}


def loops(*looped: bool | None) -> dict:
    return {"positions": (600, 400), "totals": tuple(RequestTotals(9, 9, None, each) for each in looped)}


def whole(drafts: int, tokens: int) -> dict:
    """Return counts of drafts of two, of which 60 % and 40 % are accepted, by steps of which some have none."""
    return {"positions": (drafts * 6 // 10, drafts * 4 // 10), "drafts": drafts, "tokens": tokens, "requests_done": 0}


FINE, SURE = "Nothing in the counts looks wrong.", "Healthy; Nothing in the counts looks wrong."
NOTHING = {"drafts": 0, "requests_done": 1}
EDGES = [  # what is counted, how the verdict begins
    (NOTHING | {"tokens": 20}, "Cannot tell; There are too few tokens"),  # the first of which no step drafts
    (NOTHING | {"tokens": 21}, "Never drafted"),
    ({"drafts": 0, "requests_done": 3}, "Never drafted"),
    ({"drafts": 0, "tokens": 30}, "Never drafted"),
    ({"drafts": 0, "requests_done": 0}, "Cannot tell; Nothing was generated"),
    ({"drafts": 0}, "Cannot tell; Nothing was drafted, and it is unknown"),
    ({"draft_tokens": 0, "tokens": 30}, "Never drafted"),
    ({"positions": (170, 30)}, "Wired wrong"),
    ({"positions": (171, 30)}, "Cannot tell; 1,000 drafts are too few: about 2,000 would be enough."),
    ({"positions": (150, 89)}, "Wired wrong"),
    ({"positions": (150, 90)}, "Cannot tell"),
    ({"positions": (230, 150)}, "Cannot tell; 1,000 drafts are too few"),
    ({"positions": (231, 50)}, f"Healthy; {FINE} Judging the later positions requires more drafts: about 3,000 would"),
    ({"positions": (499, 400)}, "Healthy; The first position is accepted less often than the later ones"),
    ({"positions": (600, 300)}, SURE),
    ({"positions": (500, 250)}, SURE),
    ({"positions": (60, 30), "drafts": 99}, "Cannot tell; 99 drafts are too few: about 200 would be enough."),
    ({"positions": (60, 30), "drafts": 100}, f"Healthy; {FINE} Judging the later positions requires more drafts"),
    ({"positions": (900, 437)}, "Runs out at position 2"),
    ({"positions": (900, 438)}, SURE),
    ({"positions": (900, 810, 380)}, "Runs out at position 3"),
    ({"positions": (800, 640, 273, 116)}, "K too large for the head; K = 4"),
    ({"positions": (800, 640, 274, 117)}, SURE),
    ({"positions": (922,)}, "K is the limit"),
    ({"positions": (921,)}, SURE),
    ({"positions": (960, 921)}, SURE),
    ({"positions": (960, 922)}, "K is the limit"),
    ({"drafts": 20, "accepted_tokens": 20, "draft_tokens": 201}, "K too large for the head; The draft is fine"),
    ({"drafts": 20, "accepted_tokens": 20, "draft_tokens": 200}, "Cannot tell; 20 drafts"),
    ({"drafts": 20, "accepted_tokens": 19, "draft_tokens": 201}, "Cannot tell; 20 drafts"),
    ({"drafts": 19, "accepted_tokens": 20, "draft_tokens": 201}, "Cannot tell; 19 drafts"),
    (requests(90, 59), "Falls with prompt length; Acceptance"),
    (requests(90, 60), "Healthy"),  # two thirds
    (requests(90, 40, 3), "Healthy"),  # seven requests
    (loops(True, *[False] * 4), "Degenerate text"),  # a fifth
    (loops(True, *[False] * 5), SURE),
    (loops(True, *[None] * 5), "Degenerate text"),  # of one answer that has text
    (loops(False, None), SURE),
    (whole(1000, 3000), SURE),  # 2,000 steps
    (whole(1000, 3001), "Drafts rarely; Few tokens are drafted, but these may be good"),
    ({"positions": (600, 400), "draft_tokens": 1900}, SURE),
    ({"positions": (600, 400), "draft_tokens": 1899}, "Drafts rarely"),
    ({"drafts": 1000, "accepted_tokens": 900, "draft_tokens": 3000}, SURE),  # a share of 30 % of all
    ({"drafts": 1000, "accepted_tokens": 690, "draft_tokens": 3000}, "Cannot tell; These counts are not"),  # 23.0 %
    ({"mean_length": 1.21}, "Cannot tell; These are averages"),
    ({"mean_length": 1.19}, "Cannot tell; These are averages"),
    ({}, "Cannot tell; These counts are not broken down by position."),
]


@pytest.mark.sample(len(EDGES))
@pytest.mark.parametrize(("fields", "begins"), EDGES)
def test_rules_fire_at_their_thresholds(fields, begins):
    assert judged(fields).startswith(begins)


BEFORE = {"positions": (800,)}
PERIODS = [  # now, before -> the verdict
    ({"positions": (711,)}, BEFORE, "Worse than before"),
    ({"positions": (712,)}, BEFORE, "Healthy"),
    ({"positions": (8,), "drafts": 19}, BEFORE, "Cannot tell"),  # of too few drafts to compare
    ({"positions": (300,)}, {"positions": (19,), "drafts": 19}, "Healthy"),
    ({"positions": (300,)}, {"positions": (20,), "drafts": 20}, "Worse than before"),
    ({"positions": (500, 90)}, {"positions": (800,)}, "K too large for the head; runs out"),  # in all less than .8
    ({"positions": (500, 300)}, {"positions": (800,)}, "Healthy"),  # in all as much
    ({"positions": (500,)}, {"positions": (500, 400)}, "Healthy"),  # the first position alone is compared
    ({"positions": (400,)}, {"positions": (500, 400)}, "Worse than before; Fewer"),
    ({"positions": (300,)}, {"mean_length": 2.5}, "Healthy"),  # averages, of how many drafts is unknown
    ({"drafts": 1000, "accepted_tokens": 900, "draft_tokens": 3000}, {"positions": (700, 500, 400)}, "Worse"),
]


@pytest.mark.sample(len(PERIODS))
@pytest.mark.parametrize(("now", "before", "begins"), PERIODS)
def test_periods_are_compared_if_both_have_enough_drafts(now, before, begins):
    assert judged(now, before).startswith(begins)


SPEEDS = [  # timed settings (k, tokens per second, batch), and whether they cost too much
    ([(0, 100.0, 1), (2, 97.0, 1)], False),
    ([(0, 100.0, 1), (2, 96.9, 1)], True),
    ([(0, 100.0, 4), (2, 50.0, 4)], True),
    ([(0, 100.0, 1), (2, 50.0, 4)], False),  # two batch sizes
    ([(0, 100.0, 1), (3, 50.0, 1)], False),  # another K
    ([(0, 100.0, 1), (2, 120.0, 1), (0, 200.0, 4), (2, 100.0, 4)], False),  # the smaller batch size counts
]


@pytest.mark.sample(len(SPEEDS))
@pytest.mark.parametrize(("timed", "dear"), SPEEDS)
def test_speculation_slower_by_three_percent_costs_too_much(timed, dear):
    assert judged({"positions": (600, 400)}, timed=timed).startswith("Fine but costs too much" if dear else "Healthy")


def test_findings_derive_their_assumptions_from_the_counts():
    found = runs_out(Facts(ServerCounts("vllm", "counters", **filled({"positions": (800, 640, 128, 96)}))))
    assert found.position == 3 and found.supposed == "80% acceptance from there on, as at the positions before"
    assert found.survival_if_fixed == pytest.approx([0.8**position for position in range(1, 5)])
    found = wired_wrong(Facts(ServerCounts("vllm", "counters", **filled({"positions": (30, 3)}))))
    assert found.survival_if_fixed == pytest.approx([HEALTHY_RATE, HEALTHY_RATE**2])
    found = too_long(Facts(ServerCounts("vllm", "counters", **filled({"positions": (800, 640, 256, 51)}))))
    assert found.check.endswith("K = 2 would keep 89% of the tokens per step")  # 2,440 of 2,747


def test_parts_by_length_need_eight_known_lengths():
    totals = [RequestTotals(10, 2 * prompt, prompt) for prompt in range(1, 9)]
    assert by_prompt_length(totals[:7]) == [] == by_prompt_length([*totals[:7], RequestTotals(0, 3, 9)])
    assert by_prompt_length(totals) == [(1, 3, 1 + 12 / 30, 3), (4, 6, 2.0, 3), (7, 8, 2.5, 2)]
    alike = [RequestTotals(steps, 10, 500) for steps in range(10, 90, 10)]  # of one length
    assert compare_long_prompts(alike) is None
    assert spread(totals[:1]) is None and spread([*totals[:2], RequestTotals(0, 0)]).requests == 2
