"""Traversal verification against Sequoia's rule: tokens per step on the same trees and rows, and by decoding.

    python benchmarks/traversal.py             # five minutes on one core with AVX-512
    python benchmarks/traversal.py --quick     # a minute, to try it

Both verify children drawn without replacement, so they differ in nothing but the walk: one descends from the root token
by token, the other ascends from the leaves and keeps whole paths. Every prompt is decoded by both; every step of either
run is asked how many tokens each of them is expected to yield, given the drafted tree and both models' rows, so that
nothing is left to a walk's own luck. What the runs really wrote stands beside it, with far wider intervals, as two runs
write two texts. Prompts do not loop; vectors and calibrations come from others. EOS is off. A table, a dated file in
results/, and one JSON line last; intervals are 95 %, from resampling prompts. Times are medians over
steps.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import NamedTuple

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from sequoia_core.decoding.assemble import assemble
from sequoia_core.decoding.growing.policies import AdaptiveTree
from sequoia_core.decoding.sampling import SamplingConfig, distribution, to_float64
from sequoia_core.decoding.tree_policy import TreePolicy, policy_of
from sequoia_core.decoding.verifiers import VERIFIERS, sequoia_rule
from sequoia_core.decoding.walk import ScoredTree, stops
from sequoia_core.design.bootstrap import Estimate, estimate, ratio_estimate, resampled
from sequoia_core.design.conditions import SEQUOIA, TRAVERSAL
from sequoia_core.design.optimal_trees import optimal_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.loading import load_pair
from sequoia_core.models.protocol import prefill
from sequoia_core.studies.measure_acceptance import measure_acceptance

ROOT = Path(__file__).resolve().parent.parent

PROMPTS = ROOT / "assets" / "prompts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperatures", default="0.6,1")
    parser.add_argument("--size", type=int, default=32, help="nodes of the static tree, of an adaptive one at most")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--measured", type=int, default=40, help="prompts for the vectors")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="bfloat16", help="the format of compiled passes")
    parser.add_argument("--quick", action="store_true", help="4 prompts x 16 tokens; writes no file")
    args = parser.parse_args()
    if args.quick:
        args.prompts, args.max_new_tokens, args.seeds, args.measured = 4, 16, 1, 4
    started = time.perf_counter()
    pair = load_pair(args.target, args.draft, dtype=args.dtype).ignore_eos()
    prompts = encoded(pair, "not-looping.jsonl", args.prompts)
    others = encoded(pair, "prompts.jsonl", args.measured)
    names = ("÷ on the same rows", "÷ as decoded", "tokens per step", "ms per step", "ms of the walk")
    print(f"{'T':>4}  {'tree':<10}" + "".join(f"{name:>24}" for name in names))
    rows = []
    for temperature in (float(part) for part in args.temperatures.split(",")):
        sampling = SamplingConfig(temperature)
        vector = measure_acceptance(others, pair, sampling=sampling, max_new_tokens=args.max_new_tokens, width=16)
        trees: dict[str, TokenTree | TreePolicy] = {
            "static": optimal_tree(vector, size=args.size, depth=args.depth),
            "adaptive": AdaptiveTree(
                profile=None, calibration=vector.calibration, max_size=args.size, max_depth=args.depth, recipe="sampled"
            ),
        }
        for name, tree in trees.items():
            found = compared(prompts, pair, policy_of(tree), sampling, args.max_new_tokens, args.seeds)
            rows.append({"temperature": temperature, "tree": name, **found})
            print(table_row(rows[-1]), flush=True)
    result = {
        "rows": rows,
        "settings": {
            "date": date.today().isoformat(),
            "seconds": time.perf_counter() - started,
            "prompts": len(prompts),
            "seeds": args.seeds,
            "max_new_tokens": args.max_new_tokens,
            "size": args.size,
            "depth": args.depth,
            "dtype": str(pair.target.dtype).removeprefix("torch."),
            "device": str(pair.target.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    if not args.quick:
        out = ROOT / "benchmarks" / "results" / f"traversal-{date.today().isoformat()}.json"
        out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


def encoded(pair, name: str, count: int) -> list[list[int]]:
    return [pair.tokenizer.encode(text) for text in load_prompts(PROMPTS / name)[:count]]


class Step(NamedTuple):
    """One step of a run, and what either verifier is expected to yield of its tree and rows; bonus tokens count."""

    tokens: int
    by_sequoia: float
    by_traversal: float
    nodes: int
    sec: float
    walk_sec: float


@torch.inference_mode()
def steps_of(
    prompt: Sequence[int],
    pair: ModelPair,
    policy: TreePolicy,
    sampling: SamplingConfig,
    *,
    verifier: str,
    length: int,
    seed: int,
) -> Iterator[Step]:
    """Decode one prompt until so many tokens are written; the last step is not cut, which leaves means unbiased."""
    sequence, end = list(prompt), len(prompt) + length
    drafter, judge, sessions = assemble(
        pair, policy, verifier=VERIFIERS[verifier], sampling=sampling,
        capacity=end + policy.max_depth + 1, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    for session in sessions:
        prefill(session, prompt[:-1])
    while len(sequence) < end:
        started = time.perf_counter()
        draft = drafter.grow(sequence)
        judge.score(draft)
        scored = time.perf_counter()
        walk = judge.walk(draft)
        walked = time.perf_counter()
        tree, tokens, rows_at, logits = draft.tree, draft.tokens.tolist(), draft.cache_positions, judge.logits
        scored = ScoredTree(
            tree, tokens, cache(lambda node, logits=logits: distribution(logits[node], sampling, "target")),
            cache(lambda node, draft=draft, rows_at=rows_at: to_float64(draft.rows[rows_at[node]])),
        )  # fmt: skip
        by_sequoia, by_traversal = by_descent(scored), by_ascent(scored)
        resumed = time.perf_counter()
        judge.commit(draft, walk.path)
        drafter.commit(draft, walk.path)
        sequence += [tokens[node] for node in walk.path[1:]] + [walk.bonus_token]
        sec = time.perf_counter() - resumed + walked - started
        yield Step(len(walk.path), by_sequoia, by_traversal, tree.size, sec, walked - scored)


def by_ascent(scored: ScoredTree) -> float:
    """Return the tokens that a walk from the leaves is expected to yield, bonus token counted."""
    reach, expected = 1.0, 0.0
    for stop in stops(scored):
        expected += reach * stop.share * (scored.tree.depths[stop.node] + 1)
        reach *= 1.0 - stop.share
    return float(expected)


def by_descent(scored: ScoredTree, node: int = 0) -> float:
    """Return the tokens that Sequoia's rule is expected to yield from an accepted node on, bonus token counted."""
    children, reach, expected = scored.tree.children(node), 1.0, 1.0
    if not children:
        return expected
    offers = scored.offers(sequoia_rule, node, scored.target_row(node), scored.draft_row(node))
    for child, offer in zip(children, offers, strict=True):
        if offer.accept_prob > 0.0:
            expected += reach * offer.accept_prob * by_descent(scored, child)
        reach *= 1.0 - offer.accept_prob
        if reach <= 0.0:
            break
    return expected


def compared(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    policy: TreePolicy,
    sampling: SamplingConfig,
    length: int,
    seeds: int,
) -> dict:
    """Decode the prompts by both verifiers, taking turns, and return what one row of the record holds."""
    totals = {verifier: np.zeros((len(prompts), len(Step._fields) + 1)) for verifier in (SEQUOIA, TRAVERSAL)}
    seconds: dict[str, list[tuple[float, float]]] = {verifier: [] for verifier in totals}
    for seed in range(seeds):
        for place, prompt in enumerate(prompts):
            for verifier in sorted(totals, reverse=bool((place + seed) % 2)):
                for step in steps_of(
                    prompt, pair, policy, sampling, verifier=verifier, length=length, seed=1_000 * seed + place
                ):
                    totals[verifier][place] += (*step, 1)
                    seconds[verifier].append((step.sec, step.walk_sec))
    columns = {
        verifier: dict(zip((*Step._fields, "steps"), table.T, strict=True)) for verifier, table in totals.items()
    }
    base, ours = columns[SEQUOIA], columns[TRAVERSAL]
    picks = resampled(len(prompts))
    decoded = (picks @ ours["tokens"]) / (picks @ ours["steps"]) / ((picks @ base["tokens"]) / (picks @ base["steps"]))
    means = {
        verifier: {
            "tokens_per_step": ratio_estimate(run["tokens"], run["steps"]).to_json(),
            "nodes": float(run["nodes"].sum() / run["steps"].sum()),
            "step_sec": statistics.median(sec for sec, _ in seconds[verifier]),
            "walk_sec": statistics.median(sec for _, sec in seconds[verifier]),
            "steps": int(run["steps"].sum()),
        }
        for verifier, run in columns.items()
    }
    rates = {verifier: run["tokens"].sum() / run["steps"].sum() for verifier, run in columns.items()}
    return {
        "same_rows": ratio_estimate(
            base["by_traversal"] + ours["by_traversal"], base["by_sequoia"] + ours["by_sequoia"]
        ).to_json(),
        "decoded": estimate(float(rates[TRAVERSAL] / rates[SEQUOIA]), decoded).to_json(),
        **means,
    }


def table_row(row: dict) -> str:
    ratios = (Estimate(**row[name]) for name in ("same_rows", "decoded"))
    cells = "".join(f"{f'{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]':>24}" for ratio in ratios)
    pairs = [tuple(row[verifier]["tokens_per_step"]["value"] for verifier in (SEQUOIA, TRAVERSAL))]
    pairs += [
        tuple(1e3 * row[verifier][name] for verifier in (SEQUOIA, TRAVERSAL)) for name in ("step_sec", "walk_sec")
    ]
    cells += "".join(f"{f'{one:.2f} → {other:.2f}':>24}" for one, other in pairs)
    return f"{row['temperature']:>4g}  {row['tree']:<10}{cells}"


if __name__ == "__main__":
    main()
