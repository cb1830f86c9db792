"""Compare a draft head with both draft models of the demo target, in memory and from disk.

    python benchmarks/heads.py --out            # 6 sections in 8 minutes; those in today's record are skipped
    python benchmarks/heads.py --places memory --temperatures 0 --prompts 2 --tokens 32        # a trial
    python benchmarks/heads.py --target FOLDER --draft head=FOLDER --draft small=FOLDER --places memory --prompts 6

Prints tables, then one JSON line. Vectors are measured on other prompts, and profiles in the same run. All methods take
turns on each prompt, with EOS disabled and prefill excluded. Draft models use their best chain and planned tree. Heads
also use a tree that is planned as if acceptance at every depth were that of the first, and EAGLE's trees:

    mc_sim_7b_63   EAGLE-1's static tree: 26 nodes, depth 5
    EAGLE-2's      60 nodes, 6 passes, 10 nodes read per level: grown at every step by the head's probabilities
                   (with SpecExec's policy), and once by P[depth, rank]

Each is compared with the best tree of the same size and depth. `exact` lists the expected tokens according to the
matrix, without decoding.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np

from benchmarks.common import ROOT, Options, read_record, write_record
from sequoia_core import AcceptanceVector, HardwareProfile, SamplingConfig, TokenTree, load_pair
from sequoia_core.decoding.tree_policy import ROOT_ONLY, TreePolicy
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.race import MethodResult, speedup_over_plain, take_turns, tree_method
from sequoia_core.models.device import describe_device
from sequoia_core.models.language_model import ModelPair
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import best_chain, predict, without_depth
from sequoia_core.trees.optimal import expected_tokens, optimal_tree
from sequoia_core.trees.tree_files import tree_from_bytes
from sequoia_extras.cpu_kernels.instruction_sets import instructions_in_use
from sequoia_extras.dynamic_trees.policies import SpecExecTree

DRAFTS = [
    f"{name}={DEMO_PAIR / folder}"
    for name, folder in (("small", "draft"), ("large", "draft-large"), ("head", "head"), ("block", "block-head"))
]
# Name -> tier, and the sizes to profile.
PLACES = {
    "memory": (None, (1, 2, 4, 8, 16, 32, 64)),
    "disk": ("disk", (1, 2, 4, 8, 16, 32, 64, 96, 128)),
}
EAGLE_1 = (
    (0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (0, 0, 0), (0, 0, 1),
    (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2),
    (0, 0, 0, 0, 0), (0, 0, 0, 0, 1),
)  # fmt: skip
# EAGLE-2 and EAGLE-3 call these total_token, depth + 1 and top_k.
NODES, PASSES, BEAM = 60, 6, 10


def eagle_2(vector: AcceptanceVector) -> TokenTree:
    """Return the tree that EAGLE-2 grows if probabilities depend only on depth and rank."""
    parents, ranks, scores, level = [-1], [0], [1.0], [0]
    for depth in range(1, PASSES + 1):
        row, new = vector.levels[min(depth, len(vector.levels)) - 1, :BEAM], []
        for node in sorted(level, key=lambda node: -scores[node])[:BEAM]:
            for rank, prob in enumerate(row, start=1):
                new.append(len(parents))
                parents.append(node)
                ranks.append(rank)
                scores.append(scores[node] * float(prob))
        level = new
    kept = {0} | set(sorted(range(1, len(parents)), key=lambda node: (-scores[node], node))[: NODES - 1])
    place = {node: number for number, node in enumerate(sorted(kept))}
    links = [(-1 if node == 0 else place[parents[node]], ranks[node]) for node in sorted(kept)]
    return TokenTree.from_links(*np.array(links).T)[0]


def exact(vector: AcceptanceVector, others: Mapping[str, TokenTree]) -> dict:
    """Return the expected tokens of trees according to the matrix, and of the best trees of equal size and depth."""
    rows = {}
    for name, tree in others.items():
        best = expected_tokens(optimal_tree(vector, size=tree.size, depth=tree.depth), vector)
        own = expected_tokens(tree, vector)
        rows[name] = {"size": tree.size, "depth": tree.depth, "tokens": own, "best": best, "gain": best / own - 1}
    return rows


def plan_trees(vector: AcceptanceVector, profile: HardwareProfile) -> dict[str, TokenTree | TreePolicy]:
    trees: dict[str, TokenTree | TreePolicy] = {
        "best chain": best_chain(vector, profile), "planned tree": plan_tree(vector, profile)
    }  # fmt: skip
    if vector.by_depth is not None:
        static = tree_from_bytes(json.dumps(EAGLE_1).encode(), "mc_sim_7b_63.json")
        trees |= {
            "planned without depth": plan_tree(replace(vector, by_depth=None), profile),
            "mc_sim_7b_63": static,
            "best of its size": optimal_tree(vector, size=static.size, depth=static.depth),
            "EAGLE-2's, grown": SpecExecTree(max_size=NODES, max_depth=PASSES, beam=BEAM),
            "EAGLE-2's, static": eagle_2(vector),
            "best of 60": optimal_tree(vector, size=NODES, depth=PASSES),
        }
    return trees


def section(place: str, temperature: float, args: argparse.Namespace) -> dict:
    offload, sizes = PLACES[place]
    sampling = SamplingConfig(temperature)
    methods, predictions, planned, record = {}, {}, {}, {}
    drafts = dict(each.split("=", 1) for each in args.draft or DRAFTS)
    pairs = {
        name: load_pair(args.target, draft, device=args.device, dtype="bfloat16", offload=offload)
        for name, draft in drafts.items()
    }
    first, *others = pairs.values()
    for other in others:
        other.target.close()
    # All drafts share one target, since several targets would compete for the processor's cache.
    pairs = {name: ModelPair(first.target, pair.draft, first.tokenizer) for name, pair in pairs.items()}
    ids = [first.tokenizer.encode(text) for text in load_prompts(args.file)]
    raced, unraced = ids[: args.prompts], ids[args.prompts :][: args.calibration]
    context = round(np.mean(list(map(len, raced))) + args.tokens / 2)
    methods["plain"] = tree_method(first, ROOT_ONLY, sampling)
    for name, pair in pairs.items():
        in_memory = pair if offload is None else load_pair(args.target, drafts[name], device=args.device)
        vector = measure_acceptance(unraced, in_memory, sampling=sampling, max_new_tokens=args.tokens)
        profile = measure_profile(pair, sizes=sizes, context=context, repeats=args.repeats)
        found = {"p1": vector.levels[:, 0].tolist(), "any": vector.levels.sum(1).tolist(), "c": profile.c}
        trees = plan_trees(vector, profile)
        if vector.by_depth is not None:
            low, high = vector.by_depth.interval() or (None, None)
            found["p1_interval"] = None if low is None else [low[:, 0].tolist(), high[:, 0].tolist()]
            lost = without_depth(trees["planned tree"], vector, profile)
            found["without_depth"] = None if lost is None else lost._asdict()
            found["exact"] = exact(vector, {key: trees[key] for key in ("mc_sim_7b_63", "EAGLE-2's, static")})
        record[name] = found
        for kind, tree in trees.items():
            methods[f"{name}: {kind}"] = tree_method(pair, tree, sampling)
            if isinstance(tree, TokenTree):
                predictions[f"{name}: {kind}"] = predict(tree, vector, profile, prompts=len(raced))
                planned[f"{name}: {kind}"] = [tree.size, tree.depth]
    results = {name: MethodResult() for name in methods}
    for name, decoded in take_turns(methods, raced, args.tokens):
        results[name].add(decoded)
    first.target.close()
    results["autoregressive"] = results["plain"]
    rows = {}
    for name in methods:
        result, guessed = results[name], predictions.get(name)
        speed = speedup_over_plain(results, name)
        rows[name] = {
            "speedup": speed.to_json(), "tokens_per_step": sum(result.tokens) / sum(result.steps),
            "tokens_per_sec": 1 / result.sec_per_token, "shape": planned.get(name),
            "same_text": None if temperature else result.outputs == results["plain"].outputs,
        }  # fmt: skip
        if guessed is not None:
            rows[name] |= {
                "predicted": guessed.speedup.to_json(), "inside": guessed.holds(speed.value),
                "predicted_tokens_per_step": guessed.tokens_per_step.to_json(),
            }  # fmt: skip
    return {"drafts": record, "methods": rows}


def show(key: str, found: dict) -> None:
    print(f"\n{key}")
    for name, row in found["methods"].items():
        said, speed, shape = row.get("predicted"), row["speedup"], row["shape"]
        guessed = f"{said['value']:.2f} [{said['low']:.2f}, {said['high']:.2f}]" if said and said["low"] else ""
        measured = f"{speed['value']:.2f} [{speed['low']:.2f}, {speed['high']:.2f}]" if speed["low"] else "1"
        print(
            f"{name:30}{row['tokens_per_step']:6.2f}  {measured:20}{guessed:20}{shape or ''} {row['same_text'] or ''}"
        )
    for name, draft in found["drafts"].items():
        print(name, f"c {draft['c']:.3f}, p1 by depth", *(f"{p:.3f}" for p in draft["p1"]))
        if "exact" in draft:
            print(json.dumps({part: draft[part] for part in ("without_depth", "exact")}, indent=1))


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--target", default=str(DEMO_PAIR / "target"))
    parser.add_argument("--draft", action="append", help="NAME=FOLDER of a head or a model; may be repeated")
    parser.add_argument("--file", type=Path, default=ROOT / "assets" / "prompts" / "not-looping.jsonl")
    parser.add_argument("--device", default="cpu", help="for example cuda")
    parser.add_argument("--places", default="memory,disk")
    parser.add_argument("--temperatures", default="0,0.6,1")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--calibration", type=int, default=16, help="number of other prompts for measuring vectors")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7, help="number of timings of each profiled size")
    parser.add_argument("--out", action="store_true", help="add the results to the record in results/")
    args = parser.read(places="memory", temperatures="0", prompts=1, calibration=2, tokens=8, repeats=1)
    whose = "" if Path(args.target).parent == DEMO_PAIR else f"{Path(args.target).name}-"
    whose += "" if args.device == "cpu" else f"{args.device}-"
    title = f"heads-{whose}".rstrip("-")
    record = read_record(title, args) if args.out else {}
    names = ("prompts", "calibration", "tokens", "repeats")
    record["settings"] = {name: getattr(args, name) for name in names} | {
        "file": args.file.name, "date": date.today().isoformat(),
        "device": describe_device(args.device), "instructions": instructions_in_use(),
    }  # fmt: skip
    for place in args.places.split(","):
        for temperature in map(float, args.temperatures.split(",")):
            key = f"{place}, T = {temperature:g}"
            if key not in record:
                record[key] = section(place, temperature, args)
                show(key, record[key])
                if args.out:
                    write_record(title, record, args)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
