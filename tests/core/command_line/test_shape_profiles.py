import json

import pytest

from sequoia_core.design.model_shapes import find_shape
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.scenarios import ASSETS
from sequoia_core.models.default_dtype import dtype_for

VECTOR = str(ASSETS / "scenarios" / "acceptance" / "llama2-7b-68m-c4.json")
LLAMA = ["--target-shape", "Llama-2-7B", "--draft-shape", "jackfram-68m"]
TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 64, "max_position_embeddings": 128,
}  # fmt: skip


def test_a_modelled_profile_is_written_and_planned_with(call, tmp_path):
    out = tmp_path / "a100.json"
    found = call("profile", *LLAMA, "--device-model", "a100-80g", "--dtype", "float16", "--out", str(out))
    assert found["meta"]["modelled"] is True and found["sizes"][-1] == 1024 and found["dtype"] == "float16"
    assert HardwareProfile.load(out).meta["target"] == "meta-llama/Llama-2-7b-hf"
    plan = call("plan", "--acceptance", VECTOR, "--profile", str(out), "--max-size", "64", "--max-depth", "8")
    assert plan["predicted_speedup"] > 1.5 and plan["device"] == "NVIDIA A100 80 GB SXM"


def test_an_offloaded_target_has_flat_times(call):
    shapes = ["--target-shape", "llama-3-70b", "--draft-shape", "llama-3-8b", "--device-model", "l40"]
    found = call("profile", *shapes, "--offload", "host", "--sizes", "2,256")
    assert found["sizes"] == [1, 2, 256] and found["verify_sec"][0] == found["verify_sec"][-1] > 4
    assert found["dtype"] == "bfloat16" and found["meta"]["offload"] == "host"


EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, EXPERTS], ids=["dense", "experts"])
def test_shapes_alone_are_measured_with_random_weights(more, call, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY | more))
    shapes = ["--target-shape", str(path), "--draft-shape", str(path)]
    found = call("profile", *shapes, "--sizes", "1,4", "--context", "16", "--repeats", "1")
    assert found["sizes"] == [1, 4] and found["meta"]["target"].endswith("(random weights)")
    assert not found["meta"].get("modelled")
    assert found["dtype"] == dtype_for("bfloat16", TINY | more, gpu=False).dtype


def test_two_files_and_a_guess_say_whether_it_pays(call, refusal, tmp_path):
    """Before anything is downloaded; the break-even guess is one at which the best chain is as fast as none."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(find_shape("qwen3-30b-a3b").to_config()))
    options = ["profile", "--target-shape", str(path), "--draft-shape", "qwen3-0.6b", "--device-model", "h100"]
    found = call(*options, "--guess", "0.95")["pays"]
    assert found["speedup"] > 1 and 0.5 < found["breaks_even"] < 0.95
    even = call(*options, "--guess", str(found["breaks_even"]))["pays"]
    assert even["speedup"] == pytest.approx(1, abs=1e-6)
    assert "--guess: found 1.5" in refusal(*options, "--guess", "1.5")
    slow = ["profile", "--target-shape", "qwen3-0.6b", "--draft-shape", "qwen3-8b", "--device-model", "h100"]
    assert call(*slow, "--guess", "0.9")["pays"]["breaks_even"] is None
