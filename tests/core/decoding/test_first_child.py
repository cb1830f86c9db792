"""The first child follows the draft's row cut by top-p and top-k, the others the row itself, and the law stays exact.

Enumerated on tiny vocabularies; statistical tests raise a false alarm with a probability below 1e-6 each.
"""

import numpy as np
import pytest
import torch

from sequoia_core.decoding.rank_acceptance import average_rank_acceptance
from sequoia_core.decoding.sampling import SamplingConfig, draft_probabilities, probabilities
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.studies.node_enumeration import next_token_distribution
from tests.core.decoding.test_verifiers import rows

CUTS = [SamplingConfig(1.0, 0.6), SamplingConfig(1.0, 0.8), SamplingConfig(1.0, 0.9, 2)]
DRAWING = ["sequoia", "specinfer", "traversal"]
DRAWS = 20_000


def cut_rows(sampling):
    """Rows P as sampled, Q, and Q as cut for first children; float64."""
    for pair in rows():
        logits = [torch.tensor(row[None]).float().log() for row in pair]
        draft, first = draft_probabilities(logits[1], sampling)
        first = draft if first is None else first
        found = (row[0].double().numpy() for row in (probabilities(logits[0], sampling), draft, first))
        yield [row / row.sum() for row in found]


@pytest.mark.parametrize("sampling", CUTS, ids=str)
@pytest.mark.parametrize("name", DRAWING)
def test_the_law_is_the_targets_and_one_child_takes_all_that_the_cut_rows_share(name, sampling):
    for target, draft, first in cut_rows(sampling):
        for k in range(1, len(target) + 1):
            law, accepted = next_token_distribution(target, draft, k, name, first)
            np.testing.assert_allclose(law, target, atol=1e-12)
            if k == 1:
                assert accepted == pytest.approx(np.minimum(target, first).sum(), abs=1e-12)


@pytest.mark.usefixtures("each_rows")
@pytest.mark.parametrize("sampling", [SamplingConfig(1.0), CUTS[1]], ids=str)
@pytest.mark.parametrize("name", ["sequoia", "specinfer"])
def test_measured_ranks_are_those_of_the_enumeration(name, sampling):
    """Expected ranks, ranks drawn given the token that was committed, and the average that pages show."""
    generator = torch.Generator().manual_seed(0)
    for target, draft, first in cut_rows(sampling):
        width = len(target)
        exact = [next_token_distribution(target, draft, k, name, first)[1] for k in range(1, width + 1)]
        many = [torch.tensor(row).float().expand(DRAWS, -1).contiguous() for row in (target, draft, first)]
        expected = VERIFIERS[name].ranks(many[0], many[1], width, generator, many[2]).cumsum(1)
        tokens = torch.multinomial(many[0], 1, generator=generator)[:, 0]
        ranks = VERIFIERS[name].outcomes(many[0], many[1], tokens, width, generator, many[2])
        drawn = torch.stack([(ranks > 0) & (ranks <= k) for k in range(1, width + 1)], 1)
        found = [expected.mean(0), drawn.double().mean(0)]
        if name == "sequoia":
            given = (torch.tensor(row) for row in (target, draft))
            options = {"samples": DRAWS, "generator": generator, "first": torch.tensor(first)}
            found.append(average_rank_acceptance(*given, width, **options).cumsum(0))
        for each in found:
            assert each.tolist() == pytest.approx(exact, abs=0.5 * 5.5 / np.sqrt(DRAWS))
        assert found[0][0] == pytest.approx(exact[0], abs=1e-6 if name == "specinfer" else 0.02)
