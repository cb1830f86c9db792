"""Compiled growing decides as the policies in Python do, number for number, for any tables, costs and rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core import AdaptiveTree, HybridTree, LookupTree, load_pair
from sequoia_core.decoding.drafting import DraftRun, Reach
from sequoia_core.decoding.growing import compiled_growing
from sequoia_core.decoding.growing.compiled_growing import CompiledGrower
from sequoia_core.decoding.growing.expansion import DraftChances, TokenCosts, TreeBounds
from sequoia_core.decoding.growing.plain_growing import PlainGrower
from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.decoding.growing.running_lookup import LookUp
from sequoia_core.decoding.growing.sampled_expansion import SampledExpansion
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.growing.top_k_expansion import TopKExpansion
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig, sample_without_replacement, take_most_likely
from sequoia_core.design.calibration import BINS, CENTRES, TABLES, ChanceTables
from sequoia_core.native import tree_expansion
from sequoia_core.native.drafting_calls import GrowCall
from tests.conftest import RecalledSession, calibration_of, linear_profile

VOCAB, PLAIN = 40, SamplingConfig(1.0)
pytestmark = pytest.mark.skipif(tree_expansion.compiled() is None, reason="tree_expansion.c cannot be built here")


def random_session(seed, sharpness):
    """Return a draft's session whose logits follow from the path that the mask shows: a wrong mask or token shows."""
    return RecalledSession(
        lambda text: torch.from_numpy(np.random.default_rng([seed, *text]).normal(size=VOCAB) * sharpness).float(), {}
    )


def run_of(session, draft_sampling, sampling=PLAIN, seed=0):
    """Return what growers work with, which need no policy."""
    return DraftRun(session, None, draft_sampling, sampling, Reach(99, 99), torch.Generator().manual_seed(seed))


def random_expansion(generator, sampled):
    sizes = {"max_size": (1, 40), "max_depth": (1, 7), "beam": (1, 9), "branch": (1, 9)}
    bounds = TreeBounds(**{name: int(generator.integers(*ends)) for name, ends in sizes.items()})
    values = np.sort(generator.random((len(TABLES), BINS)), axis=1)
    if generator.random() < 0.2:
        values[:] = values[:, :1]  # equal chances everywhere: ties decide
    values[0, generator.integers(BINS)] = CENTRES[3]
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


def facts(plan):
    """What masks and walks look at; a leaf has no first child."""
    return [
        plan.depths.tolist(), plan.child_counts.tolist(), plan.tree_mask.tolist(),
        plan.first_children[plan.inner].tolist(),
        plan.child_starts.tolist(), plan.tree.parents.dtype, plan.tree.parents.flags.writeable,
    ]  # fmt: skip


def grown(kind, expansion, draft_sampling, seed, sharpness, sampling, text=()):
    session, found = random_session(seed, sharpness), []
    run = run_of(session, draft_sampling, sampling, seed)
    grower = kind(run, expansion.bounds)
    if text:
        expansion = replace(expansion, look_up=LookUp(TextIndex(), len(text) + 2, expansion.bounds))
    for end in (1, 2):  # the second tree meets buffers that are not new
        session.ids, sequence = [], [*text, 3, 8][: len(text) + end]
        if text:
            expansion.look_up.begin(sequence, max_depth=expansion.bounds.max_depth, gain=0.9)
        assert grower.supports(expansion)
        plan, nodes, widths = grower.grow(expansion, sequence if text else sequence[-1:])
        rows = [] if grower.rows is None else grower.rows[: sum(widths)].tolist()
        found.append((plan.tree, [column.tolist() for column in nodes], widths, rows, facts(plan), session.ids))
    return found, run.generator.get_state().tolist()


@pytest.mark.parametrize("text", [False, True], ids=["by the draft alone", "beside text"])
@pytest.mark.parametrize("sampled", [False, True], ids=["the deterministic recipe", "the sampled recipe"])
def test_both_grow_the_same_trees_from_the_same_draws(sampled, text, full):
    generator, sizes = np.random.default_rng(4), set()
    for seed in range(300 if full else 40):
        before = np.random.default_rng(seed).integers(4, size=30).tolist() if text else ()
        expansion, sharpness = random_expansion(generator, sampled), float(generator.choice([0.5, 3.0, 12.0]))
        draft_sampling = sample_without_replacement if sampled and seed % 4 else take_most_likely
        sampling = SamplingConfig(0.7, 0.8) if seed % 4 == 3 else SamplingConfig(0.7)
        plain, compiled = (
            grown(kind, expansion, draft_sampling, seed, sharpness, sampling, before)
            for kind in (PlainGrower, CompiledGrower)
        )
        assert compiled == plain, f"seed {seed}"
        sizes |= {tree.size for tree, *_ in plain[0]}
    assert len(sizes) > (20 if full else 10)


@pytest.fixture(scope="module")
def rounded_pair():
    """The shipped pair in bfloat16, whose compiled draft grows a whole tree in one call."""
    return load_pair(device="cpu", dtype="bfloat16")


CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"
KINDS = ["SpecExec", "deterministic", "sampled", "look-ups", "topk", "in_turn"]


def policy_of(kind, costs, temperature, index):
    options = {"profile": costs, "calibration": calibration_of(0.7, temperature=temperature), "max_size": 20}
    if kind == "SpecExec":
        return SpecExecTree(max_size=20, max_depth=5, beam=4)
    if kind == "look-ups":
        return LookupTree(index, max_size=20, profile=costs)
    if kind in ("topk", "in_turn"):
        return HybridTree(index, recipe=kind, max_depth=8, **options)
    return AdaptiveTree(recipe=kind, max_depth=8, **options)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(0.8), SamplingConfig(0.8, 0.8)], ids=str)
@pytest.mark.parametrize("costs", [None, linear_profile(0.02)], ids=["budget alone", "costs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_the_same_in_one_call_pass_by_pass_and_in_python(kind, costs, sampling, rounded_pair, monkeypatch):
    """Same trees, tokens, decisions and facts under the same seed, also up to the context's end."""
    index, encode, calls, grow = TextIndex(), rounded_pair.tokenizer.encode, [], GrowCall.grow
    index.add(encode(CODE + "    return a - b\n\n\ndef mul(a, b):\n    return a * b\n"))
    policy = policy_of(kind, costs, sampling.temperature, index)

    def run(prompt):
        calls.clear()
        options = {"tree": policy, "sampling": sampling, "details": StepDetails(likely=2, left_out=6)}
        steps = decode(prompt, rounded_pair, max_new_tokens=40, generator=torch.Generator().manual_seed(6), **options)
        return [
            (s.tree, s.tokens, s.new_tokens, s.trials, s.finished, s.occurrences, s.marginal_gains,
             np.round([s.draft_probs, s.target_probs], 5).tolist())
            for s in steps
        ]  # fmt: skip

    monkeypatch.setattr(GrowCall, "grow", lambda self, *given: calls.append(1) or grow(self, *given))
    for prompt in (encode(CODE), list(range(1, 500))):
        in_one_call = run(prompt)
        assert bool(calls) == (kind != "look-ups")
        with monkeypatch.context() as patch:  # as for a draft whose passes are not compiled
            patch.setattr(compiled_growing, "CompiledSession", type(None))
            assert run(prompt) == in_one_call and not calls
            patch.setattr(CompiledGrower, "supports", lambda *_: False)
            assert run(prompt) == in_one_call
        assert len({tree for tree, *_ in in_one_call}) > 1
