"""Write a model with a real model's shape and random weights, and optionally a draft, for timing.

    python scripts/make_random_model.py --shape llama-3.2-3b --dtype bfloat16 FOLDER
    python scripts/make_random_model.py --shape llama-3.2-3b --draft-shape llama-3.2-1b FOLDER

The model is written to FOLDER or, with --draft-shape, the two models to FOLDER/target and FOLDER/draft. Layers are
written one at a time, so little memory is needed; a 3B model takes 6.4 GB of disk space and a minute or two. A shape
is a name or the path of a config.json.
"""

import argparse
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from sequoia_core.files.dtypes import DTYPES
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.safe_files import json_bytes, write_atomic
from sequoia_core.models.device import available_bytes
from sequoia_core.models.protocol import find_dtype

MARK = "sequoia_random_weights"  # key in config.json that marks such models; its value is the seed
TOKENIZER = DEMO_PAIR / "target"
SPARE_BYTES = 256 * 2**20  # memory and disk space to leave free
SPREAD = 0.02  # standard deviation of the weights
Settings = Mapping[str, Any]  # keys and values as in config.json
Sizes = dict[str, tuple[int, ...]]  # tensor name -> shape


def write_random_model(
    settings: Settings,
    folder: str | Path,
    *,
    dtype: str = "bfloat16",
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> None:
    """Write a model folder with one shard per layer, config.json and a tokenizer.

    The tokenizer is the demo pair's, padded with tokens that occur in no text. Equal seeds give equal files.
    config.json is written last, so that an interrupted run does not leave a folder that looks like a model.

    Args:
        settings: model settings, as returned by `ModelShape.to_config`.
        folder: new or empty folder.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: found existing content, expected a new or empty folder")
    tokens = padded_tokenizer(settings)
    kind = find_dtype(dtype)
    shards = _shards(settings, kind)
    needed = [kind.itemsize * sum(map(math.prod, shard.values())) for shard in shards]
    above = next(place for place in folder.resolve().parents if place.exists())
    check_space(str(folder), sum(needed), shutil.disk_usage(above).free, "on the disk")
    check_space(str(folder), 2 * max(needed), available_bytes(), "in memory")
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weights = {key: _weights(key, size, kind, seed) for key, size in shard.items()}
        save_file(weights, folder / name, {"format": "pt"})
        places |= dict.fromkeys(shard, name)
        if progress is not None:
            progress(number / len(shards), f"writing part {number} of {len(shards)}")
    index = {"metadata": {"total_size": sum(needed)}, "weight_map": places}
    write_atomic(folder / SAFE_WEIGHTS_INDEX_NAME, json_bytes(index))
    write_atomic(folder / "tokenizer.json", json.dumps(tokens).encode())
    shutil.copyfile(TOKENIZER / "tokenizer_config.json", folder / "tokenizer_config.json")
    write_atomic(
        folder / "config.json", json_bytes(transformers_config(settings).to_dict() | {"dtype": dtype, MARK: seed})
    )


def padded_tokenizer(settings: Settings) -> dict[str, Any]:
    """Return the demo pair's tokenizer.json, padded to the model's vocabulary size."""
    fields = json.loads((TOKENIZER / "tokenizer.json").read_text())
    known, wanted = fields["model"]["vocab"], settings["vocab_size"]
    if wanted < len(known):
        raise ValueError(f"vocab_size: found {wanted}, expected at least the {len(known):,} tokens of the tokenizer")
    known |= {f"<unused-{token}>": token for token in range(len(known), wanted)}
    return fields


def _shards(settings: Settings, kind: torch.dtype) -> list[Sizes]:
    """Return the tensors of each shard: the embedding, each layer, and the rest; tied tensors appear once."""
    shards: dict[str, Sizes] = {}
    for key, weights in random_model(settings, kind, "meta").named_parameters():  # in model order
        layer = key.partition(".layers.")[2].partition(".")[0]
        shards.setdefault(layer or key.rpartition(".")[0], {})[key] = tuple(weights.shape)
    return list(shards.values())


def _weights(key: str, size: tuple[int, ...], kind: torch.dtype, seed: int) -> torch.Tensor:
    """Return the tensor with this name: ones for norms, zeros for biases, otherwise seeded normal values."""
    if len(size) == 1:
        return torch.full(size, 0.0 if key.endswith(".bias") else 1.0, dtype=kind)
    digest = hashlib.sha256(f"{seed} {key}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.empty(size, dtype=kind).normal_(0.0, SPREAD, generator=generator)


def transformers_config(settings: Settings) -> Any:
    """Return the model's configuration, without an EOS token, because random weights could emit it at any time."""
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[settings["model_type"]]
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(**settings, **ends, architectures=[architecture])


def random_model(settings: Settings, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """Return a newly initialised model; on the device "meta", its weights take no memory."""
    with torch.device(device):
        return AutoModelForCausalLM.from_config(transformers_config(settings), dtype=dtype, trust_remote_code=False)


def check_space(name: str, needed: int, free: int | None, where: str) -> None:
    """Raise ValueError if a model does not fit into `free` bytes of disk space or memory; None if unknown."""
    if free is not None and needed + SPARE_BYTES > free:
        raise ValueError(
            f"{name}: found {free / 1e9:,.1f} GB free {where}, expected at least {(needed + SPARE_BYTES) / 1e9:,.1f} GB"
        )


def main() -> None:
    from sequoia_extras.hardware_models.model_shapes import (  # needs pydantic, which rented GPU machines may lack
        find_shape,
        shipped_table,
    )

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help=f"config.json, or one of {', '.join(shipped_table('shapes'))}")
    parser.add_argument("--draft-shape", help="shape of a draft to write next to the target")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        models = {args.folder: find_shape(args.shape)}
        if args.draft_shape is not None:
            models = {args.folder / "target": models[args.folder], args.folder / "draft": find_shape(args.draft_shape)}
        for folder, shape in models.items():
            gigabytes = shape.weight_bytes(args.dtype) / 1e9
            print(f"{folder}: {shape.name}, {shape.parameters:,} parameters, {gigabytes:,.1f} GB", file=sys.stderr)
            write_random_model(
                shape.to_config(), folder, dtype=args.dtype, seed=args.seed,
                progress=lambda share, message: print(f"\r{share:5.0%} {message}", end="", file=sys.stderr, flush=True),
            )  # fmt: skip
            print(file=sys.stderr)
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
