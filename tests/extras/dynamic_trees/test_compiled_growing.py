"""Compiled growing makes the same decisions as Python, number for number, for any tables, costs and rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core import load_pair
from sequoia_core.acceptance.calibration import BIN_CENTRES, PROBABILITY_BINS, TABLE_NAMES, ChanceTables
from sequoia_core.decoding.drafting import DraftRun, Reach
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig, sample_without_replacement, take_most_likely
from sequoia_extras.cpu_kernels import drafting_calls, tree_expansion
from sequoia_extras.cpu_kernels.drafting_calls import GrowCall
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree, LookupTree
from sequoia_extras.dynamic_trees.compiled_growing import CompiledGrower
from sequoia_extras.dynamic_trees.expansion import DraftChances, TokenCosts, TreeBounds
from sequoia_extras.dynamic_trees.plain_growing import PlainGrower
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.dynamic_trees.running_lookup import LookUp
from sequoia_extras.dynamic_trees.sampled_expansion import SampledExpansion
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.dynamic_trees.top_k_expansion import TopKExpansion
from tests.conftest import RecalledSession, calibration_of, linear_profile

VOCAB = 40
PLAIN = SamplingConfig(1.0)
pytestmark = pytest.mark.skipif(
    tree_expansion.expansion_kernels() is None, reason="tree_expansion.c cannot be built here"
)


def random_session(seed, sharpness):
    """Return a draft session whose logits depend on each node's path, so that a wrong mask or token is noticed."""
    return RecalledSession(
        lambda text: torch.from_numpy(np.random.default_rng([seed, *text]).normal(size=VOCAB) * sharpness).float(), {}
    )


def run_of(session, draft_sampling, sampling=PLAIN, seed=0):
    return DraftRun(session, None, draft_sampling, sampling, Reach(99, 99), torch.Generator().manual_seed(seed))


def random_expansion(generator, sampled):
    sizes = {"max_size": (1, 40), "max_depth": (1, 7), "beam": (1, 9), "branch": (1, 9)}
    bounds = TreeBounds(**{name: int(generator.integers(*ends)) for name, ends in sizes.items()})
    values = np.sort(generator.random((len(TABLE_NAMES), PROBABILITY_BINS)), axis=1)
    if generator.random() < 0.2:
        values[:] = values[:, :1]  # equal chances cause ties
    values[0, generator.integers(PROBABILITY_BINS)] = BIN_CENTRES[3]
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


def plan_arrays(plan):
    """Return the arrays that masks and walks use; a leaf has no first child."""
    return [
        plan.depths.tolist(),
        plan.child_counts.tolist(),
        plan.tree_mask.tolist(),
        plan.first_children[plan.inner].tolist(),
        plan.child_starts.tolist(),
        plan.tree.parents.dtype,
        plan.tree.parents.flags.writeable,
    ]


def grow_twice(grower_type, expansion, draft_sampling, seed, sharpness, sampling, text=()):
    session = random_session(seed, sharpness)
    found = []
    run = run_of(session, draft_sampling, sampling, seed)
    grower = grower_type(run, expansion.bounds)
    if text:
        expansion = replace(expansion, look_up=LookUp(TextIndex(), len(text) + 2, expansion.bounds))
    for end in (1, 2):  # the second tree reuses buffers
        session.ids = []
        sequence = [*text, 3, 8][: len(text) + end]
        if text:
            expansion.look_up.begin_step(sequence, max_depth=expansion.bounds.max_depth, gain=0.9)
        assert grower.supports(expansion)
        plan, nodes, widths = grower.grow(expansion, sequence if text else sequence[-1:])
        rows = [] if grower.rows is None else grower.rows[: sum(widths)].tolist()
        found.append((plan.tree, [column.tolist() for column in nodes], widths, rows, plan_arrays(plan), session.ids))
    return found, run.generator.get_state().tolist()


@pytest.mark.parametrize("text", [False, True], ids=["draft only", "with text"])
@pytest.mark.parametrize("sampled", [False, True], ids=["deterministic", "sampled"])
def test_compiled_and_plain_growers_grow_the_same_trees(sampled, text, full):
    generator = np.random.default_rng(4)
    sizes = set()
    for seed in range(300 if full else 40):
        before = np.random.default_rng(seed).integers(4, size=30).tolist() if text else ()
        expansion = random_expansion(generator, sampled)
        sharpness = float(generator.choice([0.5, 3.0, 12.0]))
        draft_sampling = sample_without_replacement if sampled and seed % 4 else take_most_likely
        sampling = SamplingConfig(0.7, 0.8) if seed % 4 == 3 else SamplingConfig(0.7)
        plain, compiled = (
            grow_twice(grower_type, expansion, draft_sampling, seed, sharpness, sampling, before)
            for grower_type in (PlainGrower, CompiledGrower)
        )
        assert compiled == plain, f"seed {seed}"
        sizes |= {tree.size for tree, *_ in plain[0]}
    assert len(sizes) > (20 if full else 10)


@pytest.fixture(scope="module")
def bfloat16_pair():
    """The demo pair in bfloat16, whose compiled draft grows a whole tree in one call."""
    return load_pair(device="cpu", dtype="bfloat16")


CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"
POLICIES = ["SpecExec", "deterministic", "sampled", "look-ups", "topk", "in_turn"]


def make_policy(name, costs, temperature, index):
    options = {"profile": costs, "calibration": calibration_of(0.7, temperature=temperature), "max_size": 20}
    if name == "SpecExec":
        return SpecExecTree(max_size=20, max_depth=5, beam=4)
    if name == "look-ups":
        return LookupTree(index, max_size=20, profile=costs)
    if name in ("topk", "in_turn"):
        return HybridTree(index, recipe=name, max_depth=8, **options)
    return AdaptiveTree(recipe=name, max_depth=8, **options)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(0.8), SamplingConfig(0.8, 0.8)], ids=str)
@pytest.mark.parametrize("costs", [None, linear_profile(0.02)], ids=["budget alone", "costs"])
@pytest.mark.parametrize("name", POLICIES)
def test_decoding_is_identical_in_all_growing_modes(name, costs, sampling, bfloat16_pair, monkeypatch):
    """Equal seeds give equal trees, tokens and decisions, up to the end of the context too."""
    index = TextIndex()
    encode = bfloat16_pair.tokenizer.encode
    calls = []
    grow = GrowCall.grow
    index.add(encode(CODE + "    return a - b\n\n\ndef mul(a, b):\n    return a * b\n"))
    policy = make_policy(name, costs, sampling.temperature, index)

    def run(prompt):
        calls.clear()
        options = {"tree": policy, "sampling": sampling, "details": StepDetails(likely=2, left_out=6)}
        steps = decode(prompt, bfloat16_pair, max_new_tokens=40, generator=torch.Generator().manual_seed(6), **options)
        return [
            (
                *(step.tree, step.tokens, step.new_tokens, step.trials, step.finished),
                *(step.occurrences, step.marginal_gains),
                np.round([step.draft_probs, step.target_probs], 5).tolist(),
            )
            for step in steps
        ]

    monkeypatch.setattr(GrowCall, "grow", lambda self, *given: calls.append(1) or grow(self, *given))
    for prompt in (encode(CODE), list(range(1, 500))):
        in_one_call = run(prompt)
        assert bool(calls) == (name != "look-ups")
        with monkeypatch.context() as patch:
            patch.setattr(drafting_calls, "CompiledSession", type(None))
            assert run(prompt) == in_one_call and not calls
            patch.setattr(CompiledGrower, "supports", lambda *_: False)
            assert run(prompt) == in_one_call
        assert len({tree for tree, *_ in in_one_call}) > 1
