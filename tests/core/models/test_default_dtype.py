"""The dtype that a pair is loaded in where none is asked for."""

import json

import pytest
import torch
from safetensors.torch import save_file

from sequoia_core import load_pair
from sequoia_core.models import default_dtype as rule
from sequoia_core.models.default_dtype import DefaultDtype, default_dtype, dtype_for
from sequoia_core.native.llama_x86 import fits

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture
def machine(monkeypatch):
    """Pretend a processor without bfloat16 whose passes are compiled, or are not."""

    def pretend(*, compiled: bool, flags: str = "avx2"):
        monkeypatch.setattr(rule, "can_compile", lambda: compiled)
        monkeypatch.setattr(rule.instruction_sets, "chosen", lambda: ("some set", ""))
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
def test_as_stored_where_the_machine_computes_in_it(machine, stored, gpu, compiled, flags, expected):
    machine(compiled=compiled, flags=flags)
    assert dtype_for(stored, LLAMA, gpu=gpu).dtype == expected


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": 65}, {"hidden_size": "64"}, {"model_type": "gpt2"}, {"num_local_experts": 8}],
)
def test_a_model_whose_products_are_not_compiled(machine, change):
    machine(compiled=True)
    assert dtype_for("bfloat16", LLAMA | change, gpu=False).dtype == "float32"
    assert dtype_for("bfloat16", LLAMA | {"model_type": "gemma3_text"}, gpu=False).dtype == "bfloat16"


def test_most_numbers_decide_what_a_folder_is_stored_in(tmp_path, machine):
    machine(compiled=True)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    save_file({"a": torch.zeros(8, 8, dtype=torch.bfloat16), "b": torch.zeros(4)}, tmp_path / "model.safetensors")
    assert default_dtype(tmp_path, gpu=False).dtype == "bfloat16"
    save_file({"a": torch.zeros(8, 8), "b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    assert default_dtype(tmp_path, gpu=False) == DefaultDtype("float32", "stored in float32")


def test_what_cannot_be_read_counts_as_float32_and_loading_names_it(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    (tmp_path / "model.safetensors").write_text("junk")
    assert default_dtype(tmp_path, gpu=True).dtype == "float32"
    with pytest.raises(ValueError, match=str(tmp_path)):
        load_pair(str(tmp_path), str(tmp_path))


def test_the_demo_pair_loads_as_the_rule_says():
    pair = load_pair(device="cpu")
    assert str(pair.target.dtype) == str(pair.draft.dtype) == f"torch.{default_dtype(gpu=False).dtype}"
    if "compiled" in default_dtype(gpu=False).reason:
        assert fits(pair.target.model)
