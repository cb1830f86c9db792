import json
import threading

import numpy as np
import pytest

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.faults import Cancelled
from sequoia_core.studies.measure_acceptance import measure_acceptance, vector_from_prompts
from sequoia_core.studies.rejection_curves import RejectionCurve, measure_rejection, sampling_grid
from tests.conftest import pair_of, tiny_llama

PROMPTS = [[1, 2, 3], [9], [4, 8, 15]]


def test_grid_takes_temperature_zero_once():
    assert sampling_grid([0, 1.0], [1.0, 0.9]) == [
        SamplingConfig(0, 1.0), SamplingConfig(1.0, 1.0), SamplingConfig(1.0, 0.9),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="0 temperatures"):
        sampling_grid([])


def test_curves_agree_with_the_vectors_of_each_verifier(tiny_target, tiny_draft):
    options = {"pair": pair_of(tiny_target, tiny_draft), "max_new_tokens": 12, "width": 5, "seed": 3}
    told = []
    study = measure_rejection(
        PROMPTS, **options, samplings=sampling_grid([0.0, 0.9], [0.95]), progress=lambda f, m: told.append(f)
    )
    assert [(c.verifier, c.sampling.temperature) for c in study.curves] == [
        ("greedy", 0.0), ("sequoia", 0.9), ("specinfer", 0.9), ("topk", 0.9),
    ]  # fmt: skip
    for curve in study.curves:
        name = "sequoia" if curve.verifier == "greedy" else curve.verifier
        vector = measure_acceptance(PROMPTS, **options, sampling=curve.sampling, verifier=name)
        np.testing.assert_allclose(curve.acceptance.probs, vector.probs, atol=1e-12)
        np.testing.assert_allclose(curve.rejection, 1 - np.cumsum(vector.probs), atol=1e-12)
        low, high = curve.interval()
        assert np.all(low <= curve.rejection + 1e-12) and np.all(curve.rejection <= high + 1e-12)
        assert np.all(np.diff(curve.rejection) <= 1e-12)
    assert told == sorted(told) and told[-1] == pytest.approx(1.0)
    assert len(json.loads(json.dumps(study.rows(), allow_nan=False))) == len(study.rows()) == 20
    assert study.settings["prompts"] == 3 and study.settings["target"] == "tiny-1"


def test_a_draft_equal_to_the_target_is_never_rejected_but_by_topk(tiny_target):
    study = measure_rejection(
        PROMPTS, pair_of(tiny_target, tiny_llama(1)), samplings=[SamplingConfig(2.0)] * 2, width=2, max_new_tokens=8
    )
    assert len(study.curves) == 3  # asked for twice, measured once
    rejection = {curve.verifier: curve.rejection for curve in study.curves}
    assert rejection["sequoia"][0] == pytest.approx(0.0, abs=1e-4)
    assert rejection["specinfer"][0] == pytest.approx(0.0, abs=1e-4)
    assert rejection["topk"][0] > 0.05


def test_cancel_keeps_whole_prompts(tiny_target, tiny_draft):
    stop = threading.Event()
    options = {"pair": pair_of(tiny_target, tiny_draft), "samplings": sampling_grid([0, 1.0]), "max_new_tokens": 8}
    study = measure_rejection(PROMPTS, **options, width=3, cancel=stop, progress=lambda f, m: f > 0.5 and stop.set())
    assert study.settings["prompts"] == 1 and all(c.acceptance.trials == 8 for c in study.curves)
    assert study.curves[0].interval() is None and study.rows()[0]["ci_low"] is None
    with pytest.raises(Cancelled, match="cancelled"):
        measure_rejection(PROMPTS, **options, cancel=stop)
    with pytest.raises(ValueError, match="width: found 65"):
        measure_rejection(PROMPTS, **options, width=65)


def curve_of(sums, counts) -> RejectionCurve:
    return RejectionCurve("sequoia", SamplingConfig(1.0), vector_from_prompts(sums, counts, meta={}))


def test_an_interval_is_that_of_the_rejection_not_of_how_long_prompts_are():
    counts, rate = [10, 200, 3000], np.array([0.5, 0.2])
    same = curve_of([count * rate for count in counts], counts)
    low, high = same.interval()
    np.testing.assert_allclose(low, [0.5, 0.3], atol=1e-12)
    np.testing.assert_allclose(high, [0.5, 0.3], atol=1e-12)
    rates = np.array([[0.2, 0.3], [0.6, 0.1], [0.4, 0.1]])
    unlike = curve_of(rates * 100, [100] * 3)
    low, high = unlike.interval()
    np.testing.assert_allclose(low, [0.4, 0.3], atol=1e-12)  # resamples of the one prompt that is best, or worst
    np.testing.assert_allclose(high, [0.8, 0.5], atol=1e-12)
