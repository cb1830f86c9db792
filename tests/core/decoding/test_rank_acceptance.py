"""Acceptance by rank equals what the verifiers do, by enumeration of every draw on tiny vocabularies."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from sequoia_core.decoding.rank_acceptance import (
    OPTIMA,
    average_rank_acceptance,
    group_similar_tokens,
    optimal_rank_acceptance_row,
    rank_acceptance_given_draws,
)
from sequoia_core.decoding.sampling import sample_without_replacement
from sequoia_core.decoding.verifiers import VERIFIERS, sequoia_rule
from tests.core.decoding.test_verifiers import DRAFT_SAMPLINGS, rows

pytestmark = pytest.mark.usefixtures("each_rows")  # with and without compiled row operations


def exact_rank_acceptance(name, target, draft, width):
    """Return a rule's acceptance by rank, by enumeration of all draws."""
    fills, rule = DRAFT_SAMPLINGS[name]
    by_rank = np.zeros(width)
    for children, weight in fills(draft, width).items():
        reach = weight
        if weight:
            for k, offer in enumerate(rule(target, draft, children)):
                by_rank[k] += reach * offer.accept_prob
                reach *= 1.0 - offer.accept_prob
    return by_rank


@pytest.mark.parametrize("name", ["specinfer", "topk"])
@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_rules_that_need_no_sampling_are_exact(name, target, draft):
    for width in range(1, len(target) + 1):
        if name == "topk" and len(set(draft.tolist())) < len(draft):
            continue  # torch orders equally likely tokens arbitrarily
        got = VERIFIERS[name].ranks(torch.tensor(target)[None], torch.tensor(draft)[None], width, None)[0].numpy()
        np.testing.assert_allclose(got, exact_rank_acceptance(name, target, draft, width), atol=1e-12)


def pairs(kind, random):
    """Yield random rows P and Q, three at a time, over 1 to 12 tokens and finally over many."""
    for size in [*random.integers(1, 13, size=60).tolist(), 5_000]:
        target, draft = (random.dirichlet([random.choice([0.05, 0.3, 1.0, 5.0])] * size, 3) for _ in range(2))
        some, others = random.random((2, 3, size)) < 0.5
        if kind == "zeros":
            target = target * some
            draft = draft * others
        if kind == "disjoint":
            target = target * some
            draft = draft * ~some
        if kind in ("equal", "nearly equal"):
            draft = target * (1.0 if kind == "equal" else np.exp(random.normal(0.0, 1e-4, target.shape)))
        for row, place in ((target, 0), (draft, -1)):
            row[row.sum(1) == 0, place] = 1.0
        kept = torch.float32 if random.random() < 0.5 else torch.float64
        yield tuple(torch.tensor(row / row.sum(1, keepdims=True)).to(kept) for row in (target, draft))


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", ["plain", "zeros", "disjoint", "equal", "nearly equal"])
def test_residuals_of_three_numbers_match_the_rule_on_whole_rows(kind):
    """Half of the cases draw all tokens, which exhausts a Q with zeros."""
    random = np.random.default_rng(11)
    for number, (target, draft) in enumerate(pairs(kind, random)):
        size = target.shape[1]
        width = min(24, size if number % 2 else int(random.integers(1, size + 1)))
        children = sample_without_replacement(draft.float(), width, torch.Generator().manual_seed(number))
        found = rank_acceptance_given_draws(target, draft, children)
        wanted = [acceptance_by_rule(*rows, drawn) for *rows, drawn in zip(target, draft, children, strict=True)]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


def acceptance_by_rule(target, draft, children):
    """Return the probability of accepting each child, float64 [W]."""
    reach = 1.0
    by_rank = []
    for offer in sequoia_rule(target.double().numpy(), draft.double().numpy(), children.tolist()):
        by_rank.append(reach * offer.accept_prob)
        reach -= by_rank[-1]
    return by_rank


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_grouped_rows_approximate_whole_rows(spread):
    random = np.random.default_rng(5)
    generator = torch.Generator()
    whole = torch.tensor(random.dirichlet([spread] * 3000, 2))
    short = torch.stack(group_similar_tokens(*whole))
    assert short.shape == (2, 257) and short.sum(1).tolist() == pytest.approx([1.0, 1.0])
    optimum, near = (optimal_rank_acceptance_row(*rows, 4).cumsum(0).numpy() for rows in (whole, short))
    assert np.all(near >= optimum - 1e-6) and near == pytest.approx(optimum, abs=0.003)
    averages = [
        average_rank_acceptance(*rows, 4, samples=300, generator=generator.manual_seed(1)).cumsum(0).numpy()
        for rows in (whole, short)
    ]
    assert averages[0] == pytest.approx(averages[1], abs=0.02) and np.all(averages[1] <= near + 1e-6)
    assert torch.equal(torch.stack(group_similar_tokens(*whole[:, :256])), whole[:, :256])
    first = whole[1] * (whole[1] > whole[1].median())
    some = torch.stack(group_similar_tokens(*whole, first))
    assert some.shape == (3, 385) and some.sum(1).tolist() == pytest.approx(
        torch.stack([*whole, first]).sum(1).tolist()
    )


@pytest.mark.parametrize("name", ["sequoia", "specinfer", "topk"])
@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_outcomes_given_the_token_match_the_rule(name, target, draft):
    """Drawing a token from P and its rank given the token gives the joint distribution of the rule."""
    if name == "topk" and len(set(draft.tolist())) < len(draft):
        return  # torch orders equally likely tokens arbitrarily
    fills, rule = DRAFT_SAMPLINGS[name]
    width = min(3, len(target))
    vocabulary = len(target)
    wanted = np.zeros((vocabulary, width + 1))
    for children, weight in fills(draft, width).items():
        reach = weight
        rest = target
        if not weight:
            continue
        for k, offer in enumerate(rule(target, draft, children)):
            wanted[children[k], k + 1] += reach * offer.accept_prob
            reach *= 1.0 - offer.accept_prob
            rest = offer.residual
        wanted[:, 0] += reach * rest
    count = 40_000
    generator = torch.Generator().manual_seed(0)
    tokens = torch.multinomial(torch.tensor(target), count, replacement=True, generator=generator)
    many = [torch.tensor(row).float().repeat(count, 1) for row in (target, draft)]
    ranks = VERIFIERS[name].outcomes(*many, tokens, width, generator)
    found = np.zeros_like(wanted)
    np.add.at(found, (tokens.numpy(), ranks.numpy()), 1.0)
    error = np.sqrt(wanted * (1 - wanted).clip(0) / count)
    assert np.all(np.abs(found / count - wanted) < 5.5 * error + 1e-6)  # fails by chance for about 1e-6 of row pairs


def optimal_transport(target, draft, width, *, replacement):
    """Return the best acceptance of any verifier by a linear program over couplings of drawn sets and target token."""
    sets: dict[tuple, float] = {}
    tokens = range(len(target))
    for drawn in product(tokens, repeat=width) if replacement else permutations(tokens, width):
        taken = [0.0 if replacement else draft[list(drawn[:place])].sum() for place in range(width)]
        weight = np.prod([draft[token] / (1.0 - before) for token, before in zip(drawn, taken, strict=True)])
        key = tuple(sorted(set(drawn)))
        sets[key] = sets.get(key, 0.0) + weight
    edges = [(children, token) for children in sets for token in children]
    rows = [[float(edge[0] == children) for edge in edges] for children in sets]
    rows += [[float(edge[1] == token) for edge in edges] for token in tokens]
    return -linprog(-np.ones(len(edges)), A_ub=np.array(rows), b_ub=[*sets.values(), *target]).fun


@pytest.mark.parametrize("name", list(OPTIMA))
def test_the_optimum_matches_the_linear_program_and_bounds_every_verifier(name):
    random = np.random.default_rng(7)
    verifier = {"optimum": "sequoia"}.get(name, "specinfer")
    for _ in range(30):
        spread = random.choice([0.3, 1.0, 3.0])
        size = int(random.integers(3, 7))
        target, draft = random.dirichlet([spread] * size, 2)
        found = OPTIMA[name](torch.tensor(target)[None], torch.tensor(draft)[None], 3)[0].numpy()
        reached = exact_rank_acceptance(verifier, target, draft, 3)
        for width in (1, 2, 3):
            best = optimal_transport(target, draft, width, replacement=verifier == "specinfer")
            assert found[:width].sum() == pytest.approx(best, abs=2e-6)
            assert reached[:width].sum() <= best + 1e-9


def test_the_optimum_handles_a_draft_row_that_runs_out_of_mass():
    """The first draw is certain and the second uniform over the others; independent draws all give the first token."""
    target = torch.tensor([[0.2, 0.4, 0.4]])
    draft = torch.tensor([[1.0, 0.0, 0.0]])
    assert OPTIMA["optimum"](target, draft, 3)[0].tolist() == pytest.approx([0.2, 0.8, 0.0], abs=2e-6)
    assert OPTIMA["optimum_with_replacement"](target, draft, 3)[0].tolist() == pytest.approx([0.2, 0.0, 0.0])
