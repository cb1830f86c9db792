"""Compare trees from text already seen, with and without a draft, with all other methods.

    python benchmarks/lookup.py                            # three workloads at three temperatures; half an hour
    python benchmarks/lookup.py --workloads edits --temperatures 0 --prompts 8

Prints tables, then one JSON line. Methods take turns on each prompt, and EOS is disabled so that all answers have equal
length. Vectors and the profile are measured first, on prompts that are not raced. `lookup` and `hybrid` search only the
current text; `... earlier` also search their answers to earlier prompts, and `... other files` search answers to
prompts from other source files. Tokens per step by tree size come from a replay of the autoregressive answers.
`hybrid_over_best` compares hybrid trees with the faster of planned and adaptive trees, paired by prompt.
`predicted_speedup` is predicted from the autoregressive answers and the profile.
"""

import json
from collections.abc import Sequence
from datetime import date

from prediction_on_texts import predict_on_texts

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once
from benchmarks.common import ROOT, Options, write_record
from sequoia_core import SamplingConfig, load_pair
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.measuring.race import (
    Method,
    MethodResult,
    compare_with_best_other,
    take_turns,
    transformers_method,
    tree_method,
)
from sequoia_core.planning.plan import plan_tree
from sequoia_extras.cpu_kernels import instruction_sets
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree, LookupTree
from sequoia_extras.dynamic_trees.lookup_replay import EncodedRequest, replay
from sequoia_extras.dynamic_trees.text_index import TextIndex

USUAL = {"not-looping": "not-looping.jsonl", "as-they-come": "prompts.jsonl", "edits": "edits.jsonl"}
WORKLOADS = USUAL | {"prose": "prose.jsonl", "chat": "chat.jsonl"}
CALIBRATING = slice(-64, None)  # the last prompts of prompts.jsonl; the first ones are raced
LOOKED_UP = 10  # number of tokens that transformers looks up, as in its documentation
TODAY = ("planned", "adaptive")
OTHERS = 48  # number of answers to prompts from other source files


def with_index(pair, index: TextIndex, policy, sampling: SamplingConfig, *, adds: bool) -> Method:
    """Return a method that adds each answer to its index after timing it."""
    method = tree_method(pair, policy, sampling)

    def run(prompt: Sequence[int], length: int, turn: int, report):
        found = method(prompt, length, turn, report)
        # The warm-up, which is shorter, is not added.
        if adds and found is not None and length > 16:
            index.add([*prompt, *found.output])
        return found

    return run


def known_of(vector, profile) -> dict:
    planned = plan_tree(vector, profile)
    return {"calibration": vector.calibration, "profile": profile, "holds_for": vector.holds_for, "planned": planned}


def hybrid_tree(vector, profile, index: TextIndex) -> HybridTree:
    return HybridTree(index=index, **known_of(vector, profile))


def methods(pair, vector, profile, sampling: SamplingConfig, others: Sequence[Sequence[int]]) -> dict[str, Method]:
    """Return all methods by name, each with a separate index."""
    planned, adaptive = plan_tree(vector, profile), AdaptiveTree(**known_of(vector, profile))
    found = {
        "autoregressive": tree_method(pair, ROOT_ONLY, sampling),
        "hf_prompt_lookup": transformers_method(pair, sampling, prompt_lookup=LOOKED_UP),
        "planned": tree_method(pair, planned, sampling),
        "adaptive": tree_method(pair, adaptive.fixed or adaptive, sampling),
    }
    for kind, texts, adds in (("", (), False), (" earlier", (), True), (" other files", others, False)):
        for name in ("lookup", "hybrid"):
            index = TextIndex()
            for text in texts:
                index.add(text)
            tree = LookupTree(index, profile=profile) if name == "lookup" else hybrid_tree(vector, profile, index)
            found[name + kind] = with_index(pair, index, tree, sampling, adds=adds)
    return found


def compare(results: dict[str, MethodResult], name: str) -> dict:
    """Return a method's speed relative to the best planned or adaptive tree, with an interval paired by prompt."""
    found = compare_with_best_other({other: results[other] for other in (*TODAY, name)}, name)
    return {"method": found["lane"], "value": found["value"], "interval": [found["low"], found["high"]]}


def one_race(pair, prompts, length: int, sampling: SamplingConfig, vector, profile, others) -> dict:
    results: dict[str, MethodResult] = {}
    for name, found in take_turns(methods(pair, vector, profile, sampling, others), prompts, length):
        results.setdefault(name, MethodResult()).add(found)
    requests = [EncodedRequest(*each) for each in zip(prompts, results["autoregressive"].outputs, strict=True)]
    own, shared = (replay(requests, shared=earlier) for earlier in (False, True))
    # The times of our methods exclude prefill.
    rates = {name: sum(found.tokens) / sum(found.step_sec or found.seconds) for name, found in results.items()}
    trees = {"lookup": LookupTree(TextIndex(), profile=profile), "hybrid": hybrid_tree(vector, profile, TextIndex())}
    predicted = {
        name: predict_on_texts(
            tree, requests, profile, draft=pair.draft, temperature=sampling.temperature, prompts=len(prompts)
        ).speedup
        for name, tree in trees.items()
        if tree.fixed is None
    }
    return {
        "recipe": trees["hybrid"].recipe,
        "predicted_speedup": {name: [found.value, found.low, found.high] for name, found in predicted.items()},
        "tokens_per_sec": rates,
        "tokens_per_step": {name: sum(found.tokens) / sum(found.steps) for name, found in results.items()},
        "hybrid_over_best": compare(results, "hybrid"),
        "hybrid_earlier_over_best": compare(results, "hybrid earlier"),
        "replayed": {
            kind: {size: found.tokens_per_step(size).value for size in found.sizes}
            for kind, found in (("own", own), ("shared", shared))
        },
    }


def show(workload: str, temperature: float, found: dict) -> None:
    base = found["tokens_per_sec"]["autoregressive"]
    print(f"\n{workload}, T = {temperature:g}")
    for name, rate in found["tokens_per_sec"].items():
        print(
            f"  {name:<20}{rate:>9.0f} tokens/s{rate / base:>7.2f}×{found['tokens_per_step'][name]:>8.2f} tokens/step"
        )
    for name, (value, low, high) in found["predicted_speedup"].items():
        measured = found["tokens_per_sec"][name] / base
        print(f"  {name} predicted {value:.2f}× [{low:.2f}, {high:.2f}], measured {measured:.2f}×")
    for name in ("hybrid_over_best", "hybrid_earlier_over_best"):
        best = found[name]
        low, high = best["interval"]
        print(f"  {name}: {best['value']:.2f}× [{low:.2f}, {high:.2f}] {best['method']}")
    for kind, sizes in found["replayed"].items():
        print(
            f"  lookup replayed, {kind}: " + ", ".join(f"n = {n} {value:.2f}" for n, value in sizes.items()), flush=True
        )


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(USUAL))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.6, 1.0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.set_defaults(calibration=None, others=OTHERS)
    args = parser.read(workloads=["edits"], temperatures=[0.0], prompts=2, max_new_tokens=8, calibration=2, others=1)
    pair = load_pair(dtype=args.dtype)
    rows = {
        name: [json.loads(line) for line in (ROOT / "assets" / "prompts" / file).read_text().splitlines()]
        for name, file in WORKLOADS.items()
    }
    encode = pair.tokenizer.encode
    calibrating = [encode(row["text"]) for row in rows["as-they-come"][CALIBRATING][: args.calibration]]
    profile = measure_profile(pair)
    instructions = instruction_sets.choose_instruction_set()[0]
    result: dict = {
        "settings": {
            "device": profile.device,
            "dtype": args.dtype,
            "passes": None if instructions is None else instructions.name,
            "prompts": args.prompts,
            "max_new_tokens": args.max_new_tokens,
            "date": date.today().isoformat(),
        }
    }
    for temperature in args.temperatures:
        sampling = SamplingConfig(temperature)
        measured = measure_acceptance(calibrating, pair, sampling=sampling, max_new_tokens=args.max_new_tokens)
        plain = tree_method(pair, ROOT_ONLY, sampling)
        for workload in args.workloads:
            raced = rows[workload][: args.prompts]
            sources = {row["source"] for row in raced}
            unseen = [encode(r["text"]) for r in rows["as-they-come"][args.prompts :] if r["source"] not in sources]
            answers = [plain(ids, args.max_new_tokens, 0, lambda share: None) for ids in unseen[: args.others]]
            others = [[*ids, *found.output] for ids, found in zip(unseen, answers, strict=False) if found is not None]
            prompts = [encode(row["text"]) for row in raced]
            found = one_race(pair, prompts, args.max_new_tokens, sampling, measured, profile, others)
            result.setdefault(workload, {})[f"{temperature:g}"] = found
            show(workload, temperature, found)
    write_record(f"lookup-{result['settings']['passes'] or 'other'}-{args.dtype}", result, args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
