"""Models of chosen sizes with random weights, to time passes: the time of a pass depends on sizes alone.

Knows how such a model is written to a folder layer by layer, never whole in memory, or made in memory. A mark in its
config.json says that its text means nothing. Free memory and disk space are checked first. Sizes are given as in a
config.json.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from ..files.model_names import DEMO_PAIR
from ..files.safe_files import json_bytes, write_atomic
from ..native.instruction_sets import check_environment
from .free_memory import available_bytes
from .language_model import HuggingFaceModel, ModelPair
from .protocol import find_dtype

MARK = "sequoia_random_weights"  # key of a config.json that only such models have; its value is the seed
SPREAD = 0.02  # standard deviation of the weights
SPARE_BYTES = 256 * 2**20  # left over, of memory and of the disk
TOKENIZER = DEMO_PAIR / "target"
Settings = Mapping[str, Any]
Sizes = dict[str, tuple[int, ...]]  # name of a tensor -> its shape


def write_random_model(
    settings: Settings,
    folder: str | Path,
    *,
    dtype: str = "bfloat16",
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> None:
    """Write a folder that loads like any model: a shard for each layer, config.json, and a tokenizer.

    The tokenizer is the demo pair's, extended by tokens that occur in no text. Equal seeds give equal files.
    config.json is written last, so that a cut run leaves no folder that looks like a model.

    Args:
        settings: such as `ModelShape.to_config` returns.
        folder: new or empty.

    Raises:
        ValueError: for a folder that is not empty, fewer than the tokenizer's tokens, or too little space on the
            disk or in memory; nothing is written then.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: found something there, expected a new or empty folder")
    tokens = padded_tokenizer(settings)
    kind = find_dtype(dtype)
    shards = _shards(settings, kind)
    needed = [kind.itemsize * sum(map(math.prod, shard.values())) for shard in shards]
    above = next(place for place in folder.resolve().parents if place.exists())
    _check_room(str(folder), sum(needed), shutil.disk_usage(above).free, "on the disk")
    _check_room(str(folder), 2 * max(needed), available_bytes(), "in memory")
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({key: _random(key, size, kind, seed) for key, size in shard.items()}, folder / name, {"format": "pt"})
        places |= dict.fromkeys(shard, name)
        if progress is not None:
            progress(number / len(shards), f"writing part {number} of {len(shards)}")
    index = {"metadata": {"total_size": sum(needed)}, "weight_map": places}
    write_atomic(folder / SAFE_WEIGHTS_INDEX_NAME, json_bytes(index))
    write_atomic(folder / "tokenizer.json", json.dumps(tokens).encode())
    shutil.copyfile(TOKENIZER / "tokenizer_config.json", folder / "tokenizer_config.json")
    write_atomic(folder / "config.json", json_bytes(_config(settings).to_dict() | {"dtype": dtype, MARK: seed}))


def random_pair(
    target: Settings, draft: Settings, *, names: tuple[str, str], dtype: str = "float32", seed: int = 0
) -> ModelPair:
    """Return a pair of these sizes with random weights, made in memory on the CPU.

    Args:
        target, draft: such as `ModelShape.to_config` returns.
        names: what the two are called in measurements.

    Raises:
        ValueError: when they do not fit into memory, or the draft has fewer tokens than the target.
    """
    check_environment()
    kind, tokens = find_dtype(dtype), target["vocab_size"]
    if draft["vocab_size"] < tokens:
        raise ValueError(
            f"{names[1]}: found a vocabulary of {draft['vocab_size']}, expected at least the {tokens} of {names[0]}: "
            "it could not read the target's tokens"
        )
    needed = sum(weights.nbytes for part in (target, draft) for weights in _made(part, kind, "meta").parameters())
    _check_room(" ← ".join(names), 2 * needed, available_bytes(), "in memory")  # compiled passes pack a second copy
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        models = [
            HuggingFaceModel(_made(part, kind, "cpu").eval(), name, vocab_size=tokens)
            for part, name in zip((target, draft), names, strict=True)
        ]
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER, trust_remote_code=False)
    return ModelPair(models[0], models[1], tokenizer)


def padded_tokenizer(settings: Settings) -> dict[str, Any]:
    """Return the demo pair's tokenizer.json with as many tokens as the model has logits.

    Raises:
        ValueError: for a model with fewer.
    """
    fields = json.loads((TOKENIZER / "tokenizer.json").read_text())
    known, wanted = fields["model"]["vocab"], settings["vocab_size"]
    if wanted < len(known):
        raise ValueError(f"vocab_size: found {wanted}, expected at least the {len(known):,} tokens of the tokenizer")
    known |= {f"<unused-{token}>": token for token in range(len(known), wanted)}
    return fields


def _config(settings: Settings) -> Any:
    """Return transformers' configuration; without an end of text, which random models would write at any moment."""
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[settings["model_type"]]
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(**settings, **ends, architectures=[architecture])


def _made(settings: Settings, kind: torch.dtype, device: str) -> PreTrainedModel:
    """Return a model as transformers initialises one; on the device "meta" without any weights."""
    with torch.device(device):
        return AutoModelForCausalLM.from_config(_config(settings), dtype=kind, trust_remote_code=False)


def _shards(settings: Settings, kind: torch.dtype) -> list[Sizes]:
    """Return the tensors of each file: the embedding, one layer each, what comes after them; tied ones once."""
    shards: dict[str, Sizes] = {}
    for key, weights in _made(settings, kind, "meta").named_parameters():  # in the model's order
        layer = key.partition(".layers.")[2].partition(".")[0]
        shards.setdefault(layer or key.rpartition(".")[0], {})[key] = tuple(weights.shape)
    return list(shards.values())


def _random(key: str, size: tuple[int, ...], kind: torch.dtype, seed: int) -> torch.Tensor:
    """Return the tensor of that name: ones for a norm, zeros for a bias, else normal numbers of name and seed."""
    if len(size) == 1:
        return torch.full(size, 0.0 if key.endswith(".bias") else 1.0, dtype=kind)
    digest = hashlib.sha256(f"{seed} {key}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.empty(size, dtype=kind).normal_(0.0, SPREAD, generator=generator)


def _check_room(name: str, needed: int, free: int | None, where: str) -> None:
    if free is not None and needed + SPARE_BYTES > free:
        raise ValueError(
            f"{name}: found {free / 1e9:,.1f} GB free {where}, expected {(needed + SPARE_BYTES) / 1e9:,.1f} GB"
        )
