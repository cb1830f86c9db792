"""Measure tokens per step of one tree for all verifiers, temperatures and top-p values, and check static acceptance.

    python benchmarks/robustness.py --dtype bfloat16     # 15 minutes on two cores
    python benchmarks/robustness.py --quick              # a trial

Prints a table and one JSON line, and writes a dated file to results/. EOS is disabled so that all answers have equal
length; 95 % intervals come from resampling prompts. The tree is always the optimal one for the shipped vector at
T = 0.6. That vector was measured with Sequoia's rule on these prompts (but not these texts), so the tree's shape, if
anything, favours Sequoia. Other runs decode SpecInfer's 5 × 8 tree by SpecInfer's rule, and lookup and hybrid trees no
larger than the optimal tree; hybrid trees require a shipped vector with a calibration. The check compares tokens per
step predicted from the vector with those of real trees.
"""

import json
import platform
import time
from datetime import date

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
import transformers

from benchmarks.common import ROOT, Options, write_record
from benchmarks.prediction_check import PredictionCheck, check_prediction
from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import SPECINFER_TREE, TreePolicy
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.loading import load_pair
from sequoia_core.trees.optimal import expected_tokens, optimal_tree
from sequoia_extras.dynamic_trees.policies import HybridTree, LookupTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.evaluation.rejection_curves import measure_rejection, sampling_grid
from sequoia_extras.evaluation.verifier_comparison import (
    MEASURED_VERIFIERS,
    TreeRun,
    VerifierComparison,
    compare_verifiers,
)

VECTOR = ROOT / "assets" / "acceptance" / "demo-t0.6.json"


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--temperatures", default="0,0.3,0.6,1,1.5,2")
    parser.add_argument("--top-ps", default="0.7,0.8,0.9,0.95", help="values below 1, used at --top-p-temperature")
    parser.add_argument("--top-p-temperature", type=float, default=1.0)
    parser.add_argument("--check-temperatures", default="0,0.6,1", help="temperatures of the static check")
    parser.add_argument("--prompts", type=int, default=32, help="number of shipped prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument(
        "--rejection-tokens", type=int, default=32, help="tokens per prompt; the optimal rejection takes 30 ms for each"
    )
    parser.add_argument("--size", type=int, default=32, help="number of nodes in the tree")
    parser.add_argument("--depth", type=int, default=6, help="number of edges on its longest path")
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--dtype")
    args = parser.read(
        prompts=4, max_new_tokens=8, rejection_tokens=1, temperatures="0,0.6", top_ps="0.9", check_temperatures="0.6"
    )
    started = time.perf_counter()
    pair = load_pair(args.target, args.draft, dtype=args.dtype).ignore_eos()
    texts = load_prompts(ROOT / "assets" / "prompts" / "prompts.jsonl")[: args.prompts]
    prompts = [pair.tokenizer.encode(text) for text in texts]
    tree = optimal_tree(AcceptanceVector.load(VECTOR), size=args.size, depth=args.depth)
    models = {"pair": pair, "max_new_tokens": args.max_new_tokens}
    samplings = sampling_grid(_numbers(args.temperatures))
    samplings += sampling_grid([args.top_p_temperature], _numbers(args.top_ps))

    bounds = {"max_size": tree.size, "max_depth": tree.depth}
    beside: dict[tuple[SamplingConfig, str], TreePolicy] = {}
    for sampling in samplings:
        beside[sampling, "specinfer_tree"] = SPECINFER_TREE
        beside[sampling, "lookup"] = LookupTree(TextIndex(), **bounds)
    for known in map(AcceptanceVector.load, (VECTOR, VECTOR.with_name("demo-t0.json"))):
        hybrid = HybridTree(
            TextIndex(), profile=None, calibration=known.calibration, holds_for=known.holds_for, **bounds
        )
        measured = SamplingConfig(known.holds_for.temperature, known.holds_for.top_p)
        beside |= {(each, "hybrid"): hybrid for each in samplings if each == measured}
    comparison = compare_verifiers(prompts, **models, tree=tree, samplings=samplings, policies=beside)
    print(f"tokens per step of one tree of {tree.size} nodes and depth {tree.depth}, {len(prompts)} prompts\n")
    print_comparison(comparison, samplings)

    print("\nstatic acceptance compared with real trees: fitted on half of the prompts, measured on the other half")
    names = ("static F", "by depth F", "measured", "static gap", "by depth gap", "same-prompts gap")
    print(f"{'T':>5}" + "".join(f"{name:>21}" for name in names))
    checks = []
    for temperature in _numbers(args.check_temperatures):
        for fit, held_out in ((prompts[::2], prompts[1::2]), (prompts[1::2], prompts[::2])):
            check = check_prediction(fit, held_out, **models, tree=tree, sampling=SamplingConfig(temperature))
            checks.append(check)
            cells = (check.static, check.by_depth, check.measured)
            cells += (check.static_gap, check.by_depth_gap, check.same_prompts_gap)
            print(f"{temperature:>5g}" + "".join(f"{_cell(cell):>21}" for cell in cells))

    models["max_new_tokens"] = min(args.rejection_tokens, args.max_new_tokens)
    # This uses the default number of ranks.
    rejection = measure_rejection(prompts, **models, samplings=samplings)
    print("\nP(first k children all rejected)")
    print(f"{'T':>5}{'top-p':>7}  {'verifier':<26}" + "".join(f"{f'k={k}':>8}" for k in (1, 2, 4, 8)))
    for curve in rejection.curves:
        values = "".join(f"{curve.rejection[k - 1]:>8.3f}" for k in (1, 2, 4, 8) if k <= len(curve.rejection))
        print(f"{curve.sampling.temperature:>5g}{curve.sampling.top_p:>7g}  {curve.verifier:<26}{values}")

    result = {
        "verifiers": {
            "settings": comparison.settings,
            "runs": [run_json(run) for run in comparison.runs],
            "ratios": comparison.ratios(),
        },
        "static_versus_real": [check_json(check) for check in checks],
        "rejection": {"settings": rejection.settings, "rejection": rejection.rows()},
        "settings": {
            "date": date.today().isoformat(),
            "seconds": time.perf_counter() - started,
            "prompts": len(prompts),
            "max_new_tokens": args.max_new_tokens,
            "tree": {"size": tree.size, "depth": tree.depth, "planned_for": VECTOR.name},
            "planned_expected_tokens": expected_tokens(tree, AcceptanceVector.load(VECTOR)),
            "device": str(pair.target.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
    write_record("robustness", result, args, indent=None)
    print(json.dumps(result))


def run_json(run: TreeRun) -> dict:
    """Return a run's row with its counts by prompt."""
    return run.row() | {name: getattr(run, name).tolist() for name in ("steps", "yielded", "committed", "seconds")}


def check_json(check: PredictionCheck) -> dict:
    return {
        "settings": check.settings, **{row.pop("quantity"): row for row in check.rows()},
        "static_holds": check.static_holds, "by_depth_holds": check.by_depth_holds,
        "vector": check.vector.probs.tolist(), "matrix": check.matrix.probs.tolist(),
        "matrix_trials": check.matrix.trials.tolist(),
    }  # fmt: skip


def print_comparison(comparison: VerifierComparison, samplings: list[SamplingConfig]) -> None:
    for run in comparison.runs:
        if run.verifier in ("specinfer_tree", "lookup", "hybrid"):
            kind = run.verifier.removesuffix("_tree")
            print(f"{kind} trees at T = {_setting(run.sampling)}: {_cell(run.tokens_per_step)}")
    print(
        f"{'T, top-p':>9}"
        + "".join(f"{name:>20}" for name in MEASURED_VERIFIERS)
        + f"{'÷ specinfer':>20}{'÷ topk':>20}"
    )
    for sampling in samplings:
        if sampling.greedy:
            run = comparison.run("sequoia", sampling)
            print(f"{0:>9}{_cell(run.tokens_per_step):>20}  (all verifiers are equivalent)")
            continue
        cells = [comparison.run(name, sampling).tokens_per_step for name in MEASURED_VERIFIERS]
        cells += [comparison.ratio("sequoia", other, sampling) for other in MEASURED_VERIFIERS[1:]]
        print(f"{_setting(sampling):>9}" + "".join(f"{_cell(cell):>20}" for cell in cells))


def _setting(sampling: SamplingConfig) -> str:
    return f"{sampling.temperature:g}" + (f", {sampling.top_p:g}" if sampling.top_p < 1 else "")


def _cell(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
