"""GGUF files against llama.cpp's own server: the demo pair in F16, Q8_0 and Q4_0; a table, one JSON line last.

    python benchmarks/gguf.py                     # 16 prompts that do not loop, 128 tokens each, greedy; ten minutes
    python benchmarks/gguf.py --dtypes q8_0 --prompts 4

For each format: our engine on llama.cpp's library (autoregressive, best chain, planned tree, hybrid trees) in turns,
then llama.cpp's server (xllamacpp, the same library) at every draft length in turns. Draft and target have the same
format, prompts are token ids, times are of the tokens after the first, threads are as many as there are cores less one.
`over_server_best` is our fastest over the server at its best draft length; the server's passes run in C++ alone.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
from servers import CALIBRATING, DEMO, LLAMA, PROMPTS, ROOT, as_gguf

from sequoia_core import HybridTree, SamplingConfig, load_pair
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import best_chain, predict
from sequoia_core.models.device import describe_device
from sequoia_core.servers.check import server_command, start_and_ask
from sequoia_core.studies.measure_acceptance import measure_acceptance
from sequoia_core.studies.measure_profile import measure_profile
from sequoia_core.studies.race import MethodResult, own_method, take_turns

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LENGTHS = (0, 1, 2, 3, 4, 6, 8)  # drafted tokens of the server


def ours(files: dict[str, str], prompts: Sequence[Sequence[int]], calibrating, length: int) -> dict:
    pair, sampling = load_pair(files["target"], files["draft"], tokenizer=DEMO / "target"), SamplingConfig(0.0)
    vector = measure_acceptance(calibrating, pair, sampling=sampling)
    profile = measure_profile(pair, sizes=SIZES)
    known = {"calibration": vector.calibration, "profile": profile, "holds_for": vector.holds_for}
    chain, planned = best_chain(vector, profile), plan_tree(vector, profile)
    trees = {
        "autoregressive": ROOT_ONLY, "chain": chain, "planned tree": planned,
        "hybrid": HybridTree(index=TextIndex(), **known),
    }  # fmt: skip
    methods = {name: own_method(pair, tree, sampling) for name, tree in trees.items()}
    results = {name: MethodResult() for name in methods}
    for name, found in take_turns(methods, prompts, length):
        results[name].add(found)
    rates = {name: sum(found.tokens) / sum(found.step_sec) for name, found in results.items()}
    return {
        "tokens_per_sec": rates,
        "tokens_per_step": {name: sum(found.tokens) / sum(found.steps) for name, found in results.items()},
        "predicted": {name: predict(trees[name], vector, profile).speedup.value for name in ("chain", "planned tree")},
        "chain_length": chain.depth,
        "tree": [planned.size, planned.depth],
        "verify_ms": {str(n): 1e3 * float(sec) for n, sec in zip(profile.sizes, profile.verify_sec, strict=True)},
        "outputs": results["autoregressive"].outputs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float16", "q8_0", "q4_0"])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
    tokenizer = load_pair(device="cpu").tokenizer
    encode, decode = tokenizer.encode, tokenizer.decode
    texts = {
        name: [json.loads(line)["text"] for line in (PROMPTS / f"{name}.jsonl").read_text().splitlines()]
        for name in ("not-looping", "prompts")
    }
    prompts = [encode(text) for text in texts["not-looping"][: args.prompts]]
    calibrating = [encode(text) for text in texts["prompts"][CALIBRATING]]
    result: dict = {
        "settings": {
            "device": describe_device("cpu"), "llama.cpp": f"xllamacpp {version('xllamacpp')}", "prompts": args.prompts,
            "max_new_tokens": args.max_new_tokens, "date": date.today().isoformat(),
        }
    }  # fmt: skip
    for dtype in args.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            files = {name: as_gguf(str(DEMO / name), Path(folder), dtype) for name in ("target", "draft")}
            found = ours(files, prompts, calibrating, args.max_new_tokens)
            starts = {k: server_command("llama.cpp", LLAMA, files["target"], files["draft"], k) for k in LENGTHS}
            served = start_and_ask(starts, "llama.cpp", prompts, args.max_new_tokens)
        rates = {k: sum(s.tokens for s in each) / sum(s.seconds for s in each) for k, each in served.items()}
        best = max(rates, key=lambda k: rates[k])
        same = [decode(ids) == answer.text for ids, answer in zip(found.pop("outputs"), served[0], strict=True)]
        found["server_tokens_per_sec"], found["server_best"] = rates, best
        found["over_server_best"] = max(found["tokens_per_sec"].values()) / rates[best]
        found["same_text"] = sum(same) / len(same)
        result[dtype] = found
        base = found["tokens_per_sec"]["autoregressive"]
        print(f"\n{dtype}: n = {found['tree'][0]}, d = {found['tree'][1]}, chain of {found['chain_length']}")
        print("  pass, ms: " + ", ".join(f"{n}: {ms:.2f}" for n, ms in found["verify_ms"].items()))
        for name, rate in found["tokens_per_sec"].items():
            step = found["tokens_per_step"][name]
            print(f"  {name:<16}{rate:>8.0f} tokens/s{rate / base:>7.2f}×{step:>7.2f} tokens/step")
        words = ", ".join(f"{k}: {rate:.0f} ({rate / rates[0]:.2f}×)" for k, rate in rates.items())
        print(f"  llama-server by draft length, tokens/s: {words}; best {best}")
        print(f"  our fastest over the server's best: {found['over_server_best']:.2f}×; equal answers of one")
        print(f"  token at a time: {found['same_text']:.0%}", flush=True)
    name = f"gguf-{date.today().isoformat()}.json"
    (ROOT / "benchmarks" / "results" / name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
