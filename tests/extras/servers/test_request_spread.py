"""Acceptance over a source: a collapse is named; chance and different texts are not mistaken for one."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_extras.servers.counts import ServerCounts, add_counts
from sequoia_extras.servers.diagnosis import diagnose
from sequoia_extras.servers.request_spread import exclude_collapse, find_collapse, unevenness
from tests.extras.servers.samples import STEPS, read, step_record, vllm_text


def window(name: str, drafts: int, *positions: int) -> ServerCounts:
    return ServerCounts("vllm", name, drafts, drafts * len(positions), sum(positions), positions)


def log(*windows: ServerCounts) -> ServerCounts:
    return replace(add_counts(windows, "log windows"), periods=windows)


FALLS = log(window("line 1", 500, 375, 225), window("line 2", 500, 8, 0), window("line 3", 350, 0, 0))
TURNS = (160, 40, 150, 60, 160, 40, 20, 30, 140, 160)  # hard and easy texts, one after the other
SOURCES = {  # -> the stretch that fell, and the rest
    "for good": (FALLS, "lines 2 to 3", "line 1"),
    "and returns": (
        log(*(window(f"lines {9 * n + 1} to {9 * n + 8}", 90, 2 if 3 < n < 6 else 60) for n in range(10))),
        "lines 37 to 53", "lines 1 to 89 without lines 37 to 53",
    ),
    "at first": (log(window("line 4", 200, 1), window("line 7", 300, 210)), "line 4", "line 7"),
    "in a window of many": (log(*(window(f"line {n}", 90, 5 if n > 90 else 55) for n in range(1, 131))), "lines 9", ""),
    "in turns": (
        log(*(window(f"line {n}", 1000, 20 if n % 2 else 800) for n in range(20))),
        "line 1, line 3, line 5 and 7 more", "the 10 other parts",
    ),
    "two of many": (log(*(window(f"line {n}", 60, 40 * (n % 90 != 4)) for n in range(130))), "line 4, line 94", ""),
    "chance": (log(*(window(f"line {n}", 40, 20 + n % 3) for n in range(9))), None, None),
    "one of twelve by chance": (log(*(window(f"line {n}", 12, 0 if n == 7 else 10) for n in range(12))), None, None),
    "texts in turns": (log(*(window(f"line {n}", 200, hits) for n, hits in enumerate(TURNS))), None, None),
    "few drafts": (log(window("line 1", 6, 5), window("line 2", 6, 0)), None, None),
    "another K": (log(window("line 1", 500, 375, 225), window("line 2", 500, 8)), None, None),
    "one window": (log(window("line 1", 500, 375, 225)), None, None),
}  # fmt: skip


@pytest.mark.sample(len(SOURCES))
@pytest.mark.parametrize("name", SOURCES)
def test_a_collapsed_stretch_is_named(name):
    counts, low, rest = SOURCES[name]
    found = find_collapse(counts)
    if low is None:
        assert found is None and exclude_collapse(counts) is counts
    else:
        assert found.low.source.startswith(low) and found.rest.source.startswith(rest)
        assert found.low.drafts + found.rest.drafts == counts.drafts


def test_small_alternating_parts_are_not_healthy():
    """With 30 drafts each, no part fails significantly, but together they vary by more than texts do."""
    turns = log(*(window(f"line {n}", 30, 1 if n % 2 else 24) for n in range(20)))
    assert find_collapse(turns) is None and unevenness(turns) > 0.37
    assert diagnose(turns).verdict.title == "Cannot tell" and "no single verdict" in diagnose(turns).verdict.says
    assert unevenness(read([step_record(steps) for steps in STEPS])) == pytest.approx(0.22, abs=0.01)
    assert diagnose(SOURCES["texts in turns"][0]).verdict.title == "Healthy"


def test_dead_requests_are_a_collapse_and_different_texts_are_not():
    """Real answers of the demo pair differ by more than chance; two good answers and ten without a token do too."""
    assert find_collapse(read([step_record(steps) for steps in STEPS])) is None
    dead = read([step_record("2202002222022202" * 3, 2)] * 2 + [step_record("0" * 50, 2)] * 10)
    found = find_collapse(dead)
    assert (found.low.source, found.rest.source) == ("requests 3 to 12", "requests 1 to 2")
    assert len(exclude_collapse(dead).requests) == 2


def test_dead_engines_and_answers_are_named():
    alive, dead = (1000, 3000, 1800, (900, 600, 300), 2900, 20), (1000, 3000, 20, (15, 4, 1), 1040, 20)
    assert find_collapse(read(vllm_text(*alive) + vllm_text(*dead, engine="1"))).low.source == "engine 1"
    four = "".join(vllm_text(*(alive if n % 2 else dead), engine=f"{n}") for n in range(4))
    assert find_collapse(read(four)).low.source == "engine 0, engine 2"
    rows = [step_record("2202" * 12, 2)] * 5 + [step_record("0" * 50, 2)] * 5 + [step_record("03", 4)]
    assert find_collapse(read(rows)).low.source == "requests 6 to 10"


def test_alternating_texts_rarely_look_like_a_collapse():
    """Windows whose rates are drawn with a standard deviation of .15; with a fixed seed."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(100):
        rates = rng.beta(5.8, 3.9, size=12)
        alarms += (
            find_collapse(log(*(window("line 1", 200, int(rng.binomial(200, rate))) for rate in rates))) is not None
        )
    assert alarms <= 2


def test_parts_with_just_enough_tokens_can_be_added():
    part = ServerCounts("vllm", "line 1", 11, 44, 10, tokens=19)
    whole = add_counts([part, part])
    assert (whole.drafts, whole.accepted_tokens, whole.tokens) == (22, 20, None)
    assert add_counts([part, replace(part, tokens=21)]).tokens == 40


def test_requests_without_a_draft_are_ignored():
    both = read([step_record("2" * 100 + "0" * 400, 2), step_record("", 2)])
    assert [part.drafts for part in both.periods] == [500, 0] and find_collapse(both) is None
