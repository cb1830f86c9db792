"""Whether two samples of short texts follow one law, and how many of them tell.

A chi-square test within strata. Texts that are seen rarely are pooled with others of the same beginning, by what both
samples have together, so that the same rule holds for both. Knows tokens and counts, no models or servers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

FALSE_ALARM = 0.01  # how often samples of one law are said to differ
POWER = 0.9
GROUPS = 32  # of texts, at most: each holds at least this share of all samples, so fewer samples need no other plan
SMALLEST_GROUP = 20  # texts of both samples; half of them are expected in each

Text = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class LawTest:
    """Two samples compared.

    Attributes:
        samples: texts in each.
        statistic: chi-square, summed over strata.
        degrees_of_freedom: groups less strata; at 0 there was nothing to compare.
        p_value: how often one law gives as much.
        furthest: the group that adds most, with the beginning its texts share; None without any.
        shares: of the texts of its stratum, in each sample.
    """

    samples: tuple[int, int]
    statistic: float
    degrees_of_freedom: int
    p_value: float
    furthest: Text | None
    shares: tuple[float, float] | None

    @property
    def same(self) -> bool:
        return self.p_value >= FALSE_ALARM

    def power(self, variation: float) -> float:
        return power(variation, sum(self.samples) / 2, self.degrees_of_freedom)


def compare_laws(seen: Mapping[Text, Sequence[int]], *, given: int) -> LawTest:
    """Test whether what follows the first `given` entries of a text has one law in both samples.

    Args:
        seen: text -> its count in each sample.
        given: entries that are conditioned on; where such a beginning is rare, texts share a stratum with others.
    """
    counts = {text: np.array(pair, dtype=np.float64) for text, pair in seen.items()}
    samples = sum(counts.values(), start=np.zeros(2))
    smallest = max(SMALLEST_GROUP, samples.sum() / GROUPS)
    beginnings: defaultdict[Text, float] = defaultdict(float)
    for text, pair in counts.items():
        beginnings[text[:given]] += pair.sum()
    statistic, freedom, most, furthest, shares = 0.0, 0, -1.0, None, None
    for stratum, members in _pooled(beginnings, 2 * smallest).items():
        below: defaultdict[Text, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for text, pair in counts.items():
            if text[:given] in members:
                below[text[given:]] += pair
        groups = _pooled({text: pair.sum() for text, pair in below.items()}, smallest)
        table = np.array([sum(below[text] for text in group) for group in groups.values()])
        in_each = table.sum(axis=0)
        if len(table) < 2 or not in_each.all():
            continue
        expected = np.outer(table.sum(axis=1), in_each) / in_each.sum()
        parts = ((table - expected) ** 2 / expected).sum(axis=1)
        statistic, freedom = statistic + float(parts.sum()), freedom + len(table) - 1
        if parts.max() > most:
            most, place = float(parts.max()), int(parts.argmax())
            furthest, shares = (*stratum, *list(groups)[place]), tuple((table[place] / in_each).tolist())
    p_value = float(chi2.sf(statistic, freedom)) if freedom else 1.0
    return LawTest((int(samples[0]), int(samples[1])), statistic, freedom, p_value, furthest, shares)


def _pooled(counts: Mapping[Text, float], smallest: float) -> dict[Text, set[Text]]:
    """Return groups of texts that hold at least `smallest`, by what their texts begin with.

    What remains too small goes to the smallest other group.
    """
    groups = {text: {text} for text in counts}
    size = dict(counts)
    for length in range(max(map(len, counts), default=0), -1, -1):
        for text in [text for text in groups if len(text) == length and size[text] < smallest]:
            members, held = groups.pop(text), size.pop(text)
            home = text[:-1] if length else min(groups, key=size.__getitem__, default=())
            groups[home] = groups.get(home, set()) | members
            size[home] = size.get(home, 0.0) + held
    return groups


def power(variation: float, samples: float, freedom: int = GROUPS - 1) -> float:
    """Return how surely a bias is found, whatever its form.

    Of all biases of a total variation, chi-square grows least with one that changes all groups in the same proportion:
    by 2 samples variation^2 (Cauchy-Schwarz).

    Args:
        variation: half the sum of absolute differences between the two laws, over the groups.
        samples: of each law.
        freedom: groups less strata.
    """
    if not freedom:
        return 0.0
    return float(ncx2.sf(chi2.isf(FALSE_ALARM, freedom), freedom, 2.0 * samples * variation**2))


def samples_needed(variation: float, freedom: int = GROUPS - 1) -> int:
    """Return the samples of each law by which a bias is found with a probability of 0.9; see `power`."""
    found = brentq(lambda samples: power(variation, samples, freedom) - POWER, 1.0, 1e4 * (1 + freedom) / variation**2)
    return math.ceil(float(found))
