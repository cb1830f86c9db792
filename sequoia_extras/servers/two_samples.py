"""Stratified chi-square test that two samples of short texts have the same distribution, and its sample sizes."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

AUDIT_FALSE_ALARM = 0.01  # probability of reporting a difference between samples of the same distribution
POWER = 0.9
GROUPS = 32  # maximum number of groups of texts; each contains at least 1 / GROUPS of all samples
SHUFFLES = 499
SMALLEST_GROUP = 20  # minimum number of texts in both samples together; half are expected in each

Text = tuple[Hashable, ...]


class TwoSampleTest(NamedTuple):
    """The result of comparing two samples.

    Attributes:
        degrees_of_freedom: number of groups minus number of strata; 0 if there was nothing to compare.
    """

    samples: tuple[int, int]
    statistic: float
    degrees_of_freedom: int
    p_value: float


def compare_distributions(seen: Mapping[Text, Sequence[float]], *, given: int) -> TwoSampleTest:
    """Test whether the entries after the first `given` of each text have the same distribution in both samples.

    Texts and strata that are rare in both samples together are pooled by their common prefix.

    Args:
        seen: text -> its counts in the two samples.
        given: number of entries conditioned on.
    """
    samples = np.sum([*seen.values(), (0, 0)], axis=0)
    smallest = max(SMALLEST_GROUP, samples.sum() / GROUPS)
    stratum_of = _pool(((text[:given], sum(pair)) for text, pair in seen.items()), 2 * smallest)
    statistic = 0.0
    freedom = 0
    for stratum in set(stratum_of.values()):
        inside = [(text[given:], pair) for text, pair in seen.items() if stratum_of[text[:given]] == stratum]
        group = _pool(((text, sum(pair)) for text, pair in inside), smallest)
        rows: defaultdict[Text, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for text, pair in inside:
            rows[group[text]] += pair
        table = np.array(list(rows.values()))
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        if expected.all():
            statistic += float(((table - expected) ** 2 / expected).sum())
            freedom += len(table) - 1
    p_value = float(chi2.sf(statistic, freedom)) if freedom else 1.0
    return TwoSampleTest((int(samples[0]), int(samples[1])), statistic, freedom, p_value)


def _pool(texts: Iterable[tuple[Text, float]], smallest: float) -> dict[Text, Text]:
    """Return the group of each text; a group's texts share a prefix and have a total count of at least `smallest`."""
    size: defaultdict[Text, float] = defaultdict(float)
    for text, count in texts:
        size[text] += count
    group = {text: text for text in size}
    for length in range(max(map(len, size), default=0), -1, -1):
        merged: dict[Text, Text] = {}
        for text in [text for text, count in size.items() if len(text) == length and count < smallest]:
            count = size.pop(text)
            merged[text] = text[:-1] if length else min(size, key=size.__getitem__, default=())
            size[merged[text]] += count
        group = {text: merged.get(current, current) for text, current in group.items()}
    return group


def alike_within_requests(requests: Sequence[tuple]) -> bool:
    """Return whether answers within a request are equal more often than across requests with the same prompt.

    Independent answers to a prompt are exchangeable between its requests. Equal pairs within requests are counted, then
    counted again after each of `SHUFFLES` shuffles; independent answers exceed them all with a probability of at most
    1 / (SHUFFLES + 1), 0.2 %, whatever their distribution.

    Args:
        requests: each given as its prompt's index followed by its answers.
    """
    generator = np.random.default_rng(0)
    squares = np.zeros(1 + SHUFFLES)  # sums of squared counts: twice the equal pairs plus the number of answers
    for prompt in {prompt for prompt, *_ in requests}:
        asked = [answers for number, *answers in requests if number == prompt]
        number_of = {answer: number for number, answer in enumerate(dict.fromkeys(chain(*asked)))}
        answers = np.array([number_of[answer] for answer in chain(*asked)])
        request = np.repeat(np.arange(len(asked)), [len(each) for each in asked]) * len(number_of)
        for index in range(1 + SHUFFLES):
            counts = np.unique(request + answers, return_counts=True)[1]
            squares[index] += (counts**2).sum()
            answers = generator.permutation(answers)
    return bool(squares[0] > squares[1:].max())


def power(variation: float, samples: float, freedom: int = GROUPS - 1) -> float:
    """Return the minimum probability of detecting a bias with `samples` samples per distribution, whatever its form.

    Among all biases of a given total variation, chi-square grows least for one that changes every group in the same
    proportion: by 2 samples variation^2 (Cauchy-Schwarz).

    Args:
        variation: half the sum of absolute differences between the two distributions, over the groups.
        freedom: degrees of freedom, the number of groups minus the number of strata.
    """
    if not freedom:
        return 0.0
    return float(ncx2.sf(chi2.isf(AUDIT_FALSE_ALARM, freedom), freedom, 2.0 * samples * variation**2))


def samples_needed(variation: float, freedom: int = GROUPS - 1) -> int:
    """Return the number of samples per distribution that detect a bias with a probability of `POWER`."""
    needed = brentq(lambda samples: power(variation, samples, freedom) - POWER, 1.0, 1e4 * (1 + freedom) / variation**2)
    return math.ceil(float(needed))
