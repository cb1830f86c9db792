"""Heads that draft a block in one pass: files, sessions, and the exact distribution of a step."""

import pytest
import torch

from tests.conftest import tiny_llama
from tests.head_folders import DFLASH, SPECULATORS, head_fields, head_tensors, load_head, write_head


@pytest.fixture(scope="module")
def target():
    return tiny_llama(0, layers=6)


def test_published_ids_count_layers_and_default_to_even_steps(target, tmp_path):
    def reads(name, **fields):
        fields = head_fields(target.model, DFLASH, **fields)
        return load_head(write_head(tmp_path / name, fields, head_tensors(fields)), target.model).settings.reads

    assert reads("given", reads=(1, 4, 6)) == (1, 4, 6)
    assert reads("one") == (4,) and reads("three", layers=3) == (2, 3, 4)  # [3] and [1, 2, 3] in the authors' code
    inside = {"dflash_config": {"mask_token_id": 5, "block_size": 3}, "block_size": None}
    assert reads("inside", **inside) == (4,)


SPEC = {"form": SPECULATORS, "speculators_model_type": "dflash"}
FAULTS = {
    "mask_token_id: found 64, expected an id below 64": SPEC | {"mask_token_id": 64},
    "dflash_config.mask_token_id: found nothing": {"dflash_config": {"target_layer_ids": [1]}},
    "block_size: found nothing, expected the number of tokens": {"block_size": None},
    "num_target_layers: found 8, expected 6 as in this target": {"num_target_layers": 8, "reads": (1,)},
    "num_target_layers: found nothing, expected it or dflash_config": {"num_target_layers": None},
    "target_hidden_size: found 8, expected 32": {"dflash_config": {"mask_token_id": 5, "target_hidden_size": 8}},
    "layer_types: found 'sliding_attention', expected full": {"layer": {"layer_types": ["sliding_attention"]}},
    "layer_types: found 1, expected 2, one per layer": SPEC | {"layers": 2, "layer": {"layer_types": ["other"]}},
    "proposal_methods: found nothing": {
        "form": SPECULATORS, "speculators_model_type": "peagle", "speculators_config": {}
    },
}  # fmt: skip


@pytest.mark.parametrize("message", FAULTS)
def test_faulty_configs_are_rejected(message, target, tmp_path):
    fields = head_fields(target.model, **({"form": DFLASH} | FAULTS[message]))
    with pytest.raises(ValueError, match=message):
        load_head(write_head(tmp_path, fields, {"fc.weight": torch.ones(1)}), target.model)
