"""Hybrid trees: when the draft runs, how chances are combined, and who proposed each node."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_extras.dynamic_trees import HybridTree, LookupTree
from sequoia_extras.dynamic_trees.compiled_growing import CompiledGrower
from sequoia_extras.dynamic_trees.expansion import Nodes, TokenCosts, TreeBounds
from sequoia_extras.dynamic_trees.policies import AdaptiveTree
from sequoia_extras.dynamic_trees.running_lookup import LookUp, combined_chance, draft_only_chance
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.dynamic_trees.top_k_expansion import TopKExpansion
from tests.conftest import around_passes, calibration_of, linear_profile, pair_of, tiny_llama, tokens_of
from tests.extras.dynamic_trees.test_lookup_tree import PROMPT

both_ways = pytest.mark.usefixtures("each_rows")  # with and without compiled row operations


@both_ways
def test_draws_of_an_identical_draft_are_accepted():
    tree = HybridTree(
        index=TextIndex(),
        profile=None,
        calibration=calibration_of(0.6, temperature=1.0),
        max_size=12,
        max_depth=4,
        beam=2,
        recipe="in_turn",
    )
    options = {"sampling": SamplingConfig(1.0), "generator": torch.Generator().manual_seed(0)}
    target, draft = (tiny_llama(1, scale=0.3) for _ in range(2))
    steps = decode(PROMPT, pair_of(target, draft), tree=tree, max_new_tokens=60, **options)
    assert len(list(steps)) < 22


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_that_does_not_pay_is_never_run(tiny_target, tiny_draft, temperature):
    """If adaptive trees draft nothing, hybrid trees equal those of a `LookupTree`."""

    def never(*_):
        raise AssertionError("the draft was read")

    profile = linear_profile(0.02, 1.0)
    calibration = calibration_of(0.7, temperature=temperature)
    hybrid = HybridTree(TextIndex(), profile=profile, calibration=calibration)
    assert hybrid.lookup_only and AdaptiveTree(profile=profile, calibration=calibration).fixed.size == 1
    options = {"sampling": SamplingConfig(temperature), "max_new_tokens": 40}
    texts = []
    for tree in (hybrid, LookupTree(TextIndex(), profile=profile)):
        pair = pair_of(tiny_target, around_passes(tiny_draft, never))
        steps = decode(PROMPT * 2, pair, tree=tree, generator=torch.Generator().manual_seed(3), **options)
        texts.append([(step.new_tokens, step.tree.size) for step in steps])
    assert texts[0] == texts[1] and (temperature or max(size for _, size in texts[0]) > 1)
    cheap = HybridTree(TextIndex(), profile=linear_profile(0.02, 0.05), calibration=calibration)
    assert not cheap.lookup_only and cheap.needs_draft


def checked_occurrences(step, text, earlier):
    """Yield the occurrences of a step's nodes after checking them against the current and an earlier text."""
    for node, found in enumerate(step.occurrences):
        if found is None:
            continue
        path = []
        above = node
        while above >= 0:
            path.insert(0, step.tokens[above])
            above = step.tree.parents[above]
        context = text[:-1] + path[:-1]
        assert found.after[0] == step.tokens[node] and 1 <= len(found.before) <= 6 >= len(found.after)
        same = min(found.match, len(found.before))
        assert list(found.before[-same:]) == context[-same:]
        source = earlier if found.earlier else text
        passage = [*found.before, *found.after]
        assert any(source[at : at + len(passage)] == passage for at in range(len(source)))
        yield found


@both_ways
def test_occurrences_show_who_proposed_each_node(tiny_target, tiny_draft, monkeypatch):
    """A node was looked up, drafted, or both; it has a draft probability if the draft read its parent."""
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=40))
    index = TextIndex()
    index.add([*PROMPT, *wanted])
    tree = HybridTree(index, profile=None, calibration=calibration_of(0.6), max_size=16, max_depth=6, beam=4)
    options = {"pair": pair_of(tiny_target, tiny_draft), "tree": tree, "max_new_tokens": 40}
    assert not any(step.occurrences for step in decode(PROMPT, **options))  # computed for display only
    proposers = []
    seen = []
    sources = set()
    text = list(PROMPT)
    earlier = [*PROMPT, *wanted]
    for step in decode(PROMPT, **options, details=StepDetails(likely=64)):
        rows = {each.node: dict(each.draft) for each in step.path_rows}
        sources |= {found.earlier for found in checked_occurrences(step, text, earlier)}
        for node, found in enumerate(step.occurrences[1:], start=1):
            row = rows.get(parent := int(step.tree.parents[node]))
            proposers.append("draft" if found is None else "both" if found.drafted else "looked up")
            if row is not None:
                assert (proposers[-1] != "looked up") == bool(row), (parent, node)
                assert not row or step.draft_probs[node] == pytest.approx(row[step.tokens[node]], rel=1e-4)
        text += step.new_tokens
        seen.append(step.occurrences)
    assert set(proposers) == {"draft", "looked up", "both"} and sources == {False, True}
    monkeypatch.setattr(CompiledGrower, "supports", lambda *_: False)
    assert [step.occurrences for step in decode(PROMPT, **options, details=StepDetails(likely=1))] == seen


class FixedRows:
    """The draft's rows, one for each node of a frontier."""

    def __init__(self, block):
        self.block = np.array(block)

    def most_likely(self, k):
        tokens = np.argsort(-self.block, axis=1, kind="stable")[:, :k]
        return tokens, np.take_along_axis(self.block, tokens, axis=1)

    def probabilities(self, row, tokens):
        return self.block[row, tokens]


def expansion_after(tokens, costs=None):
    bounds = TreeBounds(max_size=8, max_depth=4, beam=4, branch=3)
    calibration = calibration_of(0.6)
    look_up = LookUp(TextIndex(), len(tokens), bounds)
    look_up.begin_step(tokens, max_depth=bounds.max_depth, gain=1.0)
    return TopKExpansion(bounds, calibration.tables(), calibration.expected("most likely")[:3], costs, look_up)


def test_confident_lookups_skip_the_draft():
    costs = TokenCosts(np.append(0.0, 1.0 + 0.01 * np.arange(8)), np.append(0.0, 0.3 + 0.01 * np.arange(4)))
    expansion = expansion_after([1, 2, 3, 4, 5, 6, 7, 8] * 5 + [1, 2, 3], costs)
    nodes = expansion.start(3)
    assert nodes.tokens[1:5].tolist() == [4, 5, 6, 7]
    assert len(expansion.choose_frontier(nodes)) == 0
    free = replace(expansion, token_costs=TokenCosts(np.append(0.0, np.ones(8)), np.zeros(5)))
    assert free.choose_frontier(nodes).tolist() == [0]


def test_the_draft_changes_the_chances_of_looked_up_tokens():
    expansion = expansion_after([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    nodes = expansion.start(2)
    before = chances_below_the_root(nodes)
    assert before[4] > before[3] > 0
    for favoured in (3, 4):
        row = np.full(10, 0.01)
        row[favoured] = 0.91
        fresh = nodes._replace(**{name: getattr(nodes, name).copy() for name in nodes._fields})
        fresh.cache_positions[0] = 0
        after = expansion.expand(fresh, np.array([0]), FixedRows([row]))
        chance = chances_below_the_root(after)
        other = 7 - favoured
        assert chance[favoured] > before[favoured] and chance.get(other, 0.0) < before[other]
        assert after.scores[1:][after.parents[1:] == 0].sum() <= 1.0 + 1e-9
        assert len({(p, t) for p, t in zip(after.parents.tolist(), after.tokens.tolist(), strict=True)}) == after.size


def test_chances_rise_with_both_sources_and_fall_beside_the_other():
    assert combined_chance(0.9, 0.9) > combined_chance(0.9, 0.5) > combined_chance(0.1, 0.5) > combined_chance(0.1, 0.1)
    assert draft_only_chance(0.9, 0.7) < draft_only_chance(0.3, 0.7) < draft_only_chance(0.0, 0.7) == 0.7


def test_text_is_looked_up_below_drafted_tokens():
    """The text continued 5 with 6 7 8; the draft proposes 5, which has not occurred after 4."""
    expansion = expansion_after([5, 6, 7, 8, 1, 2, 3, 9, 4])
    nodes = expansion.start(4)
    assert nodes.size == 1
    row = np.full(10, 0.005)
    row[5] = 0.955
    nodes.cache_positions[0] = 0
    after = expansion.expand(nodes, np.array([0]), FixedRows([row]))
    before = dict(zip(after.tokens[1:].tolist(), after.tokens[after.parents[1:]].tolist(), strict=True))
    assert (before[5], before[6], before[7]) == (4, 5, 6)


def chances_below_the_root(nodes: Nodes):
    return {int(nodes.tokens[node]): nodes.scores[node] for node in np.flatnonzero(nodes.parents == 0)}
