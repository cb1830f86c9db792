"""Compare predicted with measured speedups for tree shapes across the speedup surface.

    python benchmarks/planner.py --dtype bfloat16 --out benchmarks/results/planner-NAME-DATE.json
    python benchmarks/planner.py --prompts 24 --raced 8 --max-new-tokens 32     # rough; takes a minute

Measures acceptance on all held-out prompts and decodes some of them with every shape, in turns. The speed of a shared
machine drifts, so a round of the profile is timed after every two prompts; the record also contains the prediction from
a profile measured beforehand. The decoded prompts are split at random 50 times into raced and calibration prompts, to
determine the share of intervals that contain the measured speedup. Prefill is excluded. The last line is JSON.
"""

import argparse
import json
from datetime import date
from pathlib import Path

import numpy as np

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once
from benchmarks.common import ROOT, Options
from sequoia_core import AcceptanceVector, SamplingConfig, TokenTree, load_pair, measure_acceptance, optimal_tree
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.race import MethodResult, race
from sequoia_core.measuring.step_rounds import StepRounds
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import best_chain, predict, prompts_for
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.plain import chain_tree

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
SHAPES = ((3, 2), (4, 3), (6, 3), (8, 4), (8, 7), (12, 5), (16, 6), (24, 8), (32, 6), (48, 8))
# Number of splits, and of prompts raced between two rounds of the profile.
SPLITS, BLOCK = 50, 2


def subset(vector: AcceptanceVector, picked: np.ndarray) -> AcceptanceVector:
    """Return the vector measured only on the `picked` prompts, int [prompts]."""
    sums, trials = vector.prompt_sums[picked], vector.prompt_trials[picked]
    ranks = tuple(vector.prompt_ranks[i] for i in picked)
    return AcceptanceVector(
        sums.sum(axis=0) / trials.sum(), prompt_sums=sums, prompt_trials=trials, prompt_ranks=ranks,
        holds_for=vector.holds_for,
    )  # fmt: skip


def joined(first: MethodResult, second: MethodResult) -> MethodResult:
    """Combine the prompts of two results into one result."""
    lists = ("tokens", "steps", "seconds", "outputs", "step_sec")
    return MethodResult(**{name: getattr(first, name) + getattr(second, name) for name in lists})


def split(prompts: int, decoded: int, share: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw calibration and raced prompts, int [prompts] each; raced ones are among the first `decoded` prompts."""
    order = np.random.default_rng(number).permutation(decoded)
    raced = order[: round(share * decoded)]
    return np.setdiff1d(np.arange(prompts), raced), raced


def measured_speedup(results: dict[str, MethodResult], name: str, raced: np.ndarray) -> float:
    """Return the ratio of total seconds per token over the raced prompts."""

    def sec_per_token(result: MethodResult) -> float:
        return float(np.array(result.step_sec)[raced].sum() / np.array(result.tokens)[raced].sum())

    return sec_per_token(results["autoregressive"]) / sec_per_token(results[name])


def compare(
    vector: AcceptanceVector,
    profile: HardwareProfile,
    trees: dict[str, TokenTree],
    results: dict[str, MethodResult],
    calibration: np.ndarray,
    raced: np.ndarray,
    contexts: np.ndarray,
) -> list[dict]:
    """Predict from some prompts and measure on others, int [prompts] each; return one row per tree."""
    known = subset(vector, calibration)
    rows = []
    for name, tree in trees.items():
        context = float(contexts[raced].mean())
        found = predict(tree, known, profile, context=context, prompts=len(raced))
        measured = measured_speedup(results, name, raced)
        steps = np.array(results[name].steps)[raced].sum()
        rows.append(
            {
                "tree": name, "size": tree.size, "depth": tree.depth, "predicted": found.speedup.value,
                "interval": [found.speedup.low, found.speedup.high], "measured": measured,
                "held": found.holds(measured), "paper": found.paper_speedup,
                "predicted_tokens_per_step": found.tokens_per_step.value,
                "measured_tokens_per_step": float(np.array(results[name].tokens)[raced].sum() / steps),
                "predicted_step_ms": 1e3 * found.step.total_sec,
                "measured_step_ms": 1e3 * float(np.array(results[name].step_sec)[raced].sum() / steps),
            }
        )  # fmt: skip
    return rows


def errors(rows: list[dict], key: str = "predicted") -> np.ndarray:
    return np.abs([row[key] / row["measured"] - 1 for row in rows])


def summary(splits: list[list[dict]]) -> dict:
    """Return the figures of the first split, and the coverage and width of intervals over all splits."""
    every = [row for rows in splits for row in rows]
    halves = [(row["interval"][1] - row["interval"][0]) / 2 / row["predicted"] for row in every]
    chosen = [
        max(rows, key=lambda r: r["predicted"])["measured"] / max(row["measured"] for row in rows) for rows in splits
    ]
    first = splits[0]
    return {
        "median_abs_error": float(np.median(errors(first))),
        "worst_abs_error": float(errors(first).max()),
        "paper_median_abs_error": float(np.median(errors(first, "paper"))),
        "inside_interval": float(np.mean([row["held"] for row in every])),
        "median_half_width": float(np.median(halves)),
        "worst_half_width": float(max(halves)),
        "chosen_over_best": float(chosen[0]),
        "worst_chosen_over_best": float(min(chosen)),
    }


def run(pair, ids: list[list[int]], sampling: SamplingConfig, args: argparse.Namespace) -> dict:
    """Measure, plan and race at one temperature."""
    vector = measure_acceptance(ids, pair, sampling=sampling, max_new_tokens=args.max_new_tokens)
    timed = ids[: args.raced]
    blocks = [timed[start : start + BLOCK] for start in range(0, len(timed), BLOCK)]
    before = measure_profile(pair, sizes=args.sizes, repeats=args.repeats)
    rounds = StepRounds(pair, sizes=args.sizes)
    rounds.warm_up()
    splits = [split(len(ids), args.raced, args.share, number) for number in range(args.splits + 1)]
    planned_for = subset(vector, splits[0][0])
    trees = {
        "planned": plan_tree(planned_for, before),
        "best chain": best_chain(planned_for, before),
        "chain of 8": chain_tree(8),
    }
    for n, d in args.shapes:
        tree = optimal_tree(planned_for, size=n, depth=d)
        if tree not in trees.values():
            trees[f"n={n} d={d}"] = tree
    results: dict[str, MethodResult] = {}
    # Profile the machine repeatedly during the race, since its speed drifts.
    for block in blocks:
        found = race(
            pair, block, trees=trees, sampling=sampling, max_new_tokens=args.max_new_tokens, with_transformers=False
        )
        results = {name: joined(results.get(name, MethodResult()), result) for name, result in found.items()}
        rounds.take()
    during = rounds.profile()
    contexts = np.array([len(prompt) for prompt in ids]) + args.max_new_tokens / 2
    found = [compare(vector, during, trees, results, known, raced, contexts) for known, raced in splits]
    earlier = compare(vector, before, trees, results, *splits[0], contexts)
    return {
        **summary(found),
        "median_abs_error_with_the_profile_taken_before": float(np.median(errors(earlier))),
        "calibration": len(splits[0][0]),
        "raced": len(splits[0][1]),
        "prompts_for_5_percent": prompts_for(trees["planned"], planned_for),
        "verify_ms": [(1e3 * profile.verify_sec).round(3).tolist() for profile in (before, during)],
        "overhead_ms": (1e3 * during.overhead_sec).round(3).tolist(),
        "sampling_ms": (1e3 * during.sampling_sec).round(3).tolist(),
        "draft_widths": during.draft_widths.tolist(),
        "draft_ms": (1e3 * during.draft_width_sec).round(3).tolist(),
        "device": before.device,
        "shapes": found[0],
    }


def show(temperature: float, found: dict) -> None:
    print(f"\nT = {temperature:g}, {found['device']}")
    print(f"{'tree':<12} predicted   95 % interval measured   error  paper  tokens/step ms/step")
    for row in found["shapes"]:
        low, high = row["interval"]
        print(
            f"{row['tree']:<12} {row['predicted']:>8.2f}x  {low:>5.2f} to {high:>5.2f} {row['measured']:>8.2f} "
            f"{row['predicted'] / row['measured'] - 1:>+7.1%} {row['paper']:>6.2f}  "
            f"{row['predicted_tokens_per_step']:.2f}/{row['measured_tokens_per_step']:.2f}   "
            f"{row['predicted_step_ms']:.2f}/{row['measured_step_ms']:.2f}"
        )


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--file", type=Path, default=ROOT / "assets" / "prompts" / "prompts.jsonl")
    parser.add_argument("--prompts", type=int, default=200, help="total number of prompts")
    parser.add_argument("--raced", type=int, default=44, help="number of prompts decoded with every tree")
    parser.add_argument("--share", type=float, default=0.8, help="share of the decoded prompts raced in each split")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.6])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path)
    parser.set_defaults(sizes=SIZES, shapes=SHAPES, splits=SPLITS)
    args = parser.read(
        prompts=6, raced=3, max_new_tokens=8, temperatures=[0.6], repeats=1, sizes=(1, 16), shapes=((4, 3),), splits=1
    )
    pair = load_pair(device="cpu", dtype=args.dtype)
    ignore_eos = pair.ignore_eos()
    ids = [pair.tokenizer.encode(text) for text in load_prompts(args.file)[: args.prompts]]
    found = {}
    for temperature in args.temperatures:
        found[f"{temperature:g}"] = run(ignore_eos, ids, SamplingConfig(temperature), args)
        show(temperature, found[f"{temperature:g}"])
    worst = {key: max(part[key] for part in found.values()) for key in ("median_abs_error", "worst_abs_error")}
    least = {key: min(part[key] for part in found.values()) for key in ("inside_interval", "chosen_over_best")}
    settings = {
        "prompts": len(ids), "raced": args.raced, "max_new_tokens": args.max_new_tokens,
        "dtype": args.dtype, "splits": args.splits, "date": date.today().isoformat(),
    }  # fmt: skip
    result = {**worst, **least, "temperatures": found, "settings": settings}
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
