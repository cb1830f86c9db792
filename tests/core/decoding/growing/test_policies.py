"""Every kind of tree that grows: the text is the target's own, greedy and sampled, whatever its sources propose.

The statistical tests raise a false alarm with a probability below 1e-6 each; their seeds are fixed besides.
"""

from pathlib import Path

import pytest
import torch

from sequoia_core import AdaptiveTree, HardwareProfile, HybridTree, LookupTree
from sequoia_core.decoding.growing.drafter import GrowingDrafter
from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.decoding.growing.step_costs import MEMORY_STEPS
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.studies.losslessness import check_losslessness
from tests.conftest import calibration_of, linear_profile, pair_of, recalled, tiny_llama, tokens_of
from tests.core.decoding.growing.test_lookup_tree import misleading
from tests.core.decoding.test_tree_policy import assert_records_plain_probabilities
from tests.head_folders import random_head

ASSETS = Path(__file__).parents[4] / "assets"
MEASURED = HardwareProfile.load(ASSETS / "profiles" / "cpu-2core-bfloat16-avx512.json")  # of the demo pair
SAMPLINGS = [SamplingConfig(0.6), SamplingConfig(1.0), SamplingConfig(1.0, top_p=0.9)]
PROMPT = [3, 14, 15, 9, 2, 6, 3, 14, 15]
both_ways = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


def adaptive(recipe, costs=None):
    return lambda index, known, **bounds: AdaptiveTree(profile=costs, calibration=known, recipe=recipe, **bounds)


def hybrid(recipe, costs=None):
    return lambda index, known, **bounds: HybridTree(index, profile=costs, calibration=known, recipe=recipe, **bounds)


def spec_exec(index, known, **bounds):
    return SpecExecTree(**bounds)


def look_up(index, known, *, beam, **bounds):
    return LookupTree(index, **bounds)


def index_of(target, kind, sampling, *, prompt, vocab, seeds=1):
    """Return an index of nothing, of what the target does not write, or of that and what it writes."""
    index = TextIndex() if kind == "own" else misleading(target, prompt, vocab)
    for seed in range(seeds if kind == "told" else 0):
        options = {"sampling": sampling, "generator": torch.Generator().manual_seed(seed)}
        index.add([*prompt, *tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=80, **options))])
    return index


COSTS, DEAR = linear_profile(0.02), linear_profile(0.05)
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
    ("name", "kind"),
    [(name, "own") for name in GREEDY]
    + [(name, kind) for name in ("look-ups", "hybrid", "hybrid, costs") for kind in ("misleading", "told")],
)
def test_greedy_text_is_the_targets_own(name, kind, tiny_target, tiny_draft, tiny_head):
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=80))
    index = index_of(tiny_target, kind, SamplingConfig(0.0), prompt=PROMPT, vocab=64)
    policy = GREEDY[name](index, calibration_of(0.8), max_size=12, max_depth=5, beam=4)
    for draft in (tiny_draft, tiny_head, tiny_llama(1)) if policy.needs_draft else (None,):  # the last is never wrong
        steps = list(decode(PROMPT, pair_of(tiny_target, draft), tree=policy, max_new_tokens=80))
        assert tokens_of(steps) == wanted
        assert all(step.tree.size <= 12 and step.tree.depth <= 5 for step in steps)
        assert len({step.tree for step in steps}) > 1, "trees that never differ prove nothing"
        assert all(len(step.draft_probs) == step.tree.size == len(step.target_probs) for step in steps)
    assert len(steps) < 30 or not (policy.needs_draft or kind == "told"), "what is right is accepted"


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
    """Rows are recalled; that the passes behind them are right, the recorded probabilities show."""
    models = (recalled(tiny_llama(seed, vocab=16, layers=1, scale=1.0)) for seed in (1, 2))
    assert_follows_the_target(name, sampling, 600, *models)


def assert_follows_the_target(name, sampling, samples, target, draft):
    prompt, (policy, verifier) = [3, 5, 3], SAMPLED[name]
    kind = "misleading" if "misleading" in name else "told"
    index = index_of(target, kind, sampling, prompt=prompt, vocab=16, seeds=6)
    known = calibration_of(0.5, temperature=sampling.temperature)
    tree = policy(index, known, max_size=8, max_depth=3, beam=2)
    models = {"pair": pair_of(target, draft), "tree": tree, "sampling": sampling, "verifier": verifier}
    seeded = torch.Generator().manual_seed(0)
    report = check_losslessness(prompt, **models, samples=samples, new_tokens=3, generator=seeded)
    assert report.passed and report.degrees_of_freedom > 5
    steps = list(decode(prompt, **models, max_new_tokens=40, generator=seeded))
    assert len({step.tree for step in steps}) > 1, "trees that never differ prove nothing"
    assert any(len(step.accepted_path) > 1 for step in steps), "a tree of which nothing is accepted proves little"


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if "look-ups" not in name.values[0]])
def test_sampled_text_follows_the_target_that_a_head_reads(name, sampling):
    target = tiny_llama(1, vocab=16, scale=1.0)
    assert_follows_the_target(name, sampling, 200, target, random_head(target, scale=3.0, draft_vocab=12))


@pytest.mark.sample(1, cover=False)
@both_ways
@pytest.mark.parametrize("name", [name for name in SAMPLED if name.count(",") == name.count("hybrid,")])
def test_recorded_probabilities_are_those_of_a_plain_forward(name):
    """Positions, masks, places in the cache and commits: a wrong one of them would show here."""
    known = calibration_of(0.6, temperature=0.7)
    policy = SAMPLED[name][0](TextIndex(), known, max_size=14, max_depth=5, beam=3)
    by_draft = "hybrid" not in name and name != "look-ups"  # of a token that was looked up it says nothing
    assert_records_plain_probabilities(policy, by_draft=by_draft)
    if by_draft:
        assert_records_plain_probabilities(policy, head=random_head)


@pytest.mark.parametrize("name", ["most likely", "drawn", "hybrid"])
def test_costs_and_chances_follow_the_run(name, tiny_target, monkeypatch):
    """Nodes cost what passes take at the rate of the last steps, the first of which is expected or that of no trees;
    chances move with what is accepted of each source, and the floor of draws with how full trees are.
    """
    made = {"most likely": adaptive("deterministic", DEAR), "drawn": adaptive("sampled", DEAR)}
    tree = made.get(name, hybrid("topk", DEAR))(TextIndex(), calibration_of(0.6), max_size=8, max_depth=8)
    costs, own, commit = tree.costs(), GrowingDrafter.expansion, GrowingDrafter.commit
    per_step, per_sec = tree.start or (1.0, 1.0 / costs.step_sec[1])
    tokens, kept, seen = MEMORY_STEPS * per_step, tree.controller, []
    seconds = tokens / per_sec

    def expansion(drafter, context):
        found = own(drafter, context)
        rate, by_text = tokens / seconds, 1.0 if found.look_up is None else found.look_up.gain
        seen.append((float(found.token_costs.step[8] / costs.step_sec[8]), found.chances.gain, by_text))
        assert seen[-1] == pytest.approx((rate, kept.gain, kept.looked_up_gain))
        assert found.threshold == (kept.threshold if name == "drawn" else 0.0)
        return found

    def committed(drafter, draft, path):
        nonlocal tokens, seconds, kept
        tokens = tokens * (1 - 1 / MEMORY_STEPS) + len(path)
        seconds = seconds * (1 - 1 / MEMORY_STEPS) + costs.seconds(draft.tree.size, drafter.widths)
        nodes = drafter.nodes
        alone = [bool(nodes.looked_up[n]) and nodes.cache_positions[nodes.parents[n]] < 0 for n in range(nodes.size)]
        accepted, expected = sum(alone[node] for node in path), sum(nodes.scores[alone])
        kept = kept.after(draft.tree.size, 8).looked_up(accepted, expected)
        kept = kept.seen(len(path) - accepted, sum(nodes.scores) - expected)
        commit(drafter, draft, path)

    monkeypatch.setattr(GrowingDrafter, "expansion", expansion)
    monkeypatch.setattr(GrowingDrafter, "commit", committed)
    list(decode(PROMPT, pair_of(tiny_target, tiny_llama(1)), tree=tree, max_new_tokens=100))
    assert len(seen) > 10 and seen[-1][0] > 1.1 * seen[0][0] and seen[-1][1] > 1.0  # better than was promised


def test_misleading_text_is_believed_less_and_less():
    """A run begins with less trust at higher temperatures, and loses what is left where the text goes on otherwise."""
    known = (calibration_of(0.6, temperature=temperature) for temperature in (0.0, 0.6, 1.0))
    starts = [hybrid("topk")(TextIndex(), each).controller for each in known]
    assert [start.looked_up_gain for start in starts] == [1.0, 0.85, 0.75]
    controller = starts[0]
    for _ in range(20):
        controller = controller.looked_up(0, 2.0)
    assert 0.1 < controller.looked_up_gain < 0.3 and controller.gain == 1.0
    assert controller.looked_up(4, 2.0).looked_up_gain > controller.looked_up_gain


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (SpecExecTree, {"max_size": 0, "max_depth": 2}, "max_size: found 0, expected a whole number"),
        (SpecExecTree, {"max_size": 4, "max_depth": 2, "beam": 0}, "beam: found 0"),
        (SpecExecTree, {"max_size": 4, "max_depth": 2, "branch": 0}, "branch: found 0"),
        (LookupTree, {"index": [1, 2]}, "index: found list, expected a TextIndex"),
        (LookupTree, {"index": TextIndex(), "max_depth": 0}, "max_depth: found 0"),
        (HybridTree, KNOWN | {"index": TextIndex(), "max_depth": 0}, "max_depth: found 0"),
        (HybridTree, KNOWN | {"index": TextIndex(), "recipe": "both"}, "found 'both', expected auto, topk, in_turn or"),
        (AdaptiveTree, KNOWN | {"recipe": "magic"}, "found 'magic', expected auto, deterministic, sampled or static"),
        (AdaptiveTree, KNOWN | {"recipe": "static"}, "recipe: found static without a profile"),
        (AdaptiveTree, KNOWN | {"calibration": None}, "calibration: found NoneType"),
        (AdaptiveTree, KNOWN | {"profile": COSTS, "max_size": 65}, "size: found 1 to 65, expected 1 to 64 as profiled"),
    ],
)
def test_settings_out_of_range_are_named(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


def test_trees_with_text_are_no_larger_than_what_was_profiled():
    assert LookupTree(TextIndex(), max_size=65, profile=COSTS).max_size == 64
    assert HybridTree(TextIndex(), **KNOWN | {"profile": COSTS, "max_size": 200}).max_size == 64


@pytest.mark.parametrize("name", ["most likely", "drawn", "SpecExec", "look-ups"])
def test_a_verifier_that_is_not_exact_for_these_trees_is_refused(name, tiny_target, tiny_draft):
    policy, exact = SAMPLED[name]
    tree = policy(TextIndex(), calibration_of(0.6, temperature=1.0), max_size=8, max_depth=2, beam=2)
    other = "topk" if exact == "sequoia" else "sequoia"
    with pytest.raises(ValueError, match=f"verifier: found '{other}', expected {exact}"):
        decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=tree, sampling=SamplingConfig(1.0), verifier=other)


def test_trees_have_no_more_children_and_read_nodes_than_promised():
    hybrid = HybridTree(TextIndex(), **KNOWN, max_size=20, max_depth=4, beam=3, branch=2)
    assert (hybrid.max_children, hybrid.max_inner, hybrid.branch) == (4, 10, 2)
    looked_up = LookupTree(TextIndex(), max_size=20)
    assert (looked_up.max_inner, looked_up.branch, looked_up.max_children) == (19, 19, 19)
    assert LookupTree(TextIndex(), max_size=1).max_inner == 1
    assert AdaptiveTree(**KNOWN).branch == KNOWN["calibration"].ranks
