"""Targets in 4 bits: streamed so, they give what transformers with compressed-tensors gives from the same files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.models.loading import load_pair
from sequoia_core.models.offload.streamed_llama import StreamedLlama
from sequoia_core.models.offload.streamed_modules import StreamedBackend
from sequoia_core.native import instruction_sets
from tests.core.models.offload.test_offloading import TREE, compiled_family, logits, needs_compiler
from tests.core.native.test_instruction_sets import RUNNABLE
from tests.core.test_families import build, save

pytest.importorskip("compressed_tensors")
from scripts.make_four_bits import make_four_bits

pytestmark = pytest.mark.usefixtures("copies")
KINDS = {
    "groups of 32": {"share": 32},
    "groups of 64, zero points": {"share": 64, "zero_points": True},
    "whole rows": {"share": 0},
    "whole rows, zero points": {"share": 0, "zero_points": True},
}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "num_attention_heads": 4}


def quantised(tmp_path, family: str = "Llama", *, sizes=SIZES, **how):
    """Return the folder of a model in 4 bits."""
    make = compiled_family if sizes else build
    return make_four_bits(tmp_path / save(make(family, **sizes), tmp_path / "plain"), tmp_path / "four bits", **how)


def both(folder, dtype: str):
    """Return the model in memory, as transformers and compressed-tensors load it, and the same one streamed."""
    draft = folder.parent / "plain"
    loaded = [load_pair(folder, draft, device="cpu", dtype=dtype, offload=place).target for place in (None, "disk")]
    assert loaded[0].offload is None
    return loaded


@needs_compiler
@pytest.mark.sample(3)
@pytest.mark.parametrize("instructions", RUNNABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_passes_give_the_same_bits_as_in_memory(kind, instructions, tmp_path, monkeypatch):
    monkeypatch.setenv(instruction_sets.VARIABLE, instructions)
    if not StreamedLlama.supports(compiled_family("Llama"), {}):
        pytest.skip("the compiler or the system lacks these instructions")
    resident, streamed = both(quantised(tmp_path, **KINDS[kind]), "bfloat16")
    assert isinstance(streamed._backend, StreamedLlama) and streamed.backend.endswith("from disk in 4 bits")
    assert resident.backend.startswith("compiled code")
    for tree in (TREE, chain_tree(6), chain_tree(40)):  # few rows and many take other ways through the products
        assert torch.equal(logits(resident, tree), logits(streamed, tree))
    streamed.close()


@needs_compiler
@pytest.mark.parametrize(
    "family, dtype, how",
    [
        *((family, "float32", {"sizes": {}, "share": 16, "zero_points": True, "scales": "float32"})
          for family in ("Gemma2", "Phi3")),
        ("Gemma2", "bfloat16", {"sizes": {}, "share": 16}),
        ("Llama", "bfloat16", {"share": 32, "skip": "down_proj"}),  # not all alike
    ],
)  # fmt: skip
def test_what_compiled_passes_cannot_run_streams_through_its_own_modules(family, dtype, how, tmp_path):
    resident, streamed = both(quantised(tmp_path, family, **how), dtype)
    assert isinstance(streamed._backend, StreamedBackend)
    allowed = 1e-5 if dtype == "float32" else 0.05  # in memory other kernels may run, which round elsewhere
    expected, found = logits(resident).float(), logits(streamed).float()
    assert (expected - found).abs().max() <= allowed * expected.abs().max()
    matrices = [matrix for matrix in streamed.model.model.layers.parameters() if matrix.ndim > 1]
    assert "skip" in how or all(matrix.is_meta for matrix in matrices)  # given up; others lie where they are read


def changed(folder, *path, value):
    """Change one setting of a model's quantisation."""
    settings = json.loads((folder / "config.json").read_text())
    place = settings["quantization_config"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(settings))


def change_weight(folder, name, change) -> None:
    """Store something else, or nothing, in place of one tensor."""
    weights = load_file(folder / "model.safetensors")
    found = change(weights.pop(name))
    save_file(weights | ({} if found is None else {name: found}), folder / "model.safetensors", {"format": "pt"})


WEIGHTS = ("config_groups", "group_0", "weights")


@pytest.mark.parametrize(
    "path, value, found",
    [
        ((*WEIGHTS, "num_bits"), 8, "8 bits int"),
        ((*WEIGHTS, "actorder"), "group", "columns in another order"),
        (("config_groups", "group_0", "input_activations"), {"num_bits": 8}, "activations too"),
        (("config_groups",), "x" * 10_000, "pack-quantized; expected"),
        ((*WEIGHTS, "symmetric"), True, "expected int32 .* no zero points, by config.json"),
    ],
)
def test_other_quantised_weights_are_refused_and_named(path, value, found, tmp_path):
    folder = quantised(tmp_path, sizes={}, share=32, zero_points=True)
    changed(folder, *path, value=value)
    with pytest.raises(ValueError, match=found) as fault:
        load_pair(folder, tmp_path / "plain", device="cpu", offload="disk")
    assert len(str(fault.value)) < 600


DOWN = "model.layers.0.mlp.down_proj.weight"


@needs_compiler
@pytest.mark.parametrize(
    "name, change, found",
    [
        (f"{DOWN}_scale", lambda scale: scale[:, :-1].contiguous(), "expected int32 \\[n, k / 8\\]"),
        (f"{DOWN}_scale", lambda scale: scale.fill_(torch.nan), f"not finite in {DOWN}_scale"),
        (f"{DOWN}_packed", lambda packed: None, f"no {DOWN}"),
        (f"{DOWN}_zero_point", lambda zero: zero.T.contiguous(), "_zero_point"),
        ("lm_head.weight", lambda weights: weights.to(torch.int32), "lm_head.weight stored as torch.int32"),
    ],
)
def test_parts_that_do_not_belong_together_are_named_before_a_copy_is_made(name, change, found, tmp_path, copies):
    folder = quantised(tmp_path, share=32, zero_points=True)
    change_weight(folder, name, change)
    with pytest.raises(ValueError, match=found):
        load_pair(folder, tmp_path / "plain", device="cpu", offload="disk", dtype="bfloat16")
    assert not list(copies.glob("*.layers"))
