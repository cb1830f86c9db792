"""Compare traversal verification with Sequoia's rule by tokens per step, on the same trees and rows and in decoding.

    python benchmarks/traversal.py             # five minutes on one core with AVX-512
    python benchmarks/traversal.py --quick     # a trial

Both verify children drawn without replacement and differ only in the walk: Sequoia's descends from the root token by
token, traversal ascends from the leaves and accepts whole paths. Every prompt is decoded with both. For every step of
either run, the expected tokens of each walk are computed from the drafted tree and both models' rows, which removes the
randomness of the walk. The decoded tokens are reported too, with far wider intervals, since the two runs generate
different texts. Prompts do not loop; vectors and calibrations are measured on other prompts. EOS is disabled. Prints a
table and one JSON line, and writes a dated file to results/; 95 % intervals come from resampling prompts. Times are
medians over steps.
"""

import json
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from typing import NamedTuple

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from benchmarks.common import ROOT, Options, write_record
from sequoia_core.acceptance.bootstrap import Estimate, estimate, ratio_estimate, resample_prompts
from sequoia_core.acceptance.conditions import SEQUOIA, TRAVERSAL
from sequoia_core.decoding.assemble import assemble
from sequoia_core.decoding.row_operations import row_operations
from sequoia_core.decoding.sampling import SamplingConfig, distribution
from sequoia_core.decoding.tree_policy import TreePolicy, as_policy
from sequoia_core.decoding.verifiers import VERIFIERS, sequoia_rule
from sequoia_core.decoding.walk import ScoredTree, stops
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.loading import load_pair
from sequoia_core.models.protocol import prefill
from sequoia_core.trees.optimal import optimal_tree
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.dynamic_trees.policies import AdaptiveTree

PROMPTS = ROOT / "assets" / "prompts"


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--temperatures", default="0.6,1")
    parser.add_argument("--size", type=int, default=32, help="size of static trees and maximum of adaptive ones")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3, help="number of runs per prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--measured", type=int, default=40, help="number of prompts for measuring vectors")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of both models (default: that of compiled passes)")
    args = parser.read(prompts=2, max_new_tokens=8, seeds=1, measured=2, temperatures="0.6", size=8)
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
            found = compared(prompts, pair, as_policy(tree), sampling, args.max_new_tokens, args.seeds)
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
    write_record("traversal", result, args, indent=None)
    print(json.dumps(result))


def encoded(pair, name: str, count: int) -> list[list[int]]:
    return [pair.tokenizer.encode(text) for text in load_prompts(PROMPTS / name)[:count]]


class Step(NamedTuple):
    """One step of a run, with the expected tokens under each verifier, including bonus tokens."""

    tokens: int
    by_sequoia: float
    by_traversal: float
    nodes: int
    sec: float
    walk_sec: float


@torch.inference_mode()
def decode_steps(
    prompt: Sequence[int],
    pair: ModelPair,
    policy: TreePolicy,
    sampling: SamplingConfig,
    *,
    verifier: str,
    length: int,
    seed: int,
) -> Iterator[Step]:
    """Decode at least this many tokens of one prompt; the last step is not truncated, so that means are unbiased."""
    sequence, end = list(prompt), len(prompt) + length
    drafter, judge, sessions, _ = assemble(
        pair, policy, verifier=VERIFIERS[verifier], sampling=sampling,
        capacity=end + policy.max_depth + 1, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    for session in sessions:
        prefill(session, prompt[:-1])
    while len(sequence) < end:
        started = time.perf_counter()
        draft = drafter.grow(sequence)
        judge.score(draft)
        judged = time.perf_counter()
        walk = judge.walk(draft)
        walked = time.perf_counter()
        tree, tokens, rows_at, logits = draft.tree, draft.tokens.tolist(), draft.cache_positions, judge.logits
        scored = ScoredTree(
            tree, tokens, cache(lambda node, logits=logits: distribution(logits[node], sampling, "target")),
            cache(lambda node, draft=draft, rows_at=rows_at: row_operations().to_float64(draft.rows[rows_at[node]])),
        )  # fmt: skip
        by_sequoia, by_traversal = expected_descent(scored), expected_ascent(scored)
        resumed = time.perf_counter()
        judge.commit(draft, walk.path)
        drafter.commit(draft, walk.path)
        sequence += [tokens[node] for node in walk.path[1:]] + [walk.bonus_token]
        sec = time.perf_counter() - resumed + walked - started
        yield Step(len(walk.path), by_sequoia, by_traversal, tree.size, sec, walked - judged)


def expected_ascent(scored: ScoredTree) -> float:
    """Return the expected tokens of a walk from the leaves, including the bonus token."""
    reach, expected = 1.0, 0.0
    for stop in stops(scored):
        expected += reach * stop.share * (scored.tree.depths[stop.node] + 1)
        reach *= 1.0 - stop.share
    return float(expected)


def expected_descent(scored: ScoredTree, node: int = 0) -> float:
    """Return the expected tokens under Sequoia's rule below an accepted node, including the bonus token."""
    children, reach, expected = scored.tree.children(node), 1.0, 1.0
    if not children:
        return expected
    offers = scored.offers(sequoia_rule, node, scored.target_row(node), scored.draft_row(node))
    for child, offer in zip(children, offers, strict=True):
        if offer.accept_prob > 0.0:
            expected += reach * offer.accept_prob * expected_descent(scored, child)
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
    """Decode the prompts with both verifiers in turns, and return one row of the record."""
    totals = {verifier: np.zeros((len(prompts), len(Step._fields) + 1)) for verifier in (SEQUOIA, TRAVERSAL)}
    seconds: dict[str, list[tuple[float, float]]] = {verifier: [] for verifier in totals}
    for seed in range(seeds):
        for place, prompt in enumerate(prompts):
            for verifier in sorted(totals, reverse=bool((place + seed) % 2)):
                for step in decode_steps(
                    prompt, pair, policy, sampling, verifier=verifier, length=length, seed=1_000 * seed + place
                ):
                    totals[verifier][place] += (*step, 1)
                    seconds[verifier].append((step.sec, step.walk_sec))
    columns = {
        verifier: dict(zip((*Step._fields, "steps"), table.T, strict=True)) for verifier, table in totals.items()
    }
    base, ours = columns[SEQUOIA], columns[TRAVERSAL]
    picks = resample_prompts(len(prompts))
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
