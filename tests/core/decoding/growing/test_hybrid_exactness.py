"""The whole law of one step of hybrid trees on tiny vocabularies, as `test_dynamic_exactness` enumerates it."""

import numpy as np
import pytest

from sequoia_core.decoding.drafting import Reach
from sequoia_core.decoding.growing.expansion import TreeBounds
from sequoia_core.decoding.growing.running_lookup import LookUp
from sequoia_core.decoding.growing.sampled_expansion import SampledExpansion
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.growing.top_k_expansion import TopKExpansion
from tests.core.decoding.growing.test_dynamic_exactness import (
    CUT,
    DEPTH,
    PLAIN,
    Whim,
    law_after,
    law_of_a_step,
    random_law,
    token_costs,
)


def hybrid(kind, seed, vocab, **options):
    """An expansion after some random text that ends in 0, the token of the root."""
    bounds = TreeBounds(max_size=7, max_depth=DEPTH, beam=3, branch=2)
    seen = np.random.default_rng(seed).integers(vocab, size=12).tolist()
    look_up = LookUp(TextIndex(max_context=2), len(seen) + 1, bounds)
    look_up.begin([*seen, 0], max_depth=DEPTH, gain=1.0)
    return kind(
        bounds, Whim(seed), np.full(2, 0.6), token_costs(seed, bounds) if seed % 2 else None, look_up, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [PLAIN, CUT], ids=["plain", "top-p"])
def test_in_turn_keeps_the_law_whatever_is_looked_up_and_drawn(sampling):
    seen = set()
    for seed in range(12):
        target, draft = random_law(3, seed), random_law(3, 100 + seed)
        expansion = hybrid(SampledExpansion, seed, 3, threshold=0.05)
        law, shapes = law_of_a_step(expansion, "sequoia", target, draft, 3, sampling=sampling)
        np.testing.assert_allclose(law, law_after(target, (), 3), atol=2e-7)  # the draft's rows are float32
        seen |= shapes
    assert len(seen) > 5, "decisions that never differ prove nothing"


@pytest.mark.parametrize("vocab", [3, 4])
def test_top_k_keeps_the_law_whatever_is_looked_up(vocab):
    seen = set()
    for seed in range(20):
        target, draft = random_law(vocab, seed), random_law(vocab, 100 + seed)
        law, shapes = law_of_a_step(hybrid(TopKExpansion, seed, vocab), "topk", target, draft, vocab)
        np.testing.assert_allclose(law, law_after(target, (), vocab), atol=1e-12)
        seen |= shapes
    assert len(seen) > 3


@pytest.mark.parametrize(("kind", "verifier"), [(SampledExpansion, "sequoia"), (TopKExpansion, "topk")])
@pytest.mark.parametrize("draft_context", [0, 1])
def test_look_ups_deeper_than_the_draft_reaches_keep_the_law(draft_context, kind, verifier):
    depths = set()
    for seed in range(8):
        target, draft = random_law(3, seed), random_law(3, 100 + seed)
        found = law_of_a_step(hybrid(kind, seed, 3), verifier, target, draft, 3, Reach(99, draft_context))
        np.testing.assert_allclose(found[0], law_after(target, (), 3), atol=2e-7)
        depths |= {tree.depth for tree in found[1]}
    assert max(depths) == DEPTH > draft_context
