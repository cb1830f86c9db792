"""Dynamic tree kinds: their properties, every model family, races, and timed growing."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.measuring import bench as benchmark
from sequoia_core.measuring.race import race
from sequoia_extras.dynamic_trees import AdaptiveTree
from sequoia_extras.dynamic_trees.drafter import GrowingDrafter
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.dynamic_trees.tree_kinds import DYNAMIC_KINDS
from tests.conftest import calibration_of, linear_profile, pair_of
from tests.core.measuring.test_measure_profile import Bench, cost
from tests.core.measuring.test_race import method_result
from tests.core.test_families import FAMILIES, assert_decodes_as_generate, build, save


@pytest.mark.parametrize("name", DYNAMIC_KINDS)
def test_tree_kinds_make_policies_with_their_properties(name):
    kind = TREE_KINDS[name]
    vector = replace(AcceptanceVector([0.6, 0.2, 0.1]), calibration=calibration_of(0.6))
    policy = kind.make(vector, max_size=9, max_depth=3)
    assert (policy.max_size, policy.max_depth) == (9, 3)
    assert (policy.looks_up, policy.needs_draft) == (kind.looks_up, kind.drafted)
    if kind.calibrated:
        with pytest.raises(ValueError, match=f"{kind.title} trees: found no acceptance vector"):
            kind.make()


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_as_generate(family, tmp_path):
    folder = save(build(family), tmp_path)
    sharp = calibration_of(0.95)
    bounds = {"max_size": 10, "max_depth": 4, "beam": 2}
    for policy in (
        SpecExecTree(**bounds, branch=3),
        AdaptiveTree(profile=None, calibration=sharp, **bounds, recipe="deterministic"),
        AdaptiveTree(profile=None, calibration=sharp, **bounds, recipe="sampled"),
    ):
        assert_decodes_as_generate(folder, tree=policy, most_steps=20)


def test_a_race_with_a_head_leaves_out_the_assistant_only(tiny_target, tiny_head):
    trees = {"adaptive": AdaptiveTree(profile=linear_profile(9.0), calibration=calibration_of(0.01))}
    pair = pair_of(tiny_target, tiny_head)
    results = race(pair, [[1, 2, 3]], trees=trees, sampling=SamplingConfig(0.8), max_new_tokens=9)
    assert results["hf_assisted"].left_out == "transformers does not support draft heads"
    assert results["hf_generate"].tokens == results["adaptive"].steps == [9]
    assert trees["adaptive"].fixed.size == 1 and not trees["adaptive"].needs_draft


def test_bench_races_plain_decoding_once(tiny_target, tiny_draft, monkeypatch):
    asked = {}
    vector = AcceptanceVector([0.1, 0.05], calibration=calibration_of(0.2))

    def raced(pair, prompts, *, trees, **options):
        asked["trees"] = trees
        return {name: method_result([2.0, 3.0]) for name in ("autoregressive", *trees)}

    monkeypatch.setattr(benchmark, "measure_acceptance", lambda prompts, pair, **options: vector)
    monkeypatch.setattr(benchmark, "measure_profile", lambda pair, **options: linear_profile(2.0, 1.0))
    monkeypatch.setattr(benchmark, "race", raced)
    record = benchmark.bench(
        pair_of(tiny_target, tiny_draft), [[1], [2], [3]], sampling=SamplingConfig(), max_new_tokens=10
    ).record
    assert record["tree"] == {"size": 1, "depth": 0} and record["same_as_plain"] == ["sequoia", "adaptive"]
    assert set(asked["trees"]) == {"chain", "specinfer"}  # SpecExec would draft a tree of one node
    assert record["sequoia"]["measured_speedup"] == 1 and record["fastest"] is None


@pytest.mark.slow
def test_profile_times_growing(monkeypatch):
    def slow_growth(self, sequence, grow=GrowingDrafter.grow):
        clock.now += 0.25 if self.policy.calibration.temperature == 0 else 0.75
        return grow(self, sequence)

    clock = Bench(cost, monkeypatch, cold=0.0)
    monkeypatch.setattr(GrowingDrafter, "grow", slow_growth)
    found = clock.measure()
    np.testing.assert_allclose(found.growing_sec, [0.25, 0.75])
    again = clock.measure(repeats=6, resume=replace(found, growing_sec=[0.5, 0.25]))
    np.testing.assert_allclose(again.growing_sec, [0.375, 0.5])
    clock.passes.clear()
    clock.measure(sizes=[2, 5])
    assert max(made.count for made in clock.timed if made.model == "target") == 5
