"""Acceptance by three numbers a row equals walking whole rows, as the rules do (the plain reference below)."""

import numpy as np
import pytest
import torch

from sequoia_core.decoding.rank_acceptance import rank_acceptance_of_drawn, rank_acceptance_with_replacement
from sequoia_core.decoding.residuals import Residuals, remaining_masses
from sequoia_core.decoding.sampling import sample_without_replacement
from sequoia_core.native import sampling_ops

pytestmark = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


def residual_rows(target, draft):
    rest = (target - draft).clamp_min(0.0)
    total = rest.sum(1, keepdim=True)
    return torch.where(total > 0, rest / total.clamp_min(1e-300), target)


def by_rows(target, draft, children):
    """The plain reference without replacement: a residual row and a remaining row after every rejection."""
    left, mass = target.double(), draft.double()
    reached, columns = torch.ones(len(left), 1, dtype=torch.float64), []
    for k in range(children.shape[1]):
        wanted, offered = (rows.gather(1, children[:, k : k + 1]) for rows in (left, mass))
        accept = torch.where(offered > 0, (wanted / offered.clamp_min(1e-300)).clamp_max(1.0), (wanted > 0).double())
        columns.append(reached * accept)
        reached = reached * (1.0 - accept)
        left, mass = residual_rows(left, mass), mass.scatter(1, children[:, k : k + 1], 0.0)
        total = mass.sum(1, keepdim=True)
        mass = torch.where(total > 0, mass, 1.0).scatter(1, children[:, : k + 1], 0.0)
        mass = mass / torch.where(total > 0, total, max(1, mass.shape[1] - k - 1))
    return torch.cat(columns, 1)


def by_rows_with_replacement(target, draft, width):
    left, mass = target.double(), draft.double()
    reached, columns = torch.ones(len(left), 1, dtype=torch.float64), []
    for _ in range(width):
        accept = torch.minimum(left, mass).sum(1, keepdim=True).clamp_max(1.0)
        columns.append(reached * accept)
        reached = reached * (1.0 - accept)
        left = residual_rows(left, mass)
    return torch.cat(columns, 1)


def pairs(kind, random, count=200):
    """Random rows P and Q of 1 to 12 tokens, float64 or float32, five of one size at a time."""
    for _ in range(count):
        size = int(random.integers(1, 13))
        target, draft = (random.dirichlet([random.choice([0.05, 0.3, 1.0, 5.0])] * size, 5) for _ in range(2))
        some, others = random.random((2, 5, size)) < 0.5
        if kind in ("zeros in P", "zeros in both"):
            target *= some
        if kind in ("zeros in Q", "zeros in both"):
            draft *= others
        if kind == "disjoint":
            target, draft = target * some, draft * ~some
        if kind in ("equal", "nearly equal"):
            draft = target * (1.0 if kind == "equal" else np.exp(random.normal(0.0, 1e-4, target.shape)))
        for row, place in ((target, 0), (draft, -1)):
            row[row.sum(1) == 0, place] = 1.0
        kept = torch.float32 if random.random() < 0.5 else torch.float64
        yield tuple(torch.tensor(row / row.sum(1, keepdims=True)).to(kept) for row in (target, draft))


@pytest.mark.parametrize(
    "kind", ["plain", "zeros in P", "zeros in Q", "zeros in both", "disjoint", "equal", "nearly equal"]
)
def test_numbers_of_a_row_accept_what_whole_rows_do(kind):
    """All tokens are drawn in half of the cases, so that Q is exhausted where it has zeros."""
    random = np.random.default_rng(11)
    for number, (target, draft) in enumerate(pairs(kind, random)):
        size = target.shape[1]
        width = size if number % 2 else int(random.integers(1, size + 1))
        children = sample_without_replacement(draft.float(), width, torch.Generator().manual_seed(number))
        found = rank_acceptance_of_drawn(target, draft, children)
        np.testing.assert_allclose(found, by_rows(target, draft, children), rtol=0, atol=1e-12)
        found = rank_acceptance_with_replacement(target, draft, width)
        np.testing.assert_allclose(found, by_rows_with_replacement(target, draft, width), rtol=0, atol=1e-12)


@pytest.mark.parametrize("noise", [0.05, 1.0, 6.0])
def test_rows_of_many_tokens_accept_what_whole_rows_do(noise):
    random = np.random.default_rng(12)
    logits = random.normal(0.0, 4.0, (6, 20_000))
    rows = [
        torch.tensor(values).float().softmax(1) for values in (logits, logits + random.normal(0, noise, logits.shape))
    ]
    children = sample_without_replacement(rows[1], 24, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(rank_acceptance_of_drawn(*rows, children), by_rows(*rows, children), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        rank_acceptance_with_replacement(*rows, 24), by_rows_with_replacement(*rows, 24), rtol=0, atol=1e-12
    )


def test_what_a_peaked_row_has_left_is_added_up():
    draft = torch.tensor([[1.0, 1e-12, 3e-20, 1e-20]])
    masses = remaining_masses(draft, torch.tensor([[0, 1, 2]]))
    assert masses.tolist()[0] == pytest.approx([1.0, 1e-12 + 4e-20, 4e-20], rel=1e-6)


def test_rows_that_are_done_stay_and_take_no_time():
    rows = torch.rand(5, 3000, generator=torch.Generator().manual_seed(1))
    residuals = Residuals(rows, rows.flip(1))
    one, among = torch.ones(5, 1, dtype=torch.float64), torch.tensor([[True], [False], [True], [True], [True]])
    assert (residuals.reject(one, 0, among) > 0).flatten().tolist() == among.flatten().tolist()
    assert residuals.scale.flatten().tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]
    if sampling_ops.compiled() is not None:
        sums = sampling_ops.Surplus(rows, rows.flip(1))
        sums.sums(one, torch.where(among, 0.0, torch.inf).double())
        assert sums.counts[1] == 0 and 0 < sums.counts[0] <= 3000
