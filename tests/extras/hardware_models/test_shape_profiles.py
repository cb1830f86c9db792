import json

import pytest

from sequoia_core.planning.profile import HardwareProfile
from sequoia_extras.hardware_models.model_shapes import find_shape
from sequoia_extras.hardware_models.scenarios import ASSETS

VECTOR = str(ASSETS / "scenarios" / "acceptance" / "llama2-7b-68m-c4.json")
LLAMA = ["--target-shape", "Llama-2-7B", "--draft-shape", "jackfram-68m"]


def test_plan_uses_a_modelled_profile(call, tmp_path):
    out = tmp_path / "a100.json"
    found = call("profile", *LLAMA, "--device-model", "a100-80g", "--dtype", "float16", "--out", str(out))
    assert found["meta"]["modelled"] is True and found["sizes"][-1] == 1024 and found["dtype"] == "float16"
    assert HardwareProfile.load(out).meta["target"] == "meta-llama/Llama-2-7b-hf"
    plan = call("plan", "--acceptance", VECTOR, "--profile", str(out), "--max-size", "64", "--max-depth", "8")
    assert plan["predicted_speedup"] > 1.5 and plan["device"] == "NVIDIA A100 80 GB SXM"


def test_an_offloaded_target_has_constant_times(call):
    shapes = ["--target-shape", "llama-3-70b", "--draft-shape", "llama-3-8b", "--device-model", "l40"]
    found = call("profile", *shapes, "--offload", "host", "--sizes", "2,256")
    assert found["sizes"] == [1, 2, 256] and found["verify_sec"][0] == found["verify_sec"][-1] > 4
    assert found["dtype"] == "bfloat16" and found["meta"]["offload"] == "host"


def test_a_guessed_acceptance_says_whether_drafting_pays(call, refusal, tmp_path):
    """At the break-even guess, the best chain is as fast as decoding without a draft."""
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target-shape", "llama-2-7b"], "expected all three"),
        ([*LLAMA, "--device-model", "a100-80g", "--target", "x"], "cannot be combined with --target"),
        ([*LLAMA, "--device-model", "m3-max", "--offload", "host"], "expected a different location"),
    ],
)
def test_bad_input_is_one_line(arguments, message, refusal):
    assert message in refusal("profile", *arguments)
