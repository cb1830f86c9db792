import pytest
import torch

from benchmarks.prediction_check import check_prediction
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from tests.conftest import pair_of, tiny_llama

FIT = [[1, 2, 3], [9], [4, 8, 15]]
HELD_OUT = [[5], [6, 7]]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_draft_equal_to_the_target_is_predicted_exactly(temperature, tiny_target):
    check = check_prediction(
        FIT,
        HELD_OUT,
        pair_of(tiny_target, tiny_llama(1)),
        tree=chain_tree(3),
        sampling=SamplingConfig(temperature),
        max_new_tokens=12,
    )
    for estimate in (check.static, check.by_depth, check.measured):
        assert estimate == pytest.approx((4.0, 4.0, 4.0), abs=1e-3)
    assert check.static_gap == pytest.approx((0.0, 0.0, 0.0), abs=1e-3)


@pytest.mark.slow
def test_predictions_depend_only_on_the_fitting_prompts(tiny_target, tiny_draft):
    options = {"pair": pair_of(tiny_target, tiny_draft), "tree": k_ary_tree(2, 2), "max_new_tokens": 12}
    options |= {"sampling": SamplingConfig(2.0)}
    check = check_prediction(FIT, HELD_OUT, **options)
    other = check_prediction(FIT, [[11], [12]], **options)
    assert check.static.value == other.static.value == expected_tokens(options["tree"], check.vector)
    assert check.by_depth.value == other.by_depth.value and check.measured != other.measured
    assert check.static_gap.value == pytest.approx(check.static.value - check.measured.value)
    assert check.static_gap.low <= check.static_gap.value <= check.static_gap.high
    assert check.settings["fit_prompts"] == 3


def noisy_draft():
    """Return the tiny target with noise on its output layer, so that acceptance is neither 0 nor 1."""
    draft = tiny_llama(1)
    with torch.no_grad():
        weight = draft.model.lm_head.weight
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * 0.4 * weight.std())
    return draft


def test_one_held_out_prompt_is_refused(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="found 3 and 1 prompts"):
        check_prediction(FIT, [[1]], pair_of(tiny_target, tiny_draft), tree=chain_tree(2))


@pytest.mark.slow
def test_sets_are_resampled_independently_and_equal_prompts_together(tiny_target):
    """With the same greedy prompts in both sets, only the paired gap accounts for their difficulty."""
    draft = noisy_draft()
    prompts = [[i, 2 * i % 64] for i in range(10)]
    check = check_prediction(prompts, prompts, pair_of(tiny_target, draft), tree=chain_tree(3), max_new_tokens=24)
    apart = check.static_gap
    together = check.same_prompts_gap
    assert apart.value == together.value
    assert apart.high - apart.low > 1.5 * (together.high - together.low) > 0
