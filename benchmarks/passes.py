"""Compare the times of passes with the limits of the processor, for each of its instruction sets, and with PyTorch.

    python benchmarks/passes.py                  # prints a table, then one JSON line; a few minutes
    python benchmarks/passes.py --compile        # also torch.compile with frozen weights; compilation takes minutes
    python benchmarks/passes.py --llama-cpp      # compares with llama.cpp: the demo target and a 340M model
    python benchmarks/passes.py --real FOLDER [--file FILE.gguf]   # a real model that transformers can run

Times the demo target after 128 tokens. The lower bound for a pass over n tokens is the larger of bytes / bandwidth and
operations / rate. The bandwidth is that of all threads reading a buffer as large as the packed weights, and the rate
that of a loop on registers with the instruction set; both are measured between the passes. Methods and sizes take turns
in a changing order, so that none always follows the same other one; medians are reported. With --llama-cpp, each method
runs in a separate process, because two OpenMP runtimes in one process distort each other's times. With --real, a
model's output layer and all its linear layers are timed for each instruction set and for PyTorch in bfloat16 and
float32, followed by passes with compiled layers, with PyTorch's layers, and of a file by llama.cpp.
"""

import argparse
import copy
import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch

from benchmarks.common import REPEATS, Options, median_sec
from scripts.make_random_model import write_random_model
from sequoia_core import load_pair
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.device import describe_device
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import TorchLlama
from sequoia_core.models.protocol import causal_mask
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_extras.cpu_kernels import compile_c, instruction_sets, linear, llama_x86
from sequoia_extras.cpu_kernels.instruction_sets import InstructionSet

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
REAL_SIZES = (1, 2, 4, 8, 16, 64)
CONTEXT = 128  # number of tokens before the pass
LARGER = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
}  # 342M parameters
# By then, the threads of the previous method sleep; some OpenMP runtimes spin for 0.2 s.
REST_SEC = 0.3


class Bounds:
    """Peak rates of the processor with one instruction set."""

    def __init__(self, instructions: InstructionSet, size: int, folder: Path) -> None:
        source = Path(__file__).with_name("bounds.c")
        flags = [*llama_x86.FLAGS, *instructions.flags]
        functions = ctypes.CDLL(str(compile_c.build([source], flags, folder)))
        functions.bound_read.restype = functions.bound_rate.restype = ctypes.c_double
        functions.bound_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        functions.bound_rate.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self.functions, self.buffer, self.kept = functions, torch.ones(size, dtype=torch.uint8), ctypes.c_int64()

    def bytes_per_sec(self) -> float:
        threads, kept = torch.get_num_threads(), ctypes.byref(self.kept)
        args = self.buffer.data_ptr(), self.buffer.numel(), threads, kept
        return self.buffer.numel() / statistics.median(self.functions.bound_read(*args) for _ in range(REPEATS + 2))

    def operations_per_sec(self) -> float:
        threads, kept = torch.get_num_threads(), ctypes.byref(self.kept)
        return statistics.median(self.functions.bound_rate(threads, kept) for _ in range(REPEATS))


def pass_timer(model: HuggingFaceModel) -> Callable[[int], float]:
    """Return a function from n to the seconds of a pass over n tokens."""
    session = model.open(CONTEXT + max(SIZES))
    session.forward(torch.arange(CONTEXT), torch.arange(CONTEXT), causal_mask(CONTEXT), keep=1)

    def timed(count: int) -> float:
        ids, tree_mask = torch.arange(count), causal_mask(count)

        def run() -> None:
            session.forward(ids, ids + CONTEXT, tree_mask, keep=count)
            session.commit(CONTEXT, [])

        return median_sec(run)

    return timed


def compiled_by_torch(model) -> Callable[[int], float]:
    """Return a function from n to the seconds of a pass of transformers' model, compiled with frozen weights."""
    import torch._inductor.config as inductor
    from transformers import DynamicCache

    inductor.freezing = True
    ready: dict[int, Callable] = {}

    def prepared(count: int) -> Callable[[], None]:
        cache = DynamicCache(config=model.config)
        model(torch.arange(CONTEXT)[None], past_key_values=cache)
        mask = torch.cat([torch.zeros(count, CONTEXT), causal_mask(count)], 1)[None, None].to(model.dtype)
        ids = torch.arange(count)[None]
        options = {"position_ids": ids + CONTEXT, "attention_mask": mask, "past_key_values": cache}
        forward = torch.compile(model.forward, mode="max-autotune-no-cudagraphs", dynamic=False)

        def run() -> None:
            forward(ids, **options)
            cache.crop(-count)

        return run

    def timed(count: int) -> float:
        with torch.no_grad():
            if count not in ready:
                ready[count] = prepared(count)
            return median_sec(ready[count])

    return timed


def timed_alone(model: str) -> None:
    """Print the seconds of one model's passes by size; llama.cpp runs .gguf files."""
    found = pass_timer(load_pair(model, "none", dtype=None if model.endswith(".gguf") else "bfloat16").target)
    print(json.dumps({n: found(n) for n in SIZES if n <= 64}))


def against_llama_cpp(rounds: int) -> None:
    """Time our passes in bfloat16 and llama.cpp's passes in bfloat16 and Q8_0, in alternating processes."""
    order, taken = random.Random(0), {}
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(LARGER, Path(folder, "340M"))
        for name, path in (("demo target", DEMO_PAIR / "target"), ("340M", Path(folder, "340M"))):
            methods = {"ours, bfloat16": str(path)}
            for dtype in ("bfloat16", "q8_0"):
                methods[f"llama.cpp, {dtype}"] = file = str(Path(folder, f"{name}-{dtype}.gguf"))
                recipe = Path(__file__).parents[1] / "scripts" / "make_gguf.py"
                subprocess.run([sys.executable, str(recipe), str(path), file, "--dtype", dtype], check=True)
            found: dict[str, list[dict]] = {method: [] for method in methods}
            for _ in range(rounds):
                for method in order.sample(list(methods), len(methods)):
                    command = [sys.executable, __file__, "--only", methods[method]]
                    run = subprocess.run(command, check=True, capture_output=True, text=True)
                    found[method].append(json.loads(run.stdout.splitlines()[-1]))
            taken[name] = {
                method: {n: 1e3 * statistics.median(turn[n] for turn in turns) for n in turns[0]}
                for method, turns in found.items()
            }
            for method, sec in taken[name].items():
                print(f"{name}, {method}, ms: " + ", ".join(f"{n}: {ms:.2f}" for n, ms in sec.items()), flush=True)
    print(json.dumps({"device": describe_device("cpu"), "ms": taken}))


def layer_timer(model: torch.nn.Module, only_head: bool, dtype: torch.dtype) -> Callable[[int], float]:
    """Return a function from n to the seconds of a model's linear layers over n tokens, one after the other."""
    head = model.get_output_embeddings()
    layers = [head] if only_head else [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]

    def timed(count: int) -> float:
        with torch.inference_mode():
            inputs = {width: torch.randn(count, width).to(dtype) for width in {layer.in_features for layer in layers}}
            return median_sec(lambda: [layer(inputs[layer.in_features]) for layer in layers])

    return timed


def real_model(folder: str, file: str | None, rounds: int) -> None:
    """Time a model's linear layers and passes, compiled for each instruction set and by PyTorch."""
    from transformers import AutoModelForCausalLM

    def read(dtype: torch.dtype):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    models = {"torch bfloat16": read(torch.bfloat16), "torch float32": read(torch.float32)}
    sets = [found for found in instruction_sets.FASTEST_FIRST if found.is_available]
    for found in sets:
        os.environ[instruction_sets.INSTRUCTIONS_VARIABLE] = found.name
        models[found.name] = read(torch.bfloat16)
        linear.compile_layers(models[found.name])
    del os.environ[instruction_sets.INSTRUCTIONS_VARIABLE]
    layers = [layer for layer in models["torch bfloat16"].modules() if isinstance(layer, torch.nn.Linear)]
    head = models["torch bfloat16"].get_output_embeddings()
    sizes = {"output layer": 2 * head.weight.numel(), "linear layers": 2 * sum(one.weight.numel() for one in layers)}
    methods: dict[tuple[str, str], Callable[[int], float]] = {}
    for name, model in models.items():
        dtype = torch.float32 if name.endswith("float32") else torch.bfloat16
        for part in sizes:
            methods[part, name] = layer_timer(model, part == "output layer", dtype)
        methods["passes", name] = pass_timer(HuggingFaceModel(model, name, backend=TransformersBackend(model)))
    taken: dict[tuple[str, str], dict[int, list[float]]] = {way: {} for way in methods}
    read_at: dict[str, list[float]] = {part: [] for part in sizes}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as built:
        bounds = {part: Bounds(sets[0], size, Path(built)) for part, size in sizes.items()}
        for turn in range(rounds):
            for part, bound in bounds.items():
                read_at[part].append(bound.bytes_per_sec())
            for way in order.sample(list(methods), len(methods)):
                for count in order.sample(REAL_SIZES, len(REAL_SIZES)):
                    taken[way].setdefault(count, []).append(methods[way](count))
            if file:
                command = [sys.executable, __file__, "--only", file]
                run = subprocess.run(command, check=True, capture_output=True, text=True)
                for count, sec in json.loads(run.stdout.splitlines()[-1]).items():
                    if int(count) in REAL_SIZES:
                        taken.setdefault(("passes", "llama.cpp, the file"), {}).setdefault(int(count), []).append(sec)
            print(f"turn {turn + 1} of {rounds}", file=sys.stderr)
    gb = {part: statistics.median(rates) / 1e9 for part, rates in read_at.items()}
    record = {}
    for (part, name), counts in taken.items():
        ms = {n: 1e3 * statistics.median(counts[n]) for n in sorted(counts)}
        record[f"{part}, {name}"] = ms
        share = f"; {sizes[part] / gb[part] / 1e6 / ms[1]:.0%} of the bound" if part in sizes else ""
        print(f"{part}, {name}, ms: " + ", ".join(f"{n}: {value:.2f}" for n, value in ms.items()) + share)
    print(json.dumps({"device": describe_device("cpu"), "model": Path(folder).name, "gb_per_sec": gb, "ms": record}))


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="number of turns of each method")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile, for 1, 4, 16 and 64 tokens")
    parser.add_argument("--llama-cpp", action="store_true", help="compare only with llama.cpp's passes")
    parser.add_argument("--real", metavar="FOLDER", help="time this model's linear layers and passes instead")
    parser.add_argument("--file", help="GGUF file of the model given by --real")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.read(rounds=1)
    if args.only:
        return timed_alone(args.only)
    if args.real:
        return real_model(args.real, args.file, args.rounds)
    if args.llama_cpp:
        return against_llama_cpp(args.rounds)
    sets = [found for found in instruction_sets.FASTEST_FIRST if found.is_available]
    pair, single = load_pair(dtype="bfloat16"), load_pair(dtype="float32")
    model = pair.target.model
    packed = sum(p.numel() * p.element_size() for p in model.parameters())
    # The output layer is included.
    products = sum(p.numel() for name, p in model.named_parameters() if "norm" not in name)

    methods = {}
    for found in sets:
        os.environ[instruction_sets.INSTRUCTIONS_VARIABLE] = found.name
        methods[found.name] = pass_timer(HuggingFaceModel(copy.deepcopy(model), found.name))
    del os.environ[instruction_sets.INSTRUCTIONS_VARIABLE]
    plain = HuggingFaceModel(copy.deepcopy(model), "torch")
    plain._backend = TorchLlama(plain.model)
    methods["torch bfloat16"], methods["torch float32"] = pass_timer(plain), pass_timer(single.target)
    if args.compile:
        methods["torch.compile float32"] = compiled_by_torch(copy.deepcopy(single.target.model))

    taken: dict[str, dict[int, list[float]]] = {name: {} for name in methods}
    read, order = [], random.Random(0)
    rates: dict[str, list[float]] = {found.name: [] for found in sets}
    with tempfile.TemporaryDirectory() as folder:
        bounds = {found.name: Bounds(found, packed, Path(folder) / "built") for found in sets}
        for turn in range(args.rounds):
            time.sleep(REST_SEC)
            for name, bound in bounds.items():
                read.append(bound.bytes_per_sec())
                rates[name].append(bound.operations_per_sec())
            for name in order.sample(list(methods), len(methods)):
                time.sleep(REST_SEC)
                for count in order.sample(SIZES, len(SIZES)):
                    if name.startswith("torch.compile") and count not in (1, 4, 16, 64):
                        continue
                    taken[name].setdefault(count, []).append(methods[name](count))
            print(f"turn {turn + 1} of {args.rounds}", file=sys.stderr)

    sec = {name: {n: statistics.median(counts[n]) for n in sorted(counts)} for name, counts in taken.items()}
    print("| tokens | " + " | ".join(f"{name}, ms (share of bound)" for name in sec) + " |")
    print("|---" * (len(sec) + 1) + "|")
    record: dict[str, dict] = {}
    for found in sets:
        bandwidth, rate = statistics.median(read), statistics.median(rates[found.name])
        limit = {n: max(packed / bandwidth, 2 * products * n / rate) for n in SIZES}
        share = {n: limit[n] / sec[found.name][n] for n in SIZES}
        one = sec[found.name][1]
        record[found.name] = {
            "gb_per_sec": bandwidth / 1e9, "gflop_per_sec": rate / 1e9,
            "ms": {n: 1e3 * sec[found.name][n] for n in SIZES},
            "share_of_bound": share, "one_token_share_of_bound": share[1], "t16": sec[found.name][16] / one,
            "t64": sec[found.name][64] / one,
        }  # fmt: skip
    for n in SIZES:
        cells = []
        for name in sec:
            shown = f" ({record[name]['share_of_bound'][n]:.0%})" if name in record else ""
            cells.append(f"{1e3 * sec[name][n]:.2f}{shown}" if n in sec[name] else "")
        print(f"| {n} | " + " | ".join(cells) + " |")
    for name, row in record.items():
        print(f"{name}: read {row['gb_per_sec']:.1f} GB/s and multiplied {row['gflop_per_sec']:.0f} GFLOP/s at most")
    others = {name: {n: 1e3 * value for n, value in sec[name].items()} for name in sec if name not in record}
    print(json.dumps({"device": describe_device("cpu"), "packed_bytes": packed, **record, "others_ms": others}))


if __name__ == "__main__":
    main()
