"""The roofline by hand on round numbers; the scenarios' profiles and reported speedups hold all its shares."""

import numpy as np
import pytest

from benchmarks.experts import fit_experts
from sequoia_core.design.model_shapes import ModelShape, find_shape
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.profile_files import odd_times
from sequoia_core.design.roofline import (
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

TARGET, DRAFT = find_shape("demo-target"), find_shape("demo-draft")
TOY = Device(
    name="toy", title="Toy", bytes_per_sec=1e10, operations_per_sec={"float32": 1e11, "bfloat16": 2e11},
    memory_bytes=1e9, host_bytes_per_sec=1e9, layer_sec=1e-5,
)  # fmt: skip
A100, L40 = find_device("a100-80g"), find_device("l40")
LLAMA_7B, LLAMA_68M = find_shape("llama-2-7b"), find_shape("jackfram-68m")


def test_the_bound_is_the_longer_of_reading_and_computing():
    seconds = pass_sec(TARGET, [1, 1000], TOY, dtype="float32", context=100)
    assert seconds[0] == pytest.approx((TARGET.read_parameters * 4 + TARGET.kv_bytes("float32") * 101) / 1e10)
    assert seconds[1] == pytest.approx(1000 * TARGET.operations_per_token(1100) / 1e11)
    assert pass_sec(TARGET, [[1, 2], [3, 4]], TOY).shape == (2, 2)
    assert pass_sec(TARGET, 1, TOY, dtype="bfloat16") == pass_sec(TARGET, 1, TOY, dtype="float32") / 2


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


def test_a_modelled_profile_says_what_it_is():
    slowed = TUNED.model_copy(update={"name": "slowed", "layer_sec": 4.6e-4})
    profile = modelled_profile(LLAMA_7B, LLAMA_68M, A100, software=TUNED, draft_software=slowed)
    assert profile.max_size == 1024 and profile.draft_widths[-1] == 256 and profile.device == "NVIDIA A100 80 GB SXM"
    assert profile.modelled and profile.meta["target"] == "meta-llama/Llama-2-7b-hf"
    assert profile.meta["software"]["traffic"] == TUNED.traffic and profile.meta["draft_software"]["name"] == "slowed"
    assert profile.verify_sec[0] == pass_sec(LLAMA_7B, 1, A100, software=TUNED)
    assert profile.draft_width_sec[-1] == pass_sec(LLAMA_68M, 256, A100, software=slowed)
    assert HardwareProfile.loads(profile.to_bytes(), "profile").to_json() == profile.to_json()


def test_a_pair_that_does_not_fit_is_refused_with_the_numbers():
    large, draft = find_shape("llama-3-70b"), find_shape("llama-3-8b")
    with pytest.raises(ValueError, match=r"found 157\.\d GB needed in bfloat16, expected at most the 48 GB of NVIDIA"):
        modelled_profile(large, draft, L40)
    with pytest.raises(ValueError, match="expected at most the 48 GB"):  # the caches count too
        modelled_profile(large, draft, L40, offload="host", context=100_000)
    profile = modelled_profile(large, draft, L40, offload="host")
    assert profile.meta["offload"] == "host" and profile.meta["streaming"]["layers"] == 80
    kept = memory_bytes(large, draft, dtype="bfloat16", tokens=0, offload="host")
    assert kept == 2 * (large.resident_parameters + 3 * large.layer_parameters + draft.parameters)


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


def test_public_times_of_experts_are_predicted_from_two():
    software = Software(name="4 bits", layer_sec=0.0, stored=0.28)
    fitted = fit_experts(A3B, M3_MAX, {n: MLX[n] for n in (1, 8)}, software=software)
    errors = pass_sec(A3B, [*MLX], M3_MAX, software=fitted) / [*MLX.values()] - 1
    assert 0 < fitted.alike < 0.5
    assert (100 * errors).round().tolist() == [0, -12, -4, 1, 0]  # docs/planning.md tells these


def test_a_change_of_kernel_is_said_and_not_fitted():
    """Three times the seconds for two tokens: two tokens read at most twice the experts of one."""
    seconds = {n: n / rate for n, rate in IK_LLAMA.items()}
    with pytest.raises(ValueError, match=r"found 3.04 times the seconds for 2 tokens .*, expected 1 to 1\.\d"):
        fit_experts(AIR, M3_MAX, {n: seconds[n] for n in (1, 2)})
    said = odd_times(np.array([*seconds]), np.array([*seconds.values()]))
    assert "A pass over 2 tokens takes 3.04 times one over 1, and 2 times is the most" in said
    assert odd_times(np.array([*MLX]), np.array([*MLX.values()])) is None
