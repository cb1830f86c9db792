"""Compare pass times of a small random mixture-of-experts model over 1 to 16 tokens with a fit to two of them.

    python benchmarks/experts.py

Runs transformers' Qwen3-MoE in float32, larger than the processor's caches, in rounds over all sizes. Reports medians
and the number of experts that a pass reads per layer. A dense model that reads the same amount for one token shows how
much of the extra time for two tokens is due to the software. Prints a table, then one JSON line.
"""

import json
import time
from collections.abc import Mapping

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from benchmarks.common import Options, unavailable
from scripts.make_random_model import random_model
from sequoia_core.models.processor import processor_name
from sequoia_extras.hardware_models.model_shapes import ModelShape, shape_from_config
from sequoia_extras.hardware_models.roofline import BOUND, Device, Software, pass_sec

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
TARGET = {
    "model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2048, "vocab_size": 4096, "num_experts": 32,
    "num_experts_per_tok": 4, "moe_intermediate_size": 512, "max_position_embeddings": 1024,
}  # fmt: skip
DENSE = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "head_dim": 64,
         "num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 4096}  # fmt: skip
# The bandwidth does not matter, since `traffic` is fitted.
ANY = Device(name="any", title="any", bytes_per_sec=1e10, operations_per_sec={"float32": 1e30})


FIT_SLACK = 0.05  # share by which noisy times may exceed the bound


def fit_experts(
    shape: ModelShape,
    device: Device,
    seconds: Mapping[int, float],
    *,
    dtype: str = "bfloat16",
    context: int = 128,
    software: Software = BOUND,
) -> Software:
    """Return the software whose `traffic` and `alike` fit two memory-bound passes of experts."""
    (few, less), (many, more) = sorted(seconds.items())
    at_once = device.model_copy(update={"operations_per_sec": {dtype: 1e30}})
    same, independent = (
        pass_sec(
            shape, [few, many], at_once, dtype=dtype, context=context,
            software=software.model_copy(update={"traffic": 1.0, "alike": alike, "layer_sec": 0.0}),
        )
        for alike in (1.0, 0.0)
    )  # fmt: skip
    layers = shape.num_hidden_layers * (device.layer_sec if software.layer_sec is None else software.layer_sec)
    slower, grown = np.linalg.solve(np.stack([same, independent - same], 1), np.array([less, more]) - layers)
    if not 0 <= grown <= slower * (1 + FIT_SLACK):
        most = float(independent[-1] / independent[0])
        raise ValueError(
            f"found a pass over {many} tokens to take {more / less:.2f} times as long as over {few}, expected 1 to "
            f"{most:.2f}, the limit for reading experts: the kernels may differ, or passes may not be memory-bound"
        )
    return software.model_copy(
        update={"name": "fitted", "traffic": float(1 / slower), "alike": max(0.0, 1 - float(grown / slower))}
    )


@torch.inference_mode()
def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--fitted", default="2,12", help="the two sizes that are fitted")
    args = parser.read(rounds=2, fitted="1,16")
    seen = [int(each) for each in args.fitted.split(",")]
    shape = shape_from_config(TARGET, "Qwen3-MoE, random")
    torch.manual_seed(0)
    model, dense = (random_model(each, torch.float32, "cpu").eval() for each in (shape.to_config(), DENSE))
    read: list[int] = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda gate, given, found: read.append(len(found[-1].unique())))
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    without: dict[int, list[float]] = {size: [] for size in SIZES}
    experts: dict[int, list[int]] = {size: [] for size in SIZES}
    generator = torch.Generator().manual_seed(0)
    # The first round is a warm-up.
    for _ in range(args.rounds + 1):
        for size in SIZES:
            ids = torch.randint(TARGET["vocab_size"], (1, size), generator=generator)
            read.clear()
            for timed, taken in ((model, seconds), (dense, without)):
                began = time.perf_counter()
                timed(ids, use_cache=False)
                taken[size].append(time.perf_counter() - began)
            experts[size] += read
    median, alone = ({size: float(np.median(each[1:])) for size, each in taken.items()} for taken in (seconds, without))
    try:
        fitted = fit_experts(
            shape, ANY, {size: median[size] for size in seen}, dtype="float32", context=1,
            software=Software(name="bound", layer_sec=0.0),
        )  # fmt: skip
    # Other processes may have interfered.
    except ValueError as error:
        unavailable(f"The measured times do not fit a mixture of experts: {error}.")
    rows = []
    for size in SIZES:
        predicted = float(pass_sec(shape, size, ANY, dtype="float32", context=1, software=fitted))
        bound, found = float(shape.experts_read(size)), float(np.mean(experts[size]))
        rows.append({"tokens": size, "ms": 1e3 * median[size], "predicted_ms": 1e3 * predicted,
                     "error": predicted / median[size] - 1, "experts": found, "independent": bound,
                     "dense_ms": 1e3 * alone[size]})  # fmt: skip
        print(f"{size:3d} tokens: {1e3 * median[size]:6.1f} ms, predicted {1e3 * predicted:6.1f} "
              f"({rows[-1]['error']:+.0%}); experts of a layer {found:.1f}, independent {bound:.1f}; "
              f"dense {1e3 * alone[size]:6.1f} ms")  # fmt: skip
    print(json.dumps({"benchmark": "experts", "processor": processor_name(), "shape": shape.to_config(),
                      "rounds": args.rounds, "fitted": seen, "alike": fitted.alike, "rows": rows}))  # fmt: skip


if __name__ == "__main__":
    main()
