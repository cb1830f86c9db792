"""Hybrid trees: the target's own text whatever both sources propose, compiled and plain alike, and when each is asked.

The statistical tests raise a false alarm with a probability below 1e-6 each; their seeds are fixed besides.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core import HybridTree
from sequoia_core.decoding.drafting import DraftOptions, Reach
from sequoia_core.decoding.growing.compiled_growing import CompiledGrower
from sequoia_core.decoding.growing.drafter import GrowingDrafter
from sequoia_core.decoding.growing.expansion import Nodes, TokenCosts, TreeBounds
from sequoia_core.decoding.growing.recipes import Controller
from sequoia_core.decoding.growing.running_lookup import LookUp, likely_beside, likely_by_both
from sequoia_core.decoding.growing.sampled_expansion import SampledExpansion
from sequoia_core.decoding.growing.step_costs import Rate
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.growing.top_k_expansion import TopKExpansion
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig, take_most_likely
from sequoia_core.studies.step_timers import growing_tree
from tests.conftest import calibration_of, linear_profile, pair_of, tiny_llama, tokens_of
from tests.core.decoding.growing.test_lookup_tree import PROMPT, found_where_it_says, misleading
from tests.core.test_families import FAMILIES, assert_decodes_as_generate, build, save

both_ways = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


def policy(index=None, profile=None, **options):
    options = {"max_size": 16, "max_depth": 6, "beam": 4} | options
    return HybridTree(index=index or TextIndex(), profile=profile, calibration=calibration_of(0.6), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_as_generate(family, tmp_path):
    """The draft is the target, so what it proposes is right: four tokens a step, or a mask or position is wrong."""
    assert_decodes_as_generate(save(build(family), tmp_path), tree=policy(max_size=12), most_steps=20)


@pytest.mark.parametrize("costs", [None, linear_profile(0.03)], ids=["budget alone", "costs"])
@pytest.mark.parametrize(
    "temperature, recipe, top_p",
    [(0.0, "topk", 1.0), (0.8, "topk", 1.0), (0.0, "in_turn", 1.0), (0.8, "in_turn", 1.0), (0.8, "in_turn", 0.8)],
)
def test_compiled_and_plain_growers_agree(temperature, recipe, top_p, costs, demo_pair, monkeypatch):
    """On the demo pair, whose sessions take a whole tree in one call, pass by pass, and in Python."""
    prompt = demo_pair.tokenizer.encode("def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n")
    index = TextIndex()
    index.add(demo_pair.tokenizer.encode("def sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return a * b\n"))
    calibrated = HybridTree(
        index=index, profile=costs, calibration=calibration_of(0.6, temperature=temperature), max_size=24, max_depth=8,
        recipe=recipe,
    )  # fmt: skip

    def steps():
        options = {"sampling": SamplingConfig(temperature, top_p), "generator": torch.Generator().manual_seed(0)}
        found = decode(prompt, demo_pair, tree=calibrated, max_new_tokens=48, **options)
        return [(step.tree, step.tokens, np.round(step.draft_probs, 5).tolist()) for step in found]

    def pass_by_pass(self, shaping, expansion, session, sequence):
        return self._pass_by_pass(shaping, sequence)

    in_one_call = steps()
    monkeypatch.setattr(CompiledGrower, "_in_one_call", pass_by_pass)
    assert steps() == in_one_call
    monkeypatch.setattr(CompiledGrower, "supports", lambda *_: False)
    assert steps() == in_one_call
    assert max(tree.depth for tree, *_ in in_one_call) > 3


@both_ways
def test_what_the_target_would_draw_itself_is_accepted_when_drawn():
    tree = HybridTree(
        index=TextIndex(), profile=None, calibration=calibration_of(0.6, temperature=1.0), max_size=12, max_depth=4,
        beam=2, recipe="in_turn",
    )  # fmt: skip
    options = {"sampling": SamplingConfig(1.0), "generator": torch.Generator().manual_seed(0)}
    target, draft = (tiny_llama(1, scale=0.3) for _ in range(2))
    steps = decode(PROMPT, pair_of(target, draft), tree=tree, max_new_tokens=60, **options)
    assert len(list(steps)) < 22


@both_ways
def test_an_explained_step_says_who_proposed_each_node(tiny_target, tiny_draft, monkeypatch):
    """A node was looked up, or drafted, or both; the draft gave it a probability where it read the node's parent."""
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=40))
    index = TextIndex()
    index.add([*PROMPT, *wanted])
    options = {"pair": pair_of(tiny_target, tiny_draft), "tree": policy(index), "max_new_tokens": 40}
    assert not any(step.occurrences for step in decode(PROMPT, **options))  # worked out only to be shown
    kinds, seen, text, told = [], [], list(PROMPT), [*PROMPT, *wanted]
    for step in decode(PROMPT, **options, details=StepDetails(likely=64)):
        rows = {each.node: dict(each.draft) for each in step.path_rows}
        assert len(list(found_where_it_says(step, text, told))) == sum(map(bool, step.occurrences))
        for node, found in enumerate(step.occurrences[1:], start=1):
            row = rows.get(parent := int(step.tree.parents[node]))
            kinds.append("draft" if found is None else "both" if found.drafted else "looked up")
            if row is not None:
                assert (kinds[-1] != "looked up") == bool(row), (parent, node)
                assert not row or step.draft_probs[node] == pytest.approx(row[step.tokens[node]], rel=1e-4)
        text += step.new_tokens
        seen.append(step.occurrences)
    assert set(kinds) == {"draft", "looked up", "both"}
    monkeypatch.setattr(CompiledGrower, "supports", lambda *_: False)
    assert [step.occurrences for step in decode(PROMPT, **options, details=StepDetails(likely=1))] == seen


class Rows:
    """The draft's rows, one for each node of a frontier; counts how often it was asked."""

    def __init__(self, block):
        self.block, self.asked = np.array(block), 0

    def most_likely(self, k):
        self.asked += 1
        tokens = np.argsort(-self.block, axis=1, kind="stable")[:, :k]
        return tokens, np.take_along_axis(self.block, tokens, axis=1)

    def given(self, row, tokens):
        return self.block[row, tokens]

    def drawn(self, ranks, without):
        return self.most_likely(ranks)


def expansion_after(tokens, *, costs=None, index=None, bounds=None, kind=TopKExpansion, **options):
    bounds = bounds or TreeBounds(max_size=8, max_depth=4, beam=4, branch=3)
    look_up = LookUp(index or TextIndex(), len(tokens), bounds)
    look_up.begin(tokens, max_depth=bounds.max_depth, gain=1.0)
    calibration = calibration_of(0.6)
    expected = calibration.expected("most likely")[: bounds.branch]
    return kind(bounds, calibration.tables(), expected, costs, look_up, **options)


def test_where_nothing_was_seen_the_trees_are_the_adaptive_ones():
    costs = TokenCosts(np.append(0.0, 1.0 + 0.05 * np.arange(8)), np.append(0.0, 0.1 + 0.01 * np.arange(4)))
    hybrid = expansion_after([20, 21, 22, 24], costs=costs)  # none of which the draft proposes
    adaptive = replace(hybrid, look_up=None)
    block = np.random.default_rng(0).dirichlet(np.full(9, 0.3), size=4)
    trees = []
    for expansion in (hybrid, adaptive):
        nodes = expansion.start(24)
        assert nodes.size == 1 and nodes.tokens[0] == 24
        read = 0
        while len(frontier := expansion.frontier(nodes)):
            nodes.cache_positions[frontier] = read + np.arange(len(frontier))
            read += len(frontier)
            nodes = expansion.extended(nodes, frontier, Rows(block[: len(frontier)] + 1e-3 * read))
        kept = expansion.kept(nodes)
        trees.append((kept.parents.tolist(), kept.tokens.tolist(), kept.scores.round(12).tolist()))
    assert trees[0] == trees[1] and len(trees[0][0]) > 3


def sure_text():
    return [1, 2, 3, 4, 5, 6, 7, 8] * 5 + [1, 2, 3]


def test_a_lookup_that_is_sure_asks_no_draft():
    costs = TokenCosts(np.append(0.0, 1.0 + 0.01 * np.arange(8)), np.append(0.0, 0.3 + 0.01 * np.arange(4)))
    expansion = expansion_after(sure_text(), costs=costs)
    nodes = expansion.start(3)
    assert nodes.tokens[1:5].tolist() == [4, 5, 6, 7]
    assert len(expansion.frontier(nodes)) == 0
    free = replace(expansion, token_costs=TokenCosts(np.append(0.0, np.ones(8)), np.zeros(5)))
    assert free.frontier(nodes).tolist() == [0], "a pass that costs nothing begins with the root"


def test_after_the_root_a_pass_reads_whole_paths():
    """A node can only be read when its ancestors are: they come along, before it, within the beam."""
    expansion = expansion_after(sure_text())
    nodes = expansion.start(3)
    nodes.cache_positions[0] = 0
    frontier = expansion.frontier(nodes)
    assert len(frontier) == 3 and frontier.tolist() == sorted(frontier.tolist())
    for node in frontier.tolist():
        assert nodes.parents[node] in (0, *frontier.tolist())


@pytest.mark.parametrize(("threshold", "tokens"), [(0.2, [3, 4, 5, 6, 7]), (0.7, [3])])
def test_what_is_left_out_takes_all_below_it_along(threshold, tokens):
    """The draft is sure that 4, which the text is sure of, does not follow: that leaves it a gain between the two."""
    expansion = expansion_after(sure_text(), kind=SampledExpansion, threshold=threshold)
    nodes = expansion.start(3)
    nodes.cache_positions[0] = 0
    row = np.full(10, 1e-4)
    row[9] = 1.0 - 9e-4
    after = expansion.extended(nodes, np.array([0]), Rows([row]))
    assert after.tokens.tolist() == tokens and after.parents.tolist() == [*range(-1, len(tokens) - 1)]


def test_the_draft_changes_the_chance_of_what_was_looked_up():
    expansion = expansion_after([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    nodes = expansion.start(2)
    before = chances_below_the_root(nodes)
    assert before[4] > before[3] > 0, "4 came last"
    for favoured in (3, 4):
        row = np.full(10, 0.01)
        row[favoured] = 0.91
        fresh = nodes._replace(**{name: getattr(nodes, name).copy() for name in nodes._fields})
        fresh.cache_positions[0] = 0
        after = expansion.extended(fresh, np.array([0]), Rows([row]))
        chance, other = chances_below_the_root(after), 7 - favoured
        assert chance[favoured] > before[favoured] and chance.get(other, 0.0) < before[other]
        assert after.scores[1:][after.parents[1:] == 0].sum() <= 1.0 + 1e-9
        assert len({(p, t) for p, t in zip(after.parents.tolist(), after.tokens.tolist(), strict=True)}) == after.size


def test_chances_after_a_node_sum_to_1_at_most_and_hold_no_trust_in_the_text():
    """Text and draft are sure of different tokens; what the draft has read is weighed by what the text itself says."""
    row, found = np.full(10, 0.01), []
    row[5] = 0.91
    for trust in (1.0, 0.5):
        wide = TreeBounds(max_size=40, max_depth=4, beam=4, branch=3)
        expansion = expansion_after(sure_text(), bounds=wide)
        expansion.look_up.columns.state.gain = trust
        nodes = expansion.start(3)
        nodes.cache_positions[0] = 0
        found.append(chances_below_the_root(expansion.extended(nodes, np.array([0]), Rows([row]))))
        assert sum(found[-1].values()) == pytest.approx(1.0)
    assert found[0] == pytest.approx(found[1])


def test_below_what_the_draft_adds_text_is_looked_up_again():
    """After 5 the text went on with 6 7 8; the draft proposes 5, which was never seen here."""
    expansion = expansion_after([5, 6, 7, 8, 1, 2, 3, 9, 4])
    nodes = expansion.start(4)
    assert nodes.size == 1
    row = np.full(10, 0.005)
    row[5] = 0.955
    nodes.cache_positions[0] = 0
    after = expansion.extended(nodes, np.array([0]), Rows([row]))
    paths = {tuple(after.tokens[path].tolist()) for path in map(np.array, paths_of(after))}
    assert (4, 5, 6, 7) in paths


def chances_below_the_root(nodes: Nodes):
    return {int(nodes.tokens[node]): nodes.scores[node] for node in np.flatnonzero(nodes.parents == 0)}


def paths_of(nodes: Nodes):
    for node in range(nodes.size):
        path = [node]
        while path[-1]:
            path.append(int(nodes.parents[path[-1]]))
        yield path[::-1]


def test_how_chances_are_joined():
    assert likely_by_both(0.9, 0.9) > 0.9
    assert likely_by_both(0.5, 0.9) > likely_by_both(0.5, 0.1)
    assert likely_by_both(0.9, 0.5) > likely_by_both(0.1, 0.5)
    assert likely_beside(0.0, 0.7) == 0.7
    assert likely_beside(0.9, 0.7) < likely_beside(0.3, 0.7) < 0.7
    assert 0.0 < likely_by_both(0.0, 0.0) < likely_by_both(1.0, 1.0) < 1.0
    assert likely_beside(1.0, 1.0) < 1.0


def test_costs_and_chances_follow_the_run(tiny_target, monkeypatch):
    """Costs in tokens are those at the rate of the last steps; chances move with what is accepted of each source."""
    tree = policy(profile=linear_profile(0.05), max_size=8)
    costs, own, commit = tree.costs(), GrowingDrafter.expansion, GrowingDrafter.commit
    rate, kept, seen = Rate(1.0, 1.0 / costs.step_sec[1]), Controller(0.0, 0.0), []

    def expansion(drafter, context):
        found = own(drafter, context)
        gains = found.chances.gain, found.look_up.gain
        seen.append((float(found.token_costs.step[8]), *gains))
        assert seen[-1] == pytest.approx((rate.tokens_per_sec * costs.step_sec[8], kept.gain, kept.looked_up_gain))
        return found

    def committed(drafter, draft, path):
        nonlocal kept
        rate.seen(len(path), costs.seconds(draft.tree.size, drafter.widths))
        nodes = drafter.nodes
        alone = [bool(nodes.looked_up[n]) and nodes.cache_positions[nodes.parents[n]] < 0 for n in range(nodes.size)]
        accepted, expected = sum(alone[node] for node in path), sum(nodes.scores[alone])
        kept = kept.looked_up(accepted, expected).seen(len(path) - accepted, sum(nodes.scores) - expected)
        commit(drafter, draft, path)

    monkeypatch.setattr(GrowingDrafter, "expansion", expansion)
    monkeypatch.setattr(GrowingDrafter, "commit", committed)
    list(decode(PROMPT, pair_of(tiny_target, tiny_llama(1)), tree=tree, max_new_tokens=50))
    assert len(seen) > 5 and seen[-1][0] > 1.2 * seen[0][0] and seen[-1][1] > 1.0 and seen[-1][2] < 1.0


def test_misleading_text_is_believed_less_and_less(tiny_target, tiny_draft):
    """A run begins with less trust at higher temperatures, and loses what is left where the text goes on otherwise."""
    drafters = []
    for temperature in (0.0, 0.6, 1.0):
        tree = HybridTree(
            index=misleading(tiny_target, PROMPT, 64), profile=linear_profile(0.001), recipe="topk",
            calibration=calibration_of(0.6, temperature=temperature),
        )  # fmt: skip
        options = DraftOptions(take_most_likely, SamplingConfig(1.0), Reach(128, 128), torch.Generator())
        drafters.append(GrowingDrafter(tiny_draft.open(128), tree, options))
    starts = [drafter.controller.looked_up_gain for drafter in drafters]
    assert starts == [1.0, 0.85, 0.75]
    controller = drafters[0].controller
    for _ in range(20):
        controller = controller.looked_up(0, 2.0)
    assert 0.1 < controller.looked_up_gain < 0.3 and controller.gain == 1.0
    assert controller.looked_up(4, 2.0).looked_up_gain > controller.looked_up_gain


def test_bounds_and_conditions():
    tree = HybridTree(index=TextIndex(), profile=linear_profile(0.1), calibration=calibration_of(0.6), max_size=200)
    assert tree.max_size == 64 and tree.branch == 4 and tree.verifiers == ("topk",) and tree.needs_draft
    with pytest.raises(ValueError, match="max_depth"):
        HybridTree(index=TextIndex(), profile=None, calibration=calibration_of(0.6), max_depth=0)


def test_auto_takes_the_recipe_of_the_fastest_drafted_part(tiny_target, tiny_draft):
    """At temperature 0 the most likely tokens; above it the planned tree unless another is well ahead of it."""
    varied = {t: growing_tree(16, SamplingConfig(t), 64).calibration for t in (0.0, 0.8)}
    made = {
        (temperature, grow): HybridTree(
            index=TextIndex(), profile=replace(linear_profile(0.02), growing_sec=(grow, grow)),
            calibration=varied[temperature],
        )
        for temperature in (0.0, 0.8)
        for grow in (0.0, 5.0)
    }  # fmt: skip
    assert made[0.0, 0.0].recipe == made[0.0, 5.0].recipe == "topk" and not made[0.0, 0.0].expected
    grown, static = made[0.8, 0.0], made[0.8, 5.0]
    assert grown.fixed is None and set(grown.expected) == {"topk", "in_turn", "static"}
    drafted = {name: grown.expected[name].value for name in ("topk", "in_turn")}
    assert grown.recipe == max(drafted, key=drafted.get)
    for each in (grown, static):  # look-ups add 1.03 at least, and what is grown is promised 1.1 times at most
        ahead = 1.03 * max(each.expected[name].value for name in drafted) > 1.1 * each.expected["static"].value
        assert ahead == (each is grown)
    assert static.recipe == "static" and static.fixed is not None and static.max_size == static.fixed.size
    sampling = SamplingConfig(0.8)
    steps = list(decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=static, sampling=sampling, max_new_tokens=20))
    assert {step.tree for step in steps} == {static.fixed}
    with pytest.raises(ValueError, match="found static without a profile"):
        policy(recipe="static")
    with pytest.raises(ValueError, match="recipe: found 'both', expected auto, topk, in_turn or static"):
        policy(recipe="both")


def test_another_temperature_is_warned_of(tiny_target, tiny_draft):
    with pytest.warns(UserWarning, match="temperature 0.0, not 0.8"):
        decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=policy(), sampling=SamplingConfig(0.8))
