"""The roofline by hand; the scenarios check its constants."""

import pytest

from benchmarks.experts import fit_experts
from sequoia_core.planning.profile import HardwareProfile
from sequoia_extras.hardware_models.model_shapes import find_shape
from sequoia_extras.hardware_models.roofline import (
    TUNED,
    Device,
    Software,
    find_device,
    largest_tree,
    memory_bytes,
    modelled_profile,
    pass_sec,
    tree_bytes,
)

TARGET = find_shape("demo-target")
DRAFT = find_shape("demo-draft")
TOY = Device(
    name="toy", title="Toy", bytes_per_sec=1e10, operations_per_sec={"float32": 1e11, "bfloat16": 2e11},
    memory_bytes=1e9, host_bytes_per_sec=1e9, layer_sec=1e-5,
)  # fmt: skip
A100 = find_device("a100-80g")
L40 = find_device("l40")
LLAMA_7B = find_shape("llama-2-7b")
LLAMA_68M = find_shape("jackfram-68m")


def test_pass_time_is_the_longer_of_reading_and_computing():
    seconds = pass_sec(TARGET, [1, 1000], TOY, dtype="float32", context=100)
    assert seconds[0] == pytest.approx((TARGET.read_parameters * 4 + TARGET.kv_bytes("float32") * 101) / 1e10)
    assert seconds[1] == pytest.approx(1000 * TARGET.operations_per_token(1100) / 1e11)
    assert pass_sec(TARGET, [[1, 2], [3, 4]], TOY).shape == (2, 2)
    assert pass_sec(TARGET, 1, TOY, dtype="bfloat16") == pass_sec(TARGET, 1, TOY, dtype="float32") / 2


def test_streaming_overlaps_with_computing():
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


def test_a_modelled_profile_records_its_inputs():
    slowed = TUNED.model_copy(update={"name": "slowed", "layer_sec": 4.6e-4})
    profile = modelled_profile(LLAMA_7B, LLAMA_68M, A100, software=TUNED, draft_software=slowed)
    assert profile.max_size == 1024 and profile.draft_widths[-1] == 256 and profile.device == "NVIDIA A100 80 GB SXM"
    assert profile.modelled and profile.meta["target"] == "meta-llama/Llama-2-7b-hf"
    assert profile.meta["software"]["traffic"] == TUNED.traffic and profile.meta["draft_software"]["name"] == "slowed"
    assert profile.verify_sec[0] == pass_sec(LLAMA_7B, 1, A100, software=TUNED)
    assert profile.draft_width_sec[-1] == pass_sec(LLAMA_68M, 256, A100, software=slowed)
    assert HardwareProfile.loads(profile.to_bytes(), "profile").to_json() == profile.to_json()


def test_a_pair_larger_than_memory_is_refused():
    large = find_shape("llama-3-70b")
    draft = find_shape("llama-3-8b")
    with pytest.raises(ValueError, match=r"157\.\d GB are needed in bfloat16, but NVIDIA .* has only 48 GB"):
        modelled_profile(large, draft, L40)
    with pytest.raises(ValueError, match="has only 48 GB"):  # with the KV caches
        modelled_profile(large, draft, L40, offload="host", context=100_000)
    profile = modelled_profile(large, draft, L40, offload="host")
    assert profile.meta["offload"] == "host" and profile.meta["streaming"]["layers"] == 80
    kept = memory_bytes(large, draft, dtype="bfloat16", tokens=0, offload="host")
    assert kept == 2 * (large.resident_parameters + 3 * large.layer_parameters + draft.parameters)


def test_tree_memory_by_hand_and_the_largest_tree_that_fits():
    pair = {"target": LLAMA_7B, "draft": LLAMA_68M, "dtype": "float16"}
    nodes = 128
    slots = 2 * 2 * 4096 * 32 + 2 * 2 * 768 * 2  # keys and values of every layer, two bytes each
    assert tree_bytes(**pair, nodes=nodes) == nodes * (slots + 4 * 2 * 32_000) + 4 * nodes**2
    for free in (0, 10**6, 10**9, 10**11):
        most = largest_tree(**pair, free=free)
        assert tree_bytes(**pair, nodes=most) <= free < tree_bytes(**pair, nodes=most + 1)


A3B = find_shape("qwen3-30b-a3b")
M3_MAX = find_device("m3-max")
MLX = {1: 8.47e-3, 2: 13.49e-3, 3: 15.64e-3, 5: 20.67e-3, 8: 28.13e-3}  # vllm-mlx#763, 30B-A3B by tokens of a pass


def test_more_tokens_read_more_experts():
    """By hand: without arithmetic, a pass leaves out the unused experts."""
    toy = TOY.model_copy(update={"operations_per_sec": {"bfloat16": 1e30}})
    for tokens, read in ((1, 8.0), (2, 15.5)):
        resting = 48 * (128 - read) * 3 * 2048 * 768
        seconds = (2 * (A3B.read_parameters - resting) + A3B.kv_bytes("bfloat16") * (128 + tokens)) / 1e10
        assert pass_sec(A3B, tokens, toy) == pytest.approx(seconds)
    assert pass_sec(A3B, 4096, toy) == pytest.approx(2 * A3B.read_parameters / 1e10, rel=0.05)


def test_expert_times_are_predicted_from_two_sizes():
    software = Software(name="4 bits", layer_sec=0.0, stored=0.28)
    fitted = fit_experts(A3B, M3_MAX, {n: MLX[n] for n in (1, 8)}, software=software)
    errors = pass_sec(A3B, [*MLX], M3_MAX, software=fitted) / [*MLX.values()] - 1
    assert 0 < fitted.alike < 0.5
    assert (100 * errors).round().tolist() == [0, -12, -4, 1, 0]  # as documented in docs/planning.md
