"""The two-sample test has the stated false alarms and power in simulations."""

import numpy as np
import pytest
from scipy.stats import binom

from sequoia_extras.servers.two_samples import (
    AUDIT_FALSE_ALARM,
    GROUPS,
    POWER,
    alike_within_requests,
    compare_distributions,
    power,
    samples_needed,
)
from tests.planted import BIASED, law, planted, samples  # noqa: F401

AUDITS = 200
BIAS = 0.05


def differing(laws, count, *, audits=AUDITS, seed=0, given=2):
    """Return how many audits distinguish two distributions."""
    generator = np.random.default_rng(seed)
    tests = (compare_distributions(samples(laws, count, generator), given=given) for _ in range(audits))
    return sum(each.p_value < AUDIT_FALSE_ALARM for each in tests)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    plain = law()
    # fails a correct test once in 10,000
    assert differing((plain, plain), samples_needed(BIAS)) <= binom.isf(1e-4, AUDITS, AUDIT_FALSE_ALARM)
    assert differing((plain, plain), 300, seed=1) <= binom.isf(1e-4, AUDITS, AUDIT_FALSE_ALARM)


def test_the_hardest_bias_is_detected_as_often_as_stated():
    """All groups change in the same proportion, with the maximum number of groups."""
    count = samples_needed(BIAS)
    plain = {(0, 0, token): 1 / GROUPS for token in range(GROUPS)}
    biased = {text: chance * (1 + 2 * BIAS * (-1) ** place) for place, (text, chance) in enumerate(plain.items())}
    assert sum(abs(biased[text] - plain[text]) for text in plain) / 2 == pytest.approx(BIAS)
    assert power(BIAS, count) == pytest.approx(POWER, abs=1e-3)
    found = differing((biased, plain), count, audits=1000)
    assert binom.ppf(1e-4, 1000, POWER) <= found <= binom.isf(1e-4, 1000, POWER)
    fewer = differing((biased, plain), count // 4, audits=1000)
    assert binom.ppf(1e-4, 1000, power(BIAS, count // 4)) <= fewer <= binom.isf(1e-4, 1000, power(BIAS, count // 4))


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("rule", BIASED, ids=lambda rule: rule.__name__)
def test_each_planted_bias_is_detected_with_the_stated_samples(rule, planted):  # noqa: F811
    biased, plain, count = law(planted(rule)), law(), samples_needed(BIAS)
    assert sum(biased.values()) == pytest.approx(1.0)
    whole = compare_distributions({text: (count * biased[text], count * plain[text]) for text in plain}, given=2)
    assert whole.statistic >= 2 * count * BIAS**2  # what the hardest bias of that size weighs
    assert differing((biased, plain), count) >= POWER * AUDITS


def test_a_first_token_bias_shows_only_in_the_control():
    plain = law()
    first = {text: chance * (1.3 if text[1] == 0 else 1.0) for text, chance in plain.items()}
    other = {text: chance / sum(first.values()) for text, chance in first.items()}
    pair = samples((other, plain), 8000, np.random.default_rng(0))
    assert compare_distributions(pair, given=2).p_value >= AUDIT_FALSE_ALARM
    control = {}
    for text, counts in pair.items():
        control[text[:2]] = np.add(control.get(text[:2], 0), counts)
    assert compare_distributions(control, given=1).p_value < AUDIT_FALSE_ALARM


def test_rare_texts_are_pooled_without_loss():
    seen = {(0, 0, token, other): (3, 4) for token in range(40) for other in range(3)}
    found = compare_distributions(seen | {(0, 0, 99, 0): (500, 400)}, given=2)
    assert found.samples == (3 * 120 + 500, 4 * 120 + 400)
    assert 1 <= found.degrees_of_freedom < GROUPS


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("certainty", [0.3, 0.97])
def test_independent_answers_are_rarely_too_alike(certainty):
    generator = np.random.default_rng(5)
    law = [certainty, *np.full(20, (1 - certainty) / 20)]
    alarms = 0
    for _ in range(40):
        answers = generator.choice(21, (6, 16), p=law).tolist()
        alarms += alike_within_requests([(index % 2, *each) for index, each in enumerate(answers)])
    assert alarms <= 1
    repeated = [(index % 2, *each[:8], *each[:8]) for index, each in enumerate(generator.integers(99, size=(6, 16)))]
    assert alike_within_requests(repeated)
