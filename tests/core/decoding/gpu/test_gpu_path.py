"""The path for GPUs, run on the CPU: the target's own text and law, and what a CUDA graph needs of its phases."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sequoia_core import LookupTree
from sequoia_core.decoding import assemble
from sequoia_core.decoding import loop as engine
from sequoia_core.decoding.cutting import cut
from sequoia_core.decoding.gpu import drafting, judging, phases
from sequoia_core.decoding.gpu.phases import Phase, padded
from sequoia_core.decoding.gpu.walk_by_rank import RankedTree, follow_by_rank, offers_by_rank, walk_by_rank
from sequoia_core.decoding.growing.policies import SpecExecTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.decoding.record import TOKENS_ONLY
from sequoia_core.decoding.sampling import SamplingConfig, invert
from sequoia_core.decoding.tree_policy import policy_of
from sequoia_core.decoding.verifiers import VERIFIERS, sequoia_rule
from sequoia_core.design.plain_trees import branching_tree, chain_tree, k_ary_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.protocol import prefill
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.models.tree_cache import CacheSession
from sequoia_core.studies.losslessness import check_losslessness
from tests.conftest import pair_of, tiny_llama, tokens_of
from tests.core.decoding.growing.test_dynamic_exactness import Script, filled_by, random_law
from tests.core.decoding.test_loop import PROMPT, TREES, greedy_reference
from tests.core.test_families import FAMILIES, build
from tests.pretend_device import PretendTensor, pretend_device


@pytest.fixture
def used(monkeypatch):
    """Run the path on the CPU too; count the phases that ran."""
    for module in (drafting, judging):
        monkeypatch.setattr(module, "is_static", lambda s: isinstance(s, CacheSession) and s.any_slot)
    monkeypatch.setattr(assemble, "CPU_JUDGES", assemble.JUDGES)
    return count_phases(monkeypatch)


def count_phases(monkeypatch):
    ran, call = Counter(), Phase.__call__
    monkeypatch.setattr(Phase, "__call__", lambda self: ran.update([name_of(self)]) or call(self))
    return ran


def name_of(phase):
    return getattr(phase.work, "func", phase.work).__qualname__


def by_transformers(model):
    return HuggingFaceModel(model.model, model.name, backend=TransformersBackend(model.model))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_greedy_output_is_identical_to_generate(tree, used, tiny_target, tiny_draft):
    for prompt in (PROMPT, [7]):
        for target, draft in ((tiny_target, tiny_draft), (by_transformers(tiny_target), by_transformers(tiny_draft))):
            steps = list(decode(prompt, pair_of(target, draft), tree=tree, max_new_tokens=40))
            assert tokens_of(steps) == greedy_reference(tiny_target, prompt, 40)
            assert all(
                trial.accepted == (step.outcomes[trial.node] == "accepted") for step in steps for trial in step.trials
            )
    assert used["StaticPass.logits"] and used["_OneSize._decide"]
    assert used["StaticDrafter._fill"] or tree.size == 1


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


def test_trees_that_grow_are_padded_to_few_sizes(used, tiny_target, tiny_draft):
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=40))
    index = TextIndex()
    index.add([*PROMPT, *wanted[::2]])
    for policy in (SpecExecTree(max_size=13, max_depth=5, beam=3, branch=5), LookupTree(index, max_size=13)):
        for draft in (tiny_draft, tiny_llama(1)):
            steps = decode(PROMPT, pair_of(tiny_target, draft), tree=policy, max_new_tokens=40)
            assert tokens_of(steps) == wanted
    assert [padded(n) for n in (1, 2, 3, 9, 32, 33, 64, 65)] == [1, 2, 4, 16, 32, 64, 64, 96]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_as_generate_in_phases_while_its_window_holds_the_text(family, used):
    prompt, short = [2 + place for place in range(20)], "sliding_window" in FAMILIES[family]
    for settings, in_phases in [({"sliding_window": 96}, True), ({}, False)] if short else [({}, True)]:
        used.clear()
        built = build(family, **settings)
        model = HuggingFaceModel(built, family, backend=TransformersBackend(built))
        steps = list(decode(prompt, pair_of(model, model), tree=k_ary_tree(2, 3), max_new_tokens=40))
        assert tokens_of(steps) == greedy_reference(model, prompt, 40) and len(steps) <= 10
        assert (used["StaticDrafter._fill"] > 20) == in_phases


@pytest.mark.sample(1, cover=False)
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


def test_logits_that_are_not_finite_are_reported_for_either_model(used, tiny_target, tiny_draft, monkeypatch):
    for broken, sampling in itertools.product(("target", "draft"), (SamplingConfig(), SamplingConfig(1.0))):
        model = by_transformers(tiny_llama(3 if broken == "target" else 4))
        with torch.no_grad():
            model.model.lm_head.weight[5] = torch.nan
        pair = replace(pair_of(tiny_target, tiny_draft), **{broken: model})
        with pytest.raises(FloatingPointError, match=f"step 0: the {broken} model"):
            list(decode(PROMPT, pair, tree=TREES["ragged"], sampling=sampling, max_new_tokens=8))


TREES_OF_THREE_LEVELS = {
    "chain": [-1, 0, 1],
    "ragged": [-1, 0, 0, 1, 1],
    "late": [-1, 0, 0, 2, 2],
    "wide": [-1, 0, 0, 0, 3],
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device(request.param)


@pytest.mark.parametrize("verifier", ["sequoia", "sequoia, top-p", "topk"])
@pytest.mark.parametrize("parents", TREES_OF_THREE_LEVELS.values(), ids=TREES_OF_THREE_LEVELS.keys())
def test_the_law_of_a_step_is_the_targets(parents, verifier, place):
    """Every draw of the draft and every decision, on rows with zeros: exact, and nothing is left to chance."""
    vocab, tree = 3, TokenTree(np.array(parents))
    ways = outcomes_by_topk if verifier == "topk" else outcomes
    for seed in range(4):
        target, draft, first = random_law(vocab, seed), random_law(vocab, 100 + seed), None
        if verifier == "sequoia, top-p":
            first = {path: cut(torch.tensor(row[None]), 0.7, 0)[0].numpy() for path, row in draft.items()}
        law, script = np.zeros((vocab,) * 3), Script()
        while True:
            drawn = drawn_tree(tree, draft, script, verifier, first)
            for text, chance in ways(tree, drawn, target, draft, place, *([first] if first else [])):
                for more in itertools.product(range(vocab), repeat=3 - len(text)):
                    law[(*text, *more)] += script.weight * chance * own_chance(target, text, more)
            if not script.next():
                break
        wanted = [own_chance(target, (), text) for text in itertools.product(range(vocab), repeat=3)]
        np.testing.assert_allclose(law.flatten(), wanted, atol=1e-12)


def own_chance(law, before, text):
    """Return the chance that a law continues a text this way."""
    whole = (*before, *text)
    return np.prod([law[whole[:place]][whole[place]] for place in range(len(before), len(whole))])


def drawn_tree(tree, draft, script, verifier, first):
    """Return the tokens of a tree, children drawn without replacement by a script, or the most likely ones."""
    tokens, paths = [0] * tree.size, {0: ()}
    for node in range(tree.size):
        children = tree.children(node)
        if children:
            row = torch.from_numpy(draft[paths[node]])[None]
            own = torch.from_numpy(first[paths[node]])[None] if first else None
            drawn = filled_by(script, verifier)(row, len(children), None, own)[0].tolist()
            for child, token in zip(children, drawn, strict=True):
                tokens[child], paths[child] = token, (*paths[node], token)
    return tokens, paths


def as_read(tree, drawn, place, *laws):
    """Return a tree, its tokens and rows of laws at its nodes as the walk reads them, padded."""
    tokens, paths = drawn
    ranked = RankedTree(*(part.to(place) for part in RankedTree.of(TreePlan(tree), torch.arange(tree.size), 8, 4)))
    rows = [np.stack([law[paths[node]] for node in range(tree.size)]) for law in laws]
    padded_rows = [torch.from_numpy(np.concatenate([found, np.full((8 - tree.size, 3), 1 / 3)])) for found in rows]
    return ranked, torch.tensor([*tokens, *[0] * (8 - tree.size)], device=place), *(r.to(place) for r in padded_rows)


def outcomes_by_topk(tree, drawn, target, draft, place):
    """Yield (tokens committed, probability) for everything that the target can draw after the nodes."""
    ranked, tokens, rows = as_read(tree, drawn, place, target)
    ends = rows.cumsum(1).cpu().numpy()
    for wanted in itertools.product(range(3), repeat=tree.size):
        shares = rows.cpu().numpy()[range(tree.size), wanted]
        if not shares.all():
            continue
        middles = torch.full((8, 1), 0.5, dtype=torch.float64)  # of each token's own share of [0, 1)
        middles[: tree.size, 0] = torch.from_numpy(ends[range(tree.size), wanted] - shares / 2)
        chosen = invert(rows.cumsum(1), middles.to(place))[:, 0]
        found = follow_by_rank(ranked, tokens, chosen, depth=2)
        path = dict.fromkeys(found.path.tolist())
        yield (*drawn[1][list(path)[-1]], int(found.bonus)), float(shares.prod())


def outcomes(tree, drawn, target, draft, place, *first):
    """Yield (tokens committed, probability) for every way the walk by rank can go."""
    paths = drawn[1]
    ranked, tokens, *rows = as_read(tree, drawn, place, target, draft, *first)
    counts = [max(1, int((TreePlan(tree).child_counts > k).sum())) for k in range(4)]
    residuals, masses = offers_by_rank(ranked, tokens, rows[0], rows[1], rows[2] if first else None, counts)
    left = residuals.rows(torch.arange(8, device=place)).cpu()
    masses, ranked = masses.cpu().numpy(), RankedTree(*(part.cpu() for part in ranked))

    def below(node, reach):
        for child in tree.children(node):
            accepted = min(1.0, masses[child, 0] / masses[child, 1])
            if reach * accepted > 0.0:
                yield from below(child, reach * accepted)
            reach *= 1.0 - accepted
        row = left[ranked.positions[node]].numpy()
        for token in np.flatnonzero(row) if reach > 0.0 else ():
            yield (*paths[node], int(token)), reach * float(row[token])

    yield from below(0, 1.0)


@pytest.mark.parametrize("parents", TREES_OF_THREE_LEVELS.values(), ids=TREES_OF_THREE_LEVELS.keys())
def test_it_walks_where_one_trial_after_the_other_leads(parents):
    tree, numbers = TokenTree(np.array(parents)), np.random.default_rng(0)
    target, draft = random_law(3, 1), random_law(3, 101)
    drawn = drawn_tree(tree, draft, Script(), "sequoia", None)
    ends = set()
    for _ in range(200):
        uniforms = numbers.random(8)
        ranked, tokens, *rows = as_read(tree, drawn, torch.device("cpu"), target, draft)
        found = walk_by_rank(ranked, tokens, *rows, torch.from_numpy(uniforms), depth=2)
        path, left = [0], target[()]
        while children := list(tree.children(path[-1])):
            texts = [drawn[0][child] for child in children]
            offers = list(sequoia_rule(left, draft[drawn[1][path[-1]]], texts))
            taken = next((n for n, offer in enumerate(offers) if uniforms[children[n]] < offer.accept_prob), None)
            if taken is None:
                left = offers[-1].residual
                break
            path.append(children[taken])
            left = target[drawn[1][path[-1]]]
        bonus = np.searchsorted(left.cumsum() / left.sum(), uniforms[0], side="right")
        assert (list(dict.fromkeys(found.path.tolist())), int(found.bonus)) == (path, bonus)
        ends.add(path[-1])
    assert len(ends) > 1


@pytest.mark.parametrize("path", [(0,), (0, 1, 4), (0, 3, 6, 9, 10)])
def test_a_path_of_the_callers_own_is_kept(path, used, tiny_target, tiny_draft):
    tree, sequence = TREES["ragged"], list(PROMPT)
    assert all(parent == tree.parents[child] for parent, child in zip(path, path[1:], strict=False))
    drafter, judge, sessions = assemble.assemble(
        pair_of(tiny_target, tiny_draft), policy_of(tree), verifier=VERIFIERS["sequoia"], sampling=SamplingConfig(),
        capacity=40, generator=torch.Generator(),
    )  # fmt: skip
    for session in sessions:
        prefill(session, sequence[:-1])
    drafted = drafter.grow(sequence)
    judge.score(drafted)
    judge.walk(drafted)
    judge.commit(drafted, path)
    drafter.commit(drafted, path)
    assert sessions[0].length == len(sequence) + len(path) - 1
    sequence += [*drafted.tokens[list(path[1:])].tolist(), 5]
    judge.score(drafter.grow(sequence))
    wanted = tiny_target.plain_logits(torch.tensor(sequence))[-1]
    torch.testing.assert_close(judge.logits[0], wanted, atol=1e-4, rtol=1e-4)


class Recorder(TorchDispatchMode):
    """Writes down what each phase does, and counts what is read back from the device.

    What a CUDA graph replays has the same operations on the same shapes at the same addresses, takes no number from
    the host and gives it none. Memory that a phase takes for what it makes itself is the graph's own, so only tensors
    from before the phase must stay where they are; of an earlier phase's result it is enough to know whose it is.
    """

    def __init__(self):
        super().__init__()
        self.phase, self.steps, self.reads = None, [], []

    def begin_step(self):
        self.steps.append([])
        self.reads.append(0)
        self.results, self.kept = {}, []

    def run(self, phase, call):
        self.phase, self.made = f"{name_of(phase)} {id(phase)}", {}
        try:
            found = call(phase)
        finally:
            label, self.phase = self.phase, None
        self.results[address(found)] = label
        return found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        given, there = tree_leaves((args, kwargs)), any(isinstance(part, PretendTensor) for part in tree_leaves(args))
        parts = tree_leaves(found)
        read = there and any(type(part) in (int, float, bool) or plain(part) for part in parts)
        if func._schema.name == "aten::copy_" and plain(args[0]) and there:
            read = True
        if self.phase is None:
            if self.reads:
                self.reads[-1] += read
            return found
        assert not read, f"{self.phase}: {func} reads back"
        for part in parts:
            if isinstance(part, PretendTensor):
                self.kept.append(part)  # or its memory would be used again
                if address(part) not in {address(own) for own in given if isinstance(own, PretendTensor)}:
                    self.made[address(part)] = len(self.made)
        self.steps[-1].append((self.phase, str(func), *(self.described(part) for part in given)))
        return found

    def described(self, part):
        if isinstance(part, PretendTensor):
            where = address(part)
            known = self.made.get(where, self.results.get(where, where))
            return known, part.storage_offset(), tuple(part.shape), tuple(part.stride()), part.dtype
        if plain(part):
            assert part.ndim == 0, f"{self.phase}: takes a tensor {tuple(part.shape)} from the host"
            return part.item()
        return str(part)


def plain(part):
    return isinstance(part, torch.Tensor) and part.device.type == "cpu"


def address(tensor):
    return tensor.held.untyped_storage().data_ptr()


@pytest.fixture
def recorded(monkeypatch):
    """Record the phases of a decode on the pretend device: the record of each step."""
    call, take_step = Phase.__call__, engine.take_step

    def record(target, draft, **options):
        with pretend_device() as device, Recorder() as recorder:
            monkeypatch.setattr(Phase, "__call__", lambda self: recorder.run(self, call))
            monkeypatch.setattr(
                engine, "take_step", lambda *args, **named: recorder.begin_step() or take_step(*args, **named)
            )
            models = [HuggingFaceModel(tiny_llama(*made).model.to(device), "there") for made in (target, draft)]
            list(decode(PROMPT, pair_of(*models), details=TOKENS_ONLY, max_new_tokens=14, **options))
        return recorder

    return record


CASES = {
    "greedy": (SamplingConfig(), "sequoia", "ragged"),
    "sequoia": (SamplingConfig(0.8), "sequoia", "ragged"),
    "topk": (SamplingConfig(0.8), "topk", "ragged"),
    "top-p": (SamplingConfig(0.8, 0.9, 20), "sequoia", "ragged"),
    "alone": (SamplingConfig(0.8), "sequoia", "root only"),
}


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("case", CASES)
def test_phases_can_be_captured_and_a_step_reads_back_once(case, recorded):
    sampling, verifier, tree = CASES[case]
    recorder = recorded(
        (1,), (2,), tree=TREES[tree], sampling=sampling, verifier=verifier,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert len(recorder.steps) > 4 and set(recorder.reads) == {1}
    phases = Counter(entry[0].split()[0] for entry in recorder.steps[2])
    drafted = set() if tree == "root only" else {"StaticDrafter._fill", "StaticDrafter._keep_path"}
    assert phases.keys() == {"StaticPass.logits", "_OneSize._decide", "_OneSize._keep", *drafted}
    for step in recorder.steps[3:-1]:  # the last one commits nothing
        assert step == recorder.steps[2]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda tensor: tensor.sum().item(), "reads back"),
        (lambda tensor: tensor.add_(torch.ones(len(tensor)).to(tensor.device)), "takes a tensor"),
    ],
    ids=["a number read", "numbers sent"],
)
def test_what_no_graph_can_capture_is_found(fault, message, recorded, monkeypatch):
    invert = judging.invert
    monkeypatch.setattr(judging, "invert", lambda sums, uniforms: (fault(sums[:, 0]), invert(sums, uniforms))[1])
    with pytest.raises(AssertionError, match=message):
        recorded((1,), (2,), tree=TREES["ragged"], sampling=SamplingConfig(0.8), verifier="topk")


def test_a_buffer_that_moves_is_found(recorded, monkeypatch):
    take = judging._OneSize.take

    def moving(self, draft):
        self.uniforms = self.uniforms.clone()
        kept.append(self.uniforms)
        take(self, draft)

    kept: list = []
    monkeypatch.setattr(judging._OneSize, "take", moving)
    steps = recorded((1,), (2,), tree=TREES["ragged"], sampling=SamplingConfig(0.8)).steps
    assert steps[3] != steps[2]


def simulated(work):
    """A CUDA graph of the pretend device: what was done is done again, with the same tensors and the same numbers."""
    done, replays = [], itertools.count()

    class Writing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
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
    "SpecExec": (SpecExecTree(max_size=13, max_depth=5, beam=3, branch=5), SamplingConfig()),
    "sampled": (policy_of(TREES["ragged"]), SamplingConfig(0.8)),
    "alone": (policy_of(TokenTree(np.array([-1]))), SamplingConfig()),
}


@pytest.mark.sample(1, cover=False)
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
    assert captures[0] >= {"static": 6, "SpecExec": 2, "sampled": 6, "alone": 3}[case]


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
