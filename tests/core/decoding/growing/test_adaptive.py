"""Adaptive trees: shaped by costs and by how the run goes; "auto" takes the recipe that is expected to be fastest."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import AdaptiveTree, HardwareProfile, HybridTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import FixedTree
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.optimal_trees import optimal_tree
from sequoia_core.studies.step_timers import growing_tree
from tests.conftest import calibration_of, linear_profile, pair_of, tiny_llama, tokens_of

PROMPT = [3, 14, 15, 9, 2, 6]
RECIPES = ["deterministic", "sampled"]


def mean_size(policy, target, draft, **options):
    steps = list(decode(PROMPT, pair_of(target, draft), tree=policy, max_new_tokens=120, **options))
    return np.mean([step.tree.size for step in steps[-20:]])


@pytest.mark.slow
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


@pytest.mark.slow
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


def chosen_of(policy, grown_gain=1.0) -> str:
    """Return the recipe of "auto": the planned tree unless another is expected to be a tenth faster."""
    rates = {name: found.value for name, found in policy.expected.items()}
    fastest = max(policy.recipes, key=rates.get)
    return "static" if 1.1 * rates.get("static", 0.0) > grown_gain * rates[fastest] else fastest


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_auto_takes_the_recipe_that_is_expected_to_be_faster_and_says_which(temperature):
    known = growing_tree(16, SamplingConfig(temperature), 64).calibration  # of rows that differ
    assert set(AdaptiveTree(profile=None, calibration=known).expected) == set(RECIPES), "without costs no tree is best"
    for grow in (0.0, 5.0):
        costs = replace(linear_profile(0.02), growing_sec=(grow, grow))
        policy = AdaptiveTree(profile=costs, calibration=known, max_size=32)
        assert set(policy.expected) == {*RECIPES, "static"}
        assert policy.recipe == chosen_of(policy) and (policy.recipe == "static" or grow == 0.0)
        policy = HybridTree(index=TextIndex(), profile=costs, calibration=known)
        if temperature == 0.0:  # no other recipe is asked for what it is expected to do
            assert policy.recipe == "topk" and not policy.expected
        else:  # look-ups add 1.03 at least to what the drafted part alone is expected to do
            assert set(policy.expected) == {"topk", "in_turn", "static"}
            assert policy.recipe == chosen_of(policy, 1.03) and (policy.recipe == "static") == (grow == 5.0)


STREAMED = HardwareProfile(
    sizes=[1, 8, 20, 40, 128], verify_sec=[1.0, 1.0, 1.0, 2.0, 6.4], draft_sec=0.02, overhead_sec=[0.01] * 5,
    meta={"streaming": {"layers": 10, "buffers": 5, "layer_read_sec": 0.1}},
)  # fmt: skip


@pytest.mark.slow
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


@pytest.mark.slow
def test_static_uses_the_planned_tree_that_it_is_given():
    planned = optimal_tree(AcceptanceVector([0.6, 0.2, 0.1]), size=5, depth=4)
    known = {"profile": replace(linear_profile(0.02), growing_sec=[5.0, 5.0]), "planned": planned}
    for policy in (
        AdaptiveTree(calibration=calibration_of(0.6), **known),
        HybridTree(TextIndex(), calibration=calibration_of(0.6, temperature=1.0), **known),
    ):
        assert policy.recipe == "static" and policy.fixed == planned


@pytest.mark.parametrize("per_node", [0.1, 5.0])
def test_a_static_policy_has_the_bounds_of_its_tree_and_decodes_by_it(tiny_target, tiny_draft, per_node):
    policy = AdaptiveTree(profile=linear_profile(per_node, per_node), calibration=calibration_of(0.6), recipe="static")
    for name in ("max_size", "max_inner", "max_depth", "max_children", "verifiers"):
        assert getattr(policy, name) == getattr(FixedTree(policy.fixed), name)
    assert (policy.max_size == 1) == (per_node == 5.0)
    steps = list(decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=policy, max_new_tokens=24))
    assert {step.tree for step in steps} == {policy.fixed}
    assert tokens_of(steps) == tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=24))


@pytest.mark.slow
def test_a_calibration_of_another_pair_or_temperature_is_named_once_and_decodes_all_the_same(tiny_target, tiny_draft):
    known = calibration_of(0.6, temperature=1.0)
    own = Conditions(tiny_target.name, tiny_draft.name, 1.0)
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 8}
    for holds_for, temperature, said in (
        (None, 1.0, None),
        (own, 1.0, None),
        (own, 0.5, "measured for temperature 1.0, not 0.5: the text stays exact"),
        (replace(own, draft="another"), 1.0, f"measured for draft another, not {tiny_draft.name}: the text"),
    ):
        policy = AdaptiveTree(profile=None, calibration=known, max_size=8, holds_for=holds_for)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps = list(decode(PROMPT, **models, tree=policy, sampling=SamplingConfig(temperature)))
        assert len(tokens_of(steps)) == 8
        assert [str(warning.message).removeprefix("tree: found one ")[: len(said or "")] for warning in caught] == (
            [said] if said else []
        )
