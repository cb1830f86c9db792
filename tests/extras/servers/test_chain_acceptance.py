"""Survival and tokens per step from counts of real servers; replayed records; limits of sources."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.acceptance.matrix_files import load_acceptance
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.model_names import ASSETS
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.plain import chain_tree
from sequoia_extras.servers.chain_acceptance import (
    MATCH,
    REJECTION,
    chain_acceptance,
    counts_from_matrix,
    counts_from_vector,
    other_rule_note,
)
from sequoia_extras.servers.counts import ServerCounts, ServerRequest
from sequoia_extras.servers.request_spread import find_collapse
from tests.conftest import pair_of
from tests.extras.servers.samples import AFTER, BEFORE, DRAFTS_BY_K, read, step_records, vllm_text


@pytest.fixture(scope="module")
def by_counters():
    return chain_acceptance(read(vllm_text(*AFTER), vllm_text(*BEFORE)))


@pytest.fixture(scope="module")
def by_step():
    return chain_acceptance(read(step_records()), new_tokens=128)


def test_chains_of_the_matrix_expect_the_counted_tokens(by_counters):
    matrix = by_counters.to_matrix()
    for k in range(5):
        assert expected_tokens(chain_tree(k), matrix) == pytest.approx(by_counters.tokens_per_step[k])
    assert expected_tokens(chain_tree(9), matrix) == pytest.approx(by_counters.tokens_per_step[4])
    with pytest.raises(ValueError, match="k: found 5, expected 0 to 4, the server's draft length"):
        by_counters.tokens(5)


def test_replayed_records_match_the_drafts_of_servers(by_step):
    tokens = 16 * 127  # the first token of each answer comes from the prompt's pass
    assert {k: round(tokens / by_step.tokens_per_step[k]) for k in DRAFTS_BY_K} == DRAFTS_BY_K
    assert by_step.tokens(4).value == pytest.approx(2.949, abs=1e-3)


def test_intervals_cover_requests_if_recorded(by_step, by_counters):
    assert by_step.by_request
    assert not by_counters.by_request
    # requests differ more than independent drafts would
    assert by_step.high[0] - by_step.low[0] > 2 * (by_counters.high[0] - by_counters.low[0])
    for chains in (by_step, by_counters):
        assert (chains.low <= chains.survival).all() and (chains.survival <= chains.high).all()
        found = chains.tokens(4)
        assert found.low < found.value < found.high


def test_resampled_drafts_preserve_the_correlation_of_positions(by_counters):
    # Var(accepted per draft) / drafts: independent positions would have less than half of it
    ends, lengths = -np.diff([1, *by_counters.survival, 0]), np.arange(5)
    variance = (ends * lengths**2).sum() - (ends * lengths).sum() ** 2
    assert by_counters.samples[:, 4].std() == pytest.approx(np.sqrt(variance / 689), rel=0.1)


def of_records(*requests: ServerRequest, positions: tuple[int, ...]) -> ServerCounts:
    drafts = sum(len(request.accepted) for request in requests)
    counted = drafts, drafts * len(positions), sum(positions), positions
    return ServerCounts("vllm", "records by step", *counted, requests=requests, ordered=True)


LONG, SHORT = ServerRequest((4, 0, 2), (4, 4, 4), 8), ServerRequest((1,), (4,), 0)


def test_one_request_has_no_interval():
    one = chain_acceptance(of_records(LONG, positions=(2, 2, 1, 1)))
    assert one.tokens(4) == (pytest.approx(8 / 3), None, None) and not one.has_interval


def test_answers_of_one_token_are_ignored():
    found = chain_acceptance(of_records(LONG, SHORT, ServerRequest((), (), 0), positions=(3, 2, 1, 1)))
    assert found.tokens(4).value == pytest.approx(8 / 3)
    unread = ServerRequest((), (), None)
    assert chain_acceptance(of_records(LONG, unread, positions=(2, 2, 1, 1))).tokens(4).value == pytest.approx(8 / 3)
    with pytest.raises(ValueError, match="expected answers of at least two tokens"):
        chain_acceptance(of_records(SHORT, positions=(1, 0, 0, 0)))


def test_records_with_undrafted_steps_are_not_replayed():
    """vLLM records no step without a draft, as n-grams have many: the tokens in between would count as guessed."""
    steps = {"num_spec_tokens": 4, "num_spec_steps": 2, "num_draft_tokens": 8}
    steps |= {"per_step_accepted": [4, 0], "per_step_drafted": [4, 4], "completion_tokens": 21}
    found = chain_acceptance(read([steps, steps]))
    assert found.counts.coverage == pytest.approx(2 / 16)
    assert found.tokens(4).value == pytest.approx(20 / 16)


def test_published_rates_give_chains_without_intervals():
    """Tokens per step of their whole drafts, as the same tables state them."""
    stated = {"gemma-4-31b-dflash": 4.91, "qwen3-8b-peagle": 3.5, "qwen3.5-9b-mtp": 3.23}
    for name, tokens in stated.items():
        matrix = load_acceptance(ASSETS / "servers" / f"{name}.json")
        chains = chain_acceptance(counts_from_matrix(matrix))
        assert chains.survival.round(3).tolist() == matrix.probs[:-1, 0].cumprod().round(3).tolist()
        assert chains.tokens(chains.longest) == (pytest.approx(tokens, abs=0.006), None, None)
        assert "for chains only" in chains.notes[0] and chains.counts.source in chains.notes[0]
        assert counts_from_matrix(chains.to_matrix()).positions == chains.counts.positions
    with pytest.raises(ValueError, match="found a matrix of 1 ranks, expected only rank 1, with its trials"):
        counts_from_matrix(replace(chains.to_matrix(), trials=None, meta={}))


def test_unreached_positions_do_not_divide_by_zero():
    chains = chain_acceptance(ServerCounts("vllm", "counters", 10, 40, 0, (0, 0, 0, 0)))
    assert chains.to_matrix().probs.ravel().tolist() == [0, 0, 0, 0, 0]
    assert chains.tokens(4).value == 1


PROMPTS = [[1, 2, 3], [9], [4, 8, 15]]


def test_a_vector_gives_the_counts_of_a_server(tiny_target, tiny_draft):
    """At temperature 0 to the step: our own engine decodes the same texts with the same chain."""
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 40}
    found = counts_from_vector(measure_acceptance(PROMPTS, **models, width=2), "vllm", longest=3)
    for request, prompt in zip(found.requests, PROMPTS, strict=True):
        steps = decode(prompt, tree=chain_tree(3), **models)
        assert request.accepted == tuple(len(step.accepted_path) - 1 for step in steps)
    assert find_collapse(found) is None and not found.periods  # its texts are in no order of time
    assert found.positions[0] and chain_acceptance(found).tokens_per_step[3] == 120 / found.drafts


def test_a_vector_measured_by_one_rule_gives_the_other(tiny_target, tiny_draft):
    """The target draws one text whatever the verifier, so a vector of the top-k rule has the same matches."""
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 40, "sampling": SamplingConfig(0.8)}
    ours, theirs = (measure_acceptance(PROMPTS, **models, width=2, verifier=name) for name in ("sequoia", "topk"))
    match, other = (counts_from_vector(vector, "llama.cpp") for vector in (ours, theirs))
    assert match.requests == other.requests and "as accepted by match" in match.source
    assert counts_from_vector(ours, "vllm", REJECTION).drafts < match.drafts
    gain = counts_from_vector(ours, "", longest=4).drafts / counts_from_vector(ours, "", REJECTION, longest=4).drafts
    assert f"the same texts yield {gain:.2f} times" in other_rule_note(ours, MATCH)
    with pytest.raises(ValueError, match="without the outcome of rejection at each position, expected one measured"):
        counts_from_vector(theirs, "vllm", REJECTION)


@pytest.mark.parametrize("positions", [(6, 3), (6, 0), (0, 0)])
def test_a_saved_matrix_restores_the_counts_by_position(positions):
    counted = {"tokens": 30, "requests_done": 1, "model": "m", "drafter": "d"}
    counts = ServerCounts("vllm", "counters", 10, 20, sum(positions), positions, **counted)
    again = counts_from_matrix(chain_acceptance(counts).to_matrix())
    assert replace(again, source="counters", notes=()) == counts
