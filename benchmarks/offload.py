"""Decode with the target's layers on disk, beside accelerate and beside memory: tables, and one JSON line last.

    python benchmarks/offload.py --prompts 24 --out
    python benchmarks/offload.py --prompts 3 --max-new-tokens 16 --temperatures 0      # does it run?
    python benchmarks/offload.py --draft FOLDER --peak-of FOLDER_OF_A_LARGE_MODEL

The disk is read directly, with 1 to 4 outstanding reads of the very file that streams, in turns with streaming decodes.
Lanes take turns on each prompt; EOS is off, so all write equally much. accelerate's `disk_offload` reads through the
page cache: its files' pages are dropped before every pass, untimed, and it runs once more with the pages kept. Vectors
come from the last quarter of the prompts, profiles from the same run. Peak memory is that of a process of its own.
Needs `pip install accelerate` for those two lanes; without it they are left out.
"""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from datetime import date
from itertools import count
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sequoia_core.decoding.loop import autoregressive, decode  # noqa: E402
from sequoia_core.decoding.sampling import SamplingConfig  # noqa: E402
from sequoia_core.design.planning import predicted_speedup  # noqa: E402
from sequoia_core.design.tree import TokenTree  # noqa: E402
from sequoia_core.files.prompt_files import load_prompts  # noqa: E402
from sequoia_core.models import compile_c  # noqa: E402
from sequoia_core.models.direct_reads import DirectFile, aligned_memory  # noqa: E402
from sequoia_core.models.language_model import ModelPair  # noqa: E402
from sequoia_core.models.loading import DEMO_PAIR, load_pair  # noqa: E402
from sequoia_core.models.tensor_files import PIECE  # noqa: E402
from sequoia_core.studies.measure_acceptance import measure_acceptance  # noqa: E402
from sequoia_core.studies.measure_profile import measure_profile  # noqa: E402
from sequoia_core.studies.race import Lane, best_chain, plan_tree  # noqa: E402

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
READS, ROUNDS, READ_BYTES = (1, 2, 3, 4), 3, 2**29
LONGEST_CHAIN = DEEPEST_TREE = 24
OVERTAKES = 1.1  # a pass this many times as long as one over one token computes longer than it reads
Method = Callable[[Sequence[int], int], tuple[list[int], int, float]]  # prompt, turn -> tokens, passes, seconds


def disk_rate(path: Path, outstanding: int) -> float:
    """Return bytes per second of direct reads all through a file, again and again until half a gibibyte is read."""
    file = DirectFile(path)
    whole = file.size // PIECE or 1
    size = min(PIECE, file.size // 4096 * 4096)
    numbers, lock = count(), threading.Lock()
    pieces = max(outstanding, READ_BYTES // size)

    def read() -> None:
        memory = aligned_memory(size)
        while True:
            with lock:
                number = next(numbers)
            if number >= pieces:
                return
            file.read(memory[:size], number % whole * size, size)

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
    """Return rates in bytes per second: of the disk by outstanding reads, and of streaming autoregressive decodes."""
    rates: dict[int, list[float]] = {outstanding: [] for outstanding in READS}
    streamed = []
    for turn in range(ROUNDS):
        for outstanding in READS:
            rates[outstanding].append(disk_rate(pair.target.streams_from, outstanding))
        before, started = pair.target.bytes_read, time.perf_counter()
        while pair.target.bytes_read - before < READ_BYTES:
            list(autoregressive(prompts[turn % len(prompts)], target=pair.target.endless(), max_new_tokens=32))
        streamed.append((pair.target.bytes_read - before) / (time.perf_counter() - started))
    disk = {outstanding: statistics.median(values) for outstanding, values in rates.items()}
    return {"disk": disk, "streamed": statistics.median(streamed)}


def ours(pair: ModelPair, tree: TokenTree | None, sampling: SamplingConfig, length: int) -> Method:
    target, draft = pair.target.endless(), pair.draft.endless()

    def run(prompt: Sequence[int], turn: int) -> tuple[list[int], int, float]:
        options = {"sampling": sampling, "max_new_tokens": length, "generator": torch.Generator().manual_seed(turn)}
        started = time.perf_counter()
        if tree is None:
            steps = list(autoregressive(prompt, target=target, **options))
        else:
            steps = list(decode(prompt, target=target, draft=draft, tree=tree, explain=False, **options))
        return [token for step in steps for token in step.new_tokens], len(steps), time.perf_counter() - started

    return run


def accelerated(
    name: str, dtype: torch.dtype, folder: Path, sampling: SamplingConfig, length: int
) -> dict[str, Method]:
    """Return accelerate's disk offloading with the pages dropped before each pass, and with pages kept."""
    from accelerate import disk_offload
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval()
    disk_offload(model, str(folder), execution_device=torch.device("cpu"))
    config = GenerationConfig(max_new_tokens=length, do_sample=not sampling.greedy, pad_token_id=0, eos_token_id=None)
    if not sampling.greedy:
        config.temperature, config.top_p, config.top_k = sampling.temperature, sampling.top_p, sampling.top_k
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
        def run(prompt: Sequence[int], turn: int) -> tuple[list[int], int, float]:
            dropping["on"], dropping["sec"] = on, 0.0
            torch.manual_seed(turn)
            started = time.perf_counter()
            found = model.generate(torch.tensor([list(prompt)]), generation_config=config)[0, len(prompt) :].tolist()
            return found, len(found), time.perf_counter() - started - dropping["sec"]

        return run

    return {"accelerate": method(True), "accelerate_cached": method(False)}


def take_turns(methods: dict[str, Method], prompts: Sequence[Sequence[int]]) -> dict[str, Lane]:
    names, lanes = list(methods), {name: Lane() for name in methods}
    for name in names:
        methods[name](prompts[0], 0)  # warm-up
    for turn, prompt in enumerate(prompts):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            lanes[name].add(*methods[name](prompt, turn))
        print(f"prompt {turn + 1} of {len(prompts)}", file=sys.stderr)
    return lanes


def peak_of(target: str, draft: str, dtype: str) -> None:
    """Decode a little with a target on disk and print the most memory that this process held."""
    pair = load_pair(target, draft, device="cpu", dtype=dtype, offload="disk")
    prompt = pair.tokenizer.encode("def read_lines(path):")
    list(autoregressive(prompt, target=pair.target.endless(), max_new_tokens=4))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def peak_bytes(target: str, draft: str, dtype: str) -> int:
    command = [sys.executable, __file__, "--only-peak", "--target", target, "--draft", draft, "--dtype", dtype]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def one_temperature(args, disk: ModelPair, memory: ModelPair, profiles: dict, prompts, temperature: float) -> dict:
    """Measure a vector, plan, and race all lanes."""
    sampling, length = SamplingConfig(temperature), args.max_new_tokens
    calibration = prompts[-max(1, len(prompts) // 4) :]
    raced = prompts[: -len(calibration)] or prompts
    vector = measure_acceptance(
        calibration, target=memory.target, draft=memory.draft, sampling=sampling, width=args.width,
        max_new_tokens=length,
    )  # fmt: skip
    methods: dict[str, Method] = {}
    trees = {}
    for place, pair in (("disk", disk), ("memory", memory)):
        chain = best_chain(vector, profiles[place], longest=LONGEST_CHAIN)
        planned = plan_tree(vector, profiles[place], max_depth=DEEPEST_TREE)
        trees[place] = planned
        for name, tree in (("autoregressive", None), ("chain", chain), ("planned", planned)):
            methods[f"{place} {name}"] = ours(pair, tree, sampling, length)
    with tempfile.TemporaryDirectory(dir=compile_c.cache_folder()) as folder:
        if importlib.util.find_spec("accelerate"):
            methods |= accelerated(args.target, memory.target.dtype, Path(folder), sampling, length)
        lanes = take_turns(methods, raced)
    rates = {name: sum(lane.tokens) / sum(lane.seconds) for name, lane in lanes.items()}
    print(f"\nT = {temperature:g}, {len(raced)} prompts, {length} tokens each")
    print(f"{'lane':<24}{'tokens/s':>10}{'tokens/step':>13}{'over disk autoregressive':>26}")
    for name, rate in rates.items():
        per_step = lanes[name].summary()["tokens_per_step"]
        print(f"{name:<24}{rate:>10.2f}{per_step:>13.2f}{rate / rates['disk autoregressive']:>25.2f}×")
    predicted = predicted_speedup(trees["disk"], vector, profiles["disk"])
    measured = rates["disk planned"] / rates["disk autoregressive"]
    shape = {"size": trees["disk"].size, "depth": trees["disk"].depth}
    print(f"disk: tree {shape}: predicted {predicted:.2f}×, measured {measured:.2f}×")
    accelerate = rates.get("accelerate")
    return {
        "planned_over_autoregressive": measured,
        "planned_over_chain": rates["disk planned"] / rates["disk chain"],
        "planned_over_accelerate": None if accelerate is None else rates["disk planned"] / accelerate,
        "predicted_over_measured": predicted / measured,
        "tree": shape,
        "widest_rank": int(trees["disk"].child_counts.max()),
        "tokens_per_sec": rates,
        "lanes": {name: lane.summary() for name, lane in lanes.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(DEMO_PAIR / "target"))
    parser.add_argument("--draft", default=str(DEMO_PAIR / "draft"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--file", type=Path, default=ROOT / "assets" / "prompts" / "not-looping.jsonl")
    parser.add_argument("--prompts", type=int, default=32, help="a quarter of them calibrates, the others are raced")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperatures", default="0,0.6")
    parser.add_argument("--width", type=int, default=64, help="ranks of the vectors")
    parser.add_argument("--repeats", type=int, default=5, help="of each size of the profiles")
    parser.add_argument("--peak-of", help="folder of a large target, with a draft in its subfolder `draft`")
    parser.add_argument("--only-peak", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", action="store_true", help="keep the record in results/")
    args = parser.parse_args()
    if args.only_peak:
        return peak_of(args.target, args.draft, args.dtype)
    largest = (args.peak_of, f"{args.peak_of}/draft") if args.peak_of else (args.target, args.draft)
    peak = peak_bytes(*largest, args.dtype)  # first: a new process begins with the peak of the one that starts it
    disk = load_pair(args.target, args.draft, device="cpu", dtype=args.dtype, offload="disk")
    memory = load_pair(args.target, args.draft, device="cpu", dtype=args.dtype)
    prompts = [memory.tokenizer.encode(text) for text in load_prompts(args.file)[: args.prompts]]
    rates = streaming(disk, prompts)
    best = max(rates["disk"].values())
    print("disk, GB/s by outstanding reads: " + ", ".join(f"{k}: {v / 1e9:.2f}" for k, v in rates["disk"].items()))
    print(f"streaming: {rates['streamed'] / 1e9:.2f} GB/s, {rates['streamed'] / best:.0%} of the best")
    profiles = {
        place: measure_profile(target=pair.target, draft=pair.draft, sizes=SIZES, repeats=args.repeats)
        for place, pair in (("disk", disk), ("memory", memory))
    }
    passes = np.asarray(profiles["disk"].verify_sec)
    slower = [n for n, seconds in zip(SIZES, passes, strict=True) if seconds > OVERTAKES * passes[0]]
    print("\nn       " + "".join(f"{n:>8}" for n in SIZES))
    for place, profile in profiles.items():
        print(f"{place:<8}" + "".join(f"{1e3 * seconds:>8.1f}" for seconds in profile.verify_sec) + "  ms per pass")
    overtakes = slower[0] if slower else None
    print(f"computing overtakes reading at n = {overtakes or f'more than {SIZES[-1]}'}")
    result = {
        "disk_gb_per_sec": best / 1e9,
        "stream_share_of_disk": rates["streamed"] / best,
        "peak_rss_bytes": peak,
        "peak_of": largest[0],
        "overtakes_at": overtakes,
        "verify_sec": {place: list(map(float, profile.verify_sec)) for place, profile in profiles.items()},
        "sizes": SIZES,
        "passes_by": disk.target.forward_by,
        "device": profiles["disk"].device,
        "date": date.today().isoformat(),
    }
    for temperature in map(float, args.temperatures.split(",")):
        result[f"{temperature:g}"] = one_temperature(args, disk, memory, profiles, prompts, temperature)
    disk.target.close()
    if args.out:
        name = f"offload-{Path(args.draft).name}-{args.dtype}-{date.today().isoformat()}.json"
        (ROOT / "benchmarks" / "results" / name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
