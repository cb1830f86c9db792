"""The path for GPUs, run on the CPU: the target's own text and law, and what a CUDA graph needs of its phases."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sequoia_core.decoding import assemble
from sequoia_core.decoding.cutting import cut
from sequoia_core.decoding.drafting import DraftTree
from sequoia_core.decoding.gpu import drafting, judging, phases
from sequoia_core.decoding.gpu.phases import Phase
from sequoia_core.decoding.gpu.walk_by_rank import RankedTree, follow_by_rank, walk_by_rank
from sequoia_core.decoding.growing.policies import LookupTree, SpecExecTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig, sample_without_replacement
from sequoia_core.decoding.tree_policy import policy_of
from sequoia_core.decoding.verifiers import VERIFIERS, sequoia_rule
from sequoia_core.decoding.walk import walk_greedily
from sequoia_core.design.plain_trees import branching_tree, chain_tree, k_ary_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.models.tree_cache import CacheSession
from sequoia_core.studies.losslessness import check_losslessness
from tests.conftest import pair_of, tiny_llama, tokens_of
from tests.core.decoding.test_loop import PROMPT, TREES
from tests.pretend_device import PretendTensor, pretend_device


@pytest.fixture
def used(monkeypatch):
    """Run the path on the CPU too; count the phases that ran."""
    run_on_cpu(monkeypatch)
    return count_phases(monkeypatch)


def run_on_cpu(monkeypatch):
    for module in (drafting, judging):
        monkeypatch.setattr(module, "is_static", lambda s: isinstance(s, CacheSession) and s.any_slot)
    monkeypatch.setattr(assemble, "CPU_JUDGES", assemble.JUDGES)


def count_phases(monkeypatch):
    ran, call = Counter(), Phase.__call__
    monkeypatch.setattr(Phase, "__call__", lambda self: ran.update([name_of(self)]) or call(self))
    return ran


def name_of(phase):
    return getattr(phase.work, "func", phase.work).__qualname__


def by_transformers(model):
    return HuggingFaceModel(model.model, model.name, backend=TransformersBackend(model.model))


@pytest.mark.parametrize("tree", [chain_tree(5), k_ary_tree(3, 3)], ids=["chain", "ternary"])
def test_a_draft_equal_to_the_target_is_always_accepted(tree, used, tiny_target):
    samplings = SamplingConfig(), SamplingConfig(1.0), SamplingConfig(1.0, 0.8), SamplingConfig(0.7, top_k=5)
    for sampling in samplings:
        steps = list(
            decode(
                PROMPT, pair_of(tiny_target, tiny_llama(1)), tree=tree, max_new_tokens=36, sampling=sampling,
                generator=torch.Generator().manual_seed(0),
            )
        )  # fmt: skip
        assert all(len(step.new_tokens) == tree.depth + 1 for step in steps[:-1])


def test_a_prompt_of_one_token_takes_its_first_step_without_phases(used, tiny_target, tiny_draft):
    """There is no token before the root, and what was read is not where phases expect it."""
    options = {"tree": TREES["ragged"], "max_new_tokens": 12}
    steps = list(decode(PROMPT[:1], pair_of(tiny_target, tiny_draft), **options))
    assert used["StaticDrafter._keep_path"] == len(steps) - 2 > 0, "nothing is kept after the last step"


def test_first_children_are_drawn_anew_in_each_step(used):
    pair = pair_of(*(tiny_llama(seed, vocab=16, layers=1, scale=0.1) for seed in (1, 2)))
    options = {"sampling": SamplingConfig(1.0, 0.9), "generator": torch.Generator().manual_seed(0)}
    steps = list(decode(PROMPT, pair, tree=chain_tree(1), max_new_tokens=40, **options))
    assert used["StaticDrafter._fill"] and len({step.tokens[1] for step in steps}) > 8


def said(steps):
    """Return all that steps decided, and the tokens that the rows behind their decisions make likely."""
    steps = list(steps)
    rows = [[[token for token, _ in row.target] for row in step.path_rows] for step in steps]
    return [
        (*map(tuple, (step.tokens, step.accepted_path, step.new_tokens)), row)
        for step, row in zip(steps, rows, strict=True)
    ]


SPEC_EXEC = SpecExecTree(max_size=13, max_depth=5, beam=3, branch=5)


LOOKED_UP = LookupTree(TextIndex(), max_size=13, max_depth=5)


@pytest.mark.parametrize("tree", [TREES["ragged"], SPEC_EXEC, LOOKED_UP], ids=["static", "growing", "lookup"])
def test_greedy_steps_are_those_of_the_plain_path_up_to_the_end_of_the_context(tree, monkeypatch):
    """The last trees are cut, so that no position, padding's included, lies beyond the context."""
    context, run_pass = 40, phases.StaticPass.logits
    target, other = tiny_llama(1, context=context), tiny_llama(2, layers=1, context=context)
    drafts = other, tiny_llama(1, context=context)

    def steps():
        options = {"tree": tree, "max_new_tokens": context, "details": StepDetails(likely=3)}
        return [step for draft in drafts for step in decode(PROMPT, pair_of(target, draft), **options)]

    def checked_pass(self):
        assert int((self.first + self.depths).max()) < context
        return run_pass(self)

    plain = steps()
    run_on_cpu(monkeypatch)
    monkeypatch.setattr(phases.StaticPass, "logits", checked_pass)
    found = steps()
    assert said(found) == said(plain) and len({len(step.tokens) for step in plain}) > 1
    for name in ("draft_probs", "target_probs"):
        numbers = [[value or 0.0 for step in each for value in getattr(step, name)] for each in (found, plain)]
        np.testing.assert_allclose(*numbers, atol=1e-4)


def test_padding_keeps_no_depth_of_a_larger_tree_before(used, tiny_target):
    """Near the end of the context it would lie beyond it."""
    session = tiny_target.open(64)
    judge = judging.StaticJudge(
        session, verifier=VERIFIERS["sequoia"], sampling=SamplingConfig(), explained_by=SamplingConfig(),
        generator=torch.Generator(),
    )  # fmt: skip
    for parents in ([-1, 0, 0, 1, 1, 2, 2], [-1, 0, 0, 1, 1], [-1, 0, 0, 1, 1, 2]):
        plan, size = TreePlan(TokenTree(np.array(parents))), len(parents)
        tokens = torch.arange(size)
        judge.score(DraftTree(plan, 0, tokens, torch.ones(size), torch.empty(0, 0), plan.cache_positions))
        assert judge.passes.depths.tolist() == [*plan.depths, *[0] * (8 - size)]


def test_a_kept_run_decodes_the_next_text_as_a_fresh_one_does(used):
    """Whatever is kept is that of the same tree, verifier and sampling."""
    draft, ragged, chain = tiny_llama(2, layers=1), TREES["ragged"], chain_tree(4)
    kept = tiny_llama(1)
    runs = [
        (ragged, SamplingConfig(), "sequoia", PROMPT),
        (ragged, SamplingConfig(0.7), "sequoia", PROMPT),
        (ragged, SamplingConfig(0.7), "sequoia", [9, 8, 7]),
        (ragged, SamplingConfig(0.7), "topk", PROMPT),
        (chain, SamplingConfig(0.7), "sequoia", PROMPT),
        (chain, SamplingConfig(1.5), "sequoia", PROMPT),
        (chain, SamplingConfig(1.5, 0.5), "sequoia", PROMPT),
    ]
    for tree, sampling, verifier, prompt in runs:
        options = {"tree": tree, "sampling": sampling, "verifier": verifier, "max_new_tokens": 12}
        options["details"] = StepDetails(likely=3)
        found, wanted = (
            list(decode(prompt, pair_of(target, draft), generator=torch.Generator().manual_seed(0), **options))
            for target in (kept, tiny_llama(1))
        )
        assert said(found) == said(wanted)
        for step in found:  # what was decided follows from what was recorded
            for trial in step.trials:
                accepted = trial.node in step.accepted_path
                assert accepted == (trial.uniform * trial.draft_mass < trial.target_mass)
                assert verifier == "sequoia" or trial.uniform == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_sampled_text_follows_the_target(verifier, used):
    """False alarms below 1e-6 each; rules that are not written as phases are walked as elsewhere."""
    pair = [tiny_llama(seed, vocab=16, layers=1, scale=1.0) for seed in (1, 2)]
    report = check_losslessness(
        [3, 5], pair_of(*pair), tree=branching_tree([3, 2]), sampling=SamplingConfig(1.0),
        verifier=verifier, samples=500, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert report.passed and report.degrees_of_freedom > 5
    assert bool(used["_OneSize._decide"]) == (verifier in ("sequoia", "topk"))


@pytest.mark.sample(len(VERIFIERS))
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_only_rules_written_as_phases_are_walked_by_them(verifier, used, tiny_target, tiny_draft):
    options = {"sampling": SamplingConfig(0.7), "verifier": verifier, "max_new_tokens": 6}
    steps = list(decode(PROMPT, pair_of(tiny_target, tiny_draft), tree=TREES["ragged"], **options))
    assert used["_OneSize._decide"] == (len(steps) if verifier in ("sequoia", "topk") else 0)


def test_logits_that_are_not_finite_are_reported_for_either_model(used, tiny_target, tiny_draft, monkeypatch):
    warm = {"sampling": SamplingConfig(1.0)}
    for broken, options in itertools.product(("target", "draft"), ({}, warm, warm | {"verifier": "traversal"})):
        model = by_transformers(tiny_llama(3 if broken == "target" else 4))
        with torch.no_grad():
            model.model.lm_head.weight[5] = torch.nan
        pair = replace(pair_of(tiny_target, tiny_draft), **{broken: model})
        with pytest.raises(FloatingPointError, match=f"step 0: the {broken} model"):
            list(decode(PROMPT, pair, tree=TREES["ragged"], max_new_tokens=8, **options))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device(request.param)


@pytest.mark.parametrize("cut_first", [False, True], ids=["plain", "top-p"])
def test_it_walks_where_one_trial_after_the_other_leads(cut_first, place):
    """Offer by offer on random trees and rows with zeros, as Sequoia's rule and the greedy walk decide."""
    numbers, generator, vocab, ends = np.random.default_rng(0), torch.Generator().manual_seed(0), 6, set()
    for _ in range(100):
        tree = TokenTree(np.sort([-1, *(int(numbers.integers(node)) for node in range(1, 7))]))
        rows = [
            torch.from_numpy(numbers.dirichlet(np.full(vocab, 0.5), 8)) * (numbers.random((8, vocab)) < 0.4)
            for _ in "PQ"
        ]
        target, draft = (torch.where(row.sum(1, keepdim=True) > 0, row, 1.0) for row in rows)
        target, draft = target / target.sum(1, keepdim=True), draft / draft.sum(1, keepdim=True)
        first = cut(draft.float(), 0.7, 0).double() if cut_first else None
        first = None if first is None else first / first.sum(1, keepdim=True)
        tokens = torch.zeros(8, dtype=torch.int64)
        for node in range(tree.size):
            own = None if first is None else first[node : node + 1].float()
            children = tree.children(node)
            if children:
                drawn = sample_without_replacement(draft[node : node + 1].float(), len(children), generator, own)
                tokens[children.start : children.stop] = drawn[0]
        uniforms = torch.from_numpy(numbers.random(8))
        ranked = RankedTree(*(part.to(place) for part in RankedTree.of(TreePlan(tree), torch.arange(tree.size), 8, 6)))
        there = [None if part is None else part.to(place) for part in (tokens, target, draft, uniforms, first)]
        found = walk_by_rank(ranked, *there[:4], depth=tree.depth, first=there[4])
        path, left, masses = [0], target[0].numpy(), found.masses.cpu()
        while children := tree.children(path[-1]):
            known = {} if first is None else {"first": first[path[-1]].numpy()}
            offers = list(
                sequoia_rule(left, draft[path[-1]].numpy(), tokens[children.start : children.stop].tolist(), **known)
            )
            sure = next((n for n, offer in enumerate(offers) if offer.accept_prob == 1.0), len(offers))
            for child, offer in zip(children, offers[: sure + 1], strict=False):  # no others can be reached
                assert masses[child].tolist() == pytest.approx([offer.target_mass, offer.draft_mass or 1e-300])
            taken = next((n for n, offer in enumerate(offers) if uniforms[children[n]] < offer.accept_prob), None)
            if taken is None:
                left = offers[-1].residual
                break
            path.append(children[taken])
            left = target[path[-1]].numpy()
        bonus = np.searchsorted(left.cumsum() / left.sum(), float(uniforms[0]), side="right")
        assert (list(dict.fromkeys(found.path.tolist())), int(found.bonus)) == (path, bonus)
        ends.add(len(path))
        wanted = torch.from_numpy(numbers.integers(vocab, size=8))
        greedy = follow_by_rank(ranked, there[0], wanted.to(place), depth=tree.depth)
        walk = walk_greedily(tree, tokens.tolist(), wanted.tolist().__getitem__)
        assert (tuple(dict.fromkeys(greedy.path.tolist())), int(greedy.bonus)) == (walk.path, walk.bonus_token)
    assert len(ends) > 2


def plain(part):
    return isinstance(part, torch.Tensor) and part.device.type == "cpu"


def address(tensor):
    return tensor.held.untyped_storage().data_ptr()


def simulated(work):
    """A CUDA graph of the pretend device: what was done is done again, with the same tensors and the same numbers.

    So a number or a buffer that the host chooses anew in each step shows in the text; what is read back is refused.
    """
    done, replays = [], itertools.count()

    class Writing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if any(isinstance(part, PretendTensor) for part in tree_leaves(args)):
                read = [part for part in tree_leaves(found) if type(part) in (int, float, bool) or plain(part)]
                assert not read, f"{func} reads back, which no graph can capture"
            done.append((func, args, kwargs or {}, found))
            return found

    def replay():
        for func, args, kwargs, found in done if next(replays) else ():  # here, unlike on a GPU, capturing did the work
            for old, new in zip(tree_leaves(found), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, PretendTensor) and address(old) != address(new):
                    old.copy_(new)

    with Writing():
        return replay, work()


GRAPHED = {
    "static": (policy_of(TREES["ragged"]), SamplingConfig()),
    "SpecExec": (SPEC_EXEC, SamplingConfig()),
    "sampled": (policy_of(TREES["ragged"]), SamplingConfig(0.8)),
    "top-p": (policy_of(TREES["ragged"]), SamplingConfig(0.8, 0.9, 20)),
    "alone": (policy_of(TokenTree(np.array([-1]))), SamplingConfig()),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", GRAPHED)
def test_text_stays_where_phases_are_captured_and_replayed_by_the_next_run_too(case, monkeypatch):
    tree, sampling = GRAPHED[case]
    texts, captures = [], [0]

    def text(pair, prompt, count):
        options = {"sampling": sampling, "generator": torch.Generator().manual_seed(0)}
        return tokens_of(decode(prompt, pair, tree=tree, max_new_tokens=count, **options))

    for capture in (None, lambda work: captures.append(captures.pop() + 1) or simulated(work)):
        with pretend_device() as device:
            if capture is not None:
                monkeypatch.setitem(phases.GRAPHS, device.type, capture)
            own = [pair_of(*(HuggingFaceModel(tiny_llama(1).model.to(device), "there") for _ in "ab")) for _ in "ab"]
            text(own[0], [9, 8, 7, 6, 5], 60)
            (before,) = captures
            texts.append(text(own[0], PROMPT, 40))
            assert captures == [before] or tree.fixed is None
            texts.append(text(own[1], PROMPT, 40))
    assert texts == 4 * texts[:1]
    assert captures[0] >= {"SpecExec": 2, "alone": 3}.get(case, 6)


def test_a_phase_that_no_graph_can_capture_runs_as_before_and_says_so(monkeypatch):
    def refused(work):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setitem(phases.GRAPHS, "cpu", refused)
    phase = Phase(lambda: torch.ones(1), torch.device("cpu"))
    assert phase() == 1
    with pytest.warns(UserWarning, match="without a CUDA graph.*not permitted"):
        assert phase() == 1
    assert phase() == 1


def test_a_graph_is_not_replayed_on_tensors_that_have_moved(monkeypatch):
    captures = []
    monkeypatch.setitem(phases.GRAPHS, "cpu", lambda work: (lambda: None, captures.append(1) or work()))
    given = torch.zeros(1)
    phase = Phase(lambda: given + 1, torch.device("cpu"), lambda: (given,))
    assert [float(phase()) for _ in range(3)] == [1, 1, 1] and captures == [1]
    given = torch.ones(1)
    assert float(phase()) == 2.0


@pytest.mark.gpu
def test_the_device_draws_on_after_a_capture_that_failed_and_graphs_may_be_freed_in_one():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    device = torch.device("cuda")
    refused = Phase(lambda: torch.ones(int(torch.ones(1, device=device)), device=device), device)
    assert refused() == 1
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        assert refused() == 1
    assert refused() == 1 and torch.randn(3, device=device).isfinite().all()

    def making_garbage():
        for _ in range(3000):  # enough for the collector to run
            [].append(circle := [{}])
            circle.append(circle)
        return torch.ones(1, device=device)

    for _ in range(3):
        kept = Phase(lambda: torch.ones(1, device=device), device)
        kept.itself = kept  # freed by the collector alone
        phase = Phase(making_garbage, device)
        for _ in range(3):
            assert kept() == 1
        del kept
        assert [float(phase()) for _ in range(3)] == [1.0] * 3 and phase._graph is not None
