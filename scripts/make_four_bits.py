"""Round a model's decoder layers to 4 bits, as compressed-tensors stores them ("pack-quantized", weights only).

    python scripts/make_four_bits.py assets/demo/target FOLDER
    python scripts/make_four_bits.py assets/demo/target FOLDER --share 32 --zero-points

Each weight goes to the nearest of 16 numbers between the largest and smallest of those that share its scale: no
calibration, so real tools lose less. For tests and benchmarks. Needs compressed-tensors. Reads one file of weights at
a time.
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
    source: Path, folder: Path, *, share: int = 128, zero_points: bool = False, scales: str = "bfloat16",
    skip: str = "lm_head",
) -> Path:  # fmt: skip
    """Write a model with the matrices of its decoder layers in 4 bits; return its folder.

    Args:
        share: weights of a row that share a scale; 0 for all.
        zero_points: whether numbers lie anywhere, and not around zero.
        scales: dtype of the scales.
        skip: matrices with this in their name stay as they are.

    Raises:
        ValueError: for a `share` that does not divide a matrix's rows, or the model's own folder to write to.
    """
    if folder.resolve() == source.resolve():
        raise ValueError(f"{folder}: found the model's own folder, expected another to write to")
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            weights: dict[str, torch.Tensor] = {}
            for name, matrix in load_file(path).items():
                if ".layers." in name and matrix.ndim == 2 and skip not in name:
                    weights |= _quantised(name, matrix.float(), share or matrix.shape[1], zero_points, SCALES[scales])
                else:
                    weights[name] = matrix
            save_file(weights, folder / path.name, metadata={"format": "pt"})
        elif path.is_file() and path.name != "model.safetensors.index.json":
            shutil.copy(path, folder / path.name)
    _write_index(folder)
    kind = {"num_bits": 4, "type": "int", "symmetric": not zero_points}
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


def _quantised(
    name: str, matrix: torch.Tensor, share: int, zero_points: bool, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    rows, columns = matrix.shape
    if columns % share:
        raise ValueError(f"--share: found {share}, expected a divisor of {columns}, the rows of {name}")
    groups = matrix.view(rows, -1, share)
    low, high = groups.amin(-1).clamp(max=0.0), groups.amax(-1).clamp(min=0.0)
    widest = high - low if zero_points else 2 * torch.maximum(-low, high)
    scale = (widest / 15).clamp(min=1e-8).to(dtype)
    zero = (-8 - low / scale.float()).round().clamp(-8, 7) if zero_points else torch.zeros_like(low)
    numbers = (groups / scale.float()[..., None] + zero[..., None]).round().clamp(-8, 7).to(torch.int8)
    found = {
        f"{name}_packed": pack_to_int32(numbers.view(rows, columns), 4),
        f"{name}_scale": scale,
        f"{name}_shape": torch.tensor([rows, columns]),
    }
    if zero_points:
        found[f"{name}_zero_point"] = pack_to_int32(zero.to(torch.int8), 4, packed_dim=0).contiguous()
    return found


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
    parser.add_argument("source", type=Path, help="folder of a model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=int, default=128, help="weights of a row that share a scale; 0 for all")
    parser.add_argument("--zero-points", action="store_true")
    args = parser.parse_args()
    if not (args.source / "config.json").is_file():
        sys.exit(f"error: {args.source}: found no config.json, expected the folder of a model")
    try:
        make_four_bits(args.source, args.folder, share=args.share, zero_points=args.zero_points)
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
