"""Whether two samples of short texts follow one law (chi-square within strata), and how large samples must be."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

FALSE_ALARM = 0.01  # how often samples of one law are said to differ
POWER = 0.9
GROUPS = 32  # of texts, at most: each holds this share of all samples or more
SHUFFLES = 499
SMALLEST_GROUP = 20  # texts of both samples; half of them are expected in each

Text = tuple[Hashable, ...]


class LawTest(NamedTuple):
    """Two samples compared.

    Attributes:
        degrees_of_freedom: groups less strata; at 0 there was nothing to compare.
        p_value: how often one law gives as much.
    """

    samples: tuple[int, int]
    statistic: float
    degrees_of_freedom: int
    p_value: float


def compare_laws(seen: Mapping[Text, Sequence[float]], *, given: int) -> LawTest:
    """Test whether what follows the first `given` entries of a text has one law in both samples.

    Rare texts are pooled by their common beginning, and strata likewise, by the count of both samples together.

    Args:
        seen: text -> its count in each sample.
        given: entries that are conditioned on.
    """
    samples = np.sum([*seen.values(), (0, 0)], axis=0)
    smallest = max(SMALLEST_GROUP, samples.sum() / GROUPS)
    home = _pooled(((text[:given], sum(pair)) for text, pair in seen.items()), 2 * smallest)
    statistic, freedom = 0.0, 0
    for stratum in set(home.values()):
        inside = [(text[given:], pair) for text, pair in seen.items() if home[text[:given]] == stratum]
        group = _pooled(((text, sum(pair)) for text, pair in inside), smallest)
        rows: defaultdict[Text, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for text, pair in inside:
            rows[group[text]] += pair
        table = np.array(list(rows.values()))
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        if expected.all():
            statistic += float(((table - expected) ** 2 / expected).sum())
            freedom += len(table) - 1
    p_value = float(chi2.sf(statistic, freedom)) if freedom else 1.0
    return LawTest((int(samples[0]), int(samples[1])), statistic, freedom, p_value)


def _pooled(texts: Iterable[tuple[Text, float]], smallest: float) -> dict[Text, Text]:
    """Return the group of each text: groups hold at least `smallest`, by what their texts begin with."""
    size: defaultdict[Text, float] = defaultdict(float)
    for text, count in texts:
        size[text] += count
    group = {text: text for text in size}
    for length in range(max(map(len, size), default=0), -1, -1):
        into: dict[Text, Text] = {}
        for text in [text for text, held in size.items() if len(text) == length and held < smallest]:
            held = size.pop(text)
            into[text] = text[:-1] if length else min(size, key=size.__getitem__, default=())
            size[into[text]] += held
        group = {text: into.get(own, own) for text, own in group.items()}
    return group


def alike_within_requests(requests: Sequence[tuple]) -> bool:
    """Return whether answers to one request are equal more often than answers to several requests of its prompt.

    Independent answers to a prompt can change places between its requests. The equal pairs within requests are counted,
    and again after each of `SHUFFLES` shuffles, which independent answers exceed with a probability of at most
    1 / (SHUFFLES + 1), 0.2 %, whatever their law.

    Args:
        requests: each the number of its prompt and its answers.
    """
    generator = np.random.default_rng(0)
    squares = np.zeros(1 + SHUFFLES)  # of the counts of equal answers: twice the equal pairs, and the answers
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
    """Return the probability of finding a bias, whatever its form, from so many `samples` of each law.

    Of all biases of a total variation, chi-square grows least with one that changes all groups in the same proportion:
    by 2 samples variation^2 (Cauchy-Schwarz).

    Args:
        variation: half the sum of absolute differences between the two laws, over the groups.
        freedom: groups less strata.
    """
    if not freedom:
        return 0.0
    return float(ncx2.sf(chi2.isf(FALSE_ALARM, freedom), freedom, 2.0 * samples * variation**2))


def samples_needed(variation: float, freedom: int = GROUPS - 1) -> int:
    """Return the samples of each law that find a bias with a probability of 0.9; see `power`."""
    needed = brentq(lambda samples: power(variation, samples, freedom) - POWER, 1.0, 1e4 * (1 + freedom) / variation**2)
    return math.ceil(float(needed))
