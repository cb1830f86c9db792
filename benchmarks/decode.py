"""Race every way of decoding on a pair: a table, a dated file in results/, and one JSON line last.

    python benchmarks/decode.py --dtype bfloat16 --temperature 0 --prompts 28
    python benchmarks/decode.py --dtype bfloat16 --file assets/prompts/not-looping.jsonl --prompts 32

Methods take turns on each prompt, EOS is off so that all write equally much, and the planned tree comes from a vector
and a profile measured in the same run (see `sequoia_core.studies.bench`). A record is named after the instruction set
that the passes use, the dtype, the temperature and the day.
"""

import argparse
import json
import platform
from datetime import date
from pathlib import Path

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.loading import load_pair
from sequoia_core.native import instruction_sets
from sequoia_core.studies.bench import bench

ROOT = Path(__file__).resolve().parent.parent

PROMPTS = ROOT / "assets" / "prompts"
METHODS = ("autoregressive", "hf_generate", "hf_assisted", "chain", "sequoia", "specexec", "adaptive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=32, help="how many of the prompts; a quarter calibrates")
    parser.add_argument("--file", type=Path, default=PROMPTS / "prompts.jsonl", help="prompts, JSON lines")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype")
    args = parser.parse_args()
    pair = load_pair(args.target, args.draft, dtype=args.dtype)
    texts = load_prompts(args.file)[: args.prompts]
    result = bench(
        pair, [pair.tokenizer.encode(text) for text in texts], sampling=SamplingConfig(args.temperature),
        max_new_tokens=args.max_new_tokens,
    ).record  # fmt: skip
    result["settings"] |= {
        "prompt_file": args.file.name,
        "date": date.today().isoformat(),
        "python": platform.python_version(),
    }
    base = result["autoregressive"]["tokens_per_sec"]
    print(f"{'method':<16}{'tokens/s':>10}{'quartiles':>16}{'tokens/step':>13}{'ratio':>8}")
    for name in (name for name in METHODS if name in result):
        row = result[name]
        low, high = row["tokens_per_sec_quartiles"]
        print(
            f"{name:<16}{row['tokens_per_sec']:>10.1f}{low:>9.1f}–{high:<6.1f}{row['tokens_per_step']:>13.2f}"
            f"{row['tokens_per_sec'] / base:>7.2f}×"
        )
    for name, reason in result["lanes_left_out"].items():
        print(f"{name} is left out: {reason}")
    for name, value in result["settings_left_out"].items():
        print(f"the target's own {name} {value} is left out: every method follows the temperature alone")
    print(f"tree {result['tree']}, recipe of the adaptive method: {result['recipe']}")
    for name in (name for name in ("sequoia", "specexec", "adaptive") if name in result):
        row = result[name]
        low, high = row["predicted_interval"]
        other = row["over_best_other"]
        between = "" if other["low"] is None else f" [{other['low']:.2f}, {other['high']:.2f}]"
        sure = "" if low is None else f" [{low:.2f}, {high:.2f}], {'held' if row['held'] else 'did not hold'}"
        print(
            f"{name}: predicted {row['predicted_speedup']:.2f}×{sure}, measured {row['measured_speedup']:.2f}×, "
            f"{other['value']:.2f}×{between} the best other method, {other['lane']}"
        )
    for kind in ("not_looping", "looping"):
        ratios = ", ".join(f"{name} {value:.2f}×" for name, value in result[kind]["over_autoregressive"].items())
        print(f"{kind.replace('_', ' ')}, {result[kind]['prompts']} prompts, median ratios: {ratios}")
    print(f"peak memory {(result['peak_memory_bytes'] or 0) / 2**20:.0f} MiB")
    kind = "" if args.file.stem == "prompts" else f"-{args.file.stem}"
    instructions = instruction_sets.chosen()[0]
    passes = "other" if instructions is None else instructions.name
    name = f"decode-{passes}-{result['settings']['dtype']}-t{args.temperature:g}{kind}-{date.today().isoformat()}.json"
    out = ROOT / "benchmarks" / "results" / name
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
