import json
from itertools import combinations, product

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_extras.hardware_models.model_shapes import ModelShape, find_shape, shipped_table

PUBLISHED = {  # parameter counts from the hub
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824, "qwen3-0.6b": 596_049_920, "qwen3-8b": 8_190_735_360,
    "vicuna-33b": 32_528_943_616, "sheared-llama-1.3b": 1_345_423_360,
    "qwen3-32b": 32_762_123_264, "jackfram-68m": 68_030_208, "jackfram-160m": 162_417_408,
    "demo-target": 19_275_648, "demo-draft": 1_229_376,
    "qwen3-30b-a3b": 30_532_122_624, "mixtral-8x7b": 46_702_792_704,
}  # fmt: skip
TINY = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def shape_of(tmp_path, **changes) -> ModelShape:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in (TINY | changes).items() if value is not None}))
    return find_shape(str(path))


def test_shipped_shapes_have_the_published_parameter_counts():
    assert {name: find_shape(name).parameters for name in shipped_table("shapes")} == PUBLISHED


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("family", "experts"),
    [
        ("llama", {}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 24}),
        ("qwen3_moe", EXPERTS),
    ],
)
def test_parameter_counts_match_transformers(family, experts, tied, tmp_path):
    shape = shape_of(tmp_path, model_type=family, tie_word_embeddings=tied, head_dim=16, **experts)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape.to_config()))
    assert shape.parameters == sum(weights.numel() for weights in model.parameters())
    layers = sum(weights.numel() for key, weights in model.named_parameters() if ".layers." in key)
    assert layers == shape.num_hidden_layers * shape.layer_parameters
    assert shape.resident_parameters == shape.parameters - layers


def test_bytes_and_operations(tmp_path):
    shape = shape_of(tmp_path)
    products = 2 * (32 * 8 * (4 + 2 * 2) + 32 * 32 + 3 * 32 * 64)  # 2 layers: query, keys, values; output; gated MLP
    assert shape.head_dim == 8 and shape.num_hidden_layers * shape.layer_products == products
    assert shape.weight_bytes("bfloat16") == 2 * shape.parameters
    assert shape.kv_bytes("float32") == 2 * 2 * 2 * 8 * 4  # keys and values of two heads of eight, in two layers
    assert shape.read_parameters == shape.parameters - 100 * 32  # the embedding is only looked up
    assert shape_of(tmp_path, tie_word_embeddings=True).read_parameters == shape.read_parameters
    head = 100 * 32
    seen = 50
    assert shape.operations_per_token(seen) == 2 * (products + head) + 2 * 2 * 2 * 4 * 8 * seen
    with pytest.raises(ValueError, match="dtype: found 'int3', expected one of float32, bfloat16, float16"):
        shape.weight_bytes("int3")


def test_shapes_are_found_by_name_hub_id_folder_and_file(tmp_path):
    assert find_shape("Llama-2-7B") == find_shape("meta-llama/llama-2-7b-hf")
    for role in ("target", "draft"):
        folder = find_shape(str(DEMO_PAIR / role))
        named = find_shape(f"demo-{role}")
        assert folder.to_config() == named.to_config() and folder.model == named.model == f"demo {role}"
    shape = shape_of(tmp_path)
    assert find_shape(str(tmp_path)) == find_shape(str(tmp_path / "config.json")) == shape
    assert shape.max_position_embeddings == 128 and shape.name == str(tmp_path / "config.json")
    with pytest.raises(ValueError, match="unknown shape, expected a config.json, .* llama-2-7b,"):
        find_shape("x" * 5000)


def test_expected_experts_match_an_enumeration(tmp_path):
    """Enumerate how three tokens choose two of four experts each."""
    shape = shape_of(tmp_path, model_type="qwen3_moe", **EXPERTS)
    ways = list(combinations(range(4), 2))
    read = [len(set().union(*chosen)) for chosen in product(ways, repeat=3)]
    assert shape.experts_read(3) == pytest.approx(sum(read) / len(read))
    assert shape.experts_read(3, alike=1.0) == shape.experts_read(1) == 2
    assert shape.experts_read(3, alike=0.5) == pytest.approx((shape.experts_read(3) + 2) / 2)
    resting = shape.layer_parameters - shape.layer_products  # norms and unused experts
    assert resting > 2 * shape.expert_parameters == 2 * 3 * 32 * 16


QWEN_MOE = EXPERTS | {"model_type": "qwen3_moe"}


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: found 'gpt2', expected: Input should be 'llama'"),
        ({"hidden_size": None}, "hidden_size: found nothing"),
        ({"hidden_size": 30}, "hidden_size: found 30, expected a multiple of 4 heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: found 3, expected a divisor of 4 heads"),
        ({"attention_bias": True}, "attention_bias: found True, expected false"),
        (QWEN_MOE | {"num_experts_per_tok": 5}, r".*found \[4, 5, 16\], expected sizes above 0"),
        (EXPERTS, ".*expected zeros for llama"),
        (QWEN_MOE | {"mlp_only_layers": [0]}, ".*found layers without experts, expected experts in all"),
    ],
)
def test_unsupported_configurations_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=f"config.json: {message}") as error:
        shape_of(tmp_path, **changes)
    assert "\n" not in str(error.value)
