"""Fully known distributions over texts of a tiny vocabulary."""

import itertools

import numpy as np

DEPTH = 2


def random_law(vocab, seed, levels=DEPTH):
    """Return random next-token distributions, some with zeros: path of at most `levels` tokens -> float64 [V]."""
    generator = np.random.default_rng(seed)
    law = {}
    for length in range(levels + 1):
        for path in itertools.product(range(vocab), repeat=length):
            row = generator.dirichlet(np.full(vocab, 0.7))
            if generator.random() < 0.3:
                row[generator.integers(vocab)] = 0.0
            law[path] = row / row.sum()
    return law


def law_after(target, text, vocab, levels=DEPTH):
    """Return the target's joint distribution of the remaining tokens, with an axis for each."""
    missing = levels + 1 - len(text)
    law = np.ones((vocab,) * missing)
    for more in itertools.product(range(vocab), repeat=missing):
        law[more] = np.prod([target[(*text, *more[:place])][more[place]] for place in range(missing)])
    return law
