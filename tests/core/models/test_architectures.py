"""Unsupported architectures are identified from config.json before a weight is read."""

import json

import pytest
from transformers import AutoConfig, LlamaConfig, LlavaConfig

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.architectures import check_head, check_rotation, mtp_tensors
from sequoia_core.models.checkpoint import read_plan
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.models.model_files import locate
from tests.conftest import tiny_llama

LLAMA = json.loads((DEMO_PAIR / "draft" / "config.json").read_text())
HEADS = {
    "EAGLE-3": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "draft_vocab_size": 2_000},
    "speculators": {"speculators_model_type": "peagle", "speculators_config": {"algorithm": "peagle"}},
    "DFlash": {"architectures": ["DFlashDraftModel"], "block_size": 16, "dflash_config": {"mask_token_id": 3}},
    "MTP": {"architectures": ["DeepSeekMTPModel"]},
}
MEDUSA = {"medusa_num_heads": 4, "medusa_num_layers": 1, "base_model_name_or_path": "a/target"}


def folder_of(folder, config):
    """Save a model without weights, so that reading them fails."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "architecture", "found"),
    [
        ("t5", "T5ForConditionalGeneration", "an encoder-decoder (T5ForConditionalGeneration)"),
        ("llama", "LlamaForSequenceClassification", "a model for a different task (LlamaForSequenceClassification)"),
    ],
)
def test_unsupported_architectures_are_refused(kind, architecture, found, tmp_path):
    config = AutoConfig.for_model(kind).to_dict() | {"architectures": [architecture]}
    with pytest.raises(ValueError) as caught:
        load_pair(folder_of(tmp_path / "model", config), DEMO_PAIR / "draft", device="cpu")
    expected = "expected a causal (decoder-only) language model"
    assert str(caught.value) == f"{tmp_path}/model: found {found}, {expected}"


@pytest.mark.parametrize("config", [*({**LLAMA, **head} for head in HEADS.values()), MEDUSA], ids=[*HEADS, "Medusa"])
def test_a_draft_head_is_recognized(config, tmp_path):
    with pytest.raises(ValueError, match="model: found a draft head .*, which reads another model's hidden states"):
        load_pair(folder_of(tmp_path / "model", config), DEMO_PAIR / "draft", device="cpu")


MTP_NAMES = {
    "after the layers": ["model.layers.2.eh_proj.weight", "model.layers.2.self_attn.q_proj.weight"],
    "of a part": ["model.language_model.layers.2.enorm.weight"],
    "apart": ["mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"],
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("names", MTP_NAMES)
def test_mtp_layers_are_recognized_for_any_key_and_layout(names, nested, key):
    text = LlamaConfig(num_hidden_layers=2)
    config = LlavaConfig(text_config=text, **{key: 1}) if nested else LlamaConfig(num_hidden_layers=2, **{key: 1})
    own = ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
    assert mtp_tensors(config, own + MTP_NAMES[names]) == MTP_NAMES[names]


def test_undeclared_mtp_layers_are_recognized_by_their_projection():
    names = MTP_NAMES["after the layers"]
    assert mtp_tensors(LlamaConfig(num_hidden_layers=2), names) == names
    assert mtp_tensors(LlamaConfig(num_hidden_layers=2), names[1:]) == []


@pytest.mark.parametrize("tensor", ["d2t", "mtp.fc.weight", "embed_tokens.weight fc.weight"])
def test_an_undeclared_head_is_recognized_by_its_tensors(tensor):
    with pytest.raises(ValueError, match="found a draft head"):
        check_head("head", LLAMA, ["norm.weight", *tensor.split()])


def test_a_target_with_mtp_layers_is_not_a_head(tmp_path):
    check_head("target", LLAMA | {"num_nextn_predict_layers": 1}, ["model.embed_tokens.weight", "mtp.fc.weight"])
    assert read_plan(locate(DEMO_PAIR / "target")).config.model_type == "llama"


def test_state_space_layers_are_refused_by_name():
    model = tiny_llama(3).model
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        HuggingFaceModel(model, "hybrid")


SCALED = {"rope_type": "llama3", "factor": 8.0}
ROTATIONS = [  # two forms of the same settings, for old and new readers
    (SCALED, SCALED | {"rope_theta": 5e5}),
    ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
    (SCALED, {"full_attention": SCALED, "sliding_attention": {"rope_type": "default"}}),
    (SCALED, {}),
]


@pytest.mark.parametrize(("scaling", "parameters"), ROTATIONS)
def test_rotary_settings_in_two_forms_are_accepted(scaling, parameters):
    check_rotation({"rope_scaling": scaling, "rope_parameters": parameters, "rope_theta": 5e5})
    if "rope_type" in parameters:
        for other in (parameters | {"factor": 3.0}, {"rope_theta": 5e5}):
            with pytest.raises(ValueError, match="^rope_scaling: found .* in rope_parameters, expected one value$"):
                check_rotation({"rope_scaling": scaling, "rope_parameters": other})
