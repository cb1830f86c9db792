"""Decode with the target's layers on disk, beside accelerate and beside memory: tables, and one JSON line last.

    python benchmarks/offload.py --draft assets/demo/draft --draft assets/demo/draft-large --out
    python benchmarks/offload.py --prompts 2 --calibration 4 --max-new-tokens 16 --temperatures 0      # does it run?
    python benchmarks/offload.py --peak-of FOLDER_OF_A_LARGE_PAIR

The disk is read directly, with 1 to 4 outstanding reads of the very file that streams, in turns with streaming decodes,
into as much memory as streaming fills; the rate into a few buffers that stay in the processor's cache is beside it.
Methods take turns on each prompt; EOS is off, so all write equally much. Our own methods are compared without
reading the prompt, accelerate by whole decodes. Its `disk_offload` reads through the page cache: its files'
pages are dropped before every pass, untimed, and it runs once more with the pages kept, both on the first prompts only.
Vectors are measured in memory on shipped prompts whose greedy continuation does not loop, profiles in the same run.
Peak memory is that of a process of its own. accelerate's methods need `pip install accelerate`, else they are left out.
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

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch

from sequoia_core.decoding.growing.policies import HybridTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import ROOT_ONLY, TreePolicy
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import best_chain, predict
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.tree import TokenTree
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.loading import load_pair
from sequoia_core.models.offload.direct_reads import DirectFile, aligned_memory
from sequoia_core.models.offload.streamed_llama import StreamedLlama
from sequoia_core.models.offload.tensor_files import PIECE
from sequoia_core.native import compile_c
from sequoia_core.studies.bench import dynamic_trees
from sequoia_core.studies.measure_acceptance import measure_acceptance
from sequoia_core.studies.measure_profile import measure_profile
from sequoia_core.studies.prompt_loop import Report
from sequoia_core.studies.race import (
    LOOPS_FROM,
    Decoded,
    Method,
    MethodResult,
    over_best_other,
    own_method,
    repeated_share,
    request_config,
    take_turns,
)

ROOT = Path(__file__).resolve().parent.parent

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
READS, ROUNDS, READ_BYTES = (1, 2, 3, 4), 15, 2**27
LONGEST_CHAIN = DEEPEST_TREE = 24
OVERTAKES = 1.1  # a pass this many times as long as one over one token computes longer than it reads
ACCELERATED = 6  # prompts that accelerate decodes: one of its methods takes longer than all others together


def disk_rate(path: Path, outstanding: int, filled: int) -> float:
    """Return bytes per second of direct reads all through a file, again and again until 128 MiB are read.

    Args:
        filled: bytes of memory that the reads fill in turns. Into little memory a disk may read faster than into
            much, because that little stays in the processor's cache.
    """
    file = DirectFile(path)
    whole = file.size // PIECE or 1
    size = min(PIECE, file.size // 4096 * 4096)
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


def streaming(pair: ModelPair, prompts: Sequence[Sequence[int]]) -> dict:
    """Return rates in bytes per second: of the disk by outstanding reads, and of streaming autoregressive decodes.

    The disk is read into as much memory as streaming fills, and into as little as possible beside it.
    """
    rates: dict[int, list[float]] = {outstanding: [] for outstanding in READS}
    cached: dict[int, list[float]] = {outstanding: [] for outstanding in READS}
    streamed = []
    for turn in range(ROUNDS):
        for place in range(len(READS) + 1):  # streaming, too, has every place in the order once in five turns
            kind = (turn + place) % (len(READS) + 1)
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
    """Return accelerate's disk offloading with the pages dropped before each pass, and with pages kept."""
    from accelerate import disk_offload
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval()
    disk_offload(model, str(folder), execution_device=torch.device("cpu"))
    config = request_config(sampling, max_new_tokens=length)
    model.generation_config = GenerationConfig()  # what it ships fills all that a request leaves open
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

    for path in folder.iterdir():  # a page that was never written to the disk cannot be dropped
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
        if repeated_share([token for step in steps for token in step.new_tokens]) <= LOOPS_FROM:
            found.append(prompt)
        if len(found) == count:
            break
    return found


def peak_of(target: str, draft: str, dtype: str) -> None:
    """Decode a little with a target on disk and print the most memory that this process held."""
    pair = load_pair(target, draft, device="cpu", dtype=dtype, offload="disk")
    prompt = pair.tokenizer.encode("def read_lines(path):")
    list(autoregressive(prompt, pair.ignore_eos(), max_new_tokens=4))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def peak_bytes(target: str, draft: str, dtype: str) -> int:
    command = [sys.executable, __file__, "--only-peak", target, draft, "--dtype", dtype]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


@dataclass(frozen=True)
class Setup:
    """One draft with the target in one place."""

    draft: str
    place: str  # "disk" or "memory"
    pair: ModelPair
    profile: HardwareProfile

    def name(self, method: str) -> str:
        return f"{self.place} {self.draft} {method}"


def trees_of(setup: Setup, vector: AcceptanceVector) -> dict[str, TokenTree | TreePolicy]:
    planned = plan_tree(vector, setup.profile, max_depth=DEEPEST_TREE)
    dynamic = dynamic_trees(vector, setup.profile, planned)
    known = {"calibration": vector.calibration, "profile": setup.profile, "holds_for": vector.holds_for}
    chain = best_chain(vector, setup.profile, longest=LONGEST_CHAIN)
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
    methods = {
        f"{setup.place} autoregressive": own_method(setup.pair, ROOT_ONLY, sampling) for setup in setups
    }  # one for each place: the draft has no part in it
    trees = {}
    for setup in setups:
        trees |= {setup.name(method): tree for method, tree in trees_of(setup, vectors[setup.draft]).items()}
        methods |= {
            setup.name(method): own_method(setup.pair, trees[setup.name(method)], sampling)
            for method in ("chain", "planned", "specexec", "adaptive", "hybrid")
            if setup.name(method) in trees
        }
    with tempfile.TemporaryDirectory(dir=compile_c.cache_folder()) as folder:
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
                    f"{method}_over_best_other": over_best_other(beside, setup.name(method))
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
    """Print the seconds of target passes; return them by place, and where computing overtakes reading."""
    passes = {setup.place: [float(sec) for sec in setup.profile.verify_sec] for setup in setups}
    slower = [n for n, sec in zip(SIZES, passes["disk"], strict=True) if sec > OVERTAKES * passes["disk"][0]]
    print("\nn       " + "".join(f"{n:>8}" for n in SIZES))
    for place, seconds in passes.items():
        print(f"{place:<8}" + "".join(f"{1e3 * sec:>8.1f}" for sec in seconds) + "  ms per pass")
    overtakes = slower[0] if slower else None
    print(f"computing overtakes reading at n = {overtakes or f'more than {SIZES[-1]}'}", flush=True)
    return passes, overtakes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(DEMO_PAIR / "target"))
    parser.add_argument("--draft", action="append", help="once for each draft to compare")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--file", type=Path, default=ROOT / "assets" / "prompts" / "not-looping.jsonl")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--calibration", type=int, default=40, help="other prompts that the vectors are measured on")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperatures", default="0,0.6")
    parser.add_argument("--width", type=int, default=64, help="ranks of the vectors")
    parser.add_argument("--repeats", type=int, default=5, help="of each size of the profiles")
    parser.add_argument("--peak-of", help="folder whose subfolders `target`, a large one, and `draft` are a pair")
    parser.add_argument("--only-peak", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", action="store_true", help="keep the record in results/")
    args = parser.parse_args()
    if args.only_peak:
        return peak_of(*args.only_peak, args.dtype)
    drafts = args.draft or [str(DEMO_PAIR / "draft")]
    largest = (f"{args.peak_of}/target", f"{args.peak_of}/draft") if args.peak_of else (args.target, drafts[0])
    peak = peak_bytes(*largest, args.dtype)  # first: a new process begins with the peak of the one that starts it
    setups = []
    for draft in drafts:
        for place in ("disk", "memory"):
            offload = "disk" if place == "disk" else None
            pair = load_pair(args.target, draft, device="cpu", dtype=args.dtype, offload=offload)
            profile = measure_profile(pair, sizes=SIZES, repeats=args.repeats)
            setups.append(Setup(Path(draft).name, place, pair, profile))
    disk, memory = setups[0], setups[1].pair
    prompts = [memory.tokenizer.encode(text) for text in load_prompts(args.file)[: args.prompts]]
    rates = streaming(disk.pair, prompts)
    best = max(rates["disk"].values())
    print("disk, GB/s by outstanding reads: " + ", ".join(f"{k}: {v / 1e9:.2f}" for k, v in rates["disk"].items()))
    little = max(rates["into_little_memory"].values())
    print(f"into memory that stays in the processor's cache, at best: {little / 1e9:.2f}")
    print(f"streaming: {rates['streamed'] / 1e9:.2f} GB/s, {rates['streamed'] / best:.0%} of the best")
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
        "sizes": SIZES,
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
        name = f"offload-{args.dtype}-{date.today().isoformat()}.json"
        (ROOT / "benchmarks" / "results" / name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
