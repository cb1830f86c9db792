"""The GPU path, run on the CPU: its text and distribution are the target's."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sequoia_core.decoding.cutting import cut
from sequoia_core.decoding.drafting import DraftTree
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.decoding.walk import WALKS, ScoredTree, walk_greedily, walk_tree
from sequoia_core.files.extras import provided
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.models.tree_cache import CacheSession
from sequoia_core.trees.plain import branching_tree, chain_tree, k_ary_tree
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.cuda_graphs import drafting, judging, phases
from sequoia_extras.cuda_graphs.judging import RANKED_RULES
from sequoia_extras.cuda_graphs.phases import Phase
from sequoia_extras.cuda_graphs.walk_by_rank import RankedTree, ScoredNodes, TreeShape, follow_by_rank
from sequoia_extras.dynamic_trees.policies import LookupTree, SpecExecTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.evaluation.losslessness import check_losslessness
from tests.conftest import pair_of, tiny_llama
from tests.core.decoding.test_loop import PROMPT, TREES
from tests.core.test_families import build
from tests.head_folders import random_head
from tests.mtp_folders import FORMS, write_target


@pytest.fixture
def used(monkeypatch):
    """Enable the GPU path on the CPU and count the phases that ran."""
    run_on_cpu(monkeypatch)
    return count_phases(monkeypatch)


def run_on_cpu(monkeypatch):
    for module in (drafting, judging):
        monkeypatch.setattr(module, "is_static", lambda s: isinstance(s, CacheSession) and s.any_slot)
    for kind in set(provided("judges")) - {judging.StaticJudge}:
        monkeypatch.setattr(kind, "supports", lambda *_, **__: False)


def count_phases(monkeypatch):
    ran = Counter()
    call = Phase.__call__
    monkeypatch.setattr(Phase, "__call__", lambda self, *shape: ran.update([name_of(self)]) or call(self, *shape))
    return ran


def name_of(phase):
    return getattr(phase.work, "func", phase.work).__qualname__


def by_transformers(model):
    return HuggingFaceModel(model.model, model.name, backend=TransformersBackend(model.model))


@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "traversal"])
@pytest.mark.parametrize("tree", [chain_tree(5), k_ary_tree(3, 3)], ids=["chain", "ternary"])
def test_draft_equal_to_target_is_always_accepted(tree, verifier, used, tiny_target):
    samplings = SamplingConfig(), SamplingConfig(1.0), SamplingConfig(1.0, 0.8), SamplingConfig(0.7, top_k=5)
    for sampling in samplings:
        steps = list(
            decode(
                PROMPT,
                pair_of(tiny_target, tiny_llama(1)),
                tree=tree,
                max_new_tokens=36,
                sampling=sampling,
                verifier=verifier,
                generator=torch.Generator().manual_seed(0),
            )
        )
        assert all(len(step.new_tokens) == tree.depth + 1 for step in steps[:-1])


def test_one_token_prompt_starts_without_phases(used, tiny_target, tiny_draft):
    """Phases expect a token before the root."""
    options = {"tree": TREES["ragged"], "max_new_tokens": 12}
    steps = list(decode(PROMPT[:1], pair_of(tiny_target, tiny_draft), **options))
    assert used["StaticDrafter._gather_path"] == len(steps) - 2 > 0, "nothing is kept after the last step"


def test_first_children_use_new_uniforms_each_step(used):
    pair = pair_of(*(tiny_llama(seed, vocab=16, layers=1, scale=0.1) for seed in (1, 2)))
    options = {"sampling": SamplingConfig(1.0, 0.9), "generator": torch.Generator().manual_seed(0)}
    steps = list(decode(PROMPT, pair, tree=chain_tree(1), max_new_tokens=40, **options))
    assert used["StaticDrafter._fill_all"] and len({step.tokens[1] for step in steps}) > 8


def said(steps):
    """Return the decisions of steps and the most likely tokens of the rows behind them."""
    steps = list(steps)
    rows = [[[token for token, _ in row.target] for row in step.path_rows] for step in steps]
    return [
        (*map(tuple, (step.tokens, step.accepted_path, step.new_tokens)), row)
        for step, row in zip(steps, rows, strict=True)
    ]


SPEC_EXEC = SpecExecTree(max_size=13, max_depth=5, beam=3, branch=5)


LOOKED_UP = LookupTree(TextIndex(), max_size=13, max_depth=5)


@pytest.mark.parametrize("tree", [TREES["ragged"], SPEC_EXEC, LOOKED_UP], ids=["static", "growing", "lookup"])
def test_greedy_steps_match_the_plain_path_until_the_context_ends(tree, monkeypatch):
    """The last trees are cut so that no position, including padding, exceeds the context."""
    target = tiny_llama(1, context=40)
    sliding = HuggingFaceModel(build("Mistral", max_position_embeddings=40), "sliding window")
    drafts = tiny_llama(2, layers=1, context=40), tiny_llama(1, context=40)
    pairs = *(pair_of(target, draft) for draft in drafts), pair_of(sliding, sliding)
    _, plain = assert_steps_match(pairs, [tree], 40, monkeypatch)
    assert len({len(step.tokens) for step in plain}) > 1


HEADS = {"EAGLE-3": {"norm_output": True}, "two layers": {"layers": 2}, "small vocabulary": {"draft_vocab": 20}}


@pytest.mark.parametrize("head", [*HEADS, *FORMS])
def test_heads_draft_in_phases(head, monkeypatch, tmp_path, tiny_target, tiny_head):
    if head in FORMS:
        pair = load_pair(write_target(tmp_path / head, head), "mtp", device="cpu", dtype="float32")
    else:
        pair = pair_of(tiny_target, random_head(tiny_target, **HEADS[head]))
        pair.draft._compiled = tiny_head._compiled = None
    pairs = [pair] if head in FORMS else [pair, pair_of(tiny_target, tiny_head)]
    # Trees of depth 1 are often accepted in full.
    used, _ = assert_steps_match(pairs, [TREES["ragged"], k_ary_tree(8, 1)], 24, monkeypatch)
    assert used["StaticDrafter._fill_all"] > 8 * len(pairs)


def assert_steps_match(pairs, trees, context, monkeypatch):
    """Compare greedy steps with those of the plain path; return how often each phase ran, and the plain steps."""
    run_pass = phases.StaticPass.logits

    def steps():
        options = {"max_new_tokens": context, "details": StepDetails(likely=3)}
        runs = [decode(PROMPT, pair, tree=tree, **options) for pair, tree in itertools.product(pairs, trees)]
        return list(itertools.chain.from_iterable(runs))

    def checked_pass(self, visible=None):
        assert int((self.first + self.depths).max()) < max(pair.target.max_context for pair in pairs)
        return run_pass(self, visible)

    plain = steps()
    run_on_cpu(monkeypatch)
    monkeypatch.setattr(phases, "MIN_VISIBLE", 8)
    used = count_phases(monkeypatch)
    monkeypatch.setattr(phases.StaticPass, "logits", checked_pass)
    found = steps()
    assert said(found) == said(plain)
    for name in ("draft_probs", "target_probs"):
        numbers = [[value or 0.0 for step in each for value in getattr(step, name)] for each in (found, plain)]
        np.testing.assert_allclose(*numbers, atol=1e-4)
    return used, plain


def test_cost_and_text_do_not_depend_on_the_capacity(used, monkeypatch):
    monkeypatch.setattr(phases, "MIN_VISIBLE", 16)
    pair = pair_of(tiny_llama(1, context=4096), by_transformers(tiny_llama(2, context=4096)))
    run_phase = Phase.__call__
    allocated = []

    class Allocations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            allocated.extend(
                (str(func), part.numel())
                for part, returned in zip(tree_leaves(found), func._schema.returns, strict=False)
                if isinstance(part, torch.Tensor) and not returned.alias_info
            )
            return found

    def counted(phase, *shape):
        with Allocations():
            return run_phase(phase, *shape)

    monkeypatch.setattr(Phase, "__call__", counted)
    runs = []
    for limit in (60, 3000):
        allocated.clear()
        steps = list(itertools.islice(decode(PROMPT, pair, tree=TREES["ragged"], max_new_tokens=limit), 6))
        runs.append((said(steps), list(allocated)))
    assert used["StaticDrafter._fill_all"] and len(allocated) > 100 and runs[0] == runs[1]


def test_padding_resets_depths_of_a_larger_tree(used, tiny_target):
    """Otherwise their positions could exceed the context."""
    session = tiny_target.open(64)
    judge = judging.StaticJudge(
        session,
        verifier=VERIFIERS["sequoia"],
        sampling=SamplingConfig(),
        explained_by=SamplingConfig(),
        generator=torch.Generator(),
    )
    for parents in ([-1, 0, 0, 1, 1, 2, 2], [-1, 0, 0, 1, 1], [-1, 0, 0, 1, 1, 2]):
        plan = TreePlan(TokenTree(np.array(parents)))
        size = len(parents)
        tokens = torch.arange(size)
        judge.score(DraftTree(plan, 0, tokens, torch.ones(size), torch.empty(0, 0), plan.cache_positions))
        assert judge.passes.depths.tolist() == [*plan.depths, *[0] * (8 - size)]


def test_reused_runs_decode_like_new_ones(used):
    """Buffers are reused only for the same tree, verifier and sampling."""
    draft = tiny_llama(2, layers=1)
    ragged = TREES["ragged"]
    chain = chain_tree(4)
    kept = tiny_llama(1)
    runs = [
        (ragged, SamplingConfig(), "sequoia", PROMPT),
        (ragged, SamplingConfig(0.7), "sequoia", PROMPT),
        (ragged, SamplingConfig(0.7), "sequoia", [9, 8, 7]),
        *((ragged, SamplingConfig(0.7), verifier, PROMPT) for verifier in ("topk", "specinfer", "traversal")),
        (chain, SamplingConfig(0.7), "sequoia", PROMPT),
        (chain, SamplingConfig(1.5), "sequoia", PROMPT),
        (chain, SamplingConfig(1.5, 0.5), "sequoia", PROMPT),
        (chain, SamplingConfig(1.5, 0.5), "specinfer", PROMPT),
    ]
    for tree, sampling, verifier, prompt in runs:
        options = {"tree": tree, "sampling": sampling, "verifier": verifier, "max_new_tokens": 12}
        options["details"] = StepDetails(likely=3)
        found, wanted = (
            list(decode(prompt, pair_of(target, draft), generator=torch.Generator().manual_seed(0), **options))
            for target in (kept, tiny_llama(1))
        )
        assert said(found) == said(wanted)
        for step in found:  # decisions follow from the recorded numbers
            for trial in step.trials:
                accepted = trial.node in step.accepted_path
                assert accepted == (trial.uniform * trial.draft_mass < trial.target_mass)
                assert verifier != "topk" or trial.uniform == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("top_p", [1.0, 0.7])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_sampled_text_follows_the_target(verifier, top_p, used):
    """The false alarm rate is below 1e-6."""
    pair = [tiny_llama(seed, vocab=16, layers=1, scale=1.0) for seed in (1, 2)]
    report = check_losslessness(
        [3, 5],
        pair_of(*pair),
        tree=branching_tree([3, 2]),
        sampling=SamplingConfig(1.0, top_p),
        verifier=verifier,
        samples=500,
        generator=torch.Generator().manual_seed(0),
    )
    assert report.passed and report.degrees_of_freedom > 5
    assert used["_TreeBuffers._decide"] and used["StaticDrafter._fill_all"]


def test_non_finite_logits_of_either_model_are_named(used, tiny_target, tiny_draft, monkeypatch):
    warm = {"sampling": SamplingConfig(1.0)}
    drawn = [{"sampling": SamplingConfig(1.0, 0.9), "verifier": verifier} for verifier in VERIFIERS]
    others = [token for token in range(64) if token not in PROMPT]  # only rows below the root
    for broken, damaged, options in itertools.product(("target", "draft"), ([5], others), ({}, warm, *drawn)):
        model = by_transformers(tiny_llama(3 if broken == "target" else 4))
        layer = model.model.lm_head if damaged == [5] else model.model.model.embed_tokens
        with torch.no_grad():
            layer.weight[damaged] = torch.nan
        pair = replace(pair_of(tiny_target, tiny_draft), **{broken: model})
        with pytest.raises(FloatingPointError, match=f"step 0: the {broken} model"):
            list(decode(PROMPT, pair, tree=TREES["ragged"], max_new_tokens=8, **options))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device(request.param)


@pytest.mark.parametrize("cut_first", [False, True], ids=["plain", "top-p"])
@pytest.mark.parametrize("name", ["sequoia", "specinfer", "traversal"])
def test_parallel_walk_matches_sequential_trials(name, cut_first, place):
    """Compare with the rules in Python and the greedy walk on random trees and rows with zeros."""
    numbers = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    vocab = 6
    rule = VERIFIERS[name].rule
    decide, list_offers, *_ = RANKED_RULES[rule]
    ends = set()
    for _ in range(100):
        tree = TokenTree(np.sort([-1, *(int(numbers.integers(node)) for node in range(1, 7))]))
        rows = [
            torch.from_numpy(numbers.dirichlet(np.full(vocab, 0.5), 8)) * (numbers.random((8, vocab)) < 0.4)
            for _ in "PQ"
        ]
        target, draft = (torch.where(row.sum(1, keepdim=True) > 0, row, 1.0) for row in rows)
        draft = torch.where(torch.from_numpy(numbers.random((8, 1))) < 0.2, target, draft)
        target = target / target.sum(1, keepdim=True)
        draft = draft / draft.sum(1, keepdim=True)
        first = cut(draft.float(), 0.7, 0).double() if cut_first else None
        first = None if first is None else first / first.sum(1, keepdim=True)
        tokens = torch.zeros(8, dtype=torch.int64)
        for node in range(tree.size):
            own = None if first is None else first[node : node + 1].float()
            children = tree.children(node)
            if children:
                drawn = VERIFIERS[name].draft_sampling(draft[node : node + 1].float(), len(children), generator, own)
                tokens[children.start : children.stop] = drawn[0]
        if len(tree.children(0)) == 1 and torch.equal(draft[0], target[0]):
            tokens[1] = target[0].argmin()  # without mass, so that nothing remains after its rejection
        known = {} if first is None else {"first_row": first.numpy().__getitem__}
        scored = ScoredTree(tree, tokens.tolist(), target.numpy().__getitem__, draft.numpy().__getitem__, **known)
        in_order = numbers.random(tree.size)
        walk = WALKS.get(rule, walk_tree)(scored, rule=rule, uniform=iter(in_order).__next__)
        uniforms = torch.from_numpy(numbers.random(8))
        for node, uniform in zip([*(trial.node for trial in walk.trials), 0], in_order, strict=False):
            uniforms[node] = uniform
        wanted = torch.from_numpy(numbers.integers(vocab, size=8)).to(place)
        greedy_walk = walk_greedily(tree, tokens.tolist(), wanted.tolist().__getitem__)
        for is_exact in (False, True):
            plan = TreePlan(tree)
            shape = TreeShape.from_plan(plan, is_exact=is_exact, from_leaves=name == "traversal")
            parts = RankedTree.from_plan(plan, torch.arange(tree.size), shape)
            ranked = RankedTree(*(part.to(place) for part in parts))
            there = [None if part is None else part.to(place) for part in (tokens, target, draft, uniforms, first)]
            found = decide(ranked, ScoredNodes(*there), shape)
            path = tuple(dict.fromkeys(found.path.tolist()))
            masses = found.masses.cpu()
            assert (path, int(found.bonus)) == (walk.path, walk.bonus_token)
            trials = [node for node in list_offers(tree, path) if masses[node, 1]]
            assert trials == [trial.node for trial in walk.trials]
            for trial in walk.trials:
                assert masses[trial.node].tolist() == pytest.approx([trial.target_mass, trial.draft_mass], abs=1e-12)
            greedy = follow_by_rank(ranked, there[0], wanted, shape)
            assert tuple(dict.fromkeys(greedy.path.tolist())) == greedy_walk.path
            assert int(greedy.bonus) == greedy_walk.bonus_token
        ends.add(len(path))
    assert len(ends) > 2
