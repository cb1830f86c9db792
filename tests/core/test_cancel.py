"""A cancel counts before the next pass, wherever it comes: while a prompt is read, between phases, between repeats.

Only drafting, once begun, goes through the tree's levels, and a losslessness check tests what it has.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.plain_trees import k_ary_tree
from sequoia_core.files.faults import Cancelled
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.studies.losslessness import check_losslessness
from sequoia_core.studies.measure_acceptance import measure_acceptance
from sequoia_core.studies.measure_profile import measure_profile
from sequoia_core.studies.prediction_check import static_versus_real
from sequoia_core.studies.rejection_curves import measure_rejection
from sequoia_core.studies.step_timers import LEVELS
from sequoia_core.studies.verifier_comparison import compare_verifiers
from tests.conftest import around_passes, pair_of, tiny_llama

LONG = [(7 * place) % 64 for place in range(1_300)]  # three chunks of 512
TREE = k_ary_tree(2, 2)
SAMPLING = SamplingConfig(0.8)


class Backend:
    """Counts the passes of all models that it makes, and sets the flag within one of them."""

    def __init__(self, cancel_in: int | None) -> None:
        self.cancel_in, self.cancel, self.sizes = cancel_in, threading.Event(), []

    def model(self, seed: int) -> HuggingFaceModel:
        passes = self

        def counted(append, session, ids, positions, tree_mask, keep):
            passes.sizes.append(len(ids))
            if len(passes.sizes) == passes.cancel_in:
                passes.cancel.set()
            return append(ids, positions, tree_mask, keep=keep)

        return around_passes(tiny_llama(seed, layers=1, context=2_048), counted)


def decoded(**both: Any) -> Any:
    return list(decode(LONG, **both, tree=TREE, max_new_tokens=6))


WORKS: dict[str, Callable[..., Any]] = {
    "acceptance": partial(measure_acceptance, [LONG, LONG[:-1]], width=4, max_new_tokens=3, sampling=SAMPLING),
    "own text": partial(measure_acceptance, [LONG + LONG], width=4, max_new_tokens=None),
    "rejection": partial(measure_rejection, [LONG], samplings=[SAMPLING], width=4, max_new_tokens=2),
    "verifiers": partial(compare_verifiers, [LONG], tree=TREE, samplings=[SAMPLING], max_new_tokens=3),
    "static": partial(static_versus_real, [LONG] * 2, [LONG[1:]] * 2, tree=TREE, sampling=SAMPLING, max_new_tokens=3),
    "losslessness": partial(check_losslessness, LONG, tree=TREE, sampling=SAMPLING, samples=3, new_tokens=2),
    "profile": partial(measure_profile, sizes=[1, 2], context=1_300, repeats=2),
    "decoding": decoded,
}


def passes_of(work: Callable[..., Any], cancel_in: int | None) -> Backend:
    passes = Backend(cancel_in)
    try:
        work(pair=pair_of(passes.model(1), passes.model(2)), cancel=passes.cancel)
    except Cancelled:
        assert passes.cancel.is_set()
    return passes


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("name", WORKS)
def test_no_pass_is_made_after_a_cancel(name: str, full: bool) -> None:
    work = WORKS[name]
    whole = passes_of(work, None).sizes
    assert max(whole) in (128, 512) and sum(whole) > len(LONG) and len(whole) > 4
    few, parts = (1, 12) if full else (3, 4)
    for place in {*range(1, 14, few), *range(14, len(whole), max(len(whole) // parts, 1))}:
        if place > len(whole):
            continue
        sizes = passes_of(work, place).sizes
        after, told = sizes[place:], f"cancelled in pass {place} of {len(whole)}, then came passes of {sizes[place:]}"
        if name == "losslessness":  # tests what is complete, by passes over the compared tokens alone
            assert all(size <= 2 for size in after), told
        elif name in ("verifiers", "static", "decoding"):  # the level below, in a tree of depth 2
            assert len(after) <= 1 and sum(after) <= 2, told
        elif name == "profile":  # the levels below, in the deepest tree that is timed: a chain
            assert len(after) < LEVELS and all(size == 1 for size in after), told
        else:
            assert not after, told
