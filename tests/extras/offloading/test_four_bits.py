"""Targets in 4 bits: streamed, they give the logits of transformers with compressed-tensors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from sequoia_core.models.loading import load_pair
from sequoia_core.trees.plain import chain_tree
from sequoia_extras.cpu_kernels import instruction_sets
from sequoia_extras.offloading.streamed_llama import StreamedLlama
from sequoia_extras.offloading.streamed_modules import StreamedBackend
from tests.core.models.test_llama_torch import TREE, logits
from tests.core.test_families import build, save
from tests.extras.cpu_kernels.test_instruction_sets import RUNNABLE
from tests.extras.offloading.test_offloading import compiled_family, needs_compiler

pytest.importorskip("compressed_tensors")
from scripts.make_four_bits import make_four_bits

pytestmark = pytest.mark.usefixtures("copies")
GROUP_SIZES = [32, 64, 0]  # 0: one scale for each row
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "num_attention_heads": 4}


def quantized_folder(tmp_path, family: str = "Llama", *, sizes=SIZES, **options):
    make = compiled_family if sizes else build
    plain = save(make(family, **sizes), tmp_path / "plain")
    return make_four_bits(tmp_path / plain, tmp_path / "four bits", **options)


def load_resident_and_streamed(folder, dtype: str):
    return [load_pair(folder, "none", device="cpu", dtype=dtype, offload=tier).target for tier in (None, "disk")]


@needs_compiler
@pytest.mark.sample(3)
@pytest.mark.parametrize("instructions", RUNNABLE)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_compiled_passes_give_the_same_bits_as_in_memory(group_size, instructions, tmp_path, monkeypatch):
    monkeypatch.setenv(instruction_sets.INSTRUCTIONS_VARIABLE, instructions)
    if not StreamedLlama.supports(compiled_family("Llama"), {}):
        pytest.skip("the compiler or the system lacks these instructions")
    resident, streamed = load_resident_and_streamed(quantized_folder(tmp_path, share=group_size), "bfloat16")
    assert isinstance(streamed._backend, StreamedLlama) and streamed.backend.endswith("from disk in 4 bits")
    assert resident.backend.startswith("compiled code")
    for tree in (TREE, chain_tree(6), chain_tree(40)):  # few and many rows are multiplied by different code
        assert torch.equal(logits(resident, tree), logits(streamed, tree))
    streamed.close()


@needs_compiler
@pytest.mark.parametrize(
    "family, dtype, options",
    [
        ("Phi3", "float32", {"sizes": {}, "share": 16, "scales": "float32"}),
        ("Gemma2", "bfloat16", {"sizes": {}, "share": 16}),
        ("Llama", "bfloat16", {"share": 32, "skip": "down_proj"}),
    ],
)
def test_other_models_stream_through_their_own_modules(family, dtype, options, tmp_path):
    resident, streamed = load_resident_and_streamed(quantized_folder(tmp_path, family, **options), dtype)
    assert isinstance(streamed._backend, StreamedBackend)
    allowed = 1e-5 if dtype == "float32" else 0.05  # the resident model may use kernels that round differently
    expected = logits(resident).float()
    found = logits(streamed).float()
    assert (expected - found).abs().max() <= allowed * expected.abs().max()
    matrices = [matrix for matrix in streamed.model.model.layers.parameters() if matrix.ndim > 1]
    assert "skip" in options or all(matrix.is_meta for matrix in matrices), "dequantized weights were not freed"


def change_quantization(folder, *path, value):
    settings = json.loads((folder / "config.json").read_text())
    section = settings["quantization_config"]
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(settings))


def change_tensor(folder, name, change) -> None:
    """Replace one stored tensor, or remove it if `change` returns None."""
    weights = load_file(folder / "model.safetensors")
    changed = change(weights.pop(name))
    if changed is not None:
        weights[name] = changed
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


WEIGHTS = ("config_groups", "group_0", "weights")


@pytest.mark.parametrize(
    "path, value, found",
    [
        ((*WEIGHTS, "num_bits"), 8, "8 bits int"),
        ((*WEIGHTS, "actorder"), "group", "reordered columns"),
        (("config_groups", "group_0", "input_activations"), {"num_bits": 8}, "quantized activations"),
        (("config_groups",), "x" * 10_000, "pack-quantized; expected"),
        ((*WEIGHTS, "symmetric"), False, "with zero points"),
    ],
)
def test_other_quantization_formats_are_refused(path, value, found, tmp_path):
    folder = quantized_folder(tmp_path, sizes={}, share=32)
    change_quantization(folder, *path, value=value)
    with pytest.raises(ValueError, match=found) as error:
        load_pair(folder, "none", device="cpu", offload="disk")
    assert len(str(error.value)) < 600


DOWN = "model.layers.0.mlp.down_proj.weight"


@needs_compiler
@pytest.mark.parametrize(
    "name, change, found",
    [
        (f"{DOWN}_scale", lambda scale: scale[:, :-1].contiguous(), "expected int32 \\[n, k / 8\\]"),
        (f"{DOWN}_scale", lambda scale: scale.fill_(torch.nan), f"not finite in {DOWN}_scale"),
        (f"{DOWN}_packed", lambda packed: None, f"no {DOWN}"),
        ("lm_head.weight", lambda weights: weights.to(torch.int32), "lm_head.weight stored as torch.int32"),
    ],
)
def test_inconsistent_tensors_are_refused_before_a_copy_is_made(name, change, found, tmp_path, copies):
    folder = quantized_folder(tmp_path, share=32)
    change_tensor(folder, name, change)
    with pytest.raises(ValueError, match=found):
        load_pair(folder, "none", device="cpu", offload="disk", dtype="bfloat16")
    assert not list(copies.glob("*.layers"))
