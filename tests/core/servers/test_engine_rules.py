"""Rules of engines by enumeration in exact fractions, V = 3; chains measured here against our own decoding."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from benchmarks.engine_rules import RULES, accepted_given_token, measure_rules, rule_acceptance
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.files.model_names import ASSETS
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.prompting import Prompting, encode_prompt
from sequoia_core.servers.chain_acceptance import MATCH, REJECTION, chain_acceptance, counts_of_vector
from sequoia_core.studies.measure_acceptance import measure_acceptance
from tests.conftest import pair_of

V = range(3)
ROWS = [tuple(Fraction(n, 6) for n in row) for row in product(range(7), repeat=3) if sum(row) == 6]


def likeliest_of(q):
    """All mass on the first of the largest."""
    return [Fraction(token == max(V, key=lambda each: (q[each], -each))) for token in V]


def match(p, q, drafted):
    """Sample from the target; the draft is accepted if equal: (draft accepted, token) -> chance."""
    found = {}
    for token, draft in product(V, V):
        key = (token == draft, token)
        found[key] = found.get(key, 0) + p[token] * drafted[draft]
    return found


def rejection(p, q, drafted):
    """Accept with min(1, p / q), else draw from what p has above q."""
    found, rest = {}, [max(a - b, 0) for a, b in zip(p, drafted, strict=True)]
    for draft in V:
        if not drafted[draft]:
            continue
        accept = min(Fraction(1), p[draft] / drafted[draft])
        found[True, draft] = found.get((True, draft), 0) + drafted[draft] * accept
        for token in V:
            if accept < 1:
                part = drafted[draft] * (1 - accept) * rest[token] / sum(rest)
                found[False, token] = found.get((False, token), 0) + part
    return found


@pytest.mark.parametrize("p", ROWS)
def test_acceptance_of_each_rule_by_enumeration(p):
    for q in ROWS:
        likeliest = likeliest_of(q)
        laws = [match(p, q, likeliest), match(p, q, q), rejection(p, q, q)]
        for law in (*laws, rejection(p, q, likeliest)):  # each is lossless
            assert [sum(law.get((kept, token), 0) for kept in (True, False)) for token in V] == list(p)
        one_hot = rejection(p, q, likeliest)  # what vLLM does with a greedy draft
        assert +Counter(one_hot) == +Counter(laws[0])
        expected = [float(sum(law.get((True, token), 0) for token in V)) for law in laws]
        rows = (torch.tensor([[float(each) for each in row]], dtype=torch.float64) for row in (p, q))
        np.testing.assert_allclose(rule_acceptance(*rows)[0], expected, atol=1e-12)


def test_what_is_drawn_given_the_token_has_the_law_of_each_rule():
    """Uniforms on a grid, so that shares of them are the chances to within its step."""
    grid = (torch.arange(6000, dtype=torch.float64) + 0.5) / 6000
    for p, q in product(ROWS[::5], ROWS[::3]):
        likeliest = likeliest_of(q)
        laws = [match(p, q, likeliest), match(p, q, q), rejection(p, q, q)]
        rows = [torch.tensor([[float(each) for each in row]] * len(grid), dtype=torch.float64) for row in (p, q)]
        for token in filter(lambda token: p[token], V):
            drawn = accepted_given_token(*rows, torch.full((len(grid),), token), grid).double().mean(0)
            expected = [float(law.get((True, token), 0) / p[token]) for law in laws]
            np.testing.assert_allclose(drawn, expected, atol=2e-4)


def test_measured_chances_and_outcomes_agree(demo_pair):
    sampling, texts = SamplingConfig(1.0, top_p=0.9), load_prompts(ASSETS / "prompts" / "prompts.jsonl")[:4]
    prompts = [encode_prompt(demo_pair, text, Prompting()) for text in texts]
    options = {"pair": demo_pair, "max_new_tokens": 48}
    found = measure_rules(prompts, sampling=sampling, **options)
    assert tuple(found) == RULES
    probs = {rule: float(vector.probs[0]) for rule, vector in found.items()}
    assert probs["match sampled"] < probs["match"] < probs["rejection"] < probs["rejection, draft cut"]
    for rule, vector in found.items():
        drawn, count = np.concatenate(vector.prompt_ranks), vector.trials
        # outcomes scatter around their chances by at most half a position's root: 4.5 deviations, 1e-5 in all
        assert abs(drawn.mean() - probs[rule]) < 4.5 * 0.5 / count**0.5
    with pytest.raises(ValueError, match="temperature: found 0"):
        measure_rules(prompts, sampling=SamplingConfig(), **options)


PROMPTS = [[1, 2, 3], [9], [4, 8, 15]]


def test_a_vector_is_what_a_server_would_count_on_its_texts(tiny_target, tiny_draft):
    """At temperature 0 to the step: our own engine decodes the same texts with the same chain."""
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 40}
    counts = counts_of_vector(measure_acceptance(PROMPTS, **models, width=2), "vllm", longest=3)
    for request, prompt in zip(counts.requests, PROMPTS, strict=True):
        steps = decode(prompt, tree=chain_tree(3), **models)
        assert request.accepted == tuple(len(step.accepted_path) - 1 for step in steps)
    assert counts.positions[0] and chain_acceptance(counts).tokens_per_step[3] == 120 / counts.drafts


def test_a_vector_measured_by_one_rule_tells_of_the_other(tiny_target, tiny_draft):
    """The target draws one text whatever the verifier, so a vector of the top-k rule has the same matches."""
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 40, "sampling": SamplingConfig(0.8)}
    ours, theirs = (measure_acceptance(PROMPTS, **models, width=2, verifier=name) for name in ("sequoia", "topk"))
    match, other = (counts_of_vector(vector, "llama.cpp") for vector in (ours, theirs))
    assert match.requests == other.requests and "as accepted by match" in match.source
    rejection = counts_of_vector(ours, "vllm", REJECTION)
    assert rejection.drafts < match.drafts
    with pytest.raises(ValueError, match="without the outcome of rejection at each position, expected one measured"):
        counts_of_vector(theirs, "vllm", REJECTION)
    again = type(ours).loads(ours.to_bytes(), "v.json")
    assert again == ours and counts_of_vector(again, "", MATCH).requests == match.requests
    with pytest.raises(ValueError, match="rule: found 'exact', expected one of match, rejection"):
        counts_of_vector(ours, "vllm", "exact")
