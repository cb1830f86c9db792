"""Every policy of trees that grow writes the target's text, greedy and sampled, whatever its sources propose.

The statistical tests have fixed seeds and a false-alarm probability below 1e-6 each.
"""

from pathlib import Path

import pytest
import torch

from sequoia_core import HardwareProfile
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree, LookupTree
from sequoia_extras.dynamic_trees.drafter import GrowingDrafter
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.dynamic_trees.step_costs import MEMORY_STEPS
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.evaluation.losslessness import check_losslessness
from tests.conftest import calibration_of, linear_profile, pair_of, recalled, tiny_llama, tokens_of
from tests.core.decoding.test_tree_policy import assert_records_plain_probabilities
from tests.extras.dynamic_trees.test_lookup_tree import misleading_index
from tests.head_folders import random_head

ASSETS = Path(__file__).parents[3] / "assets"
MEASURED = HardwareProfile.load(ASSETS / "profiles" / "cpu-2core-bfloat16-avx512.json")
SAMPLINGS = [SamplingConfig(0.6), SamplingConfig(1.0), SamplingConfig(1.0, top_p=0.9)]
PROMPT = [3, 14, 15, 9, 2, 6, 3, 14, 15]
both_ways = pytest.mark.usefixtures("each_rows")  # with and without compiled row operations


def adaptive(recipe, costs=None):
    return lambda index, calibration, **bounds: AdaptiveTree(
        profile=costs, calibration=calibration, recipe=recipe, **bounds
    )


def hybrid(recipe, costs=None):
    return lambda index, calibration, **bounds: HybridTree(
        index, profile=costs, calibration=calibration, recipe=recipe, **bounds
    )


def spec_exec(index, calibration, **bounds):
    return SpecExecTree(**bounds)


def look_up(index, calibration, *, beam, **bounds):
    return LookupTree(index, **bounds)


def make_index(target, contents, sampling, *, prompt, vocab, seeds=1):
    """Return an empty index, one of wrong continuations, or one that has the right continuations too."""
    index = TextIndex() if contents == "empty" else misleading_index(target, prompt, vocab)
    for seed in range(seeds if contents == "correct" else 0):
        options = {"sampling": sampling, "generator": torch.Generator().manual_seed(seed)}
        index.add([*prompt, *tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=80, **options))])
    return index


COSTS = linear_profile(0.02)
EXPENSIVE = linear_profile(0.05)
KNOWN = {"profile": None, "calibration": calibration_of(0.6)}
GREEDY = {
    "most likely": adaptive("deterministic"),
    "most likely, costs": adaptive("deterministic", COSTS),
    "drawn": adaptive("sampled"),
    "drawn, costs": adaptive("sampled", COSTS),
    "look-ups": look_up,
    "hybrid": hybrid("auto"),
    "hybrid, costs": hybrid("auto", COSTS),
    "SpecExec": spec_exec,
}


@pytest.mark.sample(3, cover=False)
@both_ways
@pytest.mark.parametrize(
    ("name", "contents"),
    [(name, "empty") for name in GREEDY]
    + [(name, contents) for name in ("look-ups", "hybrid", "hybrid, costs") for contents in ("misleading", "correct")],
)
def test_greedy_text_equals_the_targets(name, contents, tiny_target, tiny_draft, tiny_head):
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=80))
    index = make_index(tiny_target, contents, SamplingConfig(0.0), prompt=PROMPT, vocab=64)
    policy = GREEDY[name](index, calibration_of(0.8), max_size=12, max_depth=5, beam=4)
    for draft in (
        (tiny_draft, tiny_head, tiny_llama(1)) if policy.needs_draft else (None,)
    ):  # the last one equals the target
        steps = list(decode(PROMPT, pair_of(tiny_target, draft), tree=policy, max_new_tokens=80))
        assert tokens_of(steps) == wanted
        assert all(step.tree.size <= 12 and step.tree.depth <= 5 for step in steps)
        assert len({step.tree for step in steps}) > 1, "the trees should differ"
        assert all(len(step.draft_probs) == step.tree.size == len(step.target_probs) for step in steps)
    assert len(steps) < 30 or not (policy.needs_draft or contents == "correct")


SAMPLED = {
    "most likely": (adaptive("deterministic", MEASURED), "topk"),
    "most likely, budget alone": (adaptive("deterministic"), "topk"),
    "drawn": (adaptive("sampled", MEASURED), "sequoia"),
    "drawn, budget alone": (adaptive("sampled"), "sequoia"),
    "drawn, from the leaves": (adaptive("sampled", MEASURED), "traversal"),
    "drawn, from the leaves, budget alone": (adaptive("sampled"), "traversal"),
    "SpecExec": (spec_exec, "topk"),
    "look-ups": (look_up, "topk"),
    "look-ups, misleading": (look_up, "topk"),
    "hybrid, most likely": (hybrid("topk"), "topk"),
    "hybrid, drawn": (hybrid("in_turn"), "sequoia"),
}


NAMES = [pytest.param(name, marks=pytest.mark.slow if "alone" in name else ()) for name in SAMPLED]


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_sampled_text_follows_the_target(name, sampling):
    """Rows are memoized; the passes behind them are tested by the recorded probabilities."""
    models = (recalled(tiny_llama(seed, vocab=16, layers=1, scale=1.0)) for seed in (1, 2))
    assert_follows_the_target(name, sampling, 600, *models)


def assert_follows_the_target(name, sampling, samples, target, draft):
    prompt = [3, 5, 3]
    policy, verifier = SAMPLED[name]
    contents = "misleading" if "misleading" in name else "correct"
    index = make_index(target, contents, sampling, prompt=prompt, vocab=16, seeds=6)
    calibration = calibration_of(0.5, temperature=sampling.temperature)
    tree = policy(index, calibration, max_size=8, max_depth=3, beam=2)
    models = {"pair": pair_of(target, draft), "tree": tree, "sampling": sampling, "verifier": verifier}
    seeded = torch.Generator().manual_seed(0)
    report = check_losslessness(prompt, **models, samples=samples, new_tokens=3, generator=seeded)
    assert report.passed and report.degrees_of_freedom > 5
    steps = list(decode(prompt, **models, max_new_tokens=40, generator=seeded))
    assert len({step.tree for step in steps}) > 1, "the trees should differ"
    assert any(len(step.accepted_path) > 1 for step in steps)


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if "look-ups" not in name.values[0]])
def test_sampled_text_with_a_head_follows_the_target(name, sampling):
    target = tiny_llama(1, vocab=16, scale=1.0)
    assert_follows_the_target(name, sampling, 200, target, random_head(target, scale=3.0, draft_vocab=12))


@pytest.mark.sample(1, cover=False)
@both_ways
@pytest.mark.parametrize("name", [name for name in SAMPLED if name.count(",") == name.count("hybrid,")])
def test_recorded_probabilities_match_a_plain_forward_pass(name):
    """A wrong position, mask, cache slot or commit would change the recorded probabilities."""
    calibration = calibration_of(0.6, temperature=0.7)
    policy = SAMPLED[name][0](TextIndex(), calibration, max_size=14, max_depth=5, beam=3)
    by_draft = "hybrid" not in name and name != "look-ups"  # looked-up tokens have none
    assert_records_plain_probabilities(policy, by_draft=by_draft)
    if by_draft:
        assert_records_plain_probabilities(policy, head=random_head)


@pytest.mark.parametrize("name", ["most likely", "drawn", "hybrid"])
def test_costs_and_chances_adapt_to_the_run(name, tiny_target, monkeypatch):
    """Costs follow the rate of recent steps, chances the acceptance of each source, the threshold the size of trees."""
    made = {"most likely": adaptive("deterministic", EXPENSIVE), "drawn": adaptive("sampled", EXPENSIVE)}
    tree = made.get(name, hybrid("topk", EXPENSIVE))(TextIndex(), calibration_of(0.6), max_size=8, max_depth=8)
    costs = tree.costs()
    make_expansion = GrowingDrafter.expansion
    commit = GrowingDrafter.commit
    per_step, per_sec = tree.initial_rate or (1.0, 1.0 / costs.step_sec[1])
    tokens = MEMORY_STEPS * per_step
    controller = tree.controller
    recorded = []
    seconds = tokens / per_sec

    def expansion(drafter, context):
        found = make_expansion(drafter, context)
        rate = tokens / seconds
        by_text = 1.0 if found.look_up is None else found.look_up.gain
        recorded.append((float(found.token_costs.step[8] / costs.step_sec[8]), found.chances.gain, by_text))
        assert recorded[-1] == pytest.approx((rate, controller.gain, controller.lookup_gain))
        assert found.threshold == (controller.threshold if name == "drawn" else 0.0)
        return found

    def committed(drafter, draft, path):
        nonlocal tokens, seconds, controller
        tokens = tokens * (1 - 1 / MEMORY_STEPS) + len(path)
        seconds = seconds * (1 - 1 / MEMORY_STEPS) + costs.seconds(draft.tree.size, drafter.widths)
        nodes = drafter.nodes
        alone = [bool(nodes.looked_up[n]) and nodes.cache_positions[nodes.parents[n]] < 0 for n in range(nodes.size)]
        accepted = sum(alone[node] for node in path)
        expected = sum(nodes.scores[alone])
        controller = controller.adjust_threshold(draft.tree.size, 8).correct_lookup_gain(accepted, expected)
        controller = controller.correct_gain(len(path) - accepted, sum(nodes.scores) - expected)
        commit(drafter, draft, path)

    monkeypatch.setattr(GrowingDrafter, "expansion", expansion)
    monkeypatch.setattr(GrowingDrafter, "commit", committed)
    list(decode(PROMPT, pair_of(tiny_target, tiny_llama(1)), tree=tree, max_new_tokens=100))
    assert len(recorded) > 10 and recorded[-1][0] > 1.1 * recorded[0][0] and recorded[-1][1] > 1.0


def test_lookup_gain_falls_with_temperature_and_misses():
    calibration = (calibration_of(0.6, temperature=temperature) for temperature in (0.0, 0.6, 1.0))
    starts = [hybrid("topk")(TextIndex(), each).controller for each in calibration]
    assert [start.lookup_gain for start in starts] == [1.0, 0.85, 0.75]
    controller = starts[0]
    for _ in range(20):
        controller = controller.correct_lookup_gain(0, 2.0)
    assert 0.1 < controller.lookup_gain < 0.3 and controller.gain == 1.0
    assert controller.correct_lookup_gain(4, 2.0).lookup_gain > controller.lookup_gain


@pytest.mark.parametrize(
    ("policy", "arguments", "message"),
    [
        (SpecExecTree, {"max_size": 0, "max_depth": 2}, "max_size: found 0, expected a whole number"),
        (SpecExecTree, {"max_size": 4, "max_depth": 2, "beam": 0}, "beam: found 0"),
        (LookupTree, {"index": [1, 2]}, "index: found list, expected a TextIndex"),
        (HybridTree, KNOWN | {"index": TextIndex(), "recipe": "both"}, "found 'both', expected auto, topk, in_turn or"),
        (AdaptiveTree, KNOWN | {"recipe": "magic"}, "found 'magic', expected auto, deterministic, sampled or static"),
        (AdaptiveTree, KNOWN | {"recipe": "static"}, "recipe: found static without a profile"),
        (AdaptiveTree, KNOWN | {"calibration": None}, "calibration: found NoneType"),
        (
            AdaptiveTree,
            KNOWN | {"profile": COSTS, "max_size": 65},
            "size: found 1 to 65, expected 1 to 64, the profiled sizes",
        ),
    ],
)
def test_invalid_settings_are_refused(policy, arguments, message):
    with pytest.raises(ValueError, match=message):
        policy(**arguments)


def test_lookup_sizes_are_limited_to_profiled_ones():
    assert LookupTree(TextIndex(), max_size=65, profile=COSTS).max_size == 64
    assert HybridTree(TextIndex(), **KNOWN | {"profile": COSTS, "max_size": 200}).max_size == 64


@pytest.mark.parametrize("name", ["most likely", "drawn", "SpecExec", "look-ups"])
def test_verifiers_that_are_not_exact_are_refused(name, tiny_target, tiny_draft):
    policy, exact = SAMPLED[name]
    tree = policy(TextIndex(), calibration_of(0.6, temperature=1.0), max_size=8, max_depth=2, beam=2)
    other = "topk" if exact == "sequoia" else "sequoia"
    with pytest.raises(ValueError, match=f"verifier: found '{other}', expected {exact}"):
        decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=tree, sampling=SamplingConfig(1.0), verifier=other)


def test_maximum_children_and_read_nodes():
    hybrid = HybridTree(TextIndex(), **KNOWN, max_size=20, max_depth=4, beam=3, branch=2)
    assert (hybrid.max_children, hybrid.max_inner) == (4, 10)
    lookup = LookupTree(TextIndex(), max_size=20)
    assert (lookup.max_inner, lookup.max_children) == (19, 19)
    assert AdaptiveTree(**KNOWN).branch == KNOWN["calibration"].ranks
