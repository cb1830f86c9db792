"""Losslessness: exact distributions and guarantees on small rows, and a G-test of decoded texts.

Each statistical test has a false alarm rate below 1e-6 and a fixed seed.
"""

import itertools
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.rank_acceptance import average_rank_acceptance
from sequoia_core.decoding.sampling import (
    SamplingConfig,
    draft_probabilities,
    probabilities,
    sample_without_replacement,
    take_most_likely,
)
from sequoia_core.decoding.verifiers import GREEDY_VERIFIER, VERIFIERS, sequoia_rule
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.trees.plain import branching_tree, chain_tree
from sequoia_extras.evaluation import losslessness as lossless
from sequoia_extras.evaluation.losslessness import check_losslessness
from sequoia_extras.evaluation.node_enumeration import next_token_distribution
from tests.conftest import pair_of, recalled, tiny_llama, tokens_of
from tests.core.decoding.test_verifiers import DRAFT_SAMPLINGS, rows
from tests.core.decoding.test_verifiers import next_token_law as enumerated_by_test

both_ways = pytest.mark.usefixtures("each_rows")  # with compiled rows and without

ALL = VERIFIERS | {"greedy": GREEDY_VERIFIER}


def random_rows(count, seed=0):
    """Yield rows of two to five tokens, half of them with zeros in P, in Q or in both."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        size = int(generator.integers(2, 6))
        pair = generator.dirichlet(np.full(size, 0.8), size=2)
        for side in range(2):
            if number & (1 << side):
                gone = generator.permutation(size)[: generator.integers(1, size)]
                pair[side][gone] = 0.0
        yield tuple(row / row.sum() for row in pair)


@both_ways
@pytest.mark.parametrize("name", VERIFIERS)
def test_the_distribution_is_the_targets_and_two_enumerations_agree(name):
    for target, draft in itertools.chain(random_rows(60), rows()):
        for k in range(1, len(target) + 1):
            law, accepted = next_token_distribution(target, draft, k, name)
            np.testing.assert_allclose(law, target, atol=1e-12)
            if k < 4 and (name != "topk" or len(set(draft)) == len(draft)):  # equal tokens have no order
                other = enumerated_by_test(target, draft, k, *DRAFT_SAMPLINGS[name])[1]
                assert accepted == pytest.approx(other, abs=1e-12)


@both_ways
def test_the_greedy_distribution_is_the_argmax():
    for target, draft in random_rows(30, seed=2):
        for k in range(1, len(target) + 1):
            law, accepted = next_token_distribution(target, draft, k, "greedy")
            assert law.tolist() == np.eye(len(target))[target.argmax()].tolist()
            assert accepted == (target.argmax() in take_most_likely(torch.tensor(draft)[None], k)[0])


@both_ways
@pytest.mark.parametrize("name", ALL)
def test_the_guarantees_agree_with_enumeration(name):
    """Optimal transport: one child is accepted as often as possible. Cover: if P is within the children, always."""
    generator = np.random.default_rng(4)
    best = []
    covered = []
    for target, draft in itertools.chain(random_rows(200, seed=3), rows()):
        k = 1 if name == "greedy" else int(generator.integers(1, len(target) + 1))
        some = int(generator.integers(1, k + 1))
        inside, q = np.zeros((2, len(target)))
        q[:k] = generator.dirichlet(np.ones(k))
        inside[:some] = generator.dirichlet(np.ones(some))
        covered.append(next_token_distribution(inside, q, k, name)[1])
        if name == "greedy":
            target, draft = (np.eye(len(row))[row.argmax()] for row in (target, draft))
        best.append(next_token_distribution(target, draft, 1, name)[1] - np.minimum(target, draft).sum())
    assert np.allclose(best, 0.0, atol=1e-12) == ALL[name].optimal_transport
    assert np.allclose(covered, 1.0, atol=1e-12) == ALL[name].cover
    assert max(best) < 1e-12 or name == "topk"  # no rule is better for a draw from Q


@pytest.fixture(scope="module")
def small_pair():
    """Two unrelated one-layer models of 16 tokens."""
    return [tiny_llama(seed, vocab=16, layers=1, scale=1.0) for seed in (1, 2)]


def check(pair, prompt=(3,), tree=None, **options):
    options.setdefault("samples", 3_000)
    options.setdefault("sampling", SamplingConfig(1.0))
    options.setdefault("generator", torch.Generator().manual_seed(0))
    return check_losslessness(prompt, pair_of(*pair), tree=tree or branching_tree([3, 2]), **options)


def describe(report):
    return f"p = {report.p_value:.3g}, G = {report.statistic:.1f} over {report.degrees_of_freedom}"


SETTINGS = {
    "temperature 1, two levels": (SamplingConfig(1.0), branching_tree([3, 2])),
    "top-p 0.8": (SamplingConfig(0.7, top_p=0.8), branching_tree([2, 1])),
}


@both_ways
@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_decoding_is_lossless(verifier, setting, small_pair):
    sampling, tree = SETTINGS[setting]
    report = check([recalled(model) for model in small_pair], tree=tree, sampling=sampling, verifier=verifier)
    assert report.passed and report.degrees_of_freedom > 5, describe(report)


@pytest.mark.sample(1, cover=False)
@both_ways
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("draft", ["model", "head", "bfloat16"])
def test_decoding_passes_the_check_with_few_samples(draft, verifier, small_pair):
    """The rounding of bfloat16, one part in 250, is invisible to so few samples."""
    target = tiny_llama(3, vocab=16, scale=1.0)
    pair = small_pair
    if draft == "bfloat16":
        pair = [HuggingFaceModel(deepcopy(model.model).to(torch.bfloat16), "half") for model in small_pair]
    if draft == "head":
        pair = target, pytest.importorskip("tests.head_folders").random_head(target, scale=3.0, draft_vocab=12)
    report = check(pair, samples=500, verifier=verifier)
    assert report.passed and report.degrees_of_freedom > 5, describe(report)


def broken_verifier(draft_sampling, rule):
    """A combination that `Verifier` refuses."""
    return SimpleNamespace(name="broken", draft_sampling=draft_sampling, rule=rule)


@pytest.mark.slow
def test_a_wrong_rule_for_top_k_children_is_detected(small_pair, monkeypatch):
    monkeypatch.setitem(VERIFIERS, "broken", broken_verifier(take_most_likely, sequoia_rule))
    report = check(small_pair, samples=500, verifier="broken")
    assert not report.passed and report.p_value < 1e-20, describe(report)


@pytest.mark.slow
def test_random_keys_reused_in_every_step_are_detected(small_pair, monkeypatch):
    run = itertools.count()

    def decode_with_one_key(*args, **options):
        seed = next(run)

        def reuse(probs, k, generator, first):
            return sample_without_replacement(probs, k, torch.Generator().manual_seed(seed), first)

        monkeypatch.setitem(VERIFIERS, "broken", broken_verifier(reuse, sequoia_rule))
        return decode(*args, **options)

    monkeypatch.setattr(lossless, "decode", decode_with_one_key)
    report = check(small_pair, samples=1000, verifier="broken")
    assert not report.passed and report.p_value < 1e-20, describe(report)


def test_a_wrong_greedy_text_reports_its_first_difference(small_pair, monkeypatch):
    options = {"samples": 8, "new_tokens": 3, "sampling": SamplingConfig()}
    wanted = check(small_pair, **options)
    text = tokens_of(decode([3], pair_of(*small_pair), tree=chain_tree(2), max_new_tokens=3))
    assert wanted.passed and wanted.cells == (tuple(text),) and wanted.degrees_of_freedom == 0

    def odd(*arguments, **more):
        for step in decode(*arguments, **more):
            yield replace(step, new_tokens=[(token + 1) % small_pair[0].vocab_size for token in step.new_tokens])

    monkeypatch.setattr(lossless, "decode", odd)
    report = check(small_pair, **options)
    (cell,), found = report.cells, report.difference
    assert report.impossible == 8 and not report.passed and cell == wanted.cells[0]
    assert (found.index, found.tokens) == (0, (cell[0], (cell[0] + 1) % small_pair[0].vocab_size)) and found.gap > 0


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("new_tokens", [1, 2, 3])
@pytest.mark.parametrize("samples", [3, 40, 300])
def test_pooling_preserves_the_mass(new_tokens, samples, small_pair):
    report = check(small_pair, samples=samples, new_tokens=new_tokens)
    assert report.samples == samples == report.observed.sum() and report.impossible == 0
    assert report.expected.sum() == pytest.approx(samples)
    assert report.expected.min() >= 5.0 or len(report.expected) == 1
    assert len(report.cells) == len(report.pooled) == report.degrees_of_freedom + 1


@pytest.mark.slow
def test_texts_that_end_early_have_their_own_cells(small_pair):
    stopping = HuggingFaceModel(small_pair[0].model, "stopping", eos_ids=frozenset(range(8)))
    report = check([stopping, small_pair[1]], samples=400, tree=chain_tree(3), new_tokens=3)
    assert report.passed, describe(report)
    assert any(len(tokens) == 1 and not pooled for tokens, pooled in zip(report.cells, report.pooled, strict=True))


@pytest.mark.slow
def test_the_false_alarm_rate_is_as_stated():
    """The corrected G follows its chi-square far into the tail, at five expected per cell."""
    generator = np.random.default_rng(0)
    shares = np.concatenate([np.full(60, 1 / 120), generator.dirichlet(np.ones(10)) / 2])
    shares = np.maximum(shares, 1 / 120)
    shares /= shares.sum()
    samples = int(np.ceil(5 / shares.min()))
    law = SimpleNamespace(
        cells={((i,), False): share for i, share in enumerate(shares)}, find_cell=lambda text: (text, False)
    )
    alarms = 0
    statistics = []
    count = 20_000
    for drawn in generator.multinomial(samples, shares, size=count):
        report = lossless._g_test(law, lossless.Counter({(i,): int(c) for i, c in enumerate(drawn)}))
        alarms += report.p_value < 1e-3
        statistics.append(report.statistic)
    assert 5 < alarms < 55  # expected 20, and the approximation may double it
    # Without the correction the mean is off by five percent; chance moves it by one in 800.
    assert np.mean(statistics) == pytest.approx(report.degrees_of_freedom, rel=0.02)
    assert lossless.P_VALUE_THRESHOLD * 10 <= lossless.FALSE_ALARM_RATE and chi2.isf(lossless.P_VALUE_THRESHOLD, 1) > 28


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples: found 0"),
        ({"prompt": (1,) * 255, "samples": 2}, "found 255 tokens, expected the target's context to fit 2 more"),
    ],
)
def test_invalid_arguments_are_refused(options, message, small_pair):
    with pytest.raises(ValueError, match=message):
        check(small_pair, **options)


CUTS = [SamplingConfig(1.0, 0.6), SamplingConfig(1.0, 0.8), SamplingConfig(1.0, 0.9, 2)]
DRAWING = ["sequoia", "specinfer", "traversal"]
DRAWS = 20_000


def cut_rows(sampling):
    """Yield P as sampled, Q, and Q as cut for first children; float64."""
    for pair in rows():
        logits = [torch.tensor(row[None]).float().log() for row in pair]
        draft, first = draft_probabilities(logits[1], sampling)
        first = draft if first is None else first
        found = (row[0].double().numpy() for row in (probabilities(logits[0], sampling), draft, first))
        yield [row / row.sum() for row in found]


@pytest.mark.parametrize("sampling", CUTS, ids=str)
@pytest.mark.parametrize("name", DRAWING)
def test_the_distribution_is_the_targets_with_cut_first_children(name, sampling):
    for target, draft, first in cut_rows(sampling):
        for k in range(1, len(target) + 1):
            law, accepted = next_token_distribution(target, draft, k, name, first)
            np.testing.assert_allclose(law, target, atol=1e-12)
            if k == 1:
                assert accepted == pytest.approx(np.minimum(target, first).sum(), abs=1e-12)


@both_ways
@pytest.mark.parametrize("sampling", [SamplingConfig(1.0), CUTS[1]], ids=str)
@pytest.mark.parametrize("name", ["sequoia", "specinfer"])
def test_measured_ranks_agree_with_the_enumeration(name, sampling):
    """Expected ranks, ranks drawn given the committed token, and the average shown on pages agree."""
    generator = torch.Generator().manual_seed(0)
    for target, draft, first in cut_rows(sampling):
        width = len(target)
        exact = [next_token_distribution(target, draft, k, name, first)[1] for k in range(1, width + 1)]
        many = [torch.tensor(row).float().expand(DRAWS, -1).contiguous() for row in (target, draft, first)]
        expected = VERIFIERS[name].ranks(many[0], many[1], width, generator, many[2]).cumsum(1)
        tokens = torch.multinomial(many[0], 1, generator=generator)[:, 0]
        ranks = VERIFIERS[name].outcomes(many[0], many[1], tokens, width, generator, many[2])
        drawn = torch.stack([(ranks > 0) & (ranks <= k) for k in range(1, width + 1)], 1)
        found = [expected.mean(0), drawn.double().mean(0)]
        if name == "sequoia":
            given = (torch.tensor(row) for row in (target, draft))
            options = {"samples": DRAWS, "generator": generator, "first": torch.tensor(first)}
            found.append(average_rank_acceptance(*given, width, **options).cumsum(0))
        for each in found:
            assert each.tolist() == pytest.approx(exact, abs=0.5 * 5.5 / np.sqrt(DRAWS))
        assert found[0][0] == pytest.approx(exact[0], abs=1e-6 if name == "specinfer" else 0.02)
