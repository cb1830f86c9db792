"""One model's files: whatever is missing, damaged or does not fit is refused in one line that names it."""

import gc
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sequoia_core.command_line.main import main
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models import checkpoint
from sequoia_core.models.loading import load_pair
from tests.conftest import tiny_llama
from tests.core.test_families import build, save
from tests.served import reply, served

DRAFT = DEMO_PAIR / "draft"
LAYER = "model.layers.0."


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


def edit_weights(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file(change(weights) or weights, path, metadata={"format": "pt"})


def without(part: str):
    return lambda weights: {key: value for key, value in weights.items() if part not in key}


def with_(key: str, value):
    return lambda weights: weights | {key: value(weights[key]) if callable(value) else value}


def spoiled(weights):
    weights["model.embed_tokens.weight"][4000, 7] = float("nan")


MISFITS = {  # weights that do not fit -> what the refusal says
    "a tensor missing": (without("layers.0.self_attn.q_proj"), "no model.layers.0.self_attn.q_proj.weight;"),
    "all layers missing": (without(".layers."), r"no model.layers.0.input_layernorm.weight, .* and 7 more;"),
    "no embedding": (without("embed"), "no lm_head.weight, model.embed_tokens.weight;"),
    "no final norm": (without("model.norm"), "no model.norm.weight;"),
    "nothing at all": (lambda _: {"x": torch.zeros(1)}, "no lm_head.weight"),
    "a surplus layer": (
        lambda w: w | {k.replace("s.0", "s.1"): v.clone() for k, v in w.items() if "layers.0" in k},
        r"no place for model.layers.1.input_layernorm.weight, .* and 7 more;",
    ),
    "a surplus bias": (
        lambda w: w | {LAYER + "self_attn.q_proj.bias": torch.zeros(192)},
        "no place for model.layers.0.self_attn.q_proj.bias;",
    ),
    "another architecture": (
        lambda w: {f"decoder.{key}": value for key, value in w.items()},
        "no lm_head.weight.*no place for decoder.",
    ),
    "transposed": (
        with_(LAYER + "mlp.up_proj.weight", lambda value: value.T.contiguous()),
        r"up_proj.weight of shape \[192, 512\] where it takes \[512, 192\]",
    ),
    "of size zero": (
        with_(LAYER + "mlp.up_proj.weight", torch.zeros(0, 192)),
        r"up_proj.weight of shape \[0, 192\] where it takes",
    ),
    "a scalar": (with_("model.norm.weight", torch.ones(())), r"model.norm.weight of shape \[\] where it takes \[192\]"),
    "not numbers": (with_("model.norm.weight", lambda v: v * float("nan")), "not finite in model.norm.weight"),
    "one of them infinite": (with_("model.norm.weight", lambda v: v / 0), "not finite in model.norm.weight"),
    "one of them no number": (spoiled, "not finite in model.embed_tokens.weight"),
    "whole numbers": (with_("model.norm.weight", torch.ones(192, dtype=torch.int64)), "norm.weight stored as I64"),
    "complex": (with_("model.norm.weight", torch.ones(192, dtype=torch.complex64)), "norm.weight stored as C64"),
}


@pytest.mark.parametrize("fault", MISFITS)
def test_weights_that_do_not_fit_are_refused_by_name(fault, model):
    change, wanted = MISFITS[fault]
    edit_weights(model, change)
    message = refusal(model)
    assert message.startswith(f"{model}: found ")
    assert re.search(wanted, message), message


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [(1, "no place for model.layers.1.input_layernorm.weight"), (4, "no model.layers.2.input_layernorm.weight, ")],
)
def test_more_or_fewer_layers_than_the_file_holds_are_refused(layers, wanted, model):
    tiny_llama(1, vocab=4096).model.save_pretrained(model)
    edit_json(model / "config.json", num_hidden_layers=layers)
    message = refusal(model)
    assert wanted in message and f"num_hidden_layers = {layers}" in message


IGNORABLE = {
    "as saved": lambda w: w,
    "the tied head stored too": lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"].clone()},
    "only the tied head stored": lambda w: {
        "lm_head.weight" if "embed" in key else key: value for key, value in w.items()
    },
    "old rotary buffers": lambda w: w | {LAYER + "self_attn.rotary_emb.inv_freq": torch.zeros(32)},
    "names without prefix": lambda w: {key.removeprefix("model."): value for key, value in w.items()},
    "doubles": lambda w: {key: value.double() for key, value in w.items()},
}


@pytest.mark.parametrize("case", IGNORABLE)
def test_what_an_architecture_declares_ignorable_loads(case, model, demo_pair):
    edit_weights(model, IGNORABLE[case])
    loaded = load_pair(DEMO_PAIR / "target", model, device="cpu").draft.model.state_dict()
    for key, weights in demo_pair.draft.model.state_dict().items():
        assert torch.equal(loaded[key], weights)


def test_masks_that_old_checkpoints_store_are_no_surplus(tmp_path):
    folder = Path(save(build("GPT2"), tmp_path))
    masks = {
        f"transformer.h.{i}.attn.{name}": torch.ones(1, 1, 128, 128) for i in (0, 1) for name in ("bias", "masked_bias")
    }
    edit_weights(folder, lambda weights: weights | masks)
    assert load_pair(folder, folder, device="cpu").target.vocab_size == 64


def test_nothing_stays_half_loaded(model, monkeypatch):
    seen, check = [], checkpoint._check_loaded

    def watched(name, loaded, report):
        seen.append(weakref.ref(loaded))
        check(name, loaded, report)

    monkeypatch.setattr(checkpoint, "_check_loaded", watched)
    edit_weights(model, without("model.norm"))
    refusal(DRAFT, model)
    gc.collect()
    assert [kept() for kept in seen] == [None, None]  # neither the draft nor the target that was whole


def cut(size: int):
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:size])

    return change


def reheaded(change):
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return apply


def sharded(change):
    """Split the weights over two files, then change the folder and its index."""

    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        places = {key: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, key in enumerate(sorted(weights))}
        for shard in set(places.values()):
            save_file({k: weights[k] for k in places if places[k] == shard}, folder / shard, metadata={"format": "pt"})
        index = {"metadata": {}, "weight_map": places}
        changed = change(folder, index)
        index = changed if isinstance(changed, dict | list) else index
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return apply


def second_shard(folder: Path) -> Path:
    return folder / "model-00002-of-00002.safetensors"


DEEP = b"[" * 100_000
INDEX = "model.safetensors.index.json"
DAMAGED = {  # how a folder is damaged -> what the refusal says
    "empty weights": (cut(0), "model.safetensors: found a damaged or incomplete file"),
    "weights cut in the header": (cut(100), "model.safetensors: found a damaged or incomplete file"),
    "weights cut at the end": (cut(2_459_000), "model.safetensors: found a damaged or incomplete file"),
    "a shape that lies": (
        reheaded(lambda h: h["model.norm.weight"].update(shape=[10**12])),
        "model.safetensors: found a damaged or incomplete file",
    ),
    "an unknown dtype": (
        reheaded(lambda h: h["model.norm.weight"].update(dtype="BF17")),
        "model.safetensors: found a damaged or incomplete file",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "safetensors"),
    "weights that are a folder": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
        "model.safetensors: found a damaged or incomplete file",
    ),
    "a shard missing": (
        sharded(lambda f, _: second_shard(f).unlink()),
        f"{INDEX}: found no file model-00002-of-00002.safetensors",
    ),
    "a shard cut": (
        sharded(lambda f, _: second_shard(f).write_bytes(second_shard(f).read_bytes()[:5000])),
        "model-00002-of-00002.safetensors: found a damaged or incomplete file",
    ),
    "an index of absent tensors": (
        sharded(lambda f, i: i["weight_map"].update(absent=second_shard(f).name)),
        f"{INDEX}: found model-00002-of-00002.safetensors without absent",
    ),
    "an index without places": (sharded(lambda *_: {"metadata": {}}), f"{INDEX}: weight_map: found None"),
    "an index that is a list": (sharded(lambda *_: [1]), f"{INDEX}: found a JSON list"),
    "an index of numbers": (sharded(lambda *_: {"weight_map": {"a": 3}}), f"{INDEX}: weight_map: found"),
    "no configuration": (lambda f: (f / "config.json").unlink(), "found no config.json"),
    "no tokenizer": (
        lambda f: [path.unlink() for path in f.glob("tokenizer*")],
        "found a tokenizer that does not work",
    ),
}
for name in ("config.json", "generation_config.json"):
    for kind, content in {"garbage": b"\xff\xfe\0", "a list": b"[]", "half an object": b'{"a":', "deep": DEEP}.items():
        DAMAGED[f"{name}: {kind}"] = (lambda f, n=name, c=content: (f / n).write_bytes(c) and None, f"{name}: found ")
for kind, content in {"garbage": b"\xff\xfe\0", "empty": b"", "half an object": b'{"a":'}.items():
    DAMAGED[f"tokenizer.json: {kind}"] = (
        lambda f, c=content: (f / "tokenizer.json").write_bytes(c) and None,
        "found a tokenizer that does not work",
    )


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_folders_are_refused_by_file(damage, model):
    change, wanted = DAMAGED[damage]
    change(model)
    message = refusal(model)
    assert str(model) in message and wanted in message, message


def test_shards_load(model, demo_pair):
    sharded(lambda *_: None)(model)
    loaded = load_pair(model, DRAFT, device="cpu").target.model.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in demo_pair.draft.model.state_dict().items())


def edit_json(path: Path, **fields) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
SETTINGS = [  # (settings, what the refusal names)
    *(({size: value}, size) for size in SIZES for value in (None, "192", 1.5, True, [1])),
    *(({size: -1}, size) for size in SIZES if size != "hidden_size"),  # that one's first fault is the heads
    *(({size: 0}, size) for size in SIZES if size != "num_attention_heads"),
    ({"num_attention_heads": 0}, "config.json: found settings that do not hold (ZeroDivisionError"),
    ({"num_attention_heads": 5}, "not a multiple of the number of attention heads (5)"),
    ({"hidden_size": 193}, "The hidden size (193) is not a multiple"),
    ({"num_key_value_heads": 2}, "self_attn.k_proj.weight of shape"),
    ({"head_dim": 0}, "head_dim"),
    ({"intermediate_size": 0}, "intermediate_size"),
    ({"vocab_size": 10**9}, "model.embed_tokens.weight of shape [4096, 192] where it takes [1000000000, 192]"),
    ({"intermediate_size": 10**9}, "mlp.down_proj.weight of shape [192, 512] where it takes [192, 1000000000]"),
    ({"vocab_size": 10**19}, "vocab_size: found 10000000000000000000"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers: found 1000000000, expected at most 11: 11 tensors are stored"),
    ({"num_key_value_heads": 10**9}, "num_key_value_heads: found 1000000000, expected at most"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps: found -1.0"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ({"attention_bias": True}, "no model.layers.0.self_attn.k_proj.bias, "),
    ({"tie_word_embeddings": False}, "no lm_head.weight;"),
    ({"hidden_act": "nope"}, "config.json: found settings that do not hold (KeyError: 'nope')"),
    ({"model_type": "nope"}, "config.json: found settings that do not hold"),
    ({"model_type": "gpt2"}, "no place for model.embed_tokens.weight"),
    ({"eos_token_id": "0"}, "eos_token_id"),
    ({"eos_token_id": [0, "a"]}, "eos_token_id"),
    ({"rope_parameters": {"rope_type": "nope"}}, "config.json: found settings that do not hold"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "found logits that are not finite"),
    ({"dtype": "float99"}, "config.json: found settings that do not hold"),
    ({"quantization_config": 3}, "config.json: found settings that do not hold"),
    ({"quantization_config": {"quant_method": "nope"}}, "quantization_config: quant_method: found 'nope'"),
    ({"text_config": {"a": 1}}, "config.json: "),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "wanted"), SETTINGS, ids=lambda value: str(value)[:60])
def test_settings_that_do_not_hold_are_refused_by_field(settings, wanted, model):
    edit_json(model / "config.json", **settings)
    message = refusal(model)
    assert str(model) in message and wanted in message, message


@pytest.mark.parametrize("ids", ["0", 1.5, [0, "a"], {}, True])
def test_an_end_of_text_that_is_no_token_is_refused(ids, model):
    edit_json(model / "generation_config.json", eos_token_id=ids)
    assert "eos_token_id: found" in refusal(model)


def test_what_a_model_ships_for_its_own_generation_is_said_to_be_left_out(model):
    assert load_pair(model, model, device="cpu").remarks == ()
    edit_json(model / "generation_config.json", repetition_penalty=1.1, suppress_tokens=list(range(99)), num_beams=1)
    (remark,) = load_pair(model, DRAFT, device="cpu").remarks
    assert "ships repetition_penalty 1.1, suppress_tokens [0, 1, 2" in remark and "left out here" in remark
    assert len(remark.replace(str(model), "")) < 250


def test_attention_asked_for_by_a_file_gives_way_to_one_that_takes_a_tree(model):
    edit_json(model / "config.json", attn_implementation="flash_attention_2", _attn_implementation="flash_attention_2")
    assert load_pair(model, model, device="cpu").target.model.config._attn_implementation == "sdpa"


def test_a_context_too_long_for_a_table_of_angles_still_loads(model):
    edit_json(model / "config.json", max_position_embeddings=10**9)
    assert load_pair(model, model, device="cpu").target.backend.startswith("transformers")


@pytest.mark.parametrize(("method", "package"), [("hqq", "hqq"), ("quanto", "optimum-quanto")])
def test_a_quantised_model_without_its_library_says_what_to_install(method, package, tmp_path):
    folder = tmp_path / "quantised"
    shutil.copytree(DRAFT, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    with pytest.raises(ValueError, match=f"quantised with {method}.*pip install {package}"):
        load_pair(folder, DRAFT)


def test_the_command_line_says_it_in_one_line(model, capsys):
    edit_weights(model, without("model.norm"))
    assert main(["generate", "--prompt", "x", "--target", str(model), "--draft", str(DRAFT), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {model}: found weights that do not fit") and err.count("\n") == 1


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
from huggingface_hub import constants
from sequoia_core.command_line.main import main
for name in sys.argv[1:]:
    if name == "owner/offline":
        constants.HF_HUB_OFFLINE = True
    assert main(["generate", "--prompt", "x", "--target", name, "--draft", name]) == 2
"""
REFUSED = {
    "gated/model": "found a gated hub model: accept its terms on https://huggingface.co/gated/model, then log in",
    "absent/model": "found no such folder and no such public hub model (check the name",
    "silent/model": "the hub cannot be reached (connect to the network",
    "owner/offline": "the hub cannot be reached (connect to the network and unset HF_HUB_OFFLINE",
}


@pytest.mark.slow
def test_a_hub_that_refuses_or_is_not_there_is_explained(tmp_path):
    """In a process of its own: the hub's client reads where the hub is when it is imported."""
    asked: list[str] = []
    with hub(asked) as address:
        result = subprocess.run(
            [sys.executable, "-c", ASK_THE_HUB, *REFUSED], capture_output=True, text=True, cwd=DEMO_PAIR.parents[1],
            env={**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"},
        )  # fmt: skip
    lines = result.stderr.splitlines()
    assert result.returncode == 0 and len(lines) == len(REFUSED), result.stderr
    for line, (name, wanted) in zip(lines, REFUSED.items(), strict=True):
        assert line.startswith(f"error: {name}: ") and wanted in line
    assert sum("silent" in path for path in asked) == 1  # the client's own retries take half a minute
