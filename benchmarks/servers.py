"""Compare plans with real servers: llama.cpp and vLLM with the demo pair and with n-grams, and our engine.

    python benchmarks/servers.py --engines ours llama.cpp "llama.cpp ngram"
    python benchmarks/servers.py --engines vllm --vllm "OTHER/bin/python -m vllm.entrypoints.openai.api_server"
    python benchmarks/servers.py --engines "vllm ngram" --server 0=http://127.0.0.1:8600 --server 1=http://…

Every engine answers the same requests at k = 0, 1, 2, 3, 4, 6, 8 in turns; the plan is based on k = 0, 2 and 8.
llama.cpp comes from the wheel of the extra `real`. It leaves one core free, like our engine, which runs in bfloat16,
the dtype of compiled passes. vLLM is started by --vllm, all settings at once, or given by --server. Results are added
to the day's record, so engines may run one after another. The last line maps engines to `median_abs_error`,
`chosen_over_best` and `rows`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once
from benchmarks.common import ROOT, Options, read_record, require, write_record
from benchmarks.own_answers import served_by_us
from benchmarks.server_check import Served, ask_servers, compare, server_command, start_and_ask
from sequoia_core import SamplingConfig, load_pair
from sequoia_core.acceptance.bootstrap import ratio_estimate
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.race import take_turns, tree_method
from sequoia_core.models.device import describe_device
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import predict
from sequoia_core.trees.plain import chain_tree
from sequoia_extras.cpu_kernels import instruction_sets
from sequoia_extras.dynamic_trees import HybridTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.servers.local_server import ask

DEMO = ROOT / "assets" / "demo"
PROMPTS = ROOT / "assets" / "prompts"
ENGINES = ("ours", "llama.cpp", "llama.cpp ngram", "vllm", "vllm ngram")
CALIBRATING = slice(-32, None)  # the last prompts of prompts.jsonl; others are raced
LENGTHS = (0, 1, 2, 3, 4, 6, 8)  # draft lengths
THREADS = max(1, (os.cpu_count() or 2) - 1)
LLAMA = (
    f"{sys.executable} {ROOT / 'scripts' / 'llama_server.py'} --ctx-size 512 --parallel 1 --threads {THREADS} "
    f"--threads-batch {THREADS}"
)


def ours(prompts: Sequence[Sequence[int]], args: argparse.Namespace) -> dict:
    """Check our chains as if a server ran them, and add rows for the planned and the hybrid tree."""
    pair, sampling = load_pair(dtype="bfloat16"), SamplingConfig(0.0)
    lines = (PROMPTS / "prompts.jsonl").read_text().splitlines()[CALIBRATING][: args.calibration]
    calibrating = [pair.tokenizer.encode(json.loads(line)["text"]) for line in lines]
    vector = measure_acceptance(calibrating, pair, sampling=sampling, max_new_tokens=args.max_new_tokens)
    profile = measure_profile(pair)
    known = {"calibration": vector.calibration, "profile": profile, "holds_for": vector.holds_for}
    trees = {"planned tree": plan_tree(vector, profile), "hybrid": HybridTree(index=TextIndex(), **known)}
    chains = {str(k): chain_tree(k) if k else ROOT_ONLY for k in args.lengths}
    methods = {name: tree_method(pair, tree, sampling) for name, tree in (chains | trees).items()}
    found: dict[str, list[Served]] = {name: [] for name in methods}
    passes = dict.fromkeys(methods, 0)
    for name, decoded in take_turns(methods, prompts, args.max_new_tokens):
        passes[name] += decoded.passes
        found[name].append(served_by_us(decoded, int(name) if name in chains else 0))
    result = compare({int(name): found[name] for name in chains})
    plain = seconds(found["0"])
    for name in trees:
        measured = ratio_estimate(plain, seconds(found[name])).to_json()
        steps = sum(each.tokens for each in found[name]) / passes[name]
        row = {"k": name, "measured": measured, "tokens_per_step": steps, "predicted": None}
        if name == "planned tree":
            prediction = predict(trees[name], vector, profile, prompts=len(prompts))
            row["predicted"] = prediction.speedup.to_json()
        result["rows"].append(row)
    return result | {"dtype": "bfloat16"}


def seconds(answers: Sequence[Served]) -> np.ndarray:
    return np.array([each.seconds / each.tokens for each in answers])


def check_server(engine: str, prompts: Sequence[Sequence[int]], args: argparse.Namespace) -> dict:
    """Check one server, which is started here or already running."""
    name, _, method = engine.partition(" ")
    method, length = method or "draft", args.max_new_tokens
    if args.server:
        servers = dict(each.split("=", 1) for each in args.server)
        found = ask_servers({int(k): address for k, address in servers.items()}, name, prompts, length)
        about = json.loads(ask(next(iter(servers.values())), "/version")) if name == "vllm" else {}
    else:
        with tempfile.TemporaryDirectory() as folder:
            models = {each: str(DEMO / each) for each in ("target", "draft")}
            program, about = args.vllm, {}
            if name == "llama.cpp":
                require("xllamacpp", "gguf")
                program, about = LLAMA, {"version": f"xllamacpp {version('xllamacpp')}"}
                models = {each: as_gguf(path, Path(folder), args.dtype) for each, path in models.items()}
            starts = {k: server_command(name, program, *models.values(), k, method=method) for k in args.lengths}
            found = start_and_ask(starts, name, prompts, length)
    return compare(found, drafts_free=method == "ngram") | about | {"dtype": args.dtype}


def as_gguf(model: str, folder: Path, dtype: str) -> str:
    out = folder / f"{Path(model).name}.gguf"
    subprocess.run([sys.executable, ROOT / "scripts" / "make_gguf.py", model, out, "--dtype", dtype], check=True)
    return str(out)


def show(engine: str, found: Mapping) -> None:
    print(f"\n{engine} {found.get('version', '')}")
    print(f"{'k':<14}{'predicted':>10}{'measured':>10}{'interval':>16}{'error':>8}{'tokens/s':>10}{'tokens/step':>13}")
    for row in found["rows"]:
        measured, predicted = row["measured"], row["predicted"]
        said = "–" if predicted is None else f"{predicted['value']:.2f}×"
        error = "" if row.get("error") is None else f"{row['error']:+.1%}" if not row["planned_from"] else "seen"
        rate, steps = row.get("tokens_per_sec"), row["tokens_per_step"]
        between = f"{measured['low']:.2f}–{measured['high']:.2f}"
        print(
            f"{row['k']!s:<14}{said:>10}{measured['value']:>9.2f}×{between:>16}{error:>8}"
            f"{'' if rate is None else f'{rate:.0f}':>10}{'' if steps is None else f'{steps:.2f}':>13}"
        )
    if found["chosen"] is not None:
        over, error = found["chosen_over_best"], found["median_abs_error"]
        print(
            f"chosen k = {found['chosen']}: {over['value']:.2f} [{over['low']:.2f}, {over['high']:.2f}] of the best, "
            f"k = {found['best']}; median error {error:.1%}; same text {found['same_text']:.0%}"
        )
    print("; ".join(found["notes"]), flush=True)


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--prompts", type=int, default=32, help="number of prompts from not-looping.jsonl")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="float32", help="dtype of llama.cpp's files; set vLLM's in --vllm")
    parser.add_argument("--vllm", default="python -m vllm.entrypoints.openai.api_server", help="command to start vLLM")
    parser.add_argument("--server", action="append", help="K=ADDRESS of a running server, for a single engine")
    parser.set_defaults(calibration=None, lengths=LENGTHS)
    args = parser.read(engines=["ours"], prompts=3, max_new_tokens=8, calibration=2, lengths=(0, 1, 2, 8))
    # Import torch after the package, which sets how torch's threads wait.
    import torch

    torch.set_num_threads(THREADS)
    tokenizer = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    texts = [json.loads(line)["text"] for line in (PROMPTS / "not-looping.jsonl").read_text().splitlines()]
    prompts = [tokenizer.encode(text).ids for text in texts[: args.prompts]]
    instructions = instruction_sets.choose_instruction_set()[0]
    passes = "other" if instructions is None else instructions.name
    result = read_record(f"servers-{passes}", args)
    result["settings"] = {
        "device": describe_device("cpu"),
        "prompts": len(prompts),
        "prompt_file": "not-looping.jsonl",
        "max_new_tokens": args.max_new_tokens,
        "date": date.today().isoformat(),
    }
    for engine in args.engines:
        measured = ours(prompts, args) if engine == "ours" else check_server(engine, prompts, args)
        result[engine] = measured
        show(engine, measured)
        write_record(f"servers-{passes}", result, args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
