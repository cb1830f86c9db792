"""Adaptive trees: lossless under both recipes, shaped by costs and by what the draft says, the same for equal seeds.

The statistical tests raise a false alarm with a probability below 1e-6 each; their seeds are fixed besides.
"""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sequoia_core import AdaptiveTree, HardwareProfile, HybridTree, measure_acceptance
from sequoia_core.decoding.growing import recipes, step_costs
from sequoia_core.decoding.growing.drafter import GrowingDrafter
from sequoia_core.decoding.growing.expansion import Nodes, TreeBounds
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import FixedTree
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.optimal_trees import expected_tokens, optimal_tree
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.step_time import step_time
from sequoia_core.studies.losslessness import check_losslessness
from tests.conftest import calibration_of, linear_profile, pair_of, recalled, tiny_llama, tokens_of
from tests.core.decoding.growing.test_dynamic_exactness import Grows, PruningAfterTheDraw
from tests.core.decoding.growing.test_policies import MEASURED, SAMPLINGS
from tests.core.decoding.test_tree_policy import RAGGED, all_of_steps

ASSETS = Path(__file__).parents[4] / "assets"
PROMPT = [3, 14, 15, 9, 2, 6]
RECIPES = ["deterministic", "sampled"]
TOP_K = recipes.RECIPES["deterministic"]
both_ways = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


@pytest.fixture(scope="module")
def small_pair():
    return [tiny_llama(seed, vocab=16, layers=1, scale=1.0) for seed in (1, 2)]


def check(pair, policy, sampling, **options):
    options = {"samples": 600, "new_tokens": 3, "generator": torch.Generator().manual_seed(0)} | options
    options = {"verifier": policy.verifiers[0]} | options
    return check_losslessness((3,), pair_of(*pair), tree=policy, sampling=sampling, **options)


def sampled_policy(recipe, costs=None, **options):
    options = {"max_size": 7, "max_depth": 3, "beam": 2} | options
    return AdaptiveTree(profile=costs, calibration=calibration_of(0.5, temperature=1.0), recipe=recipe, **options)


@pytest.mark.slow
@pytest.mark.parametrize("costs", [None, MEASURED], ids=["budget alone", "measured"])
@pytest.mark.parametrize("prunes", [True, False])
def test_pruning_after_the_draw_is_caught_in_running_decodes(prunes, costs, monkeypatch):
    """What the sampled recipe forbids at T > 0, in a whole decode; the same check passes without it."""
    if prunes:
        pruning = replace(recipes.RECIPES["sampled"], expansion=PruningAfterTheDraw)
        monkeypatch.setitem(recipes.RECIPES, "sampled", pruning)
    pair = [recalled(tiny_llama(seed, vocab=16, layers=1, scale=2.0)) for seed in (1, 2)]
    report = check(pair, sampled_policy("sampled", costs), SamplingConfig(1.0), samples=2_000, new_tokens=1)
    assert report.p_value < 1e-6 if prunes else report.passed
    assert report.degrees_of_freedom > 5


@pytest.mark.slow
@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_most_likely_children_under_the_rule_for_drawn_ones_are_caught(sampling, mixes, monkeypatch, small_pair):
    """A policy that names the wrong verifier, with a measured machine's costs; the same check passes without it."""
    if mixes:
        monkeypatch.setitem(recipes.RECIPES, "deterministic", replace(TOP_K, verifier="sequoia"))
    policy = sampled_policy("deterministic", MEASURED)
    report = check(map(recalled, small_pair), policy, sampling, samples=2_000, new_tokens=1)
    assert report.p_value < 1e-6 if mixes else report.passed
    assert report.degrees_of_freedom > 5


class AlwaysThis:
    """Grows one tree, whatever the draft says."""

    draws, compiled, look_up, token_costs, expected = True, False, None, None, np.empty(0)

    def __init__(self, tree):
        self.tree = tree
        self.bounds = TreeBounds(max_size=tree.size, max_depth=tree.depth, beam=tree.size, branch=8)

    def start(self, token):
        return Nodes.root(token)

    def frontier(self, nodes):
        level = self.tree.levels[nodes.depths[-1]]  # the deepest so far; nodes are numbered as in the tree
        return level[(self.tree.child_counts[level] > 0) & (nodes.cache_positions[level] < 0)]

    def extended(self, nodes, frontier, rows):
        counts = self.tree.child_counts[frontier]
        tokens, probs = rows.drawn(int(counts.max()))
        return nodes.with_children(frontier, np.arange(tokens.shape[1]) < counts[:, None], tokens, probs, probs)

    def kept(self, nodes):
        return nodes


@both_ways
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "sequoia"), (0.8, "sequoia"), (0.8, "topk")])
@pytest.mark.parametrize("tree", [RAGGED, chain_tree(4)], ids=["ragged", "chain"])
def test_a_policy_that_always_grows_one_tree_decodes_as_that_tree(tree, temperature, verifier, tiny_target, tiny_draft):
    """Bit for bit: the same tokens, probabilities, trials and outcomes."""

    def steps(policy):
        return all_of_steps(policy, pair_of(tiny_target, tiny_draft), temperature, verifier)

    assert steps(Grows(AlwaysThis(tree))) == steps(tree)


@pytest.mark.parametrize("recipe", RECIPES)
def test_equal_seeds_give_equal_text_and_trees(recipe, small_pair):
    def run(seed):
        steps = decode(
            [3], pair_of(*small_pair), tree=sampled_policy(recipe, linear_profile(0.01)),
            sampling=SamplingConfig(1.0), max_new_tokens=60, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        return [(step.tree, step.tokens, step.new_tokens) for step in steps]

    assert run(1) == run(1) != run(2)


def mean_size(policy, target, draft, **options):
    steps = list(decode(PROMPT, pair_of(target, draft), tree=policy, max_new_tokens=120, **options))
    return np.mean([step.tree.size for step in steps[-20:]])


@pytest.mark.parametrize("recipe", RECIPES)
def test_dear_nodes_make_small_trees(recipe, tiny_target, tiny_draft):
    sizes = [
        mean_size(
            AdaptiveTree(profile=linear_profile(per_node), calibration=calibration_of(0.6), max_size=40, recipe=recipe),
            tiny_target, tiny_draft,
        )
        for per_node in (0.001, 0.05, 0.3, 3.0)
    ]  # fmt: skip
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 2 * sizes[2] and sizes[3] == 1.0


@pytest.mark.parametrize("recipe", RECIPES)
def test_trees_follow_how_the_run_goes(recipe, tiny_target):
    """The same calibration and costs: where the draft is never right, trees shrink to what still pays."""
    policy = AdaptiveTree(profile=linear_profile(0.05), calibration=calibration_of(0.6), max_size=40, recipe=recipe)
    right, wrong = (mean_size(policy, tiny_target, draft) for draft in (tiny_llama(1), tiny_llama(2, layers=1)))
    assert right > 1.5 * wrong


@pytest.mark.parametrize("recipe", RECIPES)
def test_trees_follow_what_a_growing_context_makes_of_costs(recipe, tiny_target):
    """Nodes that cost nothing in a short context and much in a long one, with a draft that is always right."""
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    costs = replace(linear_profile(0.001), verify_growth_sec=0.02 * (sizes - 1.0), context=len(PROMPT))
    policy = AdaptiveTree(profile=costs, calibration=calibration_of(0.6), max_size=40, recipe=recipe)
    steps = list(decode(PROMPT, pair_of(tiny_target, tiny_llama(1)), tree=policy, max_new_tokens=200))
    ends = np.cumsum([len(PROMPT)] + [len(step.new_tokens) for step in steps])
    early, late = (
        [step.tree.size for step, start in zip(steps, ends, strict=False) if low <= start < high]
        for low, high in ((0, 64), (140, 200))
    )
    assert min(early) > 1 and max(late) == 1
    dear = policy.costs(150).token_costs(policy.expected[recipe].controller.theta)
    np.testing.assert_array_equal(policy.expansion_at_start(150).token_costs.step, dear.step)


@pytest.mark.parametrize("recipe", RECIPES)
def test_nodes_are_held_to_the_rate_of_the_last_steps(recipe, tiny_target, monkeypatch):
    """It begins as expected; each step's tokens and profiled seconds push what came before back by a twentieth, and
    the floor of draws moves with how full its tree was."""
    policy = AdaptiveTree(profile=linear_profile(0.05), calibration=calibration_of(0.6), max_size=8, recipe=recipe)
    start, costs, kept = policy.expected[recipe], policy.costs(), 1 - 1 / step_costs.MEMORY_STEPS
    tokens = step_costs.MEMORY_STEPS * start.tokens_per_step
    seconds, seen, commit = tokens / start.controller.theta, [], GrowingDrafter.commit

    def committed(drafter, draft, path):
        widths = list(drafter.widths)
        commit(drafter, draft, path)
        seen.append(
            (
                len(path),
                draft.tree.size,
                costs.seconds(draft.tree.size, widths),
                drafter._costs.tokens_per_sec,
                drafter.controller,
            )
        )

    monkeypatch.setattr(GrowingDrafter, "commit", committed)
    list(decode(PROMPT, pair_of(tiny_target, tiny_llama(1)), tree=policy, max_new_tokens=200))
    controller = start.controller
    for count, size, taken, theta, found in seen:
        tokens, seconds = kept * tokens + count, kept * seconds + taken
        controller = controller.after(size, policy.max_size)
        assert (theta, found.threshold) == pytest.approx((max(tokens / seconds, 1.0), controller.threshold))
    assert len(seen) > step_costs.MEMORY_STEPS
    assert theta > 1.2 * start.controller.theta  # the draft is better than it promised


def chosen_of(rates: dict[str, float]) -> str:
    """Return the recipe of "auto": the planned tree unless another is expected to be a tenth faster."""
    fastest = max(RECIPES, key=rates.get)
    return "static" if 1.1 * rates.get("static", 0.0) > rates[fastest] else fastest


def test_auto_takes_the_recipe_that_is_expected_to_be_faster_and_says_which(tiny_target, tiny_draft):
    prompts = [[place, 5, 9] for place in range(4)]
    chosen = {}
    for temperature in (0.0, 1.5):
        vector = measure_acceptance(
            prompts, pair_of(tiny_target, tiny_llama(1, scale=2.0)), sampling=SamplingConfig(temperature),
            max_new_tokens=40, width=8,
        )  # fmt: skip
        for costs, names in ((linear_profile(0.02), {*RECIPES, "static"}), (None, set(RECIPES))):
            policy = AdaptiveTree(profile=costs, calibration=vector.calibration, max_size=32)
            rates = {name: found.value for name, found in policy.expected.items()}
            assert set(rates) == names and policy.recipe == chosen_of(rates)
        chosen[temperature] = policy.recipe, policy.verifiers
    assert chosen == {0.0: ("deterministic", ("topk",)), 1.5: ("sampled", ("sequoia", "traversal"))}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_growing_costs_more_than_it_brings_auto_answers_the_best_static_tree(
    tiny_target, tiny_draft, temperature
):
    costs = replace(linear_profile(0.1), sampling_sec=0.2 * np.arange(7.0))
    known = calibration_of(0.6, temperature=temperature)
    auto = {"profile": replace(costs, growing_sec=[5.0, 5.0]), "calibration": known, "max_size": 24}
    policy = AdaptiveTree(**auto)
    assert policy.recipe == "static" and policy.verifiers == tuple(VERIFIERS)
    kind, greedy = ("most likely", True) if temperature == 0.0 else ("drawn", False)
    vector = AcceptanceVector(known.expected(kind)[:8])
    rates = [
        expected_tokens(tree, vector) / step_time(tree, costs, greedy=greedy).total_sec
        for depth in range(1, 13)
        for tree in (optimal_tree(vector, size=size, depth=depth) for size in range(2, min(24, 4**depth) + 1))
    ]
    rate = expected_tokens(policy.fixed, vector) / step_time(policy.fixed, costs, greedy=greedy).total_sec
    assert rate == pytest.approx(max(rates)) == pytest.approx(policy.expected["static"].tokens_per_sec)
    texts = []
    for tree in (policy, policy.fixed):
        steps = list(
            decode(
                PROMPT, pair_of(tiny_target, tiny_draft), tree=tree, sampling=SamplingConfig(temperature),
                max_new_tokens=24, generator=torch.Generator().manual_seed(3),
            )
        )  # fmt: skip
        texts.append(tokens_of(steps))
        assert {step.tree for step in steps} == {policy.fixed}
    assert texts[0] == texts[1]
    grown = AdaptiveTree(**auto | {"profile": costs})
    assert grown.recipe == chosen_of({name: found.value for name, found in grown.expected.items()})
    assert grown.expected["static"].value == policy.expected["static"].value
    assert all(grown.expected[name].value > policy.expected[name].value for name in RECIPES)


STREAMED = HardwareProfile(
    sizes=[1, 8, 20, 40, 128], verify_sec=[1.0, 1.0, 1.0, 2.0, 6.4], draft_sec=0.02, overhead_sec=[0.01] * 5,
    meta={"streaming": {"layers": 10, "buffers": 5, "layer_read_sec": 0.1}},
)  # fmt: skip


@pytest.mark.parametrize(("temperature", "recipe"), [(0.0, "deterministic"), (1.0, "sampled")])
def test_while_weights_stream_in_trees_may_be_deep_and_are_no_larger_than_the_best_planned_one(temperature, recipe):
    known = calibration_of(0.6, temperature=temperature)
    policy = AdaptiveTree(profile=STREAMED, calibration=known, recipe=recipe)
    planned = AdaptiveTree(profile=STREAMED, calibration=known, recipe="static").fixed
    assert (policy.max_size, policy.max_depth) == (planned.size, 24) and 16 <= planned.size <= 40
    own = AdaptiveTree(profile=STREAMED, calibration=known, recipe=recipe, max_size=9, max_depth=5)
    assert (own.max_size, own.max_depth) == (9, 5)
    in_memory = replace(STREAMED, meta={})
    held = AdaptiveTree(profile=in_memory, calibration=known, recipe=recipe)
    assert (held.max_size, held.max_depth) == (64, 12)
    small = replace(in_memory, sizes=[1, 8], verify_sec=[1.0, 1.0], overhead_sec=[0.01, 0.01])
    assert AdaptiveTree(profile=small, calibration=known, recipe=recipe).max_size == 8


def test_static_uses_the_planned_tree_that_it_is_given(tiny_target, tiny_draft):
    planned = optimal_tree(AcceptanceVector([0.6, 0.2, 0.1]), size=5, depth=4)
    costs = replace(linear_profile(0.02), growing_sec=[5.0, 5.0])
    for policy in (
        AdaptiveTree(profile=costs, calibration=calibration_of(0.6), planned=planned),
        HybridTree(TextIndex(), profile=costs, calibration=calibration_of(0.6, temperature=1.0), planned=planned),
    ):
        assert policy.recipe == "static" and policy.fixed == planned


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("draft", ["", "-large"])
@pytest.mark.parametrize("temperature", ["0", "0.6"])
def test_with_the_target_on_disk_trees_that_grow_are_expected_to_beat_the_planned_one(draft, temperature):
    vector = AcceptanceVector.load(ASSETS / "acceptance" / f"demo{draft}-t{temperature}.json")
    measured = HardwareProfile.load(ASSETS / "scenarios" / "profiles" / f"demo-pair{draft}-disk.json")
    found = AdaptiveTree(profile=measured, calibration=vector.calibration)
    assert found.recipe == ("deterministic" if temperature == "0" else "sampled")
    assert found.expected[found.recipe].tokens_per_sec > 1.05 * found.expected["static"].tokens_per_sec


@pytest.mark.parametrize("bounds", [{"max_size": 40, "max_depth": 3, "beam": 2}, {"max_size": 12}])
@pytest.mark.parametrize(("per_node", "draft_sec"), [(0.0, 0.01), (0.1, 0.1), (5.0, 5.0)])
def test_a_static_policy_has_the_bounds_of_its_tree(tiny_target, tiny_draft, per_node, draft_sec, bounds):
    policy = AdaptiveTree(
        profile=linear_profile(per_node, draft_sec), calibration=calibration_of(0.6), recipe="static", **bounds
    )
    tree = FixedTree(policy.fixed)
    for name in ("max_size", "max_inner", "max_depth", "max_children", "verifiers"):
        assert getattr(policy, name) == getattr(tree, name)
    assert (policy.max_size == 1) == (per_node == 5.0)
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=24))
    assert tokens_of(decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=policy, max_new_tokens=24)) == wanted


@pytest.mark.parametrize(("recipe", "costs"), [("auto", None), ("static", linear_profile(0.1))])
def test_a_calibration_of_another_pair_or_temperature_is_named_once_and_decodes_all_the_same(
    tiny_target, tiny_draft, recipe, costs
):
    known = calibration_of(0.6, temperature=1.0)
    own = Conditions(tiny_target.name, tiny_draft.name, 1.0)
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 8}
    for holds_for, temperature, said in (
        (None, 1.0, None),
        (own, 1.0, None),
        (None, 0.5, "measured for temperature 1.0, not 0.5: the text stays exact"),
        (own, 0.5, "measured for temperature 1.0, not 0.5: the text stays exact"),
        (replace(own, draft="another"), 1.0, f"measured for draft another, not {tiny_draft.name}: the text"),
    ):
        policy = AdaptiveTree(profile=costs, calibration=known, max_size=8, recipe=recipe, holds_for=holds_for)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps = list(decode(PROMPT, **models, tree=policy, sampling=SamplingConfig(temperature)))
        assert len(tokens_of(steps)) == 8
        assert [str(warning.message).removeprefix("tree: found one ")[: len(said or "")] for warning in caught] == (
            [said] if said else []
        )


def test_what_cannot_be_is_refused(tiny_target, tiny_draft):
    known = calibration_of(0.6, temperature=1.0)
    models = {"pair": pair_of(tiny_target, tiny_draft), "sampling": SamplingConfig(1.0)}
    for recipe, verifier, other in (("deterministic", "topk", "sequoia"), ("sampled", "sequoia", "topk")):
        policy = AdaptiveTree(profile=None, calibration=known, max_size=8, recipe=recipe)
        with pytest.raises(ValueError, match=f"verifier: found '{other}', expected {verifier}"):
            decode(PROMPT, **models, tree=policy, verifier=other)
    with pytest.raises(ValueError, match="recipe: found 'magic', expected auto, deterministic, sampled or static"):
        AdaptiveTree(profile=None, calibration=known, recipe="magic")
    with pytest.raises(ValueError, match="recipe: found static without a profile"):
        AdaptiveTree(profile=None, calibration=known, recipe="static")
    with pytest.raises(ValueError, match="calibration: found NoneType"):
        AdaptiveTree(profile=None, calibration=None)
    with pytest.raises(ValueError, match="size: found 1 to 65, expected 1 to 64 as profiled"):
        AdaptiveTree(profile=linear_profile(0.1), calibration=known, max_size=65)
    with pytest.raises(ValueError, match="max_depth: found 0"):
        AdaptiveTree(profile=None, calibration=known, max_depth=0)
