"""What is no causal language model is called what it is, by its config.json, before a weight is read."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlavaConfig

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.architectures import check_head, check_rotation, mtp_tensors
from sequoia_core.models.checkpoint import read_plan
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.models.model_files import locate
from sequoia_core.models.tree_pass_check import check_tree_pass
from tests.conftest import tiny_llama
from tests.gguf_files import write_vocabulary

LLAMA = json.loads((DEMO_PAIR / "draft" / "config.json").read_text())
HEADS = {
    "EAGLE-3": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "draft_vocab_size": 2_000},
    "speculators": {"speculators_model_type": "peagle", "speculators_config": {"algorithm": "peagle"}},
    "DFlash": {"architectures": ["DFlashDraftModel"], "block_size": 16, "dflash_config": {"mask_token_id": 3}},
    "MTP": {"architectures": ["DeepSeekMTPModel"]},
}
MEDUSA = {"medusa_num_heads": 4, "medusa_num_layers": 1, "base_model_name_or_path": "a/target"}


def folder_of(folder, config):
    """Write a model without weights: whatever reads them fails."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "architecture", "found"),
    [
        ("t5", "T5ForConditionalGeneration", "an encoder-decoder (T5ForConditionalGeneration)"),
        ("llama", "LlamaForSequenceClassification", "a model for another task (LlamaForSequenceClassification)"),
    ],
)
def test_what_does_not_write_one_text_is_refused_by_its_architecture(kind, architecture, found, tmp_path):
    config = AutoConfig.for_model(kind).to_dict() | {"architectures": [architecture]}
    with pytest.raises(ValueError) as caught:
        load_pair(folder_of(tmp_path / "model", config), DEMO_PAIR / "draft", device="cpu")
    expected = "expected a causal language model, which reads and writes one text"
    assert str(caught.value) == f"{tmp_path}/model: found {found}, {expected}"


@pytest.mark.parametrize("config", [*({**LLAMA, **head} for head in HEADS.values()), MEDUSA], ids=[*HEADS, "Medusa"])
def test_a_draft_head_is_called_one(config, tmp_path):
    with pytest.raises(ValueError, match="model: found a draft head .*, which reads another model's hidden states"):
        load_pair(folder_of(tmp_path / "model", config), DEMO_PAIR / "draft", device="cpu")


@pytest.mark.parametrize("kind", ["eagle", "mtp", "dflash", "peagle"])
def test_where_a_draft_is_wanted_the_head_that_can_be_one_is_named(kind, tmp_path):
    config = {"speculators_model_type": kind, "speculators_config": {"algorithm": kind}}
    with pytest.raises(ValueError, match=rf"found a draft head \({kind}\).*one text, or an EAGLE-3 head$"):
        load_pair(DEMO_PAIR / "target", folder_of(tmp_path / "model", config), device="cpu")


@pytest.mark.parametrize("kind", ["bloom", "falcon"])
def test_alibi_is_named(kind, tmp_path):
    config = AutoConfig.for_model(kind, alibi=True).to_dict()
    with pytest.raises(ValueError, match="model: found ALiBi .*, expected a model that takes positions$"):
        load_pair(folder_of(tmp_path / "model", config), "none", device="cpu")


def test_latent_attention_is_named():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    latent = {"q_lora_rank": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
    config = AutoConfig.for_model(
        "deepseek_v3", **sizes, **latent, intermediate_size=64, num_key_value_heads=4, first_k_dense_replace=2
    )
    torch.manual_seed(0)
    model = HuggingFaceModel(AutoModelForCausalLM.from_config(config), "mine")
    with pytest.raises(ValueError, match=r"^mine: found .*keys of 16 and values of 8 .*latent attention") as caught:
        check_tree_pass(model)
    assert "(1, 1" not in str(caught.value)


MTP_NAMES = {
    "after the layers": ["model.layers.2.eh_proj.weight", "model.layers.2.self_attn.q_proj.weight"],
    "of a part": ["model.language_model.layers.2.enorm.weight"],
    "apart": ["mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"],
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("names", MTP_NAMES)
def test_mtp_layers_are_known_by_any_key_and_layout(names, nested, key):
    text = LlamaConfig(num_hidden_layers=2)
    config = LlavaConfig(text_config=text, **{key: 1}) if nested else LlamaConfig(num_hidden_layers=2, **{key: 1})
    own = ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
    assert mtp_tensors(config, own + MTP_NAMES[names]) == MTP_NAMES[names]


def test_mtp_layers_without_a_word_in_the_settings_are_known_by_their_projection():
    names = MTP_NAMES["after the layers"]
    assert mtp_tensors(LlamaConfig(num_hidden_layers=2), names) == names
    assert mtp_tensors(LlamaConfig(num_hidden_layers=2), names[1:]) == []


@pytest.mark.parametrize("tensor", ["d2t", "mtp.fc.weight", "embed_tokens.weight fc.weight"])
def test_a_head_without_a_word_of_it_in_its_settings_is_told_by_its_tensors(tensor):
    with pytest.raises(ValueError, match="found a draft head"):
        check_head("head", LLAMA, ["norm.weight", *tensor.split()])


def test_a_target_that_brings_layers_of_a_head_along_is_none(tmp_path):
    check_head("target", LLAMA | {"num_nextn_predict_layers": 1}, ["model.embed_tokens.weight", "mtp.fc.weight"])
    assert read_plan(locate(DEMO_PAIR / "target")).config.model_type == "llama"


@pytest.mark.parametrize(("architecture", "found"), [("nomic-bert", "an encoder"), ("dflash", "a draft head")])
def test_a_gguf_file_of_another_kind_is_called_what_it_is(architecture, found, tmp_path):
    path = write_vocabulary(tmp_path / "model.gguf", "gpt2", ["a", "b"], architecture=architecture)
    with pytest.raises(ValueError, match=f"model.gguf: found {found} .*, expected a causal language model"):
        load_pair(path, "none", device="cpu", tokenizer=DEMO_PAIR / "target")


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
def test_a_rotation_that_is_written_in_two_forms_is_taken(scaling, parameters):
    check_rotation({"rope_scaling": scaling, "rope_parameters": parameters, "rope_theta": 5e5})
    if "rope_type" in parameters:
        for other in (parameters | {"factor": 3.0}, {"rope_theta": 5e5}):
            with pytest.raises(ValueError, match="^rope_scaling: found .* in rope_parameters, expected one value$"):
                check_rotation({"rope_scaling": scaling, "rope_parameters": other})
