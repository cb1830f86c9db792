"""The doctor's numbers have as many digits as their bounds support; bounds count drafts."""

from math import nan

import pytest

from sequoia_core.acceptance.bootstrap import exact_interval
from sequoia_extras.servers.counts import ServerCounts
from sequoia_extras.servers.evidence import Evidence, Facts

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
def test_wide_bounds_are_written_with_few_digits(evidence, words):
    assert str(evidence) == words


def test_tokens_of_one_draft_count_as_one_trial():
    """A real run: 163 of 323 tokens in 9 drafts; where drafts are unknown, steps count."""
    found = Facts(ServerCounts("llama.cpp", "counters", 9, 323, 163)).drafted
    assert (found.of, found.unit, found.value) == (9, "drafts", 163 / 323)
    assert found.low < 0.2 and found.high > 0.85
    assert (found.low, found.high) == exact_interval(9 * 163 / 323, 9, 0.98)
    totals = Facts(ServerCounts("llama.cpp", "totals", None, 996, 525, tokens=900, requests_done=3)).drafted
    assert (totals.of, totals.unit) == (900 - 3 - 525, "steps")
