"""Numbers that a dtype cannot hold are not blamed on the file, and another dtype is named."""

import pytest
import torch

from sequoia_core.models.checkpoint import load_weights, read_plan
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.model_files import locate
from sequoia_core.models.tree_pass_check import check_tree_pass
from tests.conftest import tiny_llama

NORM = "model.layers.0.input_layernorm.weight"
MATRIX = "model.layers.0.mlp.down_proj.weight"


def written(folder, key, value, dtype=torch.float32):
    model = tiny_llama(1, layers=1).model.to(dtype)
    with torch.no_grad():
        model.get_parameter(key).view(-1)[3] = value
    model.save_pretrained(folder)
    return locate(folder)


OVERFLOWS = [
    (1e6, torch.float32, torch.float16, "up to 1e+06 in {}, expected at most 65504 in float16: use a dtype that can"),
    (
        3.4e38,
        torch.float32,
        torch.bfloat16,
        "expected at most 3.3895e+38 in bfloat16: use a dtype that can",
    ),
    (torch.nan, torch.float32, torch.float32, "non-finite numbers in {}, loaded as float32, expected fin"),
]


@pytest.mark.parametrize(("value", "stored", "dtype", "found"), OVERFLOWS)
def test_an_overflowing_cast_suggests_another_dtype(value, stored, dtype, found, tmp_path):
    source = written(tmp_path, NORM, value, stored)
    with pytest.raises(ValueError) as caught:
        load_weights(source, read_plan(source), torch.device("cpu"), dtype)
    assert str(tmp_path) in str(caught.value) and found.format(NORM) in str(caught.value)


def overflowing(dtype):
    model = tiny_llama(1, layers=1).model
    with torch.no_grad():
        model.lm_head.weight.mul_(4e4).clamp_(-6e4, 6e4)
    return HuggingFaceModel(model.to(dtype), "tiny", eos_ids=frozenset())


def test_overflowing_logits_suggest_another_dtype():
    with pytest.raises(ValueError, match="non-finite logits in float16, .*65,504.*try bfloat16 or float32"):
        check_tree_pass(overflowing(torch.float16))
    check_tree_pass(overflowing(torch.bfloat16))
