"""Measure tokens per step of static and dynamic trees at equal budgets, and their growth with the budget.

    python benchmarks/dynamic.py --budget            # about ten minutes on two cores with AVX-512
    python benchmarks/dynamic.py --growth            # trees and chains of up to 1,024 nodes; 15 minutes
    python benchmarks/dynamic.py --budget --quick    # a trial, also possible with --growth

Every tree may have n nodes: the static tree is optimal for the measured vector, SpecExec selects the n most probable
continuations, and the adaptive tree the n nodes with the largest calibrated probability, regardless of costs. The
vector and the calibration are measured on every second prompt, and the others are decoded. No prompt makes the target
loop, since any draft would predict a loop. At temperature 0, only the deterministic recipe runs. Prints a table and one
JSON line, and writes a dated file to results/. EOS is disabled so that all answers have equal length; 95 % intervals
come from resampling prompts.

Growth uses the demo pair's shipped vectors and decodes the prompts that they were measured on, so that the points
should lie on the predicted curve. The tree page shows the record in assets/runs/growth.json.
"""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch
import transformers

from benchmarks.common import ROOT, Options, write_record
from sequoia_core.acceptance.bootstrap import Estimate, estimate, ratio_estimate, resample_prompts
from sequoia_core.acceptance.calibration import TABLE_GROUPS, Calibration
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import TOKENS_ONLY
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import TreePolicy
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.loading import load_pair
from sequoia_core.trees.optimal import optimal_tree
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.dynamic_trees.policies import AdaptiveTree, SpecExecTree
from sequoia_extras.dynamic_trees.recipes import RECIPES
from sequoia_extras.evaluation.measure_growth import GROWTH_DEPTH, GROWTH_SIZES, measure_growth
from sequoia_extras.evaluation.verifier_comparison import count_yielded_tokens

STATIC = "static"
PROMPTS = ROOT / "assets" / "prompts"
BUDGET = {
    "sizes": "8,16,32,64,256", "temperatures": "0,0.6,1", "file": PROMPTS / "not-looping.jsonl", "prompts": 32,
    "max_new_tokens": 48, "max_depth": 12,
}  # fmt: skip
GROWTH = {
    "sizes": ",".join(map(str, GROWTH_SIZES)), "temperatures": "0,0.6", "file": PROMPTS / "prompts.jsonl",
    "prompts": 16, "max_new_tokens": 32, "max_depth": GROWTH_DEPTH,
}  # fmt: skip


def main() -> None:
    parser = Options(__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--budget", action="store_true", help="compare trees with equal numbers of nodes")
    mode.add_argument("--growth", action="store_true", help="compare trees and chains of increasing size")
    parser.add_argument("--sizes")
    parser.add_argument("--temperatures")
    parser.add_argument("--prompts", type=int, help="number of prompts; half are decoded, or all with --growth")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--max-depth", type=int)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of both models (default: that of compiled passes)")
    parser.set_defaults(**(GROWTH if parser.parse_args().growth else BUDGET))
    args = parser.read(prompts=2, max_new_tokens=8, sizes="8")
    if args.growth and (args.target or args.draft):
        parser.error("growth uses the demo pair's vectors; the tree page measures other pairs")
    started = time.perf_counter()
    pair = load_pair(args.target, args.draft, dtype=args.dtype).ignore_eos()
    prompts = [pair.tokenizer.encode(text) for text in load_prompts(args.file)[: args.prompts]]
    found = (growth if args.growth else budgets)(prompts, pair, args)
    result = found | {
        "settings": {
            "date": date.today().isoformat(),
            "seconds": time.perf_counter() - started,
            "prompt_file": args.file.name,
            "prompts_decoded": len(prompts if args.growth else prompts[::2]),
            "prompts_measured": 0 if args.growth else len(prompts[1::2]),
            "max_new_tokens": args.max_new_tokens,
            "max_depth": args.max_depth,
            "dtype": str(pair.target.dtype).removeprefix("torch."),
            "device": str(pair.target.device),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
    write_record("growth" if args.growth else "dynamic-budget", result, args, indent=None)
    print(json.dumps(result))


def growth(prompts: Sequence[Sequence[int]], pair: ModelPair, args: argparse.Namespace) -> dict:
    """Decode the prompts with trees of every size at every temperature that has a shipped vector."""
    studies = []
    for temperature in _numbers(args.temperatures):
        study = measure_growth(
            prompts,
            pair,
            acceptance=AcceptanceVector.load(ROOT / "assets" / "acceptance" / f"demo-t{temperature:g}.json"),
            sampling=SamplingConfig(temperature),
            sizes=[int(size) for size in _numbers(args.sizes)],
            depth=args.max_depth,
            max_new_tokens=args.max_new_tokens,
        )
        print(f"\nT = {temperature:g}\n{'n':>5}  {'tree':<12}{'tokens per step':>22}{'predicted':>12}")
        for point in study.points:
            predicted = "" if point.predicted is None else f"{point.predicted:.2f}"
            rate = _cell(point.run.tokens_per_step)
            print(f"{point.size:>5}  {point.run.verifier:<12}{rate:>22}{predicted:>12}", flush=True)
        studies.append(study.to_json())
    return {"studies": studies}


def budgets(prompts: Sequence[Sequence[int]], pair: ModelPair, args: argparse.Namespace) -> dict:
    """Measure a vector on every second prompt at every temperature, and decode the others at every budget."""
    rows, gains = [], []
    for temperature in _numbers(args.temperatures):
        sampling = SamplingConfig(temperature)
        vector = measure_acceptance(
            prompts[1::2], pair, sampling=sampling, max_new_tokens=args.max_new_tokens, width=16
        )
        gains += calibration_gains(vector, temperature)
        print(f"\nT = {temperature:g}")
        print(f"{'n':>5}  {'tree':<30}{'tokens per step':>22}{'÷ static':>22}{'nodes':>8}")
        for size in _numbers(args.sizes):
            rows += compared(prompts[::2], pair, sampling, vector, int(size), args.max_depth, args.max_new_tokens)
    return {"budgets": rows, "calibration": gains}


def calibration_gains(vector: AcceptanceVector, temperature: float) -> list[dict]:
    """Return the log-likelihood gain of each group of tables over the plain vector on held-out prompts."""
    found = []
    for kind in TABLE_GROUPS:
        gain = held_out_gain(vector.calibration, kind)
        found.append(
            {"temperature": temperature, "kind": kind, "nats_per_position": None if gain is None else gain.to_json()}
        )
    return found


def held_out_gain(calibration: Calibration, kind: str) -> Estimate | None:
    """Return the tables' log-likelihood gain over the plain vector on held-out prompts, in nats per position."""
    prompts = len(calibration.positions)
    if prompts < 2:
        return None
    fit = (np.arange(prompts) % 2 == 0).astype(float)
    score = np.flatnonzero(fit == 0.0)
    tables, which = TABLE_GROUPS[kind]
    chances = np.clip(calibration.tables(fit).values[tables], 1e-6, 1 - 1e-6)
    seen, taken = calibration.counts[score, tables], calibration.accepted[score, tables]
    likelihood = (taken * np.log(chances) + np.maximum(seen - taken, 0.0) * np.log1p(-chances)).sum(axis=(1, 2))
    by_rank, positions = calibration.accepted_by_rank[:, which], calibration.positions
    plain = (fit @ by_rank + 0.5) / (fit @ positions + 1.0)
    others = by_rank[score]
    base = (others * np.log(plain) + np.maximum(positions[score, None] - others, 0.0) * np.log1p(-plain)).sum(axis=1)
    return ratio_estimate(likelihood - base, positions[score])


def compared(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    sampling: SamplingConfig,
    vector: AcceptanceVector,
    size: int,
    depth: int,
    length: int,
) -> list[dict]:
    """Decode the prompts with trees of this size of every kind; print and return one row for each."""
    trees: dict[str, TokenTree | TreePolicy] = {
        STATIC: optimal_tree(vector, size=size, depth=depth),
        "specexec": SpecExecTree(max_size=size, max_depth=depth),
    }
    for recipe in RECIPES if sampling.temperature else ("deterministic",):
        trees[f"adaptive, {recipe}"] = AdaptiveTree(
            profile=None, calibration=vector.calibration, max_size=size, max_depth=depth, recipe=recipe
        )
    auto = max(
        (tree for tree in trees.values() if isinstance(tree, AdaptiveTree)),
        key=lambda tree: tree.expected[tree.recipe].value,
    ).recipe
    counts, rows = {}, []
    for name, tree in trees.items():
        tokens, steps, nodes = (np.zeros(len(prompts)) for _ in range(3))
        for place, prompt in enumerate(prompts):
            for step in decode(
                prompt, pair, tree=tree, sampling=sampling, max_new_tokens=length, details=TOKENS_ONLY,
                generator=torch.Generator().manual_seed(place),
            ):  # fmt: skip
                tokens[place] += count_yielded_tokens([step])
                steps[place] += 1
                nodes[place] += step.tree.size
        counts[name] = tokens, steps
        rate, ratio = ratio_estimate(tokens, steps), over_static(counts[name], counts[STATIC])
        mean_size, chosen = float(nodes.sum() / steps.sum()), name == f"adaptive, {auto}"
        cells = "".join(f"{_cell(each):>22}" for each in (rate, ratio))
        print(f"{size:>5}  {name + (' (auto)' if chosen else ''):<30}{cells}{mean_size:>8.1f}", flush=True)
        rows.append(
            {"temperature": sampling.temperature, "size": size, "tree": name, "chosen_by_auto": chosen,
             "tokens_per_step": rate.to_json(), "over_static": ratio.to_json(), "mean_size": mean_size}
        )  # fmt: skip
    return rows


def over_static(counts: tuple[np.ndarray, np.ndarray], static: tuple[np.ndarray, np.ndarray]):
    """Return tokens per step relative to the static tree, resampling prompts jointly."""
    picks = resample_prompts(len(counts[0]))
    (tokens, steps), (base_tokens, base_steps) = counts, static
    samples = (picks @ tokens) / (picks @ steps) / ((picks @ base_tokens) / (picks @ base_steps))
    return estimate(float(tokens.sum() / steps.sum() / (base_tokens.sum() / base_steps.sum())), samples)


def _cell(found: Estimate) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found.low else f"{found.value:.2f}"


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
