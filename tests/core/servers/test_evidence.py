"""Numbers of the doctor: as many digits as their bounds support, bounds by drafts."""

from math import nan

import pytest

from sequoia_core.design.bootstrap import exact_interval
from sequoia_core.servers.counts import ServerCounts
from sequoia_core.servers.evidence import Evidence, drafted_tokens, yield_of

WRITTEN = [
    (Evidence("x", 5000, share=False), "x: 5,000"),
    (Evidence("x", 1 / 3, 0.0212, 0.7999, 9), "x: 33% (2% to 80%) of 9"),
    (Evidence("x", 0.0094, 0.0041, 0.0186, 850), "x: 0.9% (0.4% to 1.9%) of 850"),
    (Evidence("x", 2.4137, share=False), "x: 2.41"),
    (Evidence("x", 2.4137, 1.8, 3.04, share=False), "x: 2.4 (1.8 to 3.0)"),
    (Evidence("x", 0.505, nan, nan, 9, unit="drafts"), "x: 50.5% of 9 drafts"),
]


@pytest.mark.sample(len(WRITTEN))
@pytest.mark.parametrize(("evidence", "words"), WRITTEN)
def test_wide_bounds_leave_few_digits(evidence, words):
    assert str(evidence) == words


def test_tokens_of_one_draft_are_one_trial():
    """A real run: 163 of 323 tokens in 9 drafts; where drafts are unknown, steps count."""
    found = drafted_tokens(ServerCounts("llama.cpp", "counters", 9, 323, 163))
    assert (found.of, found.unit, found.value) == (9, "drafts", 163 / 323)
    assert found.low < 0.2 and found.high > 0.85
    assert (found.low, found.high) == exact_interval(9 * 163 / 323, 9, 0.98)
    totals = drafted_tokens(ServerCounts("llama.cpp", "totals", None, 996, 525, tokens=900, requests_done=3))
    assert (totals.of, totals.unit) == (900 - 3 - 525, "steps")


def test_uncertainty_of_a_share_of_tokens_counts_drafts():
    counts = ServerCounts("llama.cpp", "totals", 100, 3000, 1500)
    assert yield_of(counts, 0) == (0.5, pytest.approx(0.05))
    assert yield_of(ServerCounts("llama.cpp", "totals", 19, 570, 285), 0) is None
