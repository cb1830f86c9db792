"""Commands and files that need a missing optional package are refused."""

import json

import pytest

from sequoia_core.planning.profile import load_profile


def test_options_of_missing_packages_are_refused(monkeypatch, refusal, tmp_path):
    for module in ("command_line.inputs", "planning.profile"):
        monkeypatch.setattr(f"sequoia_core.{module}.provided", lambda seam: ())
    shapes = ["--target-shape", "llama-2-7b", "--draft-shape", "jackfram-68m"]
    assert "--device-model: the optional package hardware_models is not installed" in refusal("profile", *shapes)
    (tmp_path / "bench.json").write_text(json.dumps([{"n_prompt": 1, "avg_ns": 5}]))
    with pytest.raises(ValueError, match="bench.json: found llama-bench output, expected a profile"):
        load_profile(tmp_path / "bench.json")
