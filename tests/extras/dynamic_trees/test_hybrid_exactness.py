"""The exact distribution of one step of hybrid trees, enumerated as in `test_dynamic_exactness`."""

from functools import partial

import numpy as np
import pytest

from sequoia_core.decoding.drafting import Reach
from sequoia_extras.dynamic_trees.expansion import TreeBounds
from sequoia_extras.dynamic_trees.running_lookup import LookUp
from sequoia_extras.dynamic_trees.sampled_expansion import SampledExpansion
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.dynamic_trees.top_k_expansion import TopKExpansion
from tests.extras.dynamic_trees.test_dynamic_exactness import (
    CUT,
    PLAIN,
    ErraticChances,
    token_costs,
    trees_with_exact_laws,
)
from tests.laws import DEPTH


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
    expansion_of = partial(hybrid, SampledExpansion, vocab=3, threshold=0.05)
    seen = trees_with_exact_laws(expansion_of, "sequoia", 12, sampling=sampling)
    assert len(seen) > 5, "the decisions should differ"


@pytest.mark.parametrize("vocab", [3, 4])
def test_top_k_is_exact_whatever_is_looked_up(vocab):
    expansion_of = partial(hybrid, TopKExpansion, vocab=vocab)
    assert len(trees_with_exact_laws(expansion_of, "topk", 20, vocab=vocab, atol=1e-12)) > 3


@pytest.mark.parametrize(("expansion_type", "verifier"), [(SampledExpansion, "sequoia"), (TopKExpansion, "topk")])
@pytest.mark.parametrize("draft_context", [0, 1])
def test_look_ups_deeper_than_the_draft_are_exact(draft_context, expansion_type, verifier):
    expansion_of = partial(hybrid, expansion_type, vocab=3)
    seen = trees_with_exact_laws(expansion_of, verifier, 8, reach=Reach(99, draft_context))
    assert max(tree.depth for tree in seen) == DEPTH > draft_context
