"""Every kind of tree that grows: the text is the target's own, greedy and sampled, whatever its sources propose.

The statistical tests raise a false alarm with a probability below 1e-6 each; their seeds are fixed besides.
"""

from pathlib import Path

import pytest
import torch

from sequoia_core import AdaptiveTree, HardwareProfile, HybridTree, LookupTree
from sequoia_core.decoding.growing.policies import SpecExecTree
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


COSTS = linear_profile(0.02)
GREEDY = {
    "most likely": adaptive("deterministic"),
    "most likely, costs": adaptive("deterministic", COSTS),
    "drawn": adaptive("sampled"),
    "drawn, costs": adaptive("sampled", COSTS),
    "look-ups": look_up,
    "hybrid": hybrid("auto"),
    "hybrid, costs": hybrid("auto", COSTS),
}


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


@both_ways
@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if "look-ups" not in name.values[0]])
def test_sampled_text_follows_the_target_that_a_head_reads(name, sampling):
    target = tiny_llama(1, vocab=16, scale=1.0)
    assert_follows_the_target(name, sampling, 200, target, random_head(target, scale=3.0, draft_vocab=12))


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
