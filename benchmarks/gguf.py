"""Compare our decoding of GGUF files with llama.cpp's server, using the demo pair in F16, Q8_0 and Q4_0.

    python benchmarks/gguf.py                     # 16 prompts that do not loop, 128 tokens each, greedy; ten minutes
    python benchmarks/gguf.py --dtypes q8_0 --prompts 4

For each format, the methods of our engine on llama.cpp's library (autoregressive, best chain, planned tree, hybrid
trees) take turns; then llama.cpp's server (xllamacpp, the same library) runs at every draft length. Draft and target
have the same format, prompts are token ids, times exclude the first token, and one core is left free.
`over_server_best` compares our fastest method with the server at its best draft length; the server is written in C++
throughout. Prints a table, then one JSON line.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
from servers import CALIBRATING, DEMO, LLAMA, PROMPTS, as_gguf

from benchmarks.common import Options, require, write_record
from benchmarks.server_check import server_command, start_and_ask
from sequoia_core import SamplingConfig, load_pair
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.race import MethodResult, take_turns, tree_method
from sequoia_core.models.device import describe_device
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import best_chain, predict
from sequoia_extras.dynamic_trees import HybridTree
from sequoia_extras.dynamic_trees.text_index import TextIndex

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LENGTHS = (0, 1, 2, 3, 4, 6, 8)  # draft lengths of the server


def ours(
    files: dict[str, str], prompts: Sequence[Sequence[int]], calibrating, length: int, sizes: Sequence[int]
) -> dict:
    pair, sampling = load_pair(files["target"], files["draft"], tokenizer=DEMO / "target"), SamplingConfig(0.0)
    vector = measure_acceptance(calibrating, pair, sampling=sampling)
    profile = measure_profile(pair, sizes=sizes)
    known = {"calibration": vector.calibration, "profile": profile, "holds_for": vector.holds_for}
    chain, planned = best_chain(vector, profile), plan_tree(vector, profile)
    trees = {
        "autoregressive": ROOT_ONLY, "chain": chain, "planned tree": planned,
        "hybrid": HybridTree(index=TextIndex(), **known),
    }  # fmt: skip
    methods = {name: tree_method(pair, tree, sampling) for name, tree in trees.items()}
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
    parser = Options(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["float16", "q8_0", "q4_0"])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.set_defaults(calibration=None, sizes=SIZES, lengths=LENGTHS)
    args = parser.read(dtypes=["q8_0"], prompts=2, max_new_tokens=8, calibration=2, sizes=(1, 2, 4), lengths=(0, 2))
    require("xllamacpp", "gguf")
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
    tokenizer = load_pair(device="cpu").tokenizer
    encode, decode = tokenizer.encode, tokenizer.decode
    texts = {
        name: [json.loads(line)["text"] for line in (PROMPTS / f"{name}.jsonl").read_text().splitlines()]
        for name in ("not-looping", "prompts")
    }
    prompts = [encode(text) for text in texts["not-looping"][: args.prompts]]
    calibrating = [encode(text) for text in texts["prompts"][CALIBRATING][: args.calibration]]
    result: dict = {
        "settings": {
            "device": describe_device("cpu"), "llama.cpp": f"xllamacpp {version('xllamacpp')}", "prompts": args.prompts,
            "max_new_tokens": args.max_new_tokens, "date": date.today().isoformat(),
        }
    }  # fmt: skip
    for dtype in args.dtypes:
        with tempfile.TemporaryDirectory() as folder:
            files = {name: as_gguf(str(DEMO / name), Path(folder), dtype) for name in ("target", "draft")}
            found = ours(files, prompts, calibrating, args.max_new_tokens, args.sizes)
            starts = {k: server_command("llama.cpp", LLAMA, files["target"], files["draft"], k) for k in args.lengths}
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
        print(f"  our fastest over the server's best: {found['over_server_best']:.2f}×; agreement with answers")
        print(f"  decoded token by token: {found['same_text']:.0%}", flush=True)
    write_record("gguf", result, args)
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
