import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from sequoia_core.decoding.row_operations import row_operations
from sequoia_core.decoding.sampling import (
    SamplingConfig,
    check_probabilities,
    distribution,
    most_likely,
    probabilities,
    sample_with_replacement,
    sample_without_replacement,
    token_probabilities,
)

pytestmark = pytest.mark.usefixtures("each_rows")  # with and without compiled row operations

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
FALSE_ALARM = 1e-6  # significance level of the statistical tests, whose seeds are fixed


def logits(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * 4


def draw_law(probs: np.ndarray, k: int, first: np.ndarray | None = None) -> dict[tuple[int, ...], float]:
    """Return the law of k ordered draws without replacement, uniform over the rest once the mass is exhausted.

    The first token is drawn from `first` if that is given and has mass.
    """
    law = {}
    for tokens in itertools.permutations(range(len(probs)), k):
        p = 1.0
        left = probs.copy()
        for position, token in enumerate(tokens):
            if left.sum() <= 0:
                left = np.ones(len(probs))
                left[list(tokens[:position])] = 0.0
            row = first if position == 0 and first is not None and first.any() else left
            p *= row[token] / row.sum()
            left[token] = 0.0
        law[tokens] = p
    return law


FULL = [0.5, 0.3, 0.15, 0.05]
ROWS = {  # a row, and the row of the first child
    "full": (FULL, None),
    "one-hot": ([1.0, 0.0, 0.0, 0.0], None),
    "two": ([0.4, 0.0, 0.6, 0.0], None),
    "cut": (FULL, [0.0, 0.6, 0.4, 0.0]),
    "without a cut": (FULL, [0.0] * 4),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_draws_without_replacement_follow_the_sequential_law(name, k, device):
    probs, first = (None if row is None else np.array(row) for row in ROWS[name])
    law = draw_law(probs, k, first)
    count = 40_000
    generator = torch.Generator(device).manual_seed(k)
    many = [None if row is None else torch.tensor(row).float().to(device).repeat(count, 1) for row in (probs, first)]
    assert_follow(law, sample_without_replacement(many[0], k, generator, many[1]))


def assert_follow(law, drawn):
    seen = dict.fromkeys(law, 0)
    for tokens in map(tuple, drawn.tolist()):
        seen[tokens] += 1
    possible = [t for t in law if law[t] > 0]
    assert sum(seen[t] for t in possible) == len(drawn)
    if len(possible) > 1:
        expected = np.array([law[t] for t in possible])
        test = chisquare([seen[t] for t in possible], expected / expected.sum() * len(drawn))
        assert test.pvalue > FALSE_ALARM


def test_draws_with_replacement_are_independent():
    probs = np.array(FULL)
    first = np.array([0.0, 0.6, 0.4, 0.0])
    count = 100_000
    for own in (None, first):
        law = {(a, b): (probs if own is None else own)[a] * probs[b] for a, b in itertools.product(range(4), repeat=2)}
        many = [None if row is None else torch.tensor(row).float().repeat(count, 1) for row in (probs, own)]
        assert_follow(law, sample_with_replacement(many[0], 2, torch.Generator().manual_seed(7), many[1]))


@pytest.mark.slow
@pytest.mark.parametrize("draft_sampling", [sample_without_replacement, sample_with_replacement])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_draws_from_a_large_vocabulary_follow_their_probabilities(draft_sampling, device):
    probs = logits(1, 700).softmax(-1)
    count = 100_000
    rows = probs.to(device).repeat(count, 1)
    generator = torch.Generator(device).manual_seed(2)
    drawn = np.bincount(draft_sampling(rows, 1, generator)[:, 0].cpu(), minlength=700)
    wanted = probs[0].double().numpy() * count
    rare = wanted < 5
    found, wanted = (np.append(row[~rare], row[rare].sum()) for row in (drawn, wanted))
    assert chisquare(found, wanted / wanted.sum() * count).pvalue > FALSE_ALARM


def test_tiny_probabilities_do_not_tie():
    logits = torch.tensor([[0.0, -80.0, -81.0, -95.0]], dtype=torch.float16)
    probs = probabilities(logits, SamplingConfig(1.0))
    drawn = sample_without_replacement(probs.repeat(2000, 1), 3, torch.Generator().manual_seed(0))
    second = np.bincount(drawn[:, 1], minlength=4) / 2000
    assert (drawn[:, 0] == 0).all() and second[1] == pytest.approx(1 / (1 + np.exp(-1)), abs=0.06)


def test_tokens_that_underflow_to_zero_are_drawn_last_and_uniformly():
    logits = torch.tensor([[0.0, -200.0, -300.0, -torch.inf, -1.0]], dtype=torch.float16)
    probs = probabilities(logits, SamplingConfig(1.0)).repeat(30_000, 1)
    drawn = sample_without_replacement(probs, 5, torch.Generator().manual_seed(0))
    assert (drawn.sort(-1).values == torch.arange(5)).all()
    assert set(drawn[:, :2].unique().tolist()) == {0, 4}
    assert chisquare(np.bincount(drawn[:, 2], minlength=5)[[1, 2, 3]]).pvalue > FALSE_ALARM
    probs = torch.tensor([[1.0, 1e-45, 2e-45, 0.0]]).repeat(5000, 1)  # the race itself underflows
    drawn = sample_without_replacement(probs, 4, torch.Generator().manual_seed(0))
    assert (drawn.sort(-1).values == torch.arange(4)).all() and (drawn[:, 0] == 0).all()


def test_more_children_than_tokens_are_refused():
    with pytest.raises(ValueError, match="found 5"):
        sample_without_replacement(torch.full((1, 4), 0.25), 5)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (SamplingConfig(0.0), [0, 1, 0, 0]),
        (SamplingConfig(0.5), [0.01 / 0.345, 0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345]),
        (SamplingConfig(1.0, top_p=1e-9), [0, 1, 0, 0]),
        (SamplingConfig(1.0, top_p=0.8, top_k=3), [0, 2 / 3, 1 / 3, 0]),
    ],
    ids=str,
)
@pytest.mark.sample(4)
def test_temperature_top_p_and_top_k_warp_a_row(sampling, kept):
    row = torch.tensor([[0.1, 0.5, 0.25, 0.15]]).log()
    np.testing.assert_allclose(probabilities(row, sampling)[0], kept, atol=1e-6)


@pytest.mark.sample(16)
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 0.999, 0.999999, 1.0 - 1e-9])
def test_top_p_matches_sorting_the_whole_row(spread, top_p):
    """Low-precision logits often tie; tied tokens count in their order."""
    logits = (spread * torch.randn(4, 6000, generator=torch.Generator().manual_seed(2))).bfloat16().float()
    probs = probabilities(logits, SamplingConfig(1.0))
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    ahead = ordered.cumsum(-1, dtype=torch.float64) - ordered
    kept = torch.zeros_like(probs).scatter(-1, index, ordered.masked_fill(ahead >= top_p, 0.0))
    found = probabilities(logits, SamplingConfig(1.0, top_p=top_p))
    assert torch.equal(found > 0, kept > 0)
    torch.testing.assert_close(found, kept / kept.sum(-1, keepdim=True))


@pytest.mark.sample(12)
@pytest.mark.parametrize("size", [1, 2, 16, 65, 700])
@pytest.mark.parametrize("sampling", [SamplingConfig(0.7), SamplingConfig(0.7, top_p=0.9), SamplingConfig(0.0)])
def test_token_probabilities_and_distribution_match_the_softmax(size, sampling):
    values = logits(4, size)
    probs = probabilities(values.double(), sampling).double()
    tokens = torch.tensor([0, size - 1, size // 2, 0, size - 1])
    which = np.array([3, 1, 2])
    starts = np.array([0, 1, 4, 5])
    wanted = probs[[3, 1, 1, 1, 2], tokens].float()
    values[0] = torch.nan  # rows outside `which` are not read
    found = token_probabilities(values, sampling, which, starts, tokens, "target")
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=1e-30)
    row = distribution(values[2], sampling, "target")
    assert row.dtype == np.float64 and row.sum() == pytest.approx(1.0, abs=1e-14)
    np.testing.assert_allclose(row, probs[2].numpy(), rtol=2e-5, atol=1e-30)


@pytest.mark.sample(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [1e-2, 1e-6, 1e-37, 1e-45])
def test_a_tiny_temperature_approaches_the_argmax_without_nan(dtype, temperature):
    logits = torch.tensor([[100.0, 30_000.0, -torch.inf, 29_000.0], [1.0, 1.0, -1.0, -30_000.0]], dtype=dtype)
    probs = probabilities(logits, SamplingConfig(temperature))
    assert probs.dtype == torch.float32
    assert probs.tolist() == [[0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]


ASKED = (np.array([0, 1]), np.array([0, 1, 2]), torch.tensor([0, 0]))
READERS = {
    "most likely": lambda values, sampling: most_likely(values, "draft"),
    "probabilities": lambda values, sampling: check_probabilities(probabilities(values, sampling), "draft"),
    "distribution": lambda values, sampling: distribution(values[1], sampling, "draft"),
    "of tokens": lambda values, sampling: token_probabilities(values, sampling, *ASKED, "draft"),
}


@pytest.mark.sample(16)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("sampling", [SamplingConfig(1.0), SamplingConfig(0.7, top_p=0.9), SamplingConfig(1e-4)])
@pytest.mark.parametrize("reader", READERS)
def test_non_finite_logits_raise(reader, sampling, bad):
    values = logits(2, 20)
    READERS[reader](values, sampling)
    values[1, 5 if bad > 0 or bad != bad else slice(None)] = bad  # single -inf logits are allowed
    with pytest.raises(FloatingPointError, match="the draft model"):
        READERS[reader](values, sampling)


def test_residual_of_equal_rows_is_not_nan():
    row = np.array([0.25, 0.75])
    assert row_operations().residual(row, row).tolist() == row.tolist()
    assert row_operations().residual(np.array([1.0, 0.0]), np.array([0.5, 0.5])).tolist() == [1.0, 0.0]


def test_invert_inverts_the_cumulative_distribution():
    row = np.array([0.0, 0.25, 0.75, 0.0])
    assert [row_operations().invert(row, u) for u in (0.0, 0.2499, 0.25, 0.9999999)] == [1, 1, 2, 2]
    for total in (0.3, 0.5, 1.0, 1.0 + 2**-52, 1.25):  # the largest uniform stays within the mass
        assert row_operations().invert(row * total, 1.0 - 2**-53) == 2


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}]
)
def test_out_of_range_options_are_named(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SamplingConfig(**options)


@pytest.mark.parametrize(
    ("top_p", "top_k", "wanted"),
    [
        (0.75, 0, [2, 0, 1, 0]),  # reaching top_p exactly is enough
        (0.76, 0, [4, 1, 2, 0]),  # the first of equal tokens
        (1.0, 3, [4, 1, 2, 1]),  # all equal tokens stay
        (1.0, 4, [4, 1, 2, 1]),
        (0.6, 2, [1, 0, 0, 0]),  # applied after top-k
    ],
)
@pytest.mark.sample(10)
def test_cut_applies_top_k_then_top_p(top_p, top_k, wanted):
    row = torch.tensor([[0.5, 0.125, 0.25, 0.125]])
    found = row_operations().cut(row.clone(), top_p, top_k)
    torch.testing.assert_close(found, torch.tensor([wanted]) / sum(wanted))
