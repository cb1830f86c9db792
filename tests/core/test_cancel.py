"""A cancel takes effect before the next pass: while a prompt is read, between phases and between repeats.

Only drafting finishes the levels of a tree once started.
"""

import threading
from functools import partial

import pytest

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.faults import Cancelled
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.step_timers import TREE_LEVELS
from sequoia_core.trees.plain import k_ary_tree
from tests.conftest import around_passes, pair_of, tiny_llama

LONG = [(7 * place) % 64 for place in range(1_300)]  # three chunks of 512
TREE = k_ary_tree(2, 2)
SAMPLING = SamplingConfig(0.8)


class Backend:
    """Counts the passes of its models, and cancels during one of them."""

    def __init__(self, cancel_in):
        self.cancel_in = cancel_in
        self.cancel = threading.Event()
        self.sizes = []

    def model(self, seed):
        passes = self

        def counted(append, session, ids, positions, tree_mask, keep):
            passes.sizes.append(len(ids))
            if len(passes.sizes) == passes.cancel_in:
                passes.cancel.set()
            return append(ids, positions, tree_mask, keep=keep)

        return around_passes(tiny_llama(seed, layers=1, context=2_048), counted)


def decoded(**both):
    return list(decode(LONG, **both, tree=TREE, max_new_tokens=6))


BELOW = 1, 2  # one more level of a tree of depth 2
WORKS = {  # name -> (work, maximum number and width of passes after a cancel)
    "acceptance": (
        partial(measure_acceptance, [LONG, LONG[:-1]], width=4, max_new_tokens=3, sampling=SAMPLING),
        0,
        0,
    ),
    "own text": (partial(measure_acceptance, [LONG + LONG], width=4, max_new_tokens=None), 0, 0),
    "profile": (  # the deepest tree that is timed is a chain
        partial(measure_profile, sizes=[1, 2], context=1_300, repeats=2),
        TREE_LEVELS - 1,
        1,
    ),
    "decoding": (decoded, *BELOW),
}


def passes_of(work, cancel_in):
    passes = Backend(cancel_in)
    try:
        work(pair=pair_of(passes.model(1), passes.model(2)), cancel=passes.cancel)
    except Cancelled:
        assert passes.cancel.is_set()
    return passes


def assert_ends_after_a_cancel(work, most, tokens, full):
    whole = passes_of(work, None).sizes
    assert max(whole) in (128, 512) and sum(whole) > len(LONG) and len(whole) > 4
    few, parts = (1, 12) if full else (3, 4)
    for place in {*range(1, 14, few), *range(14, len(whole), max(len(whole) // parts, 1))}:
        if place <= len(whole):
            after = passes_of(work, place).sizes[place:]
            told = f"cancelled in pass {place} of {len(whole)}, then came passes of {after}"
            assert len(after) <= most and all(size <= tokens for size in after), told


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("name", WORKS)
def test_no_pass_starts_after_a_cancel(name, full):
    assert_ends_after_a_cancel(*WORKS[name], full)
