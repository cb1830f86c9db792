"""Race all decoding methods on a pair; prints a table and one JSON line, and writes a dated file to results/.

    python benchmarks/decode.py --dtype bfloat16 --temperature 0 --prompts 28
    python benchmarks/decode.py --dtype bfloat16 --file assets/prompts/not-looping.jsonl --prompts 32

Methods take turns on each prompt, EOS is disabled so that all answers have equal length, and the planned tree comes
from a vector and a profile measured in the same run (see `sequoia_core.measuring.bench`). A record is named after the
instruction set of the passes, the dtype, the temperature and the day.
"""

import json
import platform
from datetime import date
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once
from benchmarks.common import ROOT, Options, write_record
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.bench import bench
from sequoia_core.models.loading import load_pair
from sequoia_extras.cpu_kernels import instruction_sets

PROMPTS = ROOT / "assets" / "prompts"
METHODS = ("autoregressive", "hf_generate", "hf_assisted", "chain", "sequoia", "specexec", "adaptive")


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=32, help="number of prompts; a quarter is used for calibration")
    parser.add_argument("--file", type=Path, default=PROMPTS / "prompts.jsonl", help="prompts in JSON Lines format")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype")
    args = parser.read(prompts=2, max_new_tokens=4)
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
        print(f"{name} was left out: {reason}")
    for name, value in result["settings_left_out"].items():
        print(f"the target's default {name}, {value}, is ignored: all methods use only the temperature")
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
    instructions = instruction_sets.choose_instruction_set()[0]
    passes = "other" if instructions is None else instructions.name
    name = f"decode-{passes}-{result['settings']['dtype']}-t{args.temperature:g}{kind}"
    write_record(name, result, args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
