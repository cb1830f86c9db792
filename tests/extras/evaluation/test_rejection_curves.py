import numpy as np
import pytest

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.measuring.measure_acceptance import measure_acceptance, vector_from_prompts
from sequoia_extras.evaluation.rejection_curves import RejectionCurve, measure_rejection, sampling_grid
from tests.conftest import pair_of

PROMPTS = [[1, 2, 3], [9], [4, 8, 15]]


def test_grid_takes_temperature_zero_once():
    assert sampling_grid([0, 1.0], [1.0, 0.9]) == [
        SamplingConfig(0, 1.0),
        SamplingConfig(1.0, 1.0),
        SamplingConfig(1.0, 0.9),
    ]
    with pytest.raises(ValueError, match="0 temperatures"):
        sampling_grid([])


def test_curves_agree_with_measured_vectors(tiny_target, tiny_draft):
    options = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 12, "width": 5}
    study = measure_rejection(PROMPTS, **options, samplings=2 * sampling_grid([0.0, 0.9], [0.95]))
    assert [(c.verifier, c.sampling.temperature) for c in study.curves] == [
        ("greedy", 0.0),
        ("sequoia", 0.9),
        ("specinfer", 0.9),
        ("topk", 0.9),
    ]
    for curve in study.curves:
        name = "sequoia" if curve.verifier == "greedy" else curve.verifier
        vector = measure_acceptance(PROMPTS, **options, sampling=curve.sampling, verifier=name)
        np.testing.assert_allclose(curve.acceptance.probs, vector.probs, atol=1e-12)
        np.testing.assert_allclose(curve.rejection, 1 - np.cumsum(vector.probs), atol=1e-12)
        low, high = curve.interval()
        assert np.all(low <= curve.rejection + 1e-12) and np.all(curve.rejection <= high + 1e-12)


def test_intervals_do_not_depend_on_prompt_lengths():
    rates = np.array([[0.2, 0.3], [0.6, 0.1], [0.4, 0.1]])
    for counts, each, lows, highs in (
        ([10, 200, 3000], np.array([[0.5, 0.2]] * 3), [0.5, 0.3], [0.5, 0.3]),
        ([100] * 3, rates, [0.4, 0.3], [0.8, 0.5]),  # resamples of the best or worst prompt alone
    ):
        vector = vector_from_prompts(each * np.array(counts)[:, None], counts, meta={})
        low, high = RejectionCurve("sequoia", SamplingConfig(1.0), vector).interval()
        np.testing.assert_allclose([low, high], [lows, highs], atol=1e-12)
