"""The default dtype of a pair."""

import pytest
import torch
from safetensors.torch import save_file

from sequoia_core import load_pair
from sequoia_core.files.dtypes import DefaultDtype
from sequoia_core.models import default_dtype as rule
from sequoia_core.models.default_dtype import default_dtype, dtype_for


@pytest.fixture
def machine(monkeypatch):
    """Return a function that simulates a processor's flags and compiled passes."""

    def pretend(*, compiled: bool, flags: str = "avx2"):
        monkeypatch.setattr(rule, "provided", lambda seam: [lambda config: compiled])
        monkeypatch.setattr(rule, "processor_flags", lambda: flags)

    return pretend


@pytest.mark.parametrize(
    ("stored", "gpu", "compiled", "flags", "expected"),
    [
        ("bfloat16", True, False, "", "bfloat16"),
        ("bfloat16", False, True, "", "bfloat16"),
        ("bfloat16", False, False, "avx2 amx_bf16", "bfloat16"),
        ("bfloat16", False, False, "avx512f", "float32"),
        ("float16", False, True, "avx512_bf16", "float32"),
        ("float32", False, True, "avx512_bf16", "float32"),
    ],
)
def test_the_stored_dtype_is_used_if_the_machine_supports_it(machine, stored, gpu, compiled, flags, expected):
    machine(compiled=compiled, flags=flags)
    assert dtype_for(stored, {}, gpu=gpu).dtype == expected


def test_the_most_common_dtype_counts_as_stored(tmp_path, machine):
    machine(compiled=True)
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.zeros(8, 8, dtype=torch.bfloat16), "b": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert default_dtype(tmp_path, gpu=False).dtype == "bfloat16"
    save_file({"a": torch.zeros(8, 8), "b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    assert default_dtype(tmp_path, gpu=False) == DefaultDtype("float32", "stored in float32")


def test_unreadable_files_default_to_float32_and_fail_on_loading(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / "model.safetensors").write_text("junk")
    assert default_dtype(tmp_path, gpu=True).dtype == "float32"
    with pytest.raises(ValueError, match=str(tmp_path)):
        load_pair(str(tmp_path), str(tmp_path))


def test_the_demo_pair_loads_in_the_default_dtype():
    pair = load_pair(device="cpu")
    assert str(pair.target.dtype) == str(pair.draft.dtype) == f"torch.{default_dtype(gpu=False).dtype}"
