"""The exact distribution of one step of hybrid trees, enumerated as in `test_dynamic_exactness`."""

import numpy as np
import pytest

from sequoia_core.decoding.drafting import Reach
from sequoia_extras.dynamic_trees.expansion import TreeBounds
from sequoia_extras.dynamic_trees.running_lookup import LookUp
from sequoia_extras.dynamic_trees.sampled_expansion import SampledExpansion
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.dynamic_trees.top_k_expansion import TopKExpansion
from tests.extras.dynamic_trees.test_dynamic_exactness import CUT, PLAIN, ErraticChances, law_of_a_step, token_costs
from tests.laws import DEPTH, law_after, random_law


def hybrid(expansion_type, seed, vocab, **options):
    """Return an expansion after random text that ends in 0, the token of the root."""
    bounds = TreeBounds(max_size=7, max_depth=DEPTH, beam=3, branch=2)
    seen = np.random.default_rng(seed).integers(vocab, size=12).tolist()
    look_up = LookUp(TextIndex(max_context=2), len(seen) + 1, bounds)
    look_up.begin_step([*seen, 0], max_depth=DEPTH, gain=1.0)
    return expansion_type(
        bounds,
        ErraticChances(seed),
        np.full(2, 0.6),
        token_costs(seed, bounds) if seed % 2 else None,
        look_up,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [PLAIN, CUT], ids=["plain", "top-p"])
def test_in_turn_is_exact_whatever_is_looked_up_and_drawn(sampling):
    seen = set()
    for seed in range(12):
        target = random_law(3, seed)
        draft = random_law(3, 100 + seed)
        expansion = hybrid(SampledExpansion, seed, 3, threshold=0.05)
        law, shapes = law_of_a_step(expansion, "sequoia", target, draft, 3, sampling=sampling)
        np.testing.assert_allclose(law, law_after(target, (), 3), atol=2e-7)  # the draft's rows are float32
        seen |= shapes
    assert len(seen) > 5, "the decisions should differ"


@pytest.mark.parametrize("vocab", [3, 4])
def test_top_k_is_exact_whatever_is_looked_up(vocab):
    seen = set()
    for seed in range(20):
        target = random_law(vocab, seed)
        draft = random_law(vocab, 100 + seed)
        law, shapes = law_of_a_step(hybrid(TopKExpansion, seed, vocab), "topk", target, draft, vocab)
        np.testing.assert_allclose(law, law_after(target, (), vocab), atol=1e-12)
        seen |= shapes
    assert len(seen) > 3


@pytest.mark.parametrize(("expansion_type", "verifier"), [(SampledExpansion, "sequoia"), (TopKExpansion, "topk")])
@pytest.mark.parametrize("draft_context", [0, 1])
def test_look_ups_deeper_than_the_draft_are_exact(draft_context, expansion_type, verifier):
    depths = set()
    for seed in range(8):
        target = random_law(3, seed)
        draft = random_law(3, 100 + seed)
        found = law_of_a_step(hybrid(expansion_type, seed, 3), verifier, target, draft, 3, Reach(99, draft_context))
        np.testing.assert_allclose(found[0], law_after(target, (), 3), atol=2e-7)
        depths |= {tree.depth for tree in found[1]}
    assert max(depths) == DEPTH > draft_context
