import threading

import numpy as np
import pytest
import torch

from sequoia_core.measurement import measure_acceptance, rank_acceptance, repeated_share
from sequoia_core.sampling import SamplingConfig
from tests.conftest import tiny_llama

from .test_sampling import draw_law
from .test_verification import FILLS, next_token_law

PROMPTS = [[1, 2, 3], [9], [4, 8, 15, 16, 23, 42]]


def exact_rank_acceptance(target, draft, width):
    """The law that `rank_acceptance` estimates, by enumeration of all draws."""
    by_rank = np.zeros(width)
    for children, weight in draw_law(draft, width).items():
        reach = weight
        if weight:
            for k, offer in enumerate(FILLS["sequoia"][1](target, draft, children)):
                by_rank[k] += reach * offer.accept_prob
                reach *= 1.0 - offer.accept_prob
    return by_rank


@pytest.mark.parametrize("seed", range(3))
def test_rank_acceptance_is_unbiased(seed):
    generator = np.random.default_rng(seed)
    target, draft = generator.dirichlet(np.ones(4)), generator.dirichlet(np.ones(4))
    count = 20_000
    rows = rank_acceptance(
        torch.tensor(target).float().repeat(count, 1), torch.tensor(draft).float().repeat(count, 1), 3,
        torch.Generator().manual_seed(seed),
    ).numpy()  # fmt: skip
    exact = exact_rank_acceptance(target, draft, 3)
    error = np.maximum(rows.std(axis=0), 1e-6) / np.sqrt(count)
    assert np.all(np.abs(rows.mean(axis=0) - exact) < 5.5 * error + 1e-6)  # false alarm about 1e-7
    accepted = next_token_law(target, draft, 3, *FILLS["sequoia"])[1]
    assert exact.sum() == pytest.approx(accepted)


def test_rank_acceptance_survives_exhausted_drafts():
    target = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.2, 0.3, 0.5, 0.0]])
    draft = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    rows = rank_acceptance(target, draft, 4, torch.Generator().manual_seed(0))
    assert torch.isfinite(rows).all()
    torch.testing.assert_close(rows.sum(1), torch.ones(2, dtype=torch.float64))  # all tokens drafted: one is accepted


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_measured_vector_has_the_shape_and_sums_it_claims(temperature, tiny_target, tiny_draft):
    told = []
    vector = measure_acceptance(
        PROMPTS, target=tiny_target, draft=tiny_draft, sampling=SamplingConfig(temperature), width=6, max_new_tokens=20,
        progress=lambda fraction, message: told.append(fraction),
    )  # fmt: skip
    assert len(vector.probs) == 6 and vector.trials == 60 and vector.prompt_sums.shape == (3, 6)
    np.testing.assert_allclose(vector.prompt_sums.sum(0) / 60, vector.probs)
    assert told[-1] == pytest.approx(1.0) and vector.meta["temperature"] == temperature
    low, high = vector.interval()
    assert np.all(low <= vector.probs + 1e-12) and np.all(vector.probs <= high + 1e-12)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_equal_to_the_target_accepts_the_first_child(temperature, tiny_target):
    vector = measure_acceptance(
        PROMPTS,
        target=tiny_target,
        draft=tiny_llama(1),
        sampling=SamplingConfig(temperature),
        width=3,
        max_new_tokens=15,
    )
    assert vector.probs[0] == pytest.approx(1.0, abs=1e-4)


def test_cancel_keeps_the_prompts_that_are_complete(tiny_target, tiny_draft):
    stop = threading.Event()

    def stop_in_the_second(fraction, message):
        if fraction > 0.5:
            stop.set()

    options = {"target": tiny_target, "draft": tiny_draft, "width": 4, "max_new_tokens": 10, "cancel": stop}
    assert measure_acceptance(PROMPTS, progress=stop_in_the_second, **options).trials == 10
    with pytest.raises(ValueError, match="cancelled"):
        measure_acceptance(PROMPTS, **options)


def test_bad_arguments_are_named(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="prompts"):
        measure_acceptance([], target=tiny_target, draft=tiny_draft)
    with pytest.raises(ValueError, match="width: found 65"):
        measure_acceptance(PROMPTS, target=tiny_target, draft=tiny_draft, width=65)


def test_repeated_share():
    assert repeated_share([1, 2, 3, 4, 5, 6, 7]) == 0.0
    assert repeated_share([1] * 13) == pytest.approx(0.9)
    assert repeated_share([1]) == 0.0
