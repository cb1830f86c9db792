"""What the rule by which engines accept drafted tokens costs: tokens per step by rule, temperature and top-p.

    python benchmarks/engine_rules.py                                       # the demo pair
    python benchmarks/engine_rules.py --target FOLDER --draft FILE.gguf     # another

All rules are asked about the same text, which the target writes at each temperature; chains are replayed along it, and
intervals of ratios are paired by prompt. A table, and one JSON line last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from itertools import product

import sequoia_core  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np

from sequoia_core import SamplingConfig, load_pair
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.bootstrap import ratio_estimate
from sequoia_core.design.chain_acceptance import MATCH, REJECTION
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.replay import replay
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.prompting import Prompting, encode_prompt
from sequoia_core.native.processor import processor_name
from sequoia_core.studies.engine_rules import measure_rules


def row_of(found: Mapping[str, AcceptanceVector], lengths: list[int]) -> dict:
    """Return acceptance by rule, tokens per step of each length, and what each rule adds to matching."""
    row: dict = {"acceptance": {rule: float(vector.probs[0]) for rule, vector in found.items()}}
    row["tokens_per_step"], row["over_match"] = {}, {}
    for k in lengths:
        replays = {rule: replay(chain_tree(k), vector) for rule, vector in found.items()}
        steps = {rule: each.steps.astype(np.float64) for rule, each in replays.items() if each is not None}
        row["tokens_per_step"][k] = {rule: each.tokens_per_step for rule, each in replays.items() if each is not None}
        row["over_match"][k] = {rule: ratio_estimate(steps[MATCH], each).to_json() for rule, each in steps.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--prompts")
    parser.add_argument("--prompt-count", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperatures", default="0.3,0.6,0.8,1")
    parser.add_argument("--top-p", default="1,0.9")
    parser.add_argument("--lengths", default="1,2,4,8")
    args = parser.parse_args()
    temperatures, top_ps = ([float(each) for each in text.split(",")] for text in (args.temperatures, args.top_p))
    lengths = [int(each) for each in args.lengths.split(",")]
    pair = load_pair(args.target, args.draft)
    texts = load_prompts(args.prompts or "assets/prompts/prompts.jsonl")[: args.prompt_count]
    prompts = [encode_prompt(pair, text, Prompting()) for text in texts]
    rows = []
    for temperature, top_p in product(temperatures, top_ps):
        found = measure_rules(
            prompts, target=pair.target, draft=pair.draft, sampling=SamplingConfig(temperature, top_p=top_p),
            max_new_tokens=args.max_new_tokens,
        )  # fmt: skip
        rows.append({"temperature": temperature, "top_p": top_p} | row_of(found, lengths))
        added = rows[-1]["over_match"][lengths[-1]][REJECTION]
        shown = "  ".join(f"{rule} {value:.3f}" for rule, value in rows[-1]["acceptance"].items())
        bounds = "" if added["low"] is None else f" [{added['low'] - 1:+.1%}, {added['high'] - 1:+.1%}]"
        print(f"T = {temperature:g}, top-p {top_p:g}: {shown}; rejection over match at k = {lengths[-1]}: "
              f"{added['value'] - 1:+.1%}{bounds}", flush=True)  # fmt: skip
    print(json.dumps({
        "benchmark": "engine_rules", "processor": processor_name(), "target": pair.target.name,
        "draft": pair.draft.name, "dtype": str(pair.target.dtype).removeprefix("torch."), "prompts": len(prompts),
        "max_new_tokens": args.max_new_tokens, "rows": rows,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
