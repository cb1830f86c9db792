"""Targets in 4 bits: streamed so, they give what transformers with compressed-tensors gives from the same files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.models.loading import load_pair, streaming_needs
from sequoia_core.models.offload.streamed_llama import StreamedLlama
from sequoia_core.models.offload.streamed_modules import StreamedBackend
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.native import instruction_sets
from tests.core.models.offload.test_offloading import PROMPT, TREE, compiled_family, logits, needs_compiler
from tests.core.native.test_instruction_sets import RUNNABLE
from tests.core.test_families import build, save

pytest.importorskip("compressed_tensors")
from scripts.make_four_bits import make_four_bits
from tests.conftest import pair_of, tokens_of

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


@pytest.mark.parametrize("family", ["Qwen2 tied", "Qwen3"])
@needs_compiler
def test_relatives_of_llama_stream_in_4_bits(family, tmp_path):
    resident, streamed = both(quantised(tmp_path, family, share=32), "bfloat16")
    assert isinstance(streamed._backend, StreamedLlama)
    assert torch.equal(logits(resident), logits(streamed))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Phi3", "OPT"])
def test_what_compiled_passes_cannot_run_streams_through_its_own_modules(family, dtype, tmp_path):
    folder = quantised(tmp_path, family, sizes={}, share=16, zero_points=True, scales="float32")
    resident, streamed = both(folder, dtype)
    assert isinstance(streamed._backend, StreamedBackend)
    allowed = 1e-5 if dtype == "float32" else 0.05  # in memory other kernels may run, which round elsewhere
    expected, found = logits(resident).float(), logits(streamed).float()
    assert (expected - found).abs().max() <= allowed * expected.abs().max()


@needs_compiler
@pytest.mark.parametrize(
    "how", [{"share": 32, "skip": "down_proj"}, {"share": 16}, {"share": 32, "skip": "layers.0."}], ids=str
)
def test_what_is_not_all_alike_streams_through_its_own_modules_too(how, tmp_path):
    resident, streamed = both(quantised(tmp_path, **how), "bfloat16")
    assert isinstance(streamed._backend, StreamedBackend)
    assert torch.allclose(logits(resident), logits(streamed).float(), atol=0.05)


@needs_compiler
def test_scales_in_float16_are_rounded_with_their_weights_once(tmp_path):
    folder = quantised(tmp_path, share=32, scales="float16")
    compiled, own = (load_pair(folder, tmp_path / "plain", device="cpu", offload="disk", dtype=dtype).target
                     for dtype in ("bfloat16", "float32"))  # fmt: skip
    assert isinstance(compiled._backend, StreamedLlama) and isinstance(own._backend, StreamedBackend)
    # against float32: as far away as bfloat16 is
    expected, found = logits(own), logits(compiled)
    assert 0 < (expected - found).abs().max() <= 0.05 * expected.abs().max()


@needs_compiler
def test_text_is_that_of_the_model_in_memory_and_a_quarter_of_the_bytes_is_read(tmp_path):
    folder = quantised(tmp_path, share=64)
    resident, streamed = both(folder, "bfloat16")
    draft = load_pair(tmp_path / "plain", tmp_path / "plain", device="cpu", dtype="bfloat16").draft

    def text(target, temperature):
        options = {"sampling": SamplingConfig(temperature), "generator": torch.Generator().manual_seed(3)}
        steps = decode(PROMPT, pair_of(target, draft), tree=TREE, max_new_tokens=40, **options)
        return tokens_of(steps)

    for temperature in (0.0, 0.6):
        assert text(resident, temperature) == text(streamed, temperature)
    plain = load_pair(tmp_path / "plain", tmp_path / "plain", device="cpu", dtype="bfloat16", offload="disk").target
    layers = [model._backend._parts.layer_bytes for model in (streamed, plain)]
    assert layers[0] / layers[1] < 0.40  # blocks of 4,096 bytes round tiny layers up
    for model in (streamed, plain):
        backend = model._backend
        assert (model.needs.ring, model.needs.copy) == (backend.ring.buffer_bytes, backend.path.stat().st_size)


def test_a_draft_in_4_bits_takes_what_it_takes_dequantised(tmp_path):
    folder = quantised(tmp_path, share=32)
    plain = str(tmp_path / "plain")
    needs = {
        name: streaming_needs(PairSpec(target, draft, "cpu", "float32", "disk"))
        for name, target, draft in (("plain", plain, plain), ("draft", plain, folder))
    }
    assert 1.0 < needs["draft"].beside / needs["plain"].beside < 1.1  # scales come on top


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
        (("format",), "int-quantized", "int-quantized"),
        (("quant_method",), "fp8", "fp8"),
        ((*WEIGHTS, "num_bits"), 8, "8 bits int"),
        ((*WEIGHTS, "type"), "float", "4 bits float"),
        ((*WEIGHTS, "strategy"), "tensor", "scales by tensor"),
        ((*WEIGHTS, "actorder"), "group", "columns in another order"),
        ((*WEIGHTS, "symmetric"), [3], "symmetric: .3."),
        (("config_groups", "group_0", "input_activations"), {"num_bits": 8}, "activations too"),
        (("config_groups",), {"group_0": [WEIGHTS]}, "None bits None"),
        (("config_groups",), {}, "pack-quantized; expected"),
        (("config_groups",), "x" * 10_000, "pack-quantized; expected"),
    ],
)
def test_other_quantised_weights_are_refused_and_named(path, value, found, tmp_path):
    folder = quantised(tmp_path, sizes={}, share=32)
    changed(folder, *path, value=value)
    with pytest.raises(ValueError, match=f"found weights quantised with .*{found}") as fault:
        load_pair(folder, tmp_path / "plain", device="cpu", offload="disk")
    assert len(str(fault.value)) < 600


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "part, change, found",
    [
        ("scale", lambda scale: scale[:, :-1].contiguous(), "expected int32 \\[n, k / 8\\]"),
        ("scale", lambda scale: scale[:-1].contiguous(), "expected int32 \\[n, k / 8\\]"),
        ("scale", lambda scale: scale.flatten(), "expected int32 \\[n, k / 8\\]"),
        ("scale", lambda scale: None, "_scale none"),
        ("packed", lambda packed: packed[:, :-8].contiguous(), "expected"),
        ("packed", lambda packed: None, "no model.layers.0.mlp.down_proj.weight"),
        ("zero_point", lambda zero: zero.T.contiguous(), "_zero_point"),
        ("zero_point", lambda zero: zero.float(), "_zero_point"),
        ("zero_point", lambda zero: zero.to(torch.int8), "_zero_point none"),  # of a dtype that is not read
        ("zero_point", lambda zero: None, "_zero_point none"),
    ],
)
def test_parts_that_do_not_belong_together_are_named(part, change, found, dtype, tmp_path):
    folder = quantised(tmp_path, share=32, zero_points=True)
    change_weight(folder, f"model.layers.0.mlp.down_proj.weight_{part}", change)
    with pytest.raises(ValueError, match=found):
        load_pair(folder, tmp_path / "plain", device="cpu", offload="disk", dtype=dtype)


def test_zero_points_that_the_settings_deny_are_refused(tmp_path):
    folder = quantised(tmp_path, sizes={}, share=32, zero_points=True)
    changed(folder, *WEIGHTS, "symmetric", value=True)
    with pytest.raises(ValueError, match="expected int32 .* no zero points, by config.json"):
        load_pair(folder, tmp_path / "plain", device="cpu", offload="disk", dtype="float32")


def test_after_a_layer_its_weights_are_given_up_also_where_a_pass_broke_off(tmp_path):
    folder = quantised(tmp_path, sizes={}, share=32)
    target = load_pair(folder, tmp_path / "plain", device="cpu", offload="disk", dtype="float32").target
    assert isinstance(target._backend, StreamedBackend)
    layers = target.model.model.layers

    def held() -> int:
        return sum(not matrix.is_meta for layer in layers for matrix in layer.parameters() if matrix.ndim > 1)

    assert held() == 0  # loading checked a pass
    expected = logits(target)
    assert held() == 0

    def fail(*_):
        raise RuntimeError("broken off")

    hook = layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError):
        logits(target)
    hook.remove()
    assert torch.equal(logits(target), expected) and held() == 0


def test_whole_numbers_where_weights_belong_are_no_weights(tmp_path):
    folder = quantised(tmp_path, sizes={}, share=32)
    change_weight(folder, "lm_head.weight", lambda weights: weights.to(torch.int32))
    with pytest.raises(ValueError, match="lm_head.weight stored as torch.int32"):
        load_pair(folder, tmp_path / "plain", device="cpu", offload="disk", dtype="float32")


@needs_compiler
def test_scales_that_are_no_numbers_are_refused_before_a_copy_is_made(tmp_path, copies):
    folder = quantised(tmp_path, share=32)
    change_weight(folder, "model.layers.1.self_attn.o_proj.weight_scale", lambda scale: scale.fill_(torch.nan))
    with pytest.raises(ValueError, match="not finite in model.layers.1.self_attn.o_proj.weight_scale"):
        load_pair(folder, tmp_path / "plain", device="cpu", offload="disk", dtype="bfloat16")
    assert not list(copies.glob("*.layers"))
