"""Compiled growing decides as the policies in Python do, number for number, for any tables, costs and rows."""

import numpy as np
import pytest
import torch

from sequoia_core import AdaptiveTree
from sequoia_core.decoding.drafting import DraftOptions, Reach
from sequoia_core.decoding.growing.compiled_growing import CompiledGrower
from sequoia_core.decoding.growing.expansion import DraftChances, TokenCosts, TreeBounds
from sequoia_core.decoding.growing.plain_growing import DraftRows, PlainGrower
from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.decoding.growing.sampled_expansion import SampledExpansion
from sequoia_core.decoding.growing.top_k_expansion import TopKExpansion
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import (
    SamplingConfig,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
)
from sequoia_core.design.calibration import BINS, CENTRES, TABLES, ChanceTables
from sequoia_core.native import tree_expansion
from tests.conftest import calibration_of, linear_profile, pair_of

VOCAB = 40
pytestmark = pytest.mark.skipif(tree_expansion.compiled() is None, reason="tree_expansion.c cannot be built here")


class RandomSession:
    """A draft whose logits follow from the path that the mask shows: a wrong mask, token or position shows."""

    logits_dtype = torch.float32

    def __init__(self, seed, sharpness):
        self.seed, self.sharpness, self.length, self.ids, self.calls = seed, sharpness, 0, [], []

    def forward(self, ids, positions, tree_mask, *, keep):
        assert tree_mask.shape == (len(ids), len(self.ids) + len(ids))
        self.calls.append((ids.tolist(), positions.tolist()))
        self.ids += ids.tolist()
        self.length += len(ids)
        rows = []
        for row in tree_mask.numpy():
            path = [self.ids[place] for place in np.flatnonzero(row == 0.0)]
            rows.append(np.random.default_rng([self.seed, *path]).normal(size=VOCAB + 3) * self.sharpness)
        return torch.tensor(np.array(rows)[-keep:], dtype=torch.float32)[
            :, :VOCAB
        ]  # padding is cut: rows have a stride


def random_expansion(generator, sampled):
    sizes = {"max_size": (1, 40), "max_depth": (1, 7), "beam": (1, 9), "branch": (1, 9)}
    bounds = TreeBounds(**{name: int(generator.integers(*ends)) for name, ends in sizes.items()})
    values = np.sort(generator.random((len(TABLES), BINS)), axis=1)
    if generator.random() < 0.2:
        values[:] = values[:, :1]  # equal chances everywhere: ties decide
    values[0, generator.integers(BINS)] = CENTRES[3]
    chances = ChanceTables(values, gain=float(generator.uniform(0.3, 1.25)))
    if not sampled and generator.random() < 0.3:
        chances = DraftChances()
    expected = generator.random(bounds.branch) * 0.7
    token_costs = None
    if generator.random() < 0.7:
        step = np.append(0.0, np.cumsum(generator.choice([0.0, 0.03, 0.3], size=bounds.max_size)))
        draft = np.append(0.0, np.cumsum(generator.choice([0.0, 0.02, 0.1], size=bounds.beam)))
        token_costs = TokenCosts(step, draft)
    if sampled:
        return SampledExpansion(
            bounds, chances, expected, token_costs, threshold=float(generator.choice([0.0, 1e-4, 0.1]))
        )
    return TopKExpansion(bounds, chances, expected, token_costs)


def facts(plan):
    """What masks and walks look at; a leaf has no first child."""
    return [
        plan.depths.tolist(), plan.child_counts.tolist(), plan.tree_mask.tolist(),
        plan.first_children[plan.inner].tolist(),
        plan.child_starts.tolist(), plan.tree.parents.dtype, plan.tree.parents.flags.writeable,
    ]  # fmt: skip


def grown(kind, expansion, draft_sampling, seed, sharpness, sampling):
    draws, session, found = torch.Generator().manual_seed(seed), RandomSession(seed, sharpness), []
    grower = kind(session, expansion.bounds, DraftOptions(draft_sampling, sampling, Reach(99, 99), draws))
    for root in (3, 8):  # the second tree meets buffers that are not new
        session.length, session.ids = 0, []
        assert grower.supports(expansion)
        plan, nodes, widths = grower.grow(expansion, [root])
        rows = [] if grower.rows is None else grower.rows[: sum(widths)].tolist()
        found.append((plan.tree, [column.tolist() for column in nodes], widths, rows, facts(plan)))
    return found, session.calls, draws.get_state().tolist()


@pytest.mark.parametrize("sampled", [False, True], ids=["the deterministic recipe", "the sampled recipe"])
def test_both_grow_the_same_trees_from_the_same_draws(sampled):
    generator, sizes = np.random.default_rng(4), set()
    for seed in range(300):
        expansion, sharpness = random_expansion(generator, sampled), float(generator.choice([0.5, 3.0, 12.0]))
        draft_sampling = sample_without_replacement if sampled and seed % 4 else take_most_likely
        sampling = SamplingConfig(0.7, 0.8) if seed % 4 == 3 else SamplingConfig(0.7)
        plain, compiled = (
            grown(kind, expansion, draft_sampling, seed, sharpness, sampling) for kind in (PlainGrower, CompiledGrower)
        )
        assert compiled == plain, f"seed {seed}"
        sizes |= {tree.size for tree, *_ in plain[0]}
    assert len(sizes) > 20


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("costs", [None, linear_profile(0.02)], ids=["budget alone", "costs"])
@pytest.mark.parametrize("kind", ["specexec", "deterministic", "sampled"])
def test_a_run_is_the_same_both_ways(kind, costs, temperature, tiny_target, tiny_draft, monkeypatch):
    if kind == "specexec":
        policy = SpecExecTree(max_size=20, max_depth=5, beam=4)
    else:
        calibration = calibration_of(0.7, temperature=temperature)
        policy = AdaptiveTree(profile=costs, calibration=calibration, max_size=20, recipe=kind)

    def steps():
        return [
            (s.tree, s.tokens, s.new_tokens, s.outcomes, s.draft_probs, s.target_probs, s.trials, s.marginal_gains)
            for s in decode(
                [3, 14, 15], pair_of(tiny_target, tiny_draft), tree=policy, sampling=SamplingConfig(temperature),
                max_new_tokens=50, generator=torch.Generator().manual_seed(6), details=StepDetails(left_out=6),
            )
        ]  # fmt: skip

    with monkeypatch.context() as patch:
        patch.delattr(PlainGrower, "grow")
        compiled = steps()
    monkeypatch.setattr(CompiledGrower, "supports", lambda *args: False)
    assert compiled == steps()
    assert all(len(found.gains) == tree.size and len(found.left_out) <= 6 for tree, *_, found in compiled)
    assert any(found.left_out for *_, found in compiled)
    if kind != "sampled":  # the best stay: only what was not read may be worth more
        known = [
            (one.gain, min(found.gains)) for *_, found in compiled for one in found.left_out if one.token is not None
        ]
        assert known and all(gain <= least for gain, least in known)


def test_rows_that_are_not_finite_are_refused():
    expansion = random_expansion(np.random.default_rng(1), True)
    options = DraftOptions(take_most_likely, SamplingConfig(1.0), Reach(99, 99), torch.Generator())
    grower = CompiledGrower(RandomSession(0, float("nan")), expansion.bounds, options)
    with pytest.raises(FloatingPointError, match="the draft model returned logits that are not finite"):
        grower.grow(expansion, [1])


def test_a_way_of_drawing_that_compiled_code_lacks_is_left_to_python():
    options = DraftOptions(sample_with_replacement, SamplingConfig(1.0), Reach(99, 99), torch.Generator())
    for sampled in (False, True):
        expansion = random_expansion(np.random.default_rng(1), sampled)
        assert CompiledGrower(RandomSession(0, 1.0), expansion.bounds, options).supports(expansion) is not sampled


def test_no_more_tokens_are_drawn_than_there_are():
    options = DraftOptions(sample_without_replacement, SamplingConfig(1.0), Reach(99, 99), torch.Generator())
    tokens, _ = DraftRows(torch.tensor([[0.5, 0.3, 0.2]]), options).drawn(5)
    assert sorted(tokens[0]) == [0, 1, 2]
