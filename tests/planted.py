"""A small known distribution, and faulty verifiers that draft from Q and do not reproduce P.

A token depends on the one before it. Chains of three and more draft tokens 2 to 4 of every answer, so that each of
them has the law of one drafted node, which is enumerated.
"""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sequoia_core.decoding.row_operations import row_operations
from sequoia_core.decoding.sampling import sample_with_replacement
from sequoia_core.decoding.verifiers import EXACT_SAMPLING, VERIFIERS, Offer, specinfer_rule

V = 5
PROMPTS = "ab"  # each prompt is one token


def row_of(row):
    return lambda *_: row


def zero_accepted(target, draft, children, floor=0.25):
    """Compare u <= p / q with coarse random numbers, of which one in four is 0."""
    for token in children:
        mass = max(target[token], floor * draft[token]) if target[token] == 0.0 else target[token]
        yield Offer(mass, draft[token], partial(row_operations().residual, target, draft))


def other_temperature(target, draft, children):
    """Use q at another temperature than the drafted tokens."""
    colder = draft**2 / (draft**2).sum()
    return specinfer_rule(target, colder, children)


def not_subtracted(target, draft, children):
    for token in children:
        yield Offer(target[token], draft[token], row_of(target))


def law_of_the_draft(target, draft, children):
    for token in children:
        yield Offer(target[token], draft[token], row_of(draft))


def not_renormalised(target, draft, children):
    """Draw from max(P - Q, 0) without renormalising; the rest goes to the last token."""
    rest = np.maximum(target - draft, 0.0)
    rest[-1] += 1.0 - rest.sum()
    for token in children:
        yield Offer(target[token], draft[token], row_of(rest))


BIASED = (zero_accepted, other_temperature, not_subtracted, law_of_the_draft, not_renormalised)


def tables(seed=3):
    """Return P and Q, float64 [V, V], by previous token; each row of P has a zero where Q proposes."""
    generator = np.random.default_rng(seed)
    target = generator.dirichlet(np.full(V, 2.0), V)
    draft = generator.dirichlet(np.full(V, 2.0), V)
    for row, other in zip(target, draft, strict=True):
        row[other.argmax()] = 0.0
    return target / target.sum(axis=1, keepdims=True), draft


@pytest.fixture
def planted(monkeypatch):
    """Return a function that registers a rule as a verifier and returns its name."""

    def plant(rule):
        monkeypatch.setitem(EXACT_SAMPLING, rule, sample_with_replacement)
        monkeypatch.setitem(VERIFIERS, rule.__name__, replace(VERIFIERS["specinfer"], name=rule.__name__, rule=rule))
        return rule.__name__

    return plant


def rows_by(verifier):
    """Return the distribution of a verifier's output at a drafted node, float64 [V, V], by previous token."""
    enumeration = pytest.importorskip("sequoia_extras.evaluation.node_enumeration")
    return np.array([enumeration.next_token_distribution(p, q, 1, verifier)[0] for p, q in zip(*tables(), strict=True)])


def law(verifier=None):
    """Return (prompt, tokens 1 to 4) -> probability, without a draft or with a verifier."""
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
    """Return text -> counts in samples of two distributions."""
    drawn = [generator.multinomial(count, list(each.values())) for each in laws]
    return {text: pair for text, *pair in zip(laws[0], *(each.tolist() for each in drawn), strict=True) if any(pair)}
