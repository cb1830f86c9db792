"""A small law that is known whole, and ways to break speculation: each drafts from Q and leaves another law than P's.

A token depends on the one before it. Chains of three and more draft tokens 2 to 4 of every answer, so that each of
them has the law of one drafted node, which is enumerated.
"""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sequoia_core.decoding.sampling import residual, sample_with_replacement
from sequoia_core.decoding.verifiers import EXACT_SAMPLING, VERIFIERS, Offer
from sequoia_core.studies.node_enumeration import next_token_distribution

V = 5
PROMPTS = "ab"  # the prompt is its last token


def row_of(row):
    return lambda *_: row


def zero_accepted(target, draft, children, floor=0.25):
    """Compare u <= p / q where u is 0 once in four: coarse numbers."""
    for token in children:
        mass = max(target[token], floor * draft[token]) if target[token] == 0.0 else target[token]
        yield Offer(mass, draft[token], partial(residual, target, draft))


def not_subtracted(target, draft, children):
    for token in children:
        yield Offer(target[token], draft[token], row_of(target))


def law_of_the_draft(target, draft, children):
    for token in children:
        yield Offer(target[token], draft[token], row_of(draft))


BIASED = (zero_accepted, not_subtracted, law_of_the_draft)


def tables(seed=3):
    """Return P and Q, float64 [V, V]: row = the token before. Each row of P lacks a token that Q proposes."""
    generator = np.random.default_rng(seed)
    target, draft = generator.dirichlet(np.full(V, 2.0), V), generator.dirichlet(np.full(V, 2.0), V)
    for row, other in zip(target, draft, strict=True):
        row[other.argmax()] = 0.0
    return target / target.sum(axis=1, keepdims=True), draft


@pytest.fixture
def planted(monkeypatch):
    """Return what makes a rule a verifier, by whose name `decode` takes it."""

    def plant(rule):
        monkeypatch.setitem(EXACT_SAMPLING, rule, sample_with_replacement)
        monkeypatch.setitem(VERIFIERS, rule.__name__, replace(VERIFIERS["specinfer"], name=rule.__name__, rule=rule))
        return rule.__name__

    return plant


def rows_by(verifier):
    """Return the law that a verifier leaves at a drafted node, float64 [V, V]: row = the token before."""
    return np.array([next_token_distribution(p, q, 1, verifier)[0] for p, q in zip(*tables(), strict=True)])


def law(verifier=None):
    """Return text (prompt, tokens 1 to 4) -> probability, without a draft or by a verifier."""
    target = tables()[0]
    rows = target if verifier is None else rows_by(verifier)
    found = {}
    for place, text in itertools.product(range(len(PROMPTS)), itertools.product(range(V), repeat=4)):
        chance = target[place, text[0]] / len(PROMPTS)
        for before, token in itertools.pairwise(text):
            chance *= rows[before, token]
        found[place, *text] = chance
    return found


def samples(laws, count, generator):
    """Return text -> counts in samples of two laws."""
    drawn = [generator.multinomial(count, list(each.values())) for each in laws]
    return {text: pair for text, *pair in zip(laws[0], *(each.tolist() for each in drawn), strict=True) if any(pair)}
