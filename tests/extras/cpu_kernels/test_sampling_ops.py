"""Compiled row functions compared with their Python counterparts, and the distributions they must follow."""

import math

import numpy as np
import pytest
import torch

from sequoia_core import TokenTree
from sequoia_core.decoding import sampling
from sequoia_core.decoding.rank_acceptance import accepted_ranks, rank_acceptance_given_draws
from sequoia_core.decoding.row_operations import row_operations
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.decoding.walk import WALKS, ScoredTree, walk_tree
from sequoia_extras.cpu_kernels import sampling_ops as rows
from sequoia_extras.cpu_kernels.judging import CompiledJudge
from sequoia_extras.cpu_kernels.walker import Walker
from tests.conftest import plain_rows
from tests.core.decoding.test_loop import TREES, run

pytestmark = pytest.mark.skipif(rows.sampling_kernels() is None, reason="sampling_ops.c cannot be built here")
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 130, 4096]


def logits(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * 4


def walker_over(*arrays) -> Walker:
    found = Walker()
    found.set_tree(*(np.array(array, dtype=np.int64) for array in arrays))
    return found


def best(values: torch.Tensor) -> list[int] | None:
    """Return the index of each row's maximum by a greedy walk over a lone root; None if a row has none."""
    lone = walker_over(*[[0]] * 3)
    found = [lone.follow_greedily(row[None], torch.zeros(1, dtype=torch.int64)) for row in values]
    return None if None in found else [token for _, token, _ in found]


@pytest.fixture
def twins():
    """Return a function that calls another with and without compiled code."""

    def both(function, *args):
        compiled = function(*args)
        with plain_rows():
            return compiled, function(*args)

    return both


def of(name):
    """Return a function that calls a row operation by name."""
    return lambda *given: getattr(row_operations(), name)(*given)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0, 3.0])
def test_softmax(size, temperature, twins):
    for count in (1, 5):
        compiled, plain = twins(sampling.probabilities, logits(count, size), SamplingConfig(temperature))
        torch.testing.assert_close(compiled, plain, rtol=1e-6 / temperature * 5, atol=1e-30)  # of float32 logits / T


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 20, 66])
def test_non_finite_rows_are_detected(bad, place):
    row = logits(2, 67)
    row[1, place] = bad
    assert not torch.isfinite(rows.softmax_rows(row, 1.0)).any()
    assert best(row) is None
    assert rows.distribution(row[1], 1.0) is None and rows.distribution(row[0], 1.0) is not None
    asked = np.array([0, 1]), np.array([0, 1, 2])
    assert rows.token_probabilities(row, 1.0, *asked, torch.tensor([0, 0])) is None
    assert rows.softmax_rows(torch.full((1, 5), -torch.inf), 1.0).isnan().all()
    tokens = torch.zeros(1, dtype=torch.int64)
    uniforms = torch.zeros(1, dtype=torch.float64)
    assert walker_over(*[[0]] * 3).walk_sampled("sequoia", row[1:], 1.0, tokens, row.softmax(-1), uniforms) is None


@pytest.mark.parametrize("size", SIZES)
def test_largest_matches_python(size, twins):
    values = logits(6, size)
    assert best(values) == sampling.most_likely(values, "target").tolist()
    for k in {1, min(3, size), size}:
        compiled, plain = twins(sampling.take_most_likely, values, k, None)
        assert compiled.tolist() == plain.tolist()


def test_ties_are_ordered_by_index():
    values = torch.zeros(1, 200)
    values[0, [7, 130, 131]] = 1.0
    assert rows.largest(values, 5).tolist() == [[7, 130, 131, 0, 1]]
    assert best(values) == [7]
    assert rows.cut(values, 1.0, 2).nonzero()[:, 1].tolist() == [7, 130, 131]


def test_draws_beyond_the_mass_are_uniform():
    probs = torch.zeros(60_000, 70)
    count = 60_000
    probs[:, 1] = 1.0
    uniforms = torch.rand(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    drawn = rows.draw_tokens(probs, uniforms).numpy()
    assert (drawn[:, 0] == 1).all()
    wanted = np.full(70, count / 69)
    wanted[1] = 0
    assert (np.abs(np.bincount(drawn[:, 1], minlength=70) - wanted) <= 5.5 * np.sqrt(wanted)).all()


def test_walker_uses_the_current_trees_rows():
    walker = Walker()
    firsts, counts = np.array([[1, 0], [1, 0]])
    masses = []
    draft = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    nothing = torch.zeros(2, dtype=torch.int64)
    for place in (0, 1):
        walker.set_tree(firsts, counts, np.array([place, -1]))
        _, _, (trial,) = walker.walk_sampled("sequoia", torch.zeros(2, 2), 1.0, nothing, draft, nothing.double())
        masses.append(trial[3])
    assert masses == [0.5, 0.25]


@pytest.mark.parametrize("replace", [False, True])
def test_first_draw_removes_its_token_without_replacement(replace):
    probs = torch.tensor([[0.5, 0.25, 0.25]])
    first = torch.tensor([[1.0, 0.0, 0.0]])
    uniforms = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    assert rows.draw_tokens(probs, uniforms, first=first, replace=replace).tolist() == [[0, 0 if replace else 1]]


def test_extreme_uniforms_stay_inside_the_mass():
    probs = torch.tensor([[0.0, 0.2, 0.0, 0.8, 0.0]])
    for uniform in (0.0, 0.2 - 1e-12, 0.2 + 1e-7, 1 - 1e-16, 1.0):
        assert rows.draw_tokens(probs, torch.tensor([[uniform]], dtype=torch.float64)).item() in (1, 3)
        assert rows.invert(probs[0].double().numpy(), uniform) in (1, 3)
    long = np.zeros(300)
    long[[3, 70]] = 0.5  # blocks with and without mass
    assert [rows.invert(long, uniform) for uniform in (0.0, 0.49, 0.51, 1 - 1e-16, 1.0)] == [3, 3, 70, 70, 70]


@pytest.mark.parametrize("size", SIZES)
def test_float64_rows_match_python(size, twins):
    target, draft = (row_operations().to_float64(logits(1, size, seed).softmax(-1)[0]) for seed in (1, 2))
    assert target.sum() == pytest.approx(1.0, abs=1e-14)

    def struck():
        row = draft.copy()
        return np.append(row, row_operations().remove_token(row, size // 2))

    for function, *given in (
        (of("to_float64"), logits(1, size, 1).softmax(-1)[0]),
        (of("residual"), target, draft),
        (of("residual"), target, target),
        (struck,),
    ):
        np.testing.assert_allclose(*twins(function, *given), rtol=1e-12, atol=1e-18)
    for uniform in np.random.default_rng(0).random(300):
        compiled, plain = twins(of("invert"), target, float(uniform))
        assert compiled == plain


TREE = TokenTree(np.array([-1, 0, 0, 0, 1, 1, 2, 4, 4, 4, 7]))


def walker(*looked_up: np.ndarray) -> Walker:
    firsts = [TREE.children(node).start for node in range(TREE.size)]
    # every node has a draft row of its own
    return walker_over(firsts, TREE.child_counts, np.arange(TREE.size), *looked_up)


@pytest.mark.parametrize("size", [4, 5, 40, 300])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize(("name", "looked_up"), [*((name, 0) for name in rows.RULES), ("sequoia", 1), ("sequoia", 2)])
def test_walks_match_the_python_rules(name, looked_up, size, temperature):
    """Compare every decision, also with exhausted draft rows and looked-up children."""
    known = {"looked_up": np.minimum(TREE.child_counts, looked_up)} if looked_up else {}
    walks = walker(*known.values())
    config = SamplingConfig(temperature)
    depths = set()
    bonus = set()
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        target = torch.randn(TREE.size, size, generator=generator) * 2
        draft = (target + torch.randn(target.shape, generator=generator) * (seed % 3)).softmax(-1)
        if seed % 4 == 0:
            draft = torch.zeros_like(draft).scatter(1, draft.topk(2).indices, 0.5)
        if seed % 5 == 0:
            target[:, 0] = -torch.inf
        tokens = torch.zeros(TREE.size, dtype=torch.int64)
        for node in range(TREE.size):
            children = TREE.children(node)
            drawn = VERIFIERS[name].draft_sampling(draft[node : node + 1], len(children), generator)
            tokens[children.start : children.stop] = drawn[0]
        if seed % 7 == 0:
            tokens[1::2] = size - 1  # tokens without draft mass, which only rounding could draw
        uniforms = torch.rand(TREE.size, dtype=torch.float64, generator=generator)
        if seed % 5 == 0:
            uniforms[::2] = 0.0
        path, token, trials = walks.walk_sampled(name, target, temperature, tokens, draft, uniforms)
        scored = ScoredTree(
            TREE,
            tokens.tolist(),
            [sampling.distribution(row, config, "target") for row in target].__getitem__,
            [row_operations().to_float64(row) for row in draft].__getitem__,
            **known,
        )
        rule = VERIFIERS[name].rule
        wanted = WALKS.get(rule, walk_tree)(scored, rule=rule, uniform=iter(uniforms.tolist()).__next__)
        assert (tuple(path), token) == (wanted.path, wanted.bonus_token)
        if name == "traversal":  # shares are summed in another order
            np.testing.assert_allclose(trials, wanted.trials, rtol=1e-9, atol=1e-15)
        else:
            assert trials == [tuple(trial) for trial in wanted.trials]
        depths.add(len(path)), bonus.add(token)
    assert len(depths) > 2 and len(bonus) > 1


@pytest.mark.parametrize("size", [2, 8, 64, 130, 4096])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_accepted_ranks_match_python(size, cut, replace, twins):
    """Include rows with too little mass for all ranks, and separate rows for first children."""
    count = max(40, 4000 // size)
    width = min(size, 32)
    shared = logits(count, size) / 2
    other = logits(count, size, seed=1) / 2
    target = shared.softmax(1)
    draft = (shared + other).softmax(1)
    draft[::2, size // 2 :] = 0.0
    draft /= draft.sum(1, keepdim=True)
    first = torch.where(draft >= draft.topk(2).values[:, -1:], draft, 0.0) if cut else None
    first = first if first is None else first / first.sum(1, keepdim=True)
    tokens = torch.multinomial(target, 1, generator=torch.Generator().manual_seed(2))[:, 0]
    ranks = twins(
        lambda: accepted_ranks(
            target, draft, tokens, width, torch.Generator().manual_seed(3), first, replacement=replace
        )
    )
    assert torch.equal(*ranks) and (size == 2 or len(ranks[0].unique()) > 3)
    children = sampling.sample_without_replacement(draft, width, torch.Generator().manual_seed(4), first)
    torch.testing.assert_close(
        *twins(rank_acceptance_given_draws, target, draft, children, first), rtol=1e-9, atol=1e-12
    )


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "sequoia"), *((0.8, name) for name in VERIFIERS)])
def test_compiled_judge_matches_row_judge(temperature, verifier, tiny_target, tiny_draft, monkeypatch):
    """Equal seeds give equal steps with compiled walks and with the Python rules."""
    found = []
    for _ in range(2):
        steps = run(
            tiny_target,
            tiny_draft,
            TREES["ragged"],
            60,
            sampling=SamplingConfig(temperature),
            verifier=verifier,
            generator=torch.Generator().manual_seed(6),
        )
        trials = [np.round(s.trials, 9).tolist() for s in steps]
        found.append([(s.tokens, s.new_tokens, s.outcomes, s.draft_probs, s.target_probs) for s in steps] + trials)
        monkeypatch.setattr(CompiledJudge, "supports", lambda *args, **options: False)
    assert found[0] == found[1] and len({len(step.new_tokens) for step in steps}) > 1
