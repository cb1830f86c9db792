"""server-plan with the optional package hardware_models, and without it."""

import json
from functools import partial

import pytest

from sequoia_core.files.extras import has

needs_package = pytest.mark.skipif(not has("hardware_models"), reason="the optional package hardware_models is deleted")


@needs_package
def test_llama_bench_times_are_costs(call, files, tmp_path):
    rows = [
        {"model_filename": name, "model_n_params": size, "n_prompt": n, "avg_ns": size * (9 + n)}
        for name, size in (("target.gguf", 19_000), ("draft.gguf", 1200))
        for n in (1, 8)
    ]
    (tmp_path / "bench").write_text(json.dumps(rows))
    found = call("server-plan", "--after", files("after"), "--profile", str(tmp_path / "bench"))
    assert found["costs"].startswith("llama-bench")


@needs_package
def test_step_times_grow_with_the_experts_read(call, files):
    """Between two timed settings a step follows the experts, which new tokens find ever fewer of: above the line."""
    plan = partial(call, "server-plan")
    options = ("--after", files("after"), "--before", files("before"), "--timed", "0=70,1=80,4=75")
    straight, bent = plan(*options), plan(*options, "--target-shape", "qwen3-30b-a3b")
    for k, same in ((1, True), (2, False), (3, False), (4, True)):
        speeds = [found["batches"][0]["tokens_per_sec"][k]["value"] for found in (straight, bent)]
        assert speeds[1] == pytest.approx(speeds[0]) if same else speeds[1] < 0.999 * speeds[0]
    dense = plan(*options, "--target-shape", "qwen3-8b")
    assert dense["batches"] == straight["batches"]


def test_a_shape_without_the_package_is_refused(refusal, files, monkeypatch):
    monkeypatch.setattr("sequoia_core.command_line.inputs.provided", lambda seam: ())
    asked = ("server-plan", "--after", files("after"), "--target-shape", "qwen3-8b")
    assert "--target-shape: the optional package hardware_models is not installed" in refusal(*asked)
