"""The roofline by hand on round numbers, and against what was published or measured; `docs/planning.md` tells these."""

import importlib.util
import json
import math

import numpy as np
import pytest

from sequoia_core.design.model_shapes import ModelShape, find_shape, shipped_table
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.profile_files import odd_times
from sequoia_core.design.roofline import (
    BOUND,
    TUNED,
    Device,
    Software,
    find_device,
    fit_experts,
    largest_tree,
    memory_bytes,
    modelled_profile,
    pass_sec,
    tree_bytes,
)
from sequoia_core.files.model_names import ASSETS

TARGET, DRAFT = find_shape("demo-target"), find_shape("demo-draft")
TOY = Device(
    name="toy", title="Toy", bytes_per_sec=1e10, operations_per_sec={"float32": 1e11, "bfloat16": 2e11},
    memory_bytes=1e9, host_bytes_per_sec=1e9, layer_sec=1e-5,
)  # fmt: skip
A100, L40 = find_device("a100-80g"), find_device("l40")
LLAMA_7B, LLAMA_68M = find_shape("llama-2-7b"), find_shape("jackfram-68m")
DEVICES = {"a100-80g", "h100", "h200", "l40", "l40s", "rtx-3090", "rtx-4090", "rtx-5090", "m3-max"}


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("recipe", ASSETS.parent / "scripts" / "make_scenarios.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_number_of_the_table_has_a_source():
    assert set(shipped_table("devices")) == DEVICES
    for name in DEVICES:
        found = find_device(name.upper())
        stated = {key for key, value in found if value is not None} - {"name", "title", "sources"}
        assert stated <= set(found.sources) and all(len(source) > 20 for source in found.sources.values())
        assert set(found.operations_per_sec) == {"float32", "bfloat16", "float16"}
        assert found.rate("float32") <= found.rate("bfloat16")


def test_dense_peaks_and_one_way_links():
    """The figures that datasheets like to double: half of what sparsity gives, half of a link's two ways."""
    assert A100.rate("bfloat16") == 312e12 and find_device("h100").rate("float16") == 989.4e12
    assert find_device("rtx-3090").rate("bfloat16") == 71e12 and L40.rate("float16") == 181.05e12
    assert L40.link("host") == pytest.approx(16e9 * 16 * 128 / 130 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [(Device, {"bytes_per_sec": 0.0}), (Device, {"operations_per_sec": {"float32": math.inf}}),
     (Device, {"layer_sec": -1.0}), (Device, {"host_bytes_per_sec": -1.0}), (Device, {"memory_bytes": math.nan}),
     (Software, {"traffic": 0.0}), (Software, {"arithmetic": math.inf}), (Software, {"hiding": 0.5}),
     (Software, {"layer_sec": -1.0})]
)  # fmt: skip
def test_numbers_out_of_range_are_refused(kind, changes):
    fields = TOY.model_dump() if kind is Device else {"name": "s"}
    with pytest.raises(ValueError, match=rf"{next(iter(changes))}(.|\n)*Input should be .*input_value="):
        kind(**fields | changes)


def test_the_bound_is_the_longer_of_reading_and_computing():
    seconds = pass_sec(TARGET, [1, 1000], TOY, dtype="float32", context=100)
    assert seconds[0] == pytest.approx((TARGET.read_parameters * 4 + TARGET.kv_bytes("float32") * 101) / 1e10)
    assert seconds[1] == pytest.approx(1000 * TARGET.operations_per_token(1100) / 1e11)
    assert pass_sec(TARGET, [[1, 2], [3, 4]], TOY).shape == (2, 2)
    assert pass_sec(TARGET, 1, TOY, dtype="bfloat16") == pass_sec(TARGET, 1, TOY, dtype="float32") / 2


def test_software_scales_both_and_adds_its_own():
    software = Software(name="half", traffic=0.5, arithmetic=0.25, layer_sec=1e-3)
    bound = pass_sec(TARGET, [1, 1000], TOY)
    slower = pass_sec(TARGET, [1, 1000], TOY, software=software)
    assert slower == pytest.approx(bound * [2, 4] + TARGET.num_hidden_layers * 1e-3)
    default = pass_sec(TARGET, 1, TOY, software=software.model_copy(update={"layer_sec": None}))
    assert default == pytest.approx(bound[0] * 2 + TARGET.num_hidden_layers * 1e-5)  # the device's own


def test_partly_hidden_is_the_root_of_the_sum_of_squares():
    n = np.arange(1, 300)
    found = pass_sec(TARGET, n, TOY, software=Software(name="s", hiding=2.0, layer_sec=0.0))
    reading = pass_sec(TARGET, n, TOY.model_copy(update={"operations_per_sec": {"bfloat16": 1e30}}))
    computing = pass_sec(TARGET, n, TOY.model_copy(update={"bytes_per_sec": 1e30}))
    assert found == pytest.approx(np.hypot(reading, computing))


def test_streamed_layers_arrive_while_others_compute():
    streamed = TARGET.num_hidden_layers * TARGET.layer_parameters * 2 / 1e9
    assert pass_sec(TARGET, 1, TOY, offload="host") == pytest.approx(streamed)
    half = Software(name="s", streaming=0.5)
    assert pass_sec(TARGET, 1, TOY, offload="host", software=half) == pytest.approx(2 * streamed)
    many = 4000
    assert pass_sec(TARGET, many, TOY) > streamed
    assert pass_sec(TARGET, many, TOY, offload="host") == pass_sec(TARGET, many, TOY)
    with pytest.raises(ValueError, match="Toy has no such link"):
        pass_sec(TARGET, 1, TOY, offload="disk")
    with pytest.raises(ValueError, match="offload: found 'tape', expected one of host, disk"):
        pass_sec(TARGET, 1, TOY, offload="tape")


def test_layers_kept_in_fewer_bits_are_read_and_streamed_faster():
    quarter = Software(name="4 bits", stored=0.25, layer_sec=0.0)
    layers = TARGET.num_hidden_layers * TARGET.layer_parameters
    saved = 0.75 * layers * 2 / TOY.bytes_per_sec
    assert pass_sec(TARGET, 1, TOY) - pass_sec(TARGET, 1, TOY, software=quarter) == pytest.approx(saved)
    many = 4000  # bound by arithmetic, which stays in the dtype
    assert pass_sec(TARGET, many, TOY) == pass_sec(TARGET, many, TOY, software=quarter)
    streamed = pass_sec(TARGET, 1, TOY, offload="host")
    assert pass_sec(TARGET, 1, TOY, software=quarter, offload="host") == pytest.approx(streamed / 4)


def test_fitting_finds_the_shares_that_made_the_times(recipe):
    made = Software(name="made", traffic=0.6, arithmetic=0.3, hiding=2.0, layer_sec=0.0)
    seconds = dict(zip((1, 64), pass_sec(TARGET, [1, 64], TOY, software=made).tolist(), strict=True))
    found = recipe.fit_software(TARGET, TOY, seconds, dtype="bfloat16")
    assert (found.traffic, found.arithmetic) == pytest.approx((0.6, 0.3))
    assert pass_sec(TARGET, [8, 512], TOY, software=found) == pytest.approx(
        pass_sec(TARGET, [8, 512], TOY, software=made)
    )


def test_times_that_nothing_explains_are_refused(recipe):
    with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match="arithmetic"):
        recipe.fit_software(TARGET, TOY, {1: 1e-3, 64: 1e-4}, dtype="bfloat16")
    with pytest.raises(ValueError, match="layer_sec"):
        recipe.reaching(TUNED, TARGET, TOY, 1e-9, dtype="bfloat16")


def test_a_modelled_profile_says_what_it_is():
    slowed = TUNED.model_copy(update={"name": "slowed", "layer_sec": 4.6e-4})
    profile = modelled_profile(LLAMA_7B, LLAMA_68M, A100, software=TUNED, draft_software=slowed)
    assert profile.max_size == 1024 and profile.draft_widths[-1] == 256 and profile.device == "NVIDIA A100 80 GB SXM"
    assert profile.meta["modelled"] is True and profile.meta["target"] == "meta-llama/Llama-2-7b-hf"
    assert profile.meta["software"]["traffic"] == TUNED.traffic and profile.meta["draft_software"]["name"] == "slowed"
    assert profile.verify_sec[0] == pass_sec(LLAMA_7B, 1, A100, software=TUNED)
    assert profile.draft_width_sec[-1] == pass_sec(LLAMA_68M, 256, A100, software=slowed)
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


def test_the_papers_a100(recipe):
    """24.2 ms per token; t(128) about 1.05 and c about 0.02. The bound alone is 3.7 times as fast."""
    half = {"dtype": "float16"}
    assert pass_sec(LLAMA_7B, 1, A100, **half) == pytest.approx(6.5e-3, rel=0.01)
    eager = recipe.reaching(TUNED, LLAMA_7B, A100, 24.2e-3, **half)
    assert eager.layer_sec == pytest.approx(4.6e-4, rel=0.01)
    one, many = pass_sec(LLAMA_7B, [1, 128], A100, software=eager, **half)
    assert many / one == pytest.approx(1.05, abs=0.08)  # 1.12: seven hundredths too steep
    bare = recipe.reaching(BOUND, LLAMA_7B, A100, 24.2e-3, **half)
    one, many = pass_sec(LLAMA_7B, [1, 128], A100, software=bare, **half)
    assert many / one == pytest.approx(1.0, abs=0.01)
    assert recipe.reaching(TUNED, LLAMA_68M, A100, 0.5e-3, **half).layer_sec == pytest.approx(0.22e-3, rel=0.01)
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


@pytest.mark.parametrize(
    ("device", "bits", "tokens_per_sec", "speedup", "off"),
    [("a100-80g", 16, 3.12, 18.7, -4.6), ("a100-80g", 4, 6.02, 8.9, 0.6), ("rtx-4090", 4, 5.66, 8.3, 1.4),
     ("rtx-3090", 4, 3.68, 10.6, 3.2)]
)  # fmt: skip
def test_specexecs_offloading(device, bits, tokens_per_sec, speedup, off, recipe):
    """Llama-2-70B from host memory: reported speedup ÷ tokens per second is the seconds of a token without a draft."""
    place = find_device(device)
    if device == "rtx-3090":
        place = place.model_copy(update={"host_bytes_per_sec": recipe.PCI_EXPRESS_3})
    software = TUNED if bits == 16 else TUNED.model_copy(update={"stored": recipe.FOUR_BITS})
    one = pass_sec(find_shape("llama-2-70b"), 1, place, dtype="float16", software=software, offload="host")
    assert 100 * (float(one) * tokens_per_sec / speedup - 1) == pytest.approx(off, abs=0.6)


RECORD = json.loads((ASSETS.parent / "benchmarks" / "results" / "passes-avx512-2026-11-21.json").read_text())
AMX_MS = {  # verify_sec of the demo pair's profile in bfloat16, measured on 2026-11-21 on a Xeon with AMX
    1: 0.8395, 2: 0.8868, 4: 0.8931, 8: 0.9571, 12: 1.0013, 16: 1.0528, 24: 1.4078, 32: 1.5343, 64: 2.2473,
}  # fmt: skip
MEASURED = {"AMX": AMX_MS, "AVX-512": RECORD["avx512"]["ms"], "AVX2": RECORD["avx2"]["ms"], **RECORD["others_ms"]}
WORST_PERCENT = {  # at 2 to 32 tokens, fitted at 1 and 64
    "AVX-512": 13, "AVX2": 9, "AMX": 19, "ONNX Runtime float32": 18, "torch.compile float32": 27,
    "torch bfloat16": 36, "torch float32": 56,
}  # fmt: skip


@pytest.mark.parametrize("passes", WORST_PERCENT)
def test_how_well_two_times_predict_the_others(passes, recipe):
    """The figures of `docs/planning.md`; peaks cancel out of it, so any device serves."""
    dtype = "float32" if "float32" in passes else "bfloat16"
    measured = {int(n): float(value) / 1e3 for n, value in MEASURED[passes].items()}
    sizes = [n for n in measured if 2 <= n <= 32]
    software = recipe.fit_software(TARGET, TOY, {n: measured[n] for n in (1, 64)}, dtype=dtype)
    predicted = pass_sec(TARGET, sizes, TOY, dtype=dtype, software=software)
    assert 100 * float(max(abs(predicted / [measured[n] for n in sizes] - 1))) == pytest.approx(
        WORST_PERCENT[passes], abs=0.6
    )


def test_a_trees_memory_by_hand_and_the_largest_tree_that_fits():
    pair, nodes = {"target": LLAMA_7B, "draft": LLAMA_68M, "dtype": "float16"}, 128
    slots = 2 * 2 * 4096 * 32 + 2 * 2 * 768 * 2  # keys and values of every layer, two bytes each
    assert tree_bytes(**pair, nodes=nodes) == nodes * (slots + 4 * 2 * 32_000) + 4 * nodes**2
    for free in (0, 10**6, 10**9, 10**11):
        most = largest_tree(**pair, free=free)
        assert tree_bytes(**pair, nodes=most) <= free < tree_bytes(**pair, nodes=most + 1)


A3B, M3_MAX = find_shape("qwen3-30b-a3b"), find_device("m3-max")
MLX = {1: 8.47e-3, 2: 13.49e-3, 3: 15.64e-3, 5: 20.67e-3, 8: 28.13e-3}  # vllm-mlx#763, 30B-A3B by tokens of a pass
IK_LLAMA = {1: 170, 2: 112, 3: 146, 4: 175, 6: 222, 8: 266}  # ik_llama.cpp#1630, GLM-4.5-Air: tokens per second
AIR = ModelShape(**A3B.model_dump() | {"shared_expert_intermediate_size": 768, "name": "128 experts and a shared one"})


def test_a_pass_over_more_tokens_reads_more_experts():
    """By hand: with weights alone to read, the resting experts are what a pass leaves out."""
    toy = TOY.model_copy(update={"operations_per_sec": {"bfloat16": 1e30}})
    for tokens, read in ((1, 8.0), (2, 15.5)):
        resting = 48 * (128 - read) * 3 * 2048 * 768
        seconds = (2 * (A3B.read_parameters - resting) + A3B.kv_bytes("bfloat16") * (128 + tokens)) / 1e10
        assert pass_sec(A3B, tokens, toy) == pytest.approx(seconds)
    assert pass_sec(A3B, 4096, toy) == pytest.approx(2 * A3B.read_parameters / 1e10, rel=0.05)
    half = Software(name="4 bits", layer_sec=0.0, stored=0.25)
    assert pass_sec(A3B, 4, toy, software=half, context=1) < 0.35 * pass_sec(A3B, 4, toy, context=1)


def test_public_times_of_experts_are_predicted_from_two():
    fitted = fit_experts(
        A3B, M3_MAX, {n: MLX[n] for n in (1, 8)}, software=Software(name="4 bits", layer_sec=0.0, stored=0.28)
    )
    errors = {n: float(pass_sec(A3B, n, M3_MAX, software=fitted)) / MLX[n] - 1 for n in MLX}
    assert 0 < fitted.alike < 0.5
    assert [round(100 * errors[n]) for n in (1, 2, 3, 5, 8)] == [0, -12, -4, 1, 0]  # docs/planning.md tells these


def test_a_change_of_kernel_is_said_and_not_fitted():
    """Three times the seconds for two tokens: two tokens read at most twice the experts of one."""
    seconds = {n: n / rate for n, rate in IK_LLAMA.items()}
    with pytest.raises(
        ValueError, match=r"found 3.04 times the seconds for 2 tokens of those for 1, expected 1 to 1\.\d"
    ):
        fit_experts(AIR, M3_MAX, {n: seconds[n] for n in (1, 2)})
    said = odd_times(np.array([*seconds]), np.array([*seconds.values()]))
    assert "A pass over 2 tokens takes 3.04 times one over 1, and 2 times is the most" in said
    assert odd_times(np.array([*MLX]), np.array([*MLX.values()])) is None
