"""Adaptive trees: their size depends on costs, and "auto" chooses the recipe expected to be fastest."""

import warnings
from dataclasses import replace

import pytest

from sequoia_core import HardwareProfile
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import FixedTree
from sequoia_core.trees.optimal import optimal_tree
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree
from sequoia_extras.dynamic_trees.growth_timer import full_growth_policy
from sequoia_extras.dynamic_trees.text_index import TextIndex
from tests.conftest import calibration_of, linear_profile, pair_of, tokens_of

PROMPT = [3, 14, 15, 9, 2, 6]
RECIPES = ["deterministic", "sampled"]


def expected_choice(policy, grown_bonus=1.0) -> str:
    """Return the recipe of "auto": the planned tree unless another is expected to be 10 % faster."""
    rates = {name: found.value for name, found in policy.expected.items()}
    fastest = max(policy.recipes, key=rates.get)
    return "static" if 1.1 * rates.get("static", 0.0) > grown_bonus * rates[fastest] else fastest


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_auto_chooses_the_recipe_expected_to_be_fastest(temperature):
    calibration = full_growth_policy(16, SamplingConfig(temperature), 64).calibration
    assert set(AdaptiveTree(profile=None, calibration=calibration).expected) == set(RECIPES)
    for grow in (0.0, 5.0):
        costs = replace(linear_profile(0.02), growing_sec=(grow, grow))
        policy = AdaptiveTree(profile=costs, calibration=calibration, max_size=32)
        assert set(policy.expected) == {*RECIPES, "static"}
        assert policy.recipe == expected_choice(policy) and (policy.recipe == "static" or grow == 0.0)
        policy = HybridTree(index=TextIndex(), profile=costs, calibration=calibration)
        if temperature == 0.0:  # no recipes are compared
            assert policy.recipe == "topk" and not policy.expected
        else:  # look-ups add at least 3 % to the drafted part
            assert set(policy.expected) == {"topk", "in_turn", "static"}
            assert policy.recipe == expected_choice(policy, 1.03) and (policy.recipe == "static") == (grow == 5.0)


STREAMED = HardwareProfile(
    sizes=[1, 8, 20, 40, 128],
    verify_sec=[1.0, 1.0, 1.0, 2.0, 6.4],
    draft_sec=0.02,
    overhead_sec=[0.01] * 5,
    meta={"streaming": {"layers": 10, "buffers": 5, "layer_read_sec": 0.1}},
)


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "recipe"), [(0.0, "deterministic"), (1.0, "sampled")])
def test_default_bounds_of_streamed_weights(temperature, recipe):
    """Trees may be deep, but no larger than the best planned one."""
    options = {"calibration": calibration_of(0.6, temperature=temperature)}
    planned = AdaptiveTree(profile=STREAMED, recipe="static", **options).fixed
    in_memory = replace(STREAMED, meta={})
    small = replace(in_memory, sizes=[1, 8], verify_sec=[1.0, 1.0], overhead_sec=[0.01, 0.01])
    assert 16 <= planned.size <= 40
    for profile, bounds in ((STREAMED, (planned.size, 24)), (in_memory, (64, 12)), (small, (8, 12))):
        policy = AdaptiveTree(profile=profile, recipe=recipe, **options)
        assert (policy.max_size, policy.max_depth) == bounds


@pytest.mark.slow
def test_static_uses_the_given_planned_tree():
    planned = optimal_tree(AcceptanceVector([0.6, 0.2, 0.1]), size=5, depth=4)
    options = {"profile": replace(linear_profile(0.02), growing_sec=[5.0, 5.0]), "planned": planned}
    for policy in (
        AdaptiveTree(calibration=calibration_of(0.6), **options),
        HybridTree(TextIndex(), calibration=calibration_of(0.6, temperature=1.0), **options),
    ):
        assert policy.recipe == "static" and policy.fixed == planned


@pytest.mark.parametrize("per_node", [0.1, 5.0])
def test_static_policy_has_the_bounds_of_its_tree(tiny_target, tiny_draft, per_node):
    policy = AdaptiveTree(profile=linear_profile(per_node, per_node), calibration=calibration_of(0.6), recipe="static")
    for name in ("max_size", "max_inner", "max_depth", "max_children", "verifiers"):
        assert getattr(policy, name) == getattr(FixedTree(policy.fixed), name)
    assert (policy.max_size == 1) == (per_node == 5.0)
    steps = list(decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=policy, max_new_tokens=24))
    assert {step.tree for step in steps} == {policy.fixed}
    assert tokens_of(steps) == tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=24))


@pytest.mark.slow
def test_a_calibration_measured_under_other_conditions_warns_once(tiny_target, tiny_draft):
    calibration = calibration_of(0.6, temperature=1.0)
    conditions = Conditions(tiny_target.name, tiny_draft.name, 1.0)
    models = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 8}
    for holds_for, temperature, message in (
        (None, 1.0, None),
        (conditions, 1.0, None),
        (conditions, 0.5, "measured for temperature 1.0, not 0.5: the output stays exact"),
        (replace(conditions, draft="another"), 1.0, f"measured for draft another, not {tiny_draft.name}: the outp"),
    ):
        policy = AdaptiveTree(profile=None, calibration=calibration, max_size=8, holds_for=holds_for)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps = list(decode(PROMPT, **models, tree=policy, sampling=SamplingConfig(temperature)))
        assert len(tokens_of(steps)) == 8
        assert [str(warning.message).removeprefix("tree: found one ")[: len(message or "")] for warning in caught] == (
            [message] if message else []
        )
