"""Acceptance by rank equals what the verifiers do, by enumeration of every draw on tiny vocabularies."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from sequoia_core.decoding.rank_acceptance import (
    OPTIMA,
    accepted_ranks,
    average_rank_acceptance,
    best_of_distinct,
    grouped,
    rank_acceptance_of_drawn,
    rank_acceptance_with_replacement,
)
from sequoia_core.decoding.sampling import residual, sample_without_replacement
from sequoia_core.decoding.verifiers import VERIFIERS, sequoia_rule
from sequoia_core.native import sampling_ops
from tests.core.decoding.test_verifiers import DRAFT_SAMPLINGS, rows

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


def pairs(kind, random):
    """Yield random rows P and Q of 1 to 12 tokens, and at last of many, three of one size at a time."""
    for size in [*random.integers(1, 13, size=60).tolist(), 5_000]:
        target, draft = (random.dirichlet([random.choice([0.05, 0.3, 1.0, 5.0])] * size, 3) for _ in range(2))
        some, others = random.random((2, 3, size)) < 0.5
        if kind == "zeros":
            target, draft = target * some, draft * others
        if kind == "disjoint":
            target, draft = target * some, draft * ~some
        if kind in ("equal", "nearly equal"):
            draft = target * (1.0 if kind == "equal" else np.exp(random.normal(0.0, 1e-4, target.shape)))
        for row, place in ((target, 0), (draft, -1)):
            row[row.sum(1) == 0, place] = 1.0
        kept = torch.float32 if random.random() < 0.5 else torch.float64
        yield tuple(torch.tensor(row / row.sum(1, keepdims=True)).to(kept) for row in (target, draft))


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", ["plain", "zeros", "disjoint", "equal", "nearly equal"])
@pytest.mark.parametrize("name", ["sequoia", "specinfer"])
def test_three_numbers_a_row_accept_what_whole_rows_do_by_the_rule(name, kind):
    """All tokens are drawn in half of the cases, so that Q is exhausted where it has zeros."""
    random = np.random.default_rng(11)
    for number, (target, draft) in enumerate(pairs(kind, random)):
        size = target.shape[1]
        width = min(24, size if number % 2 else int(random.integers(1, size + 1)))
        children = sample_without_replacement(draft.float(), width, torch.Generator().manual_seed(number))
        if name == "sequoia":
            found = rank_acceptance_of_drawn(target, draft, children)
            wanted = [by_the_rule(*rows, drawn) for *rows, drawn in zip(target, draft, children, strict=True)]
        else:
            found = rank_acceptance_with_replacement(target, draft, width)
            wanted = [by_shared_mass(*rows, width) for rows in zip(target, draft, strict=True)]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


def by_the_rule(target, draft, children):
    """Return the chance that each of the children is the accepted one, float64 [W]."""
    reach, by_rank = 1.0, []
    for offer in sequoia_rule(target.double().numpy(), draft.double().numpy(), children.tolist()):
        by_rank.append(reach * offer.accept_prob)
        reach -= by_rank[-1]
    return by_rank


def by_shared_mass(target, draft, width):
    """The same on the average of all independent draws: what residual and draft share, time after time."""
    left, reach, by_rank = target.double().numpy(), 1.0, []
    for _ in range(width):
        by_rank.append(reach * min(1.0, np.minimum(left, draft.double().numpy()).sum()))
        reach -= by_rank[-1]
        left = residual(left, draft.double().numpy())
    return by_rank


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
    first = whole[1] * (whole[1] > whole[1].median())
    some = torch.stack(grouped(*whole, first))
    assert some.shape == (3, 385) and some.sum(1).tolist() == pytest.approx(
        torch.stack([*whole, first]).sum(1).tolist()
    )


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


@pytest.mark.parametrize("replacement", [False, True])
def test_equal_numbers_draw_equal_ranks_with_and_without_compiled_code(replacement, monkeypatch):
    """Of many random rows, some of which run out of mass, and whose first child comes from rows of its own."""
    if sampling_ops.compiled() is None:
        pytest.skip("there is nothing to compare with")
    logits = torch.randn(3, 600, 8, generator=torch.Generator().manual_seed(1)) * 2
    target, draft = logits[0].softmax(1), (logits[0] + logits[1]).softmax(1)
    draft[::3, 3:] = 0.0
    draft /= draft.sum(1, keepdim=True)
    tokens = torch.multinomial(target, 1, generator=torch.Generator().manual_seed(2))[:, 0]
    for first in (None, torch.where(draft >= draft.topk(2).values[:, -1:], draft, 0.0)):
        first = None if first is None else first / first.sum(1, keepdim=True)
        children = sample_without_replacement(draft, 6, torch.Generator().manual_seed(4), first)

        def found(first=first, children=children):
            drawn = accepted_ranks(
                target, draft, tokens, 6, torch.Generator().manual_seed(3), first, replacement=replacement
            )
            return drawn, rank_acceptance_of_drawn(target, draft, children, first)

        compiled = found()
        with monkeypatch.context() as patch:
            patch.setattr(sampling_ops, "compiled", lambda: None)
            plain = found()
        assert torch.equal(compiled[0], plain[0]) and compiled[0].unique().tolist() == list(range(7))
        torch.testing.assert_close(compiled[1], plain[1], rtol=1e-9, atol=1e-12)
