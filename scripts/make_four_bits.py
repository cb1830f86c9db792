"""Quantize a model's decoder layers to 4 bits in the format of compressed-tensors ("pack-quantized", weights only).

    python scripts/make_four_bits.py assets/demo/target FOLDER
    python scripts/make_four_bits.py assets/demo/target FOLDER --share 32

For tests and benchmarks: weights are rounded to the nearest of 16 levels without calibration, so real quantization
tools lose less accuracy. Needs compressed-tensors. Weight files are read one at a time.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors.pack_quantized import pack_to_int32
from safetensors.torch import load_file, save_file

SCALES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def make_four_bits(
    source: Path, folder: Path, *, share: int = 128, scales: str = "bfloat16",
    skip: str = "lm_head",
) -> Path:  # fmt: skip
    """Write a copy of a model with 4-bit decoder layers, and return its folder.

    Args:
        share: number of weights in a row that share a scale; 0 for the whole row.
        scales: dtype of the scales.
        skip: matrices whose names contain this text are copied unchanged.

    Raises:
        ValueError: if `share` does not divide the row length of a matrix, or if `folder` is the source folder.
    """
    if folder.resolve() == source.resolve():
        raise ValueError(f"{folder}: found the source folder, expected a different output folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            weights: dict[str, torch.Tensor] = {}
            for name, matrix in load_file(path).items():
                if ".layers." in name and matrix.ndim == 2 and skip not in name:
                    weights |= _quantised(name, matrix.float(), share or matrix.shape[1], SCALES[scales])
                else:
                    weights[name] = matrix
            save_file(weights, folder / path.name, metadata={"format": "pt"})
        elif path.is_file() and path.name != "model.safetensors.index.json":
            shutil.copy(path, folder / path.name)
    _write_index(folder)
    kind = {"num_bits": 4, "type": "int", "symmetric": True}
    kind |= {"strategy": "group", "group_size": share} if share else {"strategy": "channel", "group_size": None}
    settings = json.loads((source / "config.json").read_text()) | {
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "ignore": ["lm_head", *([f"re:.*{skip}.*"] if skip != "lm_head" else [])],
            "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": kind, "input_activations": None, "output_activations": None,
            }},
        }
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    return folder


def _quantised(name: str, matrix: torch.Tensor, share: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    rows, columns = matrix.shape
    if columns % share:
        raise ValueError(f"--share: found {share}, expected a divisor of {columns}, the row length of {name}")
    groups = matrix.view(rows, -1, share)
    low, high = groups.amin(-1).clamp(max=0.0), groups.amax(-1).clamp(min=0.0)
    scale = (2 * torch.maximum(-low, high) / 15).clamp(min=1e-8).to(dtype)
    numbers = (groups / scale.float()[..., None]).round().clamp(-8, 7).to(torch.int8)
    return {
        f"{name}_packed": pack_to_int32(numbers.view(rows, columns), 4),
        f"{name}_scale": scale,
        f"{name}_shape": torch.tensor([rows, columns]),
    }


def _write_index(folder: Path) -> None:
    from safetensors import safe_open

    shards = sorted(folder.glob("*.safetensors"))
    if len(shards) > 1:
        places = {}
        for shard in shards:
            with safe_open(shard, framework="pt") as file:
                places |= dict.fromkeys(file.keys(), shard.name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="model folder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=int, default=128, help="number of weights in a row that share a scale; 0: all")
    args = parser.parse_args()
    if not (args.source / "config.json").is_file():
        sys.exit(f"error: {args.source}: found no config.json, expected a model folder")
    try:
        make_four_bits(args.source, args.folder, share=args.share)
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
