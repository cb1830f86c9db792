"""The compiled row functions against their twins in Python, and the laws they must follow."""

import math

import numpy as np
import pytest
import torch

from sequoia_core import TokenTree
from sequoia_core.decoding import sampling
from sequoia_core.decoding.rank_acceptance import accepted_ranks, rank_acceptance_of_drawn
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.decoding.walk import WALKS, ScoredTree, walk_tree
from sequoia_core.native import sampling_ops as rows
from sequoia_core.native.walker import Walker

pytestmark = pytest.mark.skipif(rows.compiled() is None, reason="sampling_ops.c cannot be built here")
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 130, 4096]


def logits(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * 4


def walker_over(*arrays) -> Walker:
    found = Walker()
    found.take(*(np.array(array, dtype=np.int64) for array in arrays))
    return found


def best(values: torch.Tensor) -> list[int] | None:
    """Place of each row's largest, as a greedy walk over a lone root finds it; None when a row has none."""
    lone = walker_over(*[[0]] * 3)
    found = [lone.greedily(row[None], torch.zeros(1, dtype=torch.int64)) for row in values]
    return None if None in found else [token for _, token, _ in found]


@pytest.fixture
def twins(monkeypatch):
    """Calls a function of `sampling` twice: with the compiled code and without it."""

    def both(function, *args):
        compiled = function(*args)
        with monkeypatch.context() as patch:
            patch.setattr(rows, "compiled", lambda: None)
            return compiled, function(*args)

    return both


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0, 3.0])
def test_softmax(size, temperature, twins):
    for count in (1, 5):
        compiled, plain = twins(sampling.probabilities, logits(count, size), SamplingConfig(temperature))
        torch.testing.assert_close(compiled, plain, rtol=1e-6 / temperature * 5, atol=1e-30)  # of float32 logits / T


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 20, 66])
def test_rows_that_are_not_finite_are_found(bad, place):
    row = logits(2, 67)
    row[1, place] = bad
    assert not torch.isfinite(rows.softmax_rows(row, 1.0)).any()
    assert best(row) is None
    assert rows.distribution(row[1], 1.0) is None and rows.distribution(row[0], 1.0) is not None
    asked = np.array([0, 1]), np.array([0, 1, 2])
    assert rows.token_probabilities(row, 1.0, *asked, torch.tensor([0, 0])) is None
    assert rows.softmax_rows(torch.full((1, 5), -torch.inf), 1.0).isnan().all()
    tokens, uniforms = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    assert walker_over(*[[0]] * 3).sampled("sequoia", row[1:], 1.0, tokens, row.softmax(-1), uniforms) is None


@pytest.mark.parametrize("size", SIZES)
def test_places_of_the_largest(size, twins):
    values = logits(6, size)
    assert best(values) == sampling.most_likely(values, "target").tolist()
    for k in {1, min(3, size), size}:
        compiled, plain = twins(sampling.take_most_likely, values, k, None)
        assert compiled.tolist() == plain.tolist()


def test_equal_entries_come_in_order():
    values = torch.zeros(1, 200)
    values[0, [7, 130, 131]] = 1.0
    assert rows.largest(values, 5).tolist() == [[7, 130, 131, 0, 1]]
    assert best(values) == [7]
    assert rows.cut(values, 1.0, 2).nonzero()[:, 1].tolist() == [7, 130, 131]


def test_draws_beyond_the_mass_are_uniform_over_the_rest_of_all_blocks():
    probs, count = torch.zeros(60_000, 70), 60_000
    probs[:, 1] = 1.0
    uniforms = torch.rand(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    drawn = rows.draw(probs, uniforms).numpy()
    assert (drawn[:, 0] == 1).all()
    wanted = np.full(70, count / 69)
    wanted[1] = 0
    assert (np.abs(np.bincount(drawn[:, 1], minlength=70) - wanted) <= 5.5 * np.sqrt(wanted)).all()


def test_a_walk_reads_the_rows_of_its_own_step():
    walker, (firsts, counts), masses = Walker(), np.array([[1, 0], [1, 0]]), []
    draft, nothing = torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.zeros(2, dtype=torch.int64)
    for place in (0, 1):
        walker.take(firsts, counts, np.array([place, -1]))
        _, _, (trial,) = walker.sampled("sequoia", torch.zeros(2, 2), 1.0, nothing, draft, nothing.double())
        masses.append(trial[3])
    assert masses == [0.5, 0.25]


@pytest.mark.parametrize("replace", [False, True])
def test_what_was_drawn_from_a_row_of_its_own_is_gone_unless_it_is_replaced(replace):
    probs, first = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[1.0, 0.0, 0.0]])
    uniforms = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    assert rows.draw(probs, uniforms, first=first, replace=replace).tolist() == [[0, 0 if replace else 1]]


def test_extreme_uniforms_stay_inside_the_mass():
    probs = torch.tensor([[0.0, 0.2, 0.0, 0.8, 0.0]])
    for uniform in (0.0, 0.2 - 1e-12, 0.2 + 1e-7, 1 - 1e-16, 1.0):
        assert rows.draw(probs, torch.tensor([[uniform]], dtype=torch.float64)).item() in (1, 3)
        assert rows.invert(probs[0].double().numpy(), uniform) in (1, 3)
    long = np.zeros(300)
    long[[3, 70]] = 0.5  # blocks with mass, one whose mass is passed, and blocks without any after it
    assert [rows.invert(long, uniform) for uniform in (0.0, 0.49, 0.51, 1 - 1e-16, 1.0)] == [3, 3, 70, 70, 70]


@pytest.mark.parametrize("size", SIZES)
def test_double_precision_rows(size, twins):
    target, draft = (sampling.to_float64(logits(1, size, seed).softmax(-1)[0]) for seed in (1, 2))
    assert target.sum() == pytest.approx(1.0, abs=1e-14)

    def struck():
        row = draft.copy()
        return np.append(row, sampling.remove_token(row, size // 2))

    for function, *given in (
        (sampling.to_float64, logits(1, size, 1).softmax(-1)[0]), (sampling.residual, target, draft),
        (sampling.residual, target, target), (struck,),
    ):  # fmt: skip
        np.testing.assert_allclose(*twins(function, *given), rtol=1e-12, atol=1e-18)
    for uniform in np.random.default_rng(0).random(300):
        compiled, plain = twins(sampling.sample_row, target, float(uniform))
        assert compiled == plain


TREE = TokenTree(np.array([-1, 0, 0, 0, 1, 1, 2, 4, 4, 4, 7]))


def walker(*looked_up: np.ndarray) -> Walker:
    firsts = [TREE.children(node).start for node in range(TREE.size)]
    # every node has a draft row of its own
    return walker_over(firsts, TREE.child_counts, np.arange(TREE.size), *looked_up)


@pytest.mark.parametrize("size", [4, 5, 40, 300])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize(("name", "looked_up"), [*((name, 0) for name in rows.RULES), ("sequoia", 1), ("sequoia", 2)])
def test_walks_are_those_of_the_rule(name, looked_up, size, temperature):
    """Decision by decision, rows in which the draft's mass is used up and looked-up children included."""
    known = {"looked_up": np.minimum(TREE.child_counts, looked_up)} if looked_up else {}
    walks, config, depths, bonus = walker(*known.values()), SamplingConfig(temperature), set(), set()
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        target = torch.randn(TREE.size, size, generator=generator) * 2
        draft = (target + torch.randn(target.shape, generator=generator) * (seed % 3)).softmax(-1)
        if seed % 4 == 0:
            draft = torch.zeros_like(draft).scatter(1, draft.topk(2).indices, 0.5)  # fewer tokens than children
        if seed % 5 == 0:
            target[:, 0] = -torch.inf  # a token that the target forbids
        tokens = torch.zeros(TREE.size, dtype=torch.int64)
        for node in range(TREE.size):
            children = TREE.children(node)
            drawn = VERIFIERS[name].draft_sampling(draft[node : node + 1], len(children), generator)
            tokens[children.start : children.stop] = drawn[0]
        if seed % 7 == 0:
            tokens[1::2] = size - 1  # children that the draft would not have drawn, as only rounding could
        uniforms = torch.rand(TREE.size, dtype=torch.float64, generator=generator)
        if seed % 5 == 0:
            uniforms[::2] = 0.0
        path, token, trials = walks.sampled(name, target, temperature, tokens, draft, uniforms)
        scored = ScoredTree(
            TREE, tokens.tolist(), [sampling.distribution(row, config, "target") for row in target].__getitem__,
            [sampling.to_float64(row) for row in draft].__getitem__, **known,
        )  # fmt: skip
        rule = VERIFIERS[name].rule
        wanted = WALKS.get(rule, walk_tree)(scored, rule=rule, uniform=iter(uniforms.tolist()).__next__)
        assert (tuple(path), token) == (wanted.path, wanted.bonus_token)
        if name == "traversal":  # the share that is left is a sum, added up in another order
            np.testing.assert_allclose(trials, wanted.trials, rtol=1e-9, atol=1e-15)
        else:
            assert trials == [tuple(trial) for trial in wanted.trials]
        depths.add(len(path)), bonus.add(token)
    assert len(depths) > 2 and len(bonus) > 1


@pytest.mark.parametrize("size", [2, 6, 64, 130, 4096])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_ranks_along_a_text(size, cut, replace, twins):
    """Also of rows whose mass ends before the ranks do, and of first children from a row of their own."""
    shared, width = 3 * logits(40, size), min(size, 32)
    target, draft = shared.softmax(1), (shared + logits(40, size, seed=1)).softmax(1)
    draft[::2, size // 2 :] = 0.0
    draft /= draft.sum(1, keepdim=True)
    first = torch.where(draft >= draft.topk(min(size, 3)).values[:, -1:], draft, 0.0) if cut else None
    tokens = torch.multinomial(target, 1, generator=torch.Generator().manual_seed(2))[:, 0]
    ranks = twins(
        lambda: accepted_ranks(
            target, draft, tokens, width, torch.Generator().manual_seed(3), first, replacement=replace
        )
    )
    assert torch.equal(*ranks) and (size == 2 or len(ranks[0].unique()) > 3)
    children = sampling.sample_without_replacement(draft, width, torch.Generator().manual_seed(4), first)
    torch.testing.assert_close(*twins(rank_acceptance_of_drawn, target, draft, children, first), rtol=1e-9, atol=1e-12)
