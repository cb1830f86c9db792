"""Compare the pass times of a target that streams from disk in 4 bits and in bfloat16.

    python benchmarks/four_bits.py --out                        # shape of Llama-3.2-1B, random weights
    python benchmarks/four_bits.py --shape demo-target --rounds 2

Both targets are created in a temporary folder (scripts/make_random_model.py, scripts/make_four_bits.py; 7 GB for 1B,
including the packed copies). Their passes alternate, each over the same tokens after a context of 64; medians are
reported. A pass over one token is limited by the disk, so the read rates in both formats are compared. The target in
memory (in bfloat16, since the package dequantizes 4-bit weights) is limited by memory and computing. Prints a table,
then one JSON line. Requires compressed-tensors.
"""

import json
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch

from benchmarks.common import Options, require, write_record
from scripts.make_random_model import write_random_model
from sequoia_core.models.device import device_name
from sequoia_core.models.loading import load_pair
from sequoia_core.models.protocol import causal_mask, prefill
from sequoia_extras.hardware_models.model_shapes import find_shape
from sequoia_extras.offloading import packed_layers

# Number of tokens in the cache, and of different positions in a pass.
BEFORE, DEPTH = 64, 32


def pass_sec(session, size: int) -> float:
    """Return the seconds of one pass over a chain, leaving the cache unchanged."""
    ids = torch.arange(size) % 1000
    started = time.perf_counter()
    session.forward(ids, BEFORE + ids % DEPTH, causal_mask(size), keep=size)
    found = time.perf_counter() - started
    session.commit(BEFORE, [])
    return found


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--shape", default="llama-3.2-1b", help="name in assets/shapes.json, or path of a config.json")
    parser.add_argument("--share", type=int, default=128, help="number of weights in a row that share a scale")
    parser.add_argument("--sizes", default="1,8,32,64,128,256,512")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", action="store_true", help="write the record to results/")
    args = parser.read(shape="demo-target", sizes="1,8", rounds=1)
    require("compressed-tensors")
    from scripts.make_four_bits import make_four_bits

    sizes = [int(size) for size in args.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        plain, quantised = Path(folder) / "plain", Path(folder) / "quantised"
        write_random_model(find_shape(args.shape).to_config(), plain)
        make_four_bits(plain, quantised, share=args.share)
        # The packed copies are deleted together with the models.
        packed_layers.cache_folder = lambda: Path(folder)
        targets = {
            name: load_pair(path, "none", device="cpu", dtype="bfloat16", offload=place).target
            for name, path, place in (
                ("4 bits, disk", quantised, "disk"), ("bfloat16, disk", plain, "disk"),
                ("bfloat16, memory", plain, None),
            )
        }  # fmt: skip
        sessions = {name: target.open(BEFORE + max(sizes)) for name, target in targets.items()}
        for session in sessions.values():
            prefill(session, list(range(BEFORE)))
        seconds: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in targets}
        for turn in range(args.rounds + 1):
            for name, session in sessions.items():
                for size in sizes:
                    # This untimed pass uses up the layers that were read ahead earlier.
                    pass_sec(session, size)
                    found = pass_sec(session, size)
                    # The first turn is a warm-up.
                    if turn:
                        seconds[name][size].append(found)
        layers = {name: targets[name]._backend._layout for name in ("4 bits, disk", "bfloat16, disk")}
        bytes_of = {name: parts.layer_count * parts.layer_bytes for name, parts in layers.items()}
    medians = {name: [statistics.median(found[size]) for size in sizes] for name, found in seconds.items()}
    print("tokens in a pass  " + "".join(f"{size:>9}" for size in sizes))
    for name, found in medians.items():
        print(f"{name + ', ms':18}" + "".join(f"{1e3 * each:9.1f}" for each in found))
    ratios = [b / a for a, b in zip(medians["4 bits, disk"], medians["bfloat16, disk"], strict=True)]
    print(f"{'4 bits are faster':18}" + "".join(f"{each:9.2f}" for each in ratios))
    rates = {name: size / medians[name][0] for name, size in bytes_of.items()}
    for name, rate in rates.items():
        print(f"{name}: {bytes_of[name] / 1e6:,.0f} MB for one token, {rate / 1e9:.2f} GB/s")
    result = {
        "device": device_name(), "shape": args.shape, "share": args.share, "sizes": sizes, "pass_sec": medians,
        "layer_bytes": bytes_of, "bytes_per_sec": rates, "times_as_fast": ratios,
        "passes_by": {name: target.backend for name, target in targets.items()}, "date": date.today().isoformat(),
    }  # fmt: skip
    if args.out:
        write_record(f"four-bits-{args.shape}", result, args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
