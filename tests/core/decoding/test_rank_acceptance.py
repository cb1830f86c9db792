"""Acceptance by rank equals what the verifiers do, by enumeration of every draw on tiny vocabularies."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from sequoia_core.decoding.rank_acceptance import (
    OPTIMA,
    average_rank_acceptance,
    best_of_distinct,
    equal_parts,
    grouped,
    rank_acceptance,
)
from sequoia_core.decoding.verifiers import VERIFIERS, choose_verifier, choose_verifiers
from tests.core.decoding.test_verifiers import DRAFT_SAMPLINGS, next_token_law, rows

pytestmark = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


def exact_rank_acceptance(name, target, draft, width):
    """The law that each rule gives or estimates, by enumeration of all draws."""
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
def test_rules_without_draws_are_exact(name, target, draft):
    for width in range(1, len(target) + 1):
        if name == "topk" and len(set(draft.tolist())) < len(draft):
            continue  # among equally likely tokens torch's order is its own
        got = VERIFIERS[name].ranks(torch.tensor(target)[None], torch.tensor(draft)[None], width, None)[0].numpy()
        np.testing.assert_allclose(got, exact_rank_acceptance(name, target, draft, width), atol=1e-12)
        assert got.sum() == pytest.approx(next_token_law(target, draft, width, *DRAFT_SAMPLINGS[name])[1])


@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_sequoias_rule_is_unbiased(target, draft):
    """Over many draws its mean is the law, also where the draft's mass is used up before its children are drawn."""
    count, width = 20_000, len(target)
    found = rank_acceptance(
        torch.tensor(target).float().repeat(count, 1), torch.tensor(draft).float().repeat(count, 1), width,
        torch.Generator().manual_seed(0),
    ).numpy()  # fmt: skip
    exact = exact_rank_acceptance("sequoia", target, draft, width)
    error = np.maximum(found.std(axis=0), 1e-6) / np.sqrt(count)
    assert np.all(np.abs(found.mean(axis=0) - exact) < 5.5 * error + 1e-6)  # false alarm about 1e-7
    assert exact.sum() == pytest.approx(next_token_law(target, draft, width, *DRAFT_SAMPLINGS["sequoia"])[1])


@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_sequoias_average_is_that_of_all_draws(target, draft):
    width, generator = len(target), torch.Generator().manual_seed(0)
    found = average_rank_acceptance(
        torch.tensor(target), torch.tensor(draft), width, samples=20_000, generator=generator
    ).numpy()
    exact = exact_rank_acceptance("sequoia", target, draft, width)
    assert found[0] == pytest.approx(exact[0], abs=1e-9)
    assert found.cumsum() == pytest.approx(exact.cumsum(), abs=0.5 * 5.5 / np.sqrt(20_000))  # false alarm below 1e-6


def test_the_optimum_goes_on_for_more_children():
    random = np.random.default_rng(3)
    for _ in range(5):
        target, draft = random.dirichlet([0.5] * 6, 2)
        found = best_of_distinct(torch.tensor(target), torch.tensor(draft), 5).numpy().cumsum()
        assert found == pytest.approx([transported(target, draft, k, replacement=False) for k in range(1, 6)], abs=2e-6)


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_rows_of_groups_answer_as_the_whole_rows_do(spread):
    random, generator = np.random.default_rng(5), torch.Generator()
    whole = torch.tensor(random.dirichlet([spread] * 3000, 2))
    short = torch.stack(grouped(*whole))
    assert short.shape == (2, 257) and short.sum(1).tolist() == pytest.approx([1.0, 1.0])
    optimum, near = (best_of_distinct(*rows, 4).cumsum(0).numpy() for rows in (whole, short))
    assert np.all(near >= optimum - 1e-6) and near == pytest.approx(optimum, abs=0.003)
    averages = [
        average_rank_acceptance(*rows, 4, samples=300, generator=generator.manual_seed(1)).cumsum(0).numpy()
        for rows in (whole, short)
    ]
    assert averages[0] == pytest.approx(averages[1], abs=0.02) and np.all(averages[1] <= near + 1e-6)
    assert torch.equal(torch.stack(grouped(*whole[:, :256])), whole[:, :256]), "few tokens are left as they are"


def test_rows_with_all_mass_on_few_tokens_have_groups_too():
    certain = torch.zeros(2, 1000, dtype=torch.float64)
    certain[:, 7] = 1.0
    short = torch.stack(grouped(*certain))
    assert short.sum(1).tolist() == [1.0, 1.0] and float(average_rank_acceptance(*short, 2, samples=8).sum()) == 1.0


@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.01, 1.0, 8.0])
def test_groups_are_those_of_a_sort(noise):
    """Equal values, here a third of all, count in their order."""
    random = np.random.default_rng(6)
    values = np.exp(random.normal(0.0, noise, 5000)) * (random.random(5000) > 0.3)
    wanted = np.empty(5000, dtype=int)
    wanted[values.argsort(kind="stable")] = np.arange(5000) * 128 // 5000
    np.testing.assert_array_equal(equal_parts(values, 128), wanted)


def test_exhausted_drafts_leave_no_nan():
    target = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.2, 0.3, 0.5, 0.0]])
    draft = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    for name, verifier in VERIFIERS.items():
        found = verifier.ranks(target, draft, 4, torch.Generator().manual_seed(0))
        assert torch.isfinite(found).all() and (found >= 0).all() and (found.sum(1) <= 1 + 1e-6).all()
        if name != "specinfer":  # all tokens drafted: one is accepted
            torch.testing.assert_close(found.sum(1), torch.ones(2, dtype=torch.float64))


def test_equal_rows_accept_the_first_child_unless_it_is_only_the_likeliest():
    same = torch.tensor([[0.6, 0.3, 0.1]])
    for name, first in (("sequoia", 1.0), ("specinfer", 1.0), ("topk", 0.6)):
        found = VERIFIERS[name].ranks(same, same, 3, torch.Generator().manual_seed(0))[0]
        assert found[0] == pytest.approx(first, abs=1e-6)


def test_at_temperature_zero_there_is_one_rule():
    assert list(choose_verifiers(["sequoia", "topk"], greedy=True)) == ["greedy"]
    assert list(choose_verifiers(["sequoia", "topk"], greedy=False)) == ["sequoia", "topk"]
    one_hot, draft = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.3, 0.2]])
    assert choose_verifier("sequoia", greedy=True).ranks(one_hot, draft, 3, None).tolist() == [[0.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match="verifier: found 'magic'"):
        choose_verifiers(["magic"], greedy=True)
    with pytest.raises(ValueError, match="verifiers: found none"):
        choose_verifiers([], greedy=True)


def test_a_token_without_mass_is_accepted_where_the_target_wants_it():
    """Where a draw's race underflows, tokens without mass can come before the last of those with hardly any."""
    target = torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(300, 1)
    draft = torch.tensor([[1.0, 1e-45, 2e-45, 0.0]]).repeat(300, 1)
    found = rank_acceptance(target, draft, 4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.sum(1), torch.ones(300, dtype=torch.float64))


@pytest.mark.parametrize("name", ["sequoia", "specinfer", "topk"])
@pytest.mark.parametrize(("target", "draft"), list(rows()))
def test_outcomes_given_the_token_are_those_of_the_rule(name, target, draft):
    """Draw the token from P and the rank given it: together they are distributed as the rule's draws and walks are."""
    if name == "topk" and len(set(draft.tolist())) < len(draft):
        return  # among equally likely tokens torch's order is its own
    fills, rule = DRAFT_SAMPLINGS[name]
    width, vocabulary = min(3, len(target)), len(target)
    wanted = np.zeros((vocabulary, width + 1))
    for children, weight in fills(draft, width).items():
        reach, rest = weight, target
        if not weight:
            continue
        for k, offer in enumerate(rule(target, draft, children)):
            wanted[children[k], k + 1] += reach * offer.accept_prob
            reach *= 1.0 - offer.accept_prob
            rest = offer.residual
        wanted[:, 0] += reach * rest
    count, generator = 40_000, torch.Generator().manual_seed(0)
    tokens = torch.multinomial(torch.tensor(target), count, replacement=True, generator=generator)
    many = [torch.tensor(row).float().repeat(count, 1) for row in (target, draft)]
    ranks = VERIFIERS[name].outcomes(*many, tokens, width, generator)
    found = np.zeros_like(wanted)
    np.add.at(found, (tokens.numpy(), ranks.numpy()), 1.0)
    error = np.sqrt(wanted * (1 - wanted).clip(0) / count)
    assert np.all(np.abs(found / count - wanted) < 5.5 * error + 1e-6)  # false alarm about 1e-6 for each pair of rows


def transported(target, draft, width, *, replacement):
    """The most that any verifier accepts: a linear program over couplings of the drawn sets with the target's token."""
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
def test_the_optimum_is_that_of_the_linear_program_and_no_verifier_exceeds_it(name):
    random, verifier = np.random.default_rng(7), {"optimum": "sequoia"}.get(name, "specinfer")
    for _ in range(30):
        spread, size = random.choice([0.3, 1.0, 3.0]), int(random.integers(3, 7))
        target, draft = random.dirichlet([spread] * size, 2)
        found = OPTIMA[name](torch.tensor(target)[None], torch.tensor(draft)[None], 3)[0].numpy()
        reached = exact_rank_acceptance(verifier, target, draft, 3)
        for width in (1, 2, 3):
            best = transported(target, draft, width, replacement=verifier == "specinfer")
            assert found[:width].sum() == pytest.approx(best, abs=2e-6)
            assert reached[:width].sum() <= best + 1e-9


def test_the_optimum_knows_where_the_drafts_mass_ends():
    """The first token drawn is certain, the second evenly one of the others; independent draws all give the first."""
    target, draft = torch.tensor([[0.2, 0.4, 0.4]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert OPTIMA["optimum"](target, draft, 3)[0].tolist() == pytest.approx([0.2, 0.8, 0.0], abs=2e-6)
    assert OPTIMA["optimum_with_replacement"](target, draft, 3)[0].tolist() == pytest.approx([0.2, 0.0, 0.0])
