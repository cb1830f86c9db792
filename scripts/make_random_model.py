"""Write a model of real sizes with random weights, and a draft to match: for times, not for text.

    python scripts/make_random_model.py --shape llama-3.2-3b --dtype bfloat16 FOLDER
    python scripts/make_random_model.py --shape llama-3.2-3b --draft-shape llama-3.2-1b FOLDER

Without --draft-shape FOLDER is the model; with it FOLDER/target and FOLDER/draft are. Written layer by layer, so it
takes little memory; a 3B model needs 6.4 GB of disk and a minute or two. Shapes are names or a config.json.
"""

import argparse
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from sequoia_core.files.dtypes import DTYPES
from sequoia_core.files.safe_files import json_bytes, write_atomic
from sequoia_core.models.device import available_bytes
from sequoia_core.models.protocol import find_dtype
from sequoia_core.models.random_models import TOKENIZER, Settings, check_room, config_of, random_model

MARK = "sequoia_random_weights"  # key of a config.json that only such models have; its value is the seed
SPREAD = 0.02  # standard deviation of the weights
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
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: found something there, expected a new or empty folder")
    tokens = padded_tokenizer(settings)
    kind = find_dtype(dtype)
    shards = _shards(settings, kind)
    needed = [kind.itemsize * sum(map(math.prod, shard.values())) for shard in shards]
    above = next(place for place in folder.resolve().parents if place.exists())
    check_room(str(folder), sum(needed), shutil.disk_usage(above).free, "on the disk")
    check_room(str(folder), 2 * max(needed), available_bytes(), "in memory")
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
    write_atomic(folder / "config.json", json_bytes(config_of(settings).to_dict() | {"dtype": dtype, MARK: seed}))


def padded_tokenizer(settings: Settings) -> dict[str, Any]:
    """Return the demo pair's tokenizer.json with as many tokens as the model has logits."""
    fields = json.loads((TOKENIZER / "tokenizer.json").read_text())
    known, wanted = fields["model"]["vocab"], settings["vocab_size"]
    if wanted < len(known):
        raise ValueError(f"vocab_size: found {wanted}, expected at least the {len(known):,} tokens of the tokenizer")
    known |= {f"<unused-{token}>": token for token in range(len(known), wanted)}
    return fields


def _shards(settings: Settings, kind: torch.dtype) -> list[Sizes]:
    """Return the tensors of each file: the embedding, one layer each, what comes after them; tied ones once."""
    shards: dict[str, Sizes] = {}
    for key, weights in random_model(settings, kind, "meta").named_parameters():  # in the model's order
        layer = key.partition(".layers.")[2].partition(".")[0]
        shards.setdefault(layer or key.rpartition(".")[0], {})[key] = tuple(weights.shape)
    return list(shards.values())


def _weights(key: str, size: tuple[int, ...], kind: torch.dtype, seed: int) -> torch.Tensor:
    """Return the tensor of that name: ones for a norm, zeros for a bias, else normal numbers of name and seed."""
    if len(size) == 1:
        return torch.full(size, 0.0 if key.endswith(".bias") else 1.0, dtype=kind)
    digest = hashlib.sha256(f"{seed} {key}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.empty(size, dtype=kind).normal_(0.0, SPREAD, generator=generator)


def main() -> None:
    from sequoia_core.design.model_shapes import find_shape, shipped_table  # needs pydantic, which a rented GPU lacks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help=f"a config.json or one of {', '.join(shipped_table('shapes'))}")
    parser.add_argument("--draft-shape", help="the same for a draft beside it")
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
