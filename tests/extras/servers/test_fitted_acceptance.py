"""Acceptance fitted to totals: exact for a constant rate, and its interval covers what counts by position show."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_extras.servers.chain_acceptance import chain_acceptance
from sequoia_extras.servers.counts import ServerCounts
from sequoia_extras.servers.fitted_acceptance import plan_acceptance
from tests.extras.servers.samples import AFTER, LLAMA_AFTER, llama_text, read, step_records, vllm_text


def totals(share: float, *, drafts: int = 10_000, length: int = 5) -> ServerCounts:
    accepted = round(drafts * sum(share**position for position in range(1, length + 1)))
    return ServerCounts("llama.cpp", "totals", drafts, drafts * length, accepted)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_a_constant_rate_is_recovered(share):
    chains = plan_acceptance(totals(share))
    assert chains.fitted == pytest.approx(share, abs=1e-3) and chains.longest == 5
    assert chains.survival == pytest.approx(share ** np.arange(1, 6), abs=1e-3)
    assert (chains.low <= chains.survival).all() and (chains.survival <= chains.high).all()


@pytest.mark.parametrize("text", [vllm_text(*AFTER), llama_text(*LLAMA_AFTER), step_records()], ids=len)
def test_the_interval_contains_the_counted_survival(text):
    counts = replace(read(text), requests=(), totals=(), ordered=False)
    counted = chain_acceptance(counts)
    fitted = plan_acceptance(replace(counts, positions=()))
    assert fitted.longest == counted.longest and fitted.current is None
    assert ((fitted.low <= counted.survival) & (counted.survival <= fitted.high)).all()
    assert fitted.tokens_per_step[-1] == pytest.approx(counted.tokens_per_step[-1], rel=1e-3)


def test_drafts_that_end_early_widen_the_interval():
    early = plan_acceptance(ServerCounts("llama.cpp", "totals", 10_000, 22_000, 18_000))
    # Between all ends being rejections and none: a constant rate p with p + p² + p³ = 1.8, or p + p² + p³ / 5 = 1.8.
    assert early.longest == 3 and early.low[0] < 0.78 and early.high[0] > 0.86
    assert "many end early" in " ".join(early.notes)


def test_impossibly_long_drafts_are_refused():
    with pytest.raises(ValueError, match="found 1,000,000,000 tokens in 1 drafts, expected at most 1,024 each"):
        plan_acceptance(ServerCounts("llama.cpp", "totals", 1, 10**9, 5))


def test_the_draft_length_is_needed_for_averages():
    averages = ServerCounts("sglang", "averages", mean_length=2.5)
    with pytest.raises(ValueError, match="found only averages from sglang, expected also the draft length K"):
        plan_acceptance(averages)
    assert plan_acceptance(averages, draft_length=3).tokens_per_step[-1] == pytest.approx(2.5)
    with pytest.raises(ValueError, match="draft length: found 1 with 2.50 tokens per step, expected at least 2"):
        plan_acceptance(averages, draft_length=1)
