import numpy as np
import pytest

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from sequoia_extras.evaluation.rejection_curves import sampling_grid
from sequoia_extras.evaluation.verifier_comparison import compare_verifiers
from tests.conftest import pair_of, tiny_llama

PROMPTS = [[1, 2, 3], [9], [4, 8, 15]]
HOT = SamplingConfig(2.0)


def test_comparison_is_complete(tiny_target, tiny_draft):
    tree = k_ary_tree(2, 2)
    pair = pair_of(tiny_target, tiny_draft)
    result = compare_verifiers(PROMPTS, pair, tree=tree, samplings=sampling_grid([0, 2.0]), max_new_tokens=10)
    assert [run.verifier for run in result.runs] == ["greedy", "sequoia", "specinfer", "topk"]
    for run in result.runs:
        assert run.committed.tolist() == [10] * 3 and np.all(run.yielded >= run.committed)
        assert np.all(run.yielded <= run.steps * (tree.depth + 1)) and np.all(run.seconds > 0)
        tokens = run.tokens_per_step
        assert 1.0 <= tokens.low <= tokens.value <= tokens.high <= 3.0
    rates = result.runs[0].committed / result.runs[0].seconds
    row = result.rows()[0]
    low, middle, high = sorted(rates)
    assert row["tokens_per_sec"] == pytest.approx(middle)
    assert row["tokens_per_sec_q1"] == pytest.approx((low + middle) / 2)
    assert row["tokens_per_sec_q3"] == pytest.approx((middle + high) / 2)
    assert result.run("topk", SamplingConfig(0)) is result.runs[0]
    ratio = result.ratio("sequoia", "topk", HOT)
    assert ratio.low <= ratio.value <= ratio.high
    assert result.ratio("topk", "topk", HOT) == pytest.approx((1.0, 1.0, 1.0))
    assert [row["other"] for row in result.ratios()] == ["specinfer", "topk"] and len(result.rows()) == 4


def test_a_step_cut_at_the_limit_counts_in_full(tiny_target):
    result = compare_verifiers(
        [[1, 2]],
        pair_of(tiny_target, tiny_llama(1)),
        tree=chain_tree(3),
        samplings=[SamplingConfig(0)],
        max_new_tokens=5,
    )
    run = result.runs[0]
    assert (run.committed.tolist(), run.yielded.tolist(), run.steps.tolist()) == ([5], [8], [2])
    assert run.tokens_per_step == (4.0, None, None)  # one prompt: nothing to resample
