"""One model's files: whatever is missing, damaged or does not fit is refused in one line that names it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.loading import load_pair
from tests.core.test_families import build, save
from tests.served import reply, served

DRAFT = DEMO_PAIR / "draft"


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the demo pair's draft, to be broken."""
    return Path(shutil.copytree(DRAFT, tmp_path / "model"))


def refusal(target: Path, draft: Path = DRAFT) -> str:
    """Return the one line with which a pair is refused."""
    with pytest.raises(ValueError) as error:
        load_pair(target, draft, device="cpu")
    assert "\n" not in str(error.value)
    return str(error.value)


def weights(change):
    """Return what changes a folder's weights, in place or for others."""

    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        held = load_file(path)
        save_file(change(held) or held, path, metadata={"format": "pt"})

    return apply


def settings(file: str = "config.json", **fields):
    """Return what changes fields of a folder's JSON file."""

    def apply(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return apply


def holding(file: str, content: bytes):
    return lambda folder: (folder / file).write_bytes(content)


def given_twice(file: str, key: str):
    """Return what gives two values to a key of a folder's JSON file."""
    return lambda folder: (folder / file).write_text(f'{{"{key}": 1, "{key}": 2}}')


def sharded(change):
    """Return what splits a folder's weights over two files, then changes it and its index."""

    def apply(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        places = {key: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, key in enumerate(sorted(held))}
        for shard in set(places.values()):
            save_file({k: held[k] for k in places if places[k] == shard}, folder / shard, metadata={"format": "pt"})
        index = {"metadata": {}, "weight_map": places}
        index = change(folder, index) or index
        (folder / INDEX).write_text(json.dumps(index))

    return apply


def without(part: str):
    return weights(lambda held: {key: value for key, value in held.items() if part not in key})


def spoiled(held):
    held["model.embed_tokens.weight"][4000, 7] = float("nan")


INDEX, SECOND = "model.safetensors.index.json", "model-00002-of-00002.safetensors"
NORM, UP = "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
REFUSED = {  # what is wrong with a folder -> how it comes about, and what the refusal says
    "a tensor missing": (without("layers.0.self_attn.q_proj"), "no model.layers.0.self_attn.q_proj.weight;"),
    "a surplus layer": (
        weights(lambda w: w | {k.replace("s.0", "s.1"): v.clone() for k, v in w.items() if "layers.0" in k}),
        r"no place for model.layers.1.input_layernorm.weight, .* and 7 more; .*num_hidden_layers = 1 ",
    ),
    "transposed": (
        weights(lambda w: w | {UP: w[UP].T.contiguous()}),
        r"up_proj.weight of shape \[192, 512\] where it takes \[512, 192\]",
    ),
    "one of them no number": (weights(spoiled), "not finite in model.embed_tokens.weight"),
    "whole numbers": (weights(lambda w: w | {NORM: w[NORM].long()}), "norm.weight stored as I64"),
    "weights cut": (
        lambda folder: os.truncate(folder / "model.safetensors", 2_459_000),
        "model.safetensors: found 2,459,000 bytes, expected 2,459,936 by its header",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
    "a shard missing": (sharded(lambda folder, _: (folder / SECOND).unlink()), f"{INDEX}: found no file {SECOND}"),
    "an index without places": (sharded(lambda *_: {"metadata": {}}), f"{INDEX}: weight_map: found None"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "found no config.json"),
    "a configuration without end": (holding("config.json", b"[" * 100_000), "config.json: found no readable JSON"),
    "a key given twice": (
        given_twice("config.json", "rope_theta"),
        r"config.json: found no readable JSON .found the key 'rope_theta' twice, expected it once.",
    ),
    "a key of the tokenizer given twice": (
        given_twice("tokenizer_config.json", "eos_token"),
        "tokenizer_config.json: found .*'eos_token' twice",
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
    "no heads": (settings(num_attention_heads=0), r"config.json: found settings that do not hold \(ZeroDivisionError"),
    "more numbers than are stored": (
        settings(intermediate_size=10**9),
        r"mlp.down_proj.weight of shape \[192, 512\] where it takes \[192, 1000000000\]",
    ),
    "more layers than tensors": (settings(num_hidden_layers=10**9), "expected at most 11: 11 tensors are stored"),
    "an epsilon below 0": (settings(rms_norm_eps=-1.0), "rms_norm_eps: found -1.0"),
    "angles of no number": (
        settings(rope_parameters={"rope_type": "default", "rope_theta": 0}),
        "found logits that are not finite",
    ),
    "an unknown method": (settings(quantization_config={"quant_method": "nope"}), "quant_method: found 'nope'"),
    "a method without its package": (
        settings(quantization_config={"quant_method": "quanto"}),
        "quantised with quanto.*pip install optimum-quanto",
    ),
    "an end that is no token": (settings("generation_config.json", eos_token_id=[0, "a"]), "eos_token_id: found"),
}


@pytest.mark.sample(len(REFUSED))
@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_no_whole_model_is_refused_by_its_fault(fault, model):
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
    "shards": sharded(lambda *_: None),
}


def test_what_is_stored_twice_is_refused_where_layers_stream_too(model, copies):
    REFUSED["an output layer beside the embedding that it is tied to"][0](model)
    with pytest.raises(ValueError, match="found lm_head.weight and model.embed_tokens.weight, which differ"):
        load_pair(model, "none", device="cpu", offload="disk")


@pytest.mark.slow
@pytest.mark.parametrize("case", STORED_OTHERWISE)
def test_the_same_numbers_load_however_they_are_stored(case, model, demo_pair):
    STORED_OTHERWISE[case](model)
    loaded = load_pair(DEMO_PAIR / "target", model, device="cpu").draft.model.state_dict()
    for key, value in demo_pair.draft.model.state_dict().items():
        assert torch.equal(loaded[key], value)


def test_masks_that_old_checkpoints_store_are_no_surplus(tmp_path):
    folder = Path(save(build("GPT2"), tmp_path))
    masks = {
        f"transformer.h.{i}.attn.{name}": torch.ones(1, 1, 128, 128) for i in (0, 1) for name in ("bias", "masked_bias")
    }
    weights(lambda held: held | masks)(folder)
    assert load_pair(folder, folder, device="cpu").target.vocab_size == 64


def test_what_a_model_ships_for_its_own_generation_is_said_to_be_left_out(model):
    assert load_pair(model, model, device="cpu").remarks == ()
    settings("generation_config.json", repetition_penalty=1.1, suppress_tokens=list(range(99)), num_beams=1)(model)
    (remark,) = load_pair(model, DRAFT, device="cpu").remarks
    assert "ships repetition_penalty 1.1, suppress_tokens [0, 1, 2" in remark and "left out here" in remark


def test_attention_asked_for_by_a_file_gives_way_to_one_that_takes_a_tree(model):
    settings(attn_implementation="flash_attention_2", _attn_implementation="flash_attention_2")(model)
    assert load_pair(model, model, device="cpu").target.model.config._attn_implementation == "sdpa"


def test_a_context_too_long_for_a_table_of_angles_still_loads(model):
    settings(max_position_embeddings=10**9)(model)
    assert load_pair(model, model, device="cpu").target.backend.startswith("transformers")


def hub(asked: list[str]):
    """Return a hub on which the owner's name says what is wrong with a model."""

    def respond(handler) -> None:
        asked.append(handler.path)
        owner = next(part for part in handler.path.split("/") if part in ("gated", "absent", "silent"))
        if owner == "silent":  # hangs up without a word, as a network that is down
            handler.close_connection = True
            return
        status, reason = {"gated": (403, "GatedRepo"), "absent": (404, "RepoNotFound")}[owner]
        reply(handler, status=status, X_Error_Code=reason, X_Error_Message="no")

    return served(respond)


ASK_THE_HUB = """
import sys
from sequoia_core.command_line.main import main
for name in sys.argv[1:]:
    assert main(["generate", "--prompt", "x", "--target", name, "--draft", name]) == 2
"""
HUB = {
    "gated/model": "found a gated hub model: accept its terms on https://huggingface.co/gated/model, then log in",
    "absent/model": "found no such folder and no such public hub model (check the name",
    "silent/model": "the hub cannot be reached (connect to the network",
}


@pytest.mark.slow
def test_a_hub_that_refuses_or_is_not_there_is_explained(tmp_path):
    """In a process of its own: the hub's client reads where the hub is when it is imported."""
    asked: list[str] = []
    with hub(asked) as address:
        result = subprocess.run(
            [sys.executable, "-c", ASK_THE_HUB, *HUB], capture_output=True, text=True, cwd=DEMO_PAIR.parents[1],
            env={**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"},
        )  # fmt: skip
    lines = result.stderr.splitlines()
    assert result.returncode == 0 and len(lines) == len(HUB), result.stderr
    for line, (name, wanted) in zip(lines, HUB.items(), strict=True):
        assert line.startswith(f"error: {name}: ") and wanted in line
    assert sum("silent" in path for path in asked) == 1  # the client's own retries take half a minute
