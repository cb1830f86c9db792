"""The roofline by hand on round numbers, and against what was published or measured; `docs/planning.md` tells these."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sequoia_core.design.devices import Device, find_device
from sequoia_core.design.model_shapes import find_shape
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.roofline import (
    BOUND,
    EAGER,
    TUNED,
    Software,
    fit_software,
    memory_bytes,
    modelled_profile,
    pass_sec,
    reaching,
    turning_point,
)

ROOT = Path(__file__).parents[3]
TARGET, DRAFT = find_shape("demo-target"), find_shape("demo-draft")
TOY = Device(
    "toy", "Toy", bytes_per_sec=1e10, operations_per_sec={"float32": 1e11, "bfloat16": 2e11}, memory_bytes=1e9,
    host_bytes_per_sec=1e9, layer_sec=1e-5,
)  # fmt: skip
A100, L40 = find_device("a100-80g"), find_device("l40")
LLAMA_7B, LLAMA_68M = find_shape("llama-2-7b"), find_shape("jackfram-68m")


def test_the_bound_is_the_longer_of_reading_and_computing():
    seconds = pass_sec(TARGET, [1, 1000], TOY, dtype="float32", context=100)
    assert seconds[0] == pytest.approx((TARGET.read_parameters * 4 + TARGET.kv_bytes("float32") * 101) / 1e10)
    assert seconds[1] == pytest.approx(1000 * TARGET.operations_per_token(1100) / 1e11)
    assert pass_sec(TARGET, [[1, 2], [3, 4]], TOY).shape == (2, 2)
    assert pass_sec(TARGET, 1, TOY, dtype="bfloat16") == pass_sec(TARGET, 1, TOY, dtype="float32") / 2


def test_software_scales_both_and_adds_its_own():
    software = Software("half", traffic=0.5, arithmetic=0.25, layer_sec=1e-3)
    bound = pass_sec(TARGET, [1, 1000], TOY)
    slower = pass_sec(TARGET, [1, 1000], TOY, software=software)
    assert slower == pytest.approx(bound * [2, 4] + TARGET.layers * 1e-3)
    default = pass_sec(TARGET, 1, TOY, software=replace(software, layer_sec=None))
    assert default == pytest.approx(bound[0] * 2 + TARGET.layers * 1e-5)  # the device's own


def test_partial_hiding_lies_between_the_longer_and_the_sum():
    n = np.arange(1, 300)
    times = [pass_sec(TARGET, n, TOY, software=Software("s", hiding=h, layer_sec=0.0)) for h in (math.inf, 2.0, 1.0)]
    assert np.all(times[0] < times[1]) and np.all(times[1] < times[2])
    assert times[0] == pytest.approx(pass_sec(TARGET, n, TOY))
    reading = pass_sec(TARGET, n, replace(TOY, operations_per_sec={"bfloat16": 1e30}))
    computing = pass_sec(TARGET, n, replace(TOY, bytes_per_sec=1e30))
    assert times[2] == pytest.approx(reading + computing) and times[1] == pytest.approx(np.hypot(reading, computing))


def test_streamed_layers_arrive_while_others_compute():
    streamed = TARGET.layers * TARGET.layer_parameters * 2 / 1e9
    assert pass_sec(TARGET, 1, TOY, offload="host") == pytest.approx(streamed)
    half = Software("s", streaming=0.5)
    assert pass_sec(TARGET, 1, TOY, offload="host", software=half) == pytest.approx(2 * streamed)
    many = 4000
    assert pass_sec(TARGET, many, TOY) > streamed
    assert pass_sec(TARGET, many, TOY, offload="host") == pass_sec(TARGET, many, TOY)
    with pytest.raises(ValueError, match="Toy has no such link"):
        pass_sec(TARGET, 1, TOY, offload="disk")


def test_the_turning_point_is_where_computing_overtakes_reading():
    n = turning_point(TARGET, TOY)
    reading = pass_sec(TARGET, [n - 1, n], replace(TOY, operations_per_sec={"bfloat16": 1e30}))
    computing = pass_sec(TARGET, [n - 1, n], replace(TOY, bytes_per_sec=1e30))
    assert computing[0] <= reading[0] and computing[1] > reading[1]
    assert turning_point(TARGET, TOY, offload="host") > n
    assert turning_point(TARGET, replace(TOY, operations_per_sec={"bfloat16": 1e30})) is None


@pytest.mark.parametrize("hiding", [math.inf, 2.0, 1.0])
def test_fitting_finds_the_shares_that_made_the_times(hiding):
    made = Software("made", traffic=0.6, arithmetic=0.3, hiding=hiding, layer_sec=1e-5)
    seconds = dict(zip((1, 64), pass_sec(TARGET, [1, 64], TOY, software=made).tolist(), strict=True))
    found = fit_software(TARGET, TOY, seconds, dtype="bfloat16", hiding=hiding, layer_sec=1e-5)
    assert (found.traffic, found.arithmetic) == pytest.approx((0.6, 0.3))
    assert pass_sec(TARGET, [8, 512], TOY, software=found) == pytest.approx(
        pass_sec(TARGET, [8, 512], TOY, software=made)
    )


def test_times_that_nothing_explains_are_refused():
    for seconds, message in (
        ({1: 1e-3}, "found times for 1 numbers"),
        ({1: 1e-3, 64: 1e-4}, "found 0.001 s for 1 and 0.0001 s for 64 tokens"),
        ({1: 1e-6, 64: 1e-3}, "expected more than 1e-05 s of layer_sec"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_software(TARGET, TOY, seconds, dtype="bfloat16", layer_sec=1e-6)
    for wrong in ({"traffic": 0.0}, {"arithmetic": math.inf}, {"hiding": 0.5}, {"layer_sec": -1.0}):
        with pytest.raises(ValueError, match=f"s: {next(iter(wrong))}: found"):
            Software("s", **wrong)
    with pytest.raises(ValueError, match="seconds: found 1e-09, expected at least the"):
        reaching(TUNED, TARGET, TOY, 1e-9, dtype="bfloat16")


def test_a_modelled_profile_says_what_it_is():
    profile = modelled_profile(LLAMA_7B, LLAMA_68M, A100, software=TUNED, draft_software=EAGER)
    assert profile.max_size == 1024 and profile.draft_widths[-1] == 256 and profile.device == "NVIDIA A100 80 GB SXM"
    assert profile.meta["modelled"] is True and profile.meta["target"] == "meta-llama/Llama-2-7b-hf"
    assert profile.meta["software"]["traffic"] == TUNED.traffic and profile.meta["draft_software"]["name"] == "eager"
    assert profile.verify_sec[0] == pass_sec(LLAMA_7B, 1, A100, software=TUNED)
    assert profile.draft_width_sec[-1] == pass_sec(LLAMA_68M, 256, A100, software=EAGER)
    assert np.all(np.diff(profile.verify_sec) >= 0)
    again = HardwareProfile.loads(profile.to_bytes(), "profile")
    assert again.to_json() == profile.to_json()
    assert modelled_profile(TARGET, DRAFT, A100, software=BOUND).meta["software"]["hiding"] is None
    assert modelled_profile(TARGET, DRAFT, A100).meta["target"] == "demo target"


def test_a_pair_that_does_not_fit_is_refused_with_the_numbers():
    large, draft = find_shape("llama-3-70b"), find_shape("llama-3-8b")
    with pytest.raises(
        ValueError, match=r"found 157\.\d GB needed in bfloat16, expected at most the 48 GB of NVIDIA L40"
    ):
        modelled_profile(large, draft, L40)
    with pytest.raises(ValueError, match="expected at most the 48 GB"):  # the caches count too
        modelled_profile(large, draft, L40, offload="host", context=100_000)
    profile = modelled_profile(large, draft, L40, offload="host")
    assert profile.meta["offload"] == "host" and profile.meta["streaming"]["layers"] == 80
    kept = memory_bytes(large, draft, dtype="bfloat16", tokens=0, offload="host")
    assert kept == 2 * (large.resident_parameters + 3 * large.layer_parameters + draft.parameters)


def test_the_papers_a100():
    """24.2 ms per token; t(128) about 1.05 and c about 0.02. The bound alone is 3.7 times as fast."""
    half = {"dtype": "float16"}
    assert pass_sec(LLAMA_7B, 1, A100, **half) == pytest.approx(6.5e-3, rel=0.01)
    eager = reaching(TUNED, LLAMA_7B, A100, 24.2e-3, **half)
    assert eager.layer_sec == pytest.approx(EAGER.layer_sec, rel=0.01)
    one, many = pass_sec(LLAMA_7B, [1, 128], A100, software=eager, **half)
    assert many / one == pytest.approx(1.05, abs=0.08)  # 1.12: seven hundredths too steep
    bare = reaching(BOUND, LLAMA_7B, A100, 24.2e-3, **half)
    one, many = pass_sec(LLAMA_7B, [1, 128], A100, software=bare, **half)
    assert many / one == pytest.approx(1.0, abs=0.01)
    assert reaching(TUNED, LLAMA_68M, A100, 0.5e-3, **half).layer_sec == pytest.approx(0.22e-3, rel=0.01)
    assert pass_sec(LLAMA_7B, 1, A100, software=TUNED) == pytest.approx(1 / 104.9, rel=0.01)  # gpt-fast


def test_the_papers_offloading_on_an_l40():
    """5.7 s per token by DeepSpeed-Zero-Inference; 0.60 s at 11.68 tokens a step with a tree of 768 nodes, depth 17."""
    target, draft = find_shape("llama-3-70b"), find_shape("llama-3-8b")
    assert pass_sec(target, 1, L40, offload="host") == pytest.approx(4.35, rel=0.01)
    one, many = pass_sec(target, [1, 768], L40, software=TUNED, offload="host")
    assert one == pytest.approx(5.7, rel=0.01) and many == one  # flat
    drafting = 17 * float(pass_sec(draft, 768 // 17, L40, software=TUNED))
    paper = 0.60 * 11.68
    assert many + drafting == pytest.approx(0.88 * paper, rel=0.01)  # reading hides the target's computing
    computing = float(pass_sec(target, 768, L40, software=TUNED))
    assert many + computing + drafting == pytest.approx(paper, rel=0.02)  # where it does not


RECORD = json.loads((ROOT / "benchmarks" / "results" / "passes-avx512-2026-11-21.json").read_text())
AMX_MS = {  # verify_sec of the demo pair's profile in bfloat16, measured on 2026-11-21 on a Xeon with AMX
    1: 0.8395, 2: 0.8868, 4: 0.8931, 8: 0.9571, 12: 1.0013, 16: 1.0528, 24: 1.4078, 32: 1.5343, 64: 2.2473,
}  # fmt: skip
MEASURED = {"AMX": AMX_MS, "AVX-512": RECORD["avx512"]["ms"], "AVX2": RECORD["avx2"]["ms"], **RECORD["others_ms"]}
WORST_PERCENT = {  # at 2 to 32 tokens, fitted at 1 and 64: the longer of the two, root of squares, sum
    "AVX-512": (11, 13, 39), "AVX2": (15, 9, 28), "AMX": (40, 19, 11), "ONNX Runtime float32": (32, 18, 10),
    "torch.compile float32": (41, 27, 12), "torch bfloat16": (48, 36, 26), "torch float32": (65, 56, 47),
}  # fmt: skip


@pytest.mark.parametrize("passes", WORST_PERCENT)
def test_how_well_two_times_predict_the_others(passes):
    """The table of `docs/planning.md`; peaks cancel out of it, so any device serves."""
    dtype = "float32" if "float32" in passes else "bfloat16"
    measured = {int(n): float(value) / 1e3 for n, value in MEASURED[passes].items()}
    sizes = [n for n in measured if 2 <= n <= 32]
    found = []
    for hiding in (math.inf, 2.0, 1.0):
        software = fit_software(TARGET, TOY, {n: measured[n] for n in (1, 64)}, dtype=dtype, hiding=hiding)
        predicted = pass_sec(TARGET, sizes, TOY, dtype=dtype, software=software)
        found.append(100 * float(max(abs(predicted / [measured[n] for n in sizes] - 1))))
    assert found == pytest.approx(WORST_PERCENT[passes], abs=0.6)
