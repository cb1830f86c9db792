"""Missing, damaged or mismatched files of a model are refused in one line that names them."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models import model_files
from sequoia_core.models.loading import load_pair
from tests.core.test_families import build, save

DRAFT = DEMO_PAIR / "draft"


@pytest.fixture
def model(tmp_path) -> Path:
    """Return a copy of the demo pair's draft, to be damaged."""
    return Path(shutil.copytree(DRAFT, tmp_path / "model"))


def refusal(target: Path, draft: Path = DRAFT) -> str:
    """Return the error message of loading a pair, one line."""
    with pytest.raises(ValueError) as error:
        load_pair(target, draft, device="cpu")
    assert "\n" not in str(error.value)
    return str(error.value)


def weights(change):
    """Return a function that changes a folder's weights, in place or by returning new ones."""

    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        held = load_file(path)
        save_file(change(held) or held, path, metadata={"format": "pt"})

    return apply


def settings(file: str = "config.json", **fields):
    """Return a function that changes fields of a JSON file in a folder."""

    def apply(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return apply


def holding(file: str, content: bytes):
    return lambda folder: (folder / file).write_bytes(content)


def given_twice(file: str, key: str):
    """Return a function that duplicates a key of a JSON file in a folder."""
    return lambda folder: (folder / file).write_text(f'{{"{key}": 1, "{key}": 2}}')


def sharded(folder: Path) -> None:
    """Split a folder's weights into two files."""
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {key: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, key in enumerate(sorted(held))}
    for shard in set(places.values()):
        save_file({k: held[k] for k in places if places[k] == shard}, folder / shard, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def without(part: str):
    return weights(lambda held: {key: value for key, value in held.items() if part not in key})


def spoiled(held):
    held["model.embed_tokens.weight"][4000, 7] = float("nan")


INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"
UP = "model.layers.0.mlp.up_proj.weight"
REFUSED = {  # fault -> (how to cause it, part of the error message)
    "a tensor missing": (without("layers.0.self_attn.q_proj"), "missing model.layers.0.self_attn.q_proj.weight;"),
    "a surplus layer": (
        weights(lambda w: w | {k.replace("s.0", "s.1"): v.clone() for k, v in w.items() if "layers.0" in k}),
        r"unexpected model.layers.1.input_layernorm.weight, .* and 7 more; .*num_hidden_layers = 1 ",
    ),
    "transposed": (
        weights(lambda w: w | {UP: w[UP].T.contiguous()}),
        r"up_proj.weight of shape \[192, 512\] instead of \[512, 192\]",
    ),
    "one of them no number": (weights(spoiled), "non-finite numbers in model.embed_tokens.weight"),
    "whole numbers": (weights(lambda w: w | {NORM: w[NORM].long()}), "norm.weight stored as I64"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "found no config.json"),
    "a configuration without end": (holding("config.json", b"[" * 100_000), "config.json: found unreadable JSON"),
    "a key given twice": (
        given_twice("config.json", "rope_theta"),
        r"config.json: found unreadable JSON .found the key 'rope_theta' twice, expected it once.",
    ),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
        "found no tokenizer files, expected files such as tokenizer.json",
    ),
    "a pointer in place of the tokenizer": (
        holding("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
        "tokenizer.json: found a Git LFS pointer, not the file itself, expected a JSON object",
    ),
    "one tensor under two names": (
        weights(lambda w: w | {"norm.weight": 2 * w[NORM]}),
        "found norm.weight and model.norm.weight, which differ",
    ),
    "an output layer beside the embedding that it is tied to": (
        weights(lambda w: w | {"lm_head.weight": 2 * w["model.embed_tokens.weight"]}),
        "found lm_head.weight and model.embed_tokens.weight, which differ.*tie_word_embeddings = false",
    ),
    "a rotation given twice": (
        settings(rope_theta=77.0, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}),
        "config.json: rope_theta: found 77.0, and 10000.0 in rope_parameters",
    ),
    "a context below 0": (settings(max_position_embeddings=-1), "max_position_embeddings: found -1, expected a whole"),
    "no heads": (settings(num_attention_heads=0), r"config.json: found invalid settings \(ZeroDivisionError"),
    "more numbers than are stored": (
        settings(intermediate_size=10**9),
        r"mlp.down_proj.weight of shape \[192, 512\] instead of \[192, 1000000000\]",
    ),
    "more layers than tensors": (settings(num_hidden_layers=10**9), "expected at most 11, the number of stored"),
    "an epsilon below 0": (settings(rms_norm_eps=-1.0), "rms_norm_eps: found -1.0"),
    "angles of no number": (
        settings(rope_parameters={"rope_type": "default", "rope_theta": 0}),
        "found non-finite logits",
    ),
    "an unknown method": (settings(quantization_config={"quant_method": "nope"}), "quant_method: found 'nope'"),
    "a method without its package": (
        settings(quantization_config={"quant_method": "quanto"}),
        "quantized with quanto.*pip install optimum-quanto",
    ),
    "an end that is no token": (settings("generation_config.json", eos_token_id=[0, "a"]), "eos_token_id: found"),
}


@pytest.mark.sample(len(REFUSED))
@pytest.mark.parametrize("fault", REFUSED)
def test_a_damaged_model_is_refused_with_its_fault(fault, model):
    change, wanted = REFUSED[fault]
    change(model)
    message = refusal(model)
    assert message.startswith(f"{model}") and re.search(wanted, message), message


STORED_OTHERWISE = {
    "only the tied head stored": weights(
        lambda w: {"lm_head.weight" if "embed" in key else key: value for key, value in w.items()}
    ),
    "old rotary buffers": weights(lambda w: w | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(32)}),
    "names without prefix": weights(lambda w: {key.removeprefix("model."): value for key, value in w.items()}),
    "doubles": weights(lambda w: {key: value.double() for key, value in w.items()}),
    "shards": sharded,
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STORED_OTHERWISE)
def test_equivalent_storage_formats_load_the_same_weights(case, model, demo_pair):
    STORED_OTHERWISE[case](model)
    loaded = load_pair(DEMO_PAIR / "target", model, device="cpu").draft.model.state_dict()
    for key, value in demo_pair.draft.model.state_dict().items():
        assert torch.equal(loaded[key], value)


def test_masks_in_old_checkpoints_are_ignored(tmp_path):
    folder = Path(save(build("GPT2"), tmp_path))
    masks = {
        f"transformer.h.{i}.attn.{name}": torch.ones(1, 1, 128, 128) for i in (0, 1) for name in ("bias", "masked_bias")
    }
    weights(lambda held: held | masks)(folder)
    assert load_pair(folder, folder, device="cpu").target.vocab_size == 64


def test_ignored_generation_settings_are_reported(model):
    assert load_pair(model, model, device="cpu").remarks == ()
    settings("generation_config.json", repetition_penalty=1.1, suppress_tokens=list(range(99)), num_beams=1)(model)
    (remark,) = load_pair(model, DRAFT, device="cpu").remarks
    assert "settings repetition_penalty 1.1, suppress_tokens [0, 1, 2" in remark and "ignored here" in remark


def test_a_configured_attention_is_replaced_by_one_that_supports_trees(model):
    settings(attn_implementation="flash_attention_2", _attn_implementation="flash_attention_2")(model)
    assert load_pair(model, model, device="cpu").target.model.config._attn_implementation == "sdpa"


def test_a_context_too_long_for_the_rotary_table_still_loads(model):
    settings(max_position_embeddings=10**9)(model)
    assert load_pair(model, model, device="cpu").target.backend.startswith("transformers")


HUB_ERRORS = {
    GatedRepoError: "found a gated hub model: accept its terms on https://huggingface.co/owner/model, then log in",
    RepositoryNotFoundError: "found neither a folder nor a public hub model of this name .check it",
    LocalEntryNotFoundError: "the hub cannot be reached .connect to the network",
}


@pytest.mark.parametrize("error", HUB_ERRORS)
def test_hub_errors_are_explained(error):
    with (
        pytest.raises(ValueError, match=f"^owner/model: .*{HUB_ERRORS[error]}"),
        model_files.explain_load_errors("owner/model", "a model"),
    ):
        raise error.__new__(error)  # without a server's response
