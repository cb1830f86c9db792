import pytest
import torch

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.optimal_trees import expected_tokens
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.studies.prediction_check import static_versus_real
from tests.conftest import pair_of, tiny_llama

FIT, HELD_OUT = [[1, 2, 3], [9], [4, 8, 15]], [[5], [6, 7]]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_draft_equal_to_the_target_is_predicted_exactly(temperature, tiny_target):
    check = static_versus_real(
        FIT, HELD_OUT, pair_of(tiny_target, tiny_llama(1)), tree=chain_tree(3),
        sampling=SamplingConfig(temperature), max_new_tokens=12,
    )  # fmt: skip
    for estimate in (check.static, check.by_depth, check.measured):
        assert estimate == pytest.approx((4.0, 4.0, 4.0), abs=1e-3)
    assert check.static_gap == pytest.approx((0.0, 0.0, 0.0), abs=1e-3)


@pytest.mark.slow
def test_prediction_rests_on_the_fitting_prompts_alone(tiny_target, tiny_draft):
    options = {"pair": pair_of(tiny_target, tiny_draft), "tree": k_ary_tree(2, 2), "max_new_tokens": 12}
    options |= {"sampling": SamplingConfig(2.0)}
    check = static_versus_real(FIT, HELD_OUT, **options)
    other = static_versus_real(FIT, [[11], [12]], **options)
    assert check.static.value == other.static.value == expected_tokens(options["tree"], check.vector)
    assert check.by_depth.value == other.by_depth.value and check.measured != other.measured
    assert check.static_gap.value == pytest.approx(check.static.value - check.measured.value)
    assert check.static_gap.low <= check.static_gap.value <= check.static_gap.high
    assert check.settings["fit_prompts"] == 3


def worn():
    """Return a draft that is the tiny target with a worn head, so that acceptance is neither 0 nor 1."""
    draft = tiny_llama(1)
    with torch.no_grad():
        weight = draft.model.lm_head.weight
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * 0.4 * weight.std())
    return draft


@pytest.mark.slow
def test_static_measurement_predicts_the_tree_within_its_interval(tiny_target):
    draft = worn()
    prompts = [[i, i + 1] for i in range(24)]
    check = static_versus_real(
        prompts[::2], prompts[1::2], pair_of(tiny_target, draft), tree=k_ary_tree(2, 2),
        sampling=SamplingConfig(1.5), max_new_tokens=40,
    )  # fmt: skip
    assert 1.3 < check.measured.value < 2.7
    assert check.static_holds and check.by_depth_holds, check.rows()  # seeded: no false alarm


def test_one_held_out_prompt_is_refused(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="held_out_prompts: found 1"):
        static_versus_real(FIT, [[1]], pair_of(tiny_target, tiny_draft), tree=chain_tree(2))


@pytest.mark.slow
def test_halves_vary_apart_and_a_prompt_together_with_itself(tiny_target):
    """The same prompts on both sides, greedy: equal values, but only the paired gap knows that difficulty cancels."""
    draft, prompts = worn(), [[i, 2 * i % 64] for i in range(10)]
    check = static_versus_real(
        prompts, prompts, pair_of(tiny_target, draft), tree=chain_tree(3), max_new_tokens=24
    )  # fmt: skip
    apart, together = check.static_gap, check.same_prompts_gap
    assert apart.value == together.value
    assert apart.high - apart.low > 1.5 * (together.high - together.low) > 0
