"""Compare decoding with the target's layers on disk, with accelerate, and with the target in memory.

    python benchmarks/offload.py --draft assets/demo/draft --draft assets/demo/draft-large --out
    python benchmarks/offload.py --peak-of FOLDER_OF_A_LARGE_PAIR

Prints tables, then one JSON line. The disk's rate is measured by direct reads of the streamed file, 1 to 4 at a time,
alternating with streaming decodes and filling as much memory. The rate for a few buffers that stay in the processor's
cache is reported too. Methods take turns on each prompt, with EOS disabled for equal lengths. The times of our methods
exclude prefill; those of accelerate include it. Its `disk_offload` reads through the page cache, so the pages of its
files are dropped before every pass, untimed; it also runs with the pages cached, in both cases only on the first
prompts. Vectors are measured in memory on shipped prompts whose greedy continuation does not loop, and profiles in the
same run. Peak memory is measured in a separate process. Without accelerate (`pip install accelerate`), its methods are
skipped.
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import count
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch

from benchmarks.common import ROOT, Options, write_record
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.loop import autoregressive
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import ROOT_ONLY, TreePolicy
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.files.safe_files import cache_folder
from sequoia_core.measuring.bench import dynamic_trees
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.prompt_loop import Report
from sequoia_core.measuring.race import (
    LOOPING_SHARE,
    Decoded,
    Method,
    MethodResult,
    compare_with_best_other,
    repeated_share,
    request_config,
    take_turns,
    tree_method,
)
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.loading import load_pair
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import best_chain, predict
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.dynamic_trees.policies import HybridTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.offloading.direct_reads import DirectFile, aligned_memory
from sequoia_extras.offloading.streamed_llama import StreamedLlama
from sequoia_extras.offloading.tensor_files import PIECE_BYTES

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
READS, ROUNDS, READ_BYTES = (1, 2, 3, 4), 15, 2**27
MAX_CHAIN = DEEPEST_TREE = 24
OVERTAKES = 1.1  # a pass this many times slower than one over a single token is compute-bound
ACCELERATED = 6  # number of prompts for accelerate: one of its methods takes longer than all others together


def disk_rate(path: Path, outstanding: int, filled: int) -> float:
    """Return the rate of direct reads of a file in bytes per second, repeated until 128 MiB are read.

    Args:
        filled: size of the memory that the reads fill in turns, in bytes. Reads into little memory may be faster,
            because it stays in the processor's cache.
    """
    file = DirectFile(path)
    whole = file.size // PIECE_BYTES or 1
    size = min(PIECE_BYTES, file.size // 4096 * 4096)
    numbers, lock = count(), threading.Lock()
    pieces, places = max(outstanding, READ_BYTES // size), max(outstanding, filled // size)
    memory = [aligned_memory(size)[:size] for _ in range(places)]

    def read() -> None:
        while True:
            with lock:
                number = next(numbers)
            if number >= pieces:
                return
            file.read(memory[number % places], number % whole * size, size)

    threads = [threading.Thread(target=read) for _ in range(outstanding)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    file.close()
    return pieces * size / seconds


def streaming(pair: ModelPair, prompts: Sequence[Sequence[int]], rounds: int) -> dict:
    """Return rates in bytes per second: the disk's by outstanding reads, and that of streaming autoregressive decodes.

    The disk is read into as much memory as streaming fills, and into as little as possible.
    """
    rates: dict[int, list[float]] = {outstanding: [] for outstanding in READS}
    cached: dict[int, list[float]] = {outstanding: [] for outstanding in READS}
    streamed = []
    for turn in range(rounds):
        # Rotate the order of the reads and of streaming.
        for offset in range(len(READS) + 1):
            kind = (turn + offset) % (len(READS) + 1)
            if kind < len(READS):
                backend, outstanding = pair.target._backend, READS[kind]
                path = (backend.copy if isinstance(backend, StreamedLlama) else backend.streamed.files.files[0]).path
                rates[outstanding].append(disk_rate(path, outstanding, backend.ring.buffer_bytes))
                cached[outstanding].append(disk_rate(path, outstanding, 0))
                continue
            before, started = pair.target.bytes_read, time.perf_counter()
            while pair.target.bytes_read - before < READ_BYTES:
                list(autoregressive(prompts[turn % len(prompts)], pair.ignore_eos(), max_new_tokens=32))
            streamed.append((pair.target.bytes_read - before) / (time.perf_counter() - started))
    disk, little = (
        {outstanding: statistics.median(values) for outstanding, values in found.items()} for found in (rates, cached)
    )
    return {"disk": disk, "into_little_memory": little, "streamed": statistics.median(streamed)}


def accelerated(
    name: str, dtype: torch.dtype, folder: Path, sampling: SamplingConfig, length: int
) -> dict[str, Method]:
    """Return accelerate's disk offloading with pages dropped before each pass, and with cached pages."""
    from accelerate import disk_offload
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval()
    disk_offload(model, str(folder), execution_device=torch.device("cpu"))
    config = request_config(sampling, max_new_tokens=length)
    # The shipped configuration would set options that a request leaves unset.
    model.generation_config = GenerationConfig()
    dropping = {"on": False, "sec": 0.0}

    def drop(*_) -> None:
        if not dropping["on"]:
            return
        started = time.perf_counter()
        for path in folder.iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        dropping["sec"] += time.perf_counter() - started

    # Pages that have not been written to disk cannot be dropped.
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    model.register_forward_pre_hook(drop)

    def method(on: bool) -> Method:
        def run(prompt: Sequence[int], length: int, turn: int, report: Report) -> Decoded | None:
            if turn >= ACCELERATED:
                return None
            dropping["on"], dropping["sec"] = on, 0.0
            torch.manual_seed(turn)
            started = time.perf_counter()
            found = model.generate(torch.tensor([list(prompt)]), generation_config=config)[0, len(prompt) :].tolist()
            return Decoded(found, len(found), time.perf_counter() - started - dropping["sec"])

        return run

    return {"accelerate": method(True), "accelerate_cached": method(False)}


def varied(pair: ModelPair, count: int, length: int) -> list[list[int]]:
    """Return the first `count` shipped prompts that the target continues greedily without looping."""
    found: list[list[int]] = []
    for text in load_prompts(ROOT / "assets" / "prompts" / "prompts.jsonl"):
        prompt = pair.tokenizer.encode(text)
        steps = autoregressive(prompt, pair.ignore_eos(), max_new_tokens=length)
        if repeated_share([token for step in steps for token in step.new_tokens]) <= LOOPING_SHARE:
            found.append(prompt)
        if len(found) == count:
            break
    return found


def peak_of(target: str, draft: str, dtype: str) -> None:
    """Decode briefly with a target on disk and print the peak memory of this process."""
    pair = load_pair(target, draft, device="cpu", dtype=dtype, offload="disk")
    prompt = pair.tokenizer.encode("def read_lines(path):")
    list(autoregressive(prompt, pair.ignore_eos(), max_new_tokens=4))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def peak_bytes(target: str, draft: str, dtype: str) -> int:
    command = [sys.executable, __file__, "--only-peak", target, draft, "--dtype", dtype]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


@dataclass(frozen=True)
class Setup:
    """One draft with the target in one tier."""

    draft: str
    place: str  # "disk" or "memory"
    pair: ModelPair
    profile: HardwareProfile

    def name(self, method: str) -> str:
        return f"{self.place} {self.draft} {method}"


def plan_trees(setup: Setup, vector: AcceptanceVector) -> dict[str, TokenTree | TreePolicy]:
    planned = plan_tree(vector, setup.profile, max_depth=DEEPEST_TREE)
    dynamic = dynamic_trees(vector, setup.profile, planned)
    known = {"calibration": vector.calibration, "profile": setup.profile, "holds_for": vector.holds_for}
    chain = best_chain(vector, setup.profile, longest=MAX_CHAIN)
    return {"chain": chain, "planned": planned, **dynamic, "hybrid": HybridTree(TextIndex(), **known)}


def one_temperature(args, setups: list[Setup], calibration, raced, temperature: float) -> dict:
    """Measure vectors, plan and race all methods; return the result of the draft whose planned tree is fastest."""
    sampling, length = SamplingConfig(temperature), args.max_new_tokens
    vectors = {
        setup.draft: measure_acceptance(
            calibration, setup.pair, sampling=sampling, width=args.width,
            max_new_tokens=length,
        )
        for setup in setups
        if setup.place == "memory"
    }  # fmt: skip
    # One method per tier, since it does not use the draft.
    methods = {f"{setup.place} autoregressive": tree_method(setup.pair, ROOT_ONLY, sampling) for setup in setups}
    trees = {}
    for setup in setups:
        trees |= {setup.name(method): tree for method, tree in plan_trees(setup, vectors[setup.draft]).items()}
        methods |= {
            setup.name(method): tree_method(setup.pair, trees[setup.name(method)], sampling)
            for method in ("chain", "planned", "specexec", "adaptive", "hybrid")
            if setup.name(method) in trees
        }
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        if importlib.util.find_spec("accelerate"):
            dtype = setups[0].pair.target.dtype
            methods |= accelerated(args.target, dtype, Path(folder), sampling, length)
        results = {name: MethodResult() for name in methods}
        for name, found in take_turns(methods, raced, length):
            results[name].add(found)
    steps = {name: 1 / result.sec_per_token for name, result in results.items() if result.step_sec}
    whole = {name: sum(result.tokens) / sum(result.seconds) for name, result in results.items()}
    shown = steps | {name: rate for name, rate in whole.items() if name not in steps}
    print(f"\nT = {temperature:g}, {len(raced)} prompts, {length} tokens each")
    print(f"{'method':<32}{'tokens/s':>10}{'tokens/step':>13}{'over disk autoregressive':>26}")
    for name, rate in shown.items():
        base = steps["disk autoregressive"] if name in steps else whole["disk autoregressive"]
        print(f"{name:<32}{rate:>10.2f}{results[name].summary()['tokens_per_step']:>13.2f}{rate / base:>25.2f}×")
    by_draft = {}
    for setup in setups:
        if setup.place == "disk":
            tree = trees[setup.name("planned")]
            found = predict(tree, vectors[setup.draft], setup.profile, prompts=len(raced)).speedup
            measured = steps[setup.name("planned")] / steps["disk autoregressive"]
            beside = {name: result for name, result in results.items() if name.startswith(setup.name(""))}
            by_draft[setup.draft] = {
                "planned_over_autoregressive": measured,
                "planned_over_chain": steps[setup.name("planned")] / steps[setup.name("chain")],
                "planned_over_accelerate": (
                    whole[setup.name("planned")] / whole["accelerate"] if "accelerate" in whole else None
                ),
                "predicted_over_measured": found.value / measured,
                "predicted": [found.value, found.low, found.high],
                "tree": {"size": tree.size, "depth": tree.depth},
                "widest_rank": int(tree.child_counts.max()),
                **{
                    f"{method}_over_best_other": compare_with_best_other(beside, setup.name(method))
                    for method in ("specexec", "adaptive", "hybrid")
                    if setup.name(method) in beside
                },
            }
            print(f"disk, {setup.draft}: {by_draft[setup.draft]}")
    best = max(by_draft, key=lambda draft: by_draft[draft]["planned_over_autoregressive"])
    return {
        "draft": best,
        **by_draft[best],
        "drafts": by_draft,
        "tokens_per_sec": steps,
        "whole_tokens_per_sec": whole,
        "lanes": {name: result.summary() for name, result in results.items()},
    }


def profile_table(setups: list[Setup]) -> tuple[dict[str, list[float]], int | None]:
    """Print the times of target passes; return them by tier, and the size above which passes are compute-bound."""
    passes = {setup.place: [float(sec) for sec in setup.profile.verify_sec] for setup in setups}
    sizes = setups[0].profile.sizes.tolist()
    slower = [n for n, sec in zip(sizes, passes["disk"], strict=True) if sec > OVERTAKES * passes["disk"][0]]
    print("\nn       " + "".join(f"{n:>8}" for n in sizes))
    for place, seconds in passes.items():
        print(f"{place:<8}" + "".join(f"{1e3 * sec:>8.1f}" for sec in seconds) + "  ms per pass")
    overtakes = slower[0] if slower else None
    print(f"computing takes longer than reading at n = {overtakes or f'more than {sizes[-1]}'}", flush=True)
    return passes, overtakes


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--target", default=str(DEMO_PAIR / "target"))
    parser.add_argument("--draft", action="append", help="draft to compare; may be repeated")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--file", type=Path, default=ROOT / "assets" / "prompts" / "not-looping.jsonl")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--calibration", type=int, default=40, help="number of other prompts for measuring vectors")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperatures", default="0,0.6")
    parser.add_argument("--width", type=int, default=64, help="number of ranks in the vectors")
    parser.add_argument("--repeats", type=int, default=5, help="number of timings of each profiled size")
    parser.add_argument("--peak-of", help="folder of a pair, with a large model in `target` and its draft in `draft`")
    parser.add_argument("--only-peak", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", action="store_true", help="write the record to results/")
    parser.set_defaults(sizes=SIZES, rounds=ROUNDS)
    args = parser.read(
        prompts=1, calibration=1, max_new_tokens=2, temperatures="0", width=8, repeats=1, sizes=(1, 2, 4), rounds=1
    )
    if args.only_peak:
        return peak_of(*args.only_peak, args.dtype)
    drafts = args.draft or [str(DEMO_PAIR / "draft")]
    largest = (f"{args.peak_of}/target", f"{args.peak_of}/draft") if args.peak_of else (args.target, drafts[0])
    # Measured first, because a new process inherits the peak of its parent.
    peak = peak_bytes(*largest, args.dtype)
    setups = []
    for draft in drafts:
        for place in ("disk", "memory"):
            offload = "disk" if place == "disk" else None
            pair = load_pair(args.target, draft, device="cpu", dtype=args.dtype, offload=offload)
            profile = measure_profile(pair, sizes=args.sizes, repeats=args.repeats)
            setups.append(Setup(Path(draft).name, place, pair, profile))
    disk, memory = setups[0], setups[1].pair
    prompts = [memory.tokenizer.encode(text) for text in load_prompts(args.file)[: args.prompts]]
    rates = streaming(disk.pair, prompts, args.rounds)
    best = max(rates["disk"].values())
    print("disk, GB/s by outstanding reads: " + ", ".join(f"{k}: {v / 1e9:.2f}" for k, v in rates["disk"].items()))
    little = max(rates["into_little_memory"].values())
    print(f"into memory that stays in the processor's cache, best rate: {little / 1e9:.2f}")
    print(f"streaming: {rates['streamed'] / 1e9:.2f} GB/s, {rates['streamed'] / best:.0%} of the best rate")
    passes, overtakes = profile_table(setups[:2])
    calibration = varied(memory, args.calibration, args.max_new_tokens)
    result = {
        "disk_gb_per_sec": best / 1e9,
        "disk_gb_per_sec_into_little_memory": little / 1e9,
        "stream_share_of_disk": rates["streamed"] / best,
        "peak_rss_bytes": peak,
        "peak_of": Path(args.peak_of or args.target).name,
        "overtakes_at": overtakes,
        "verify_sec": passes,
        "sizes": args.sizes,
        "passes_by": disk.pair.target.backend,
        "device": disk.profile.device,
        "calibration_prompts": len(calibration),
        "raced_prompts": len(prompts),
        "date": date.today().isoformat(),
    }
    for temperature in map(float, args.temperatures.split(",")):
        result[f"{temperature:g}"] = one_temperature(args, setups, calibration, prompts, temperature)
    for setup in setups:
        if setup.place == "disk":
            setup.pair.target.close()
    if args.out:
        write_record(f"offload-{args.dtype}", result, args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
