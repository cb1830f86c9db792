"""Measure, plan, race and compare, in one run: what the command `bench` does."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import transformers

from ..decoding.growing.growing_tree import GrowingTree, predict_policy
from ..decoding.growing.policies import AdaptiveTree
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_kinds import TREE_KINDS
from ..decoding.tree_policy import SPECINFER_TREE, TreePolicy, policy_of
from ..design.acceptance import AcceptanceVector
from ..design.bootstrap import Estimate
from ..design.planning import plan_tree
from ..design.prediction import Prediction, best_chain, predict
from ..design.profile import HardwareProfile
from ..design.tree import TokenTree
from ..files.model_names import needed_draft
from ..models.generation_settings import left_out_settings
from ..models.language_model import ModelPair
from .first_difference import first_difference
from .measure_acceptance import measure_acceptance
from .measure_profile import measure_profile
from .prompt_loop import Progress, part_of
from .race import LOOPS_FROM, MethodResult, fastest_beyond_noise, over_best_other, over_plain, race, repeated_share

# What parts take, in tokens written one by one, to say how far a run is: a profile takes as long for short texts.
PROFILED_TOKENS = 1024
RACED_TEXTS = 12  # each prompt, by all methods
PARTS = ("acceptance: ", "", "race: ")


@dataclass(frozen=True, slots=True)
class Bench:
    """What a bench measured.

    Attributes:
        over_plain: method -> how many times as fast it is as decoding without a draft.
    """

    record: dict[str, Any]
    over_plain: dict[str, Estimate]


def dynamic_trees(acceptance: AcceptanceVector, profile: HardwareProfile, planned: TokenTree) -> dict[str, GrowingTree]:
    """Return the policies that race against a planned tree; none for a vector without calibration.

    SpecExec has the planned tree's budget and depth, and does not race where that tree drafts nothing. The adaptive
    policy is limited only by the profile.
    """
    if acceptance.calibration is None:
        return {}
    bounds = {"max_size": planned.size, "max_depth": max(1, planned.depth)}
    return {
        name: kind.make(acceptance, profile, planned=planned, **bounds if kind.budgeted else {})
        for name, kind in TREE_KINDS.items()
        if not kind.looks_up and (planned.size > 1 or not kind.budgeted)
    }


def bench(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: SamplingConfig,
    max_new_tokens: int,
    calibration: Sequence[Sequence[int]] = (),
    progress: Progress | None = None,
) -> Bench:
    """Measure, plan, race and compare.

    Args:
        calibration: other prompts, on which the vector is measured; when empty, the last quarter of `prompts` is kept
            from the race for that.

    Returns:
        With a record: method -> summary, and the planned tree with predicted and measured speedup over
        `autoregressive`: totals against totals, prompt reading left out, and whether the measured one is inside the
        predicted interval. `specexec` and `adaptive` have the same, the latter also its tree's size and depth where
        that tree is static. All three are compared with the fastest other method. `growing_sec` is the profile's. At
        temperature 0 `texts_differ` has, for each method, where its texts first part from those of `autoregressive`,
        and by what gap. `fastest` names the fastest method, where its lead is beyond the noise. `same_as_plain` lists
        those whose tree drafts nothing: their results are those of `autoregressive`. `lanes_left_out` says why a method
        could not run, `settings_left_out` which of the target's own settings for generation no method follows.
    """
    draft = needed_draft(pair.draft, "bench races trees that a draft fills")
    raced = prompts
    if not calibration:
        calibration = prompts[-max(1, len(prompts) // 4) :] if len(prompts) > 1 else prompts
        raced = prompts[: len(prompts) - len(calibration)] if len(prompts) > 1 else prompts
    written = [max_new_tokens * len(calibration), PROFILED_TOKENS, RACED_TEXTS * max_new_tokens * len(raced)]
    ends = np.cumsum([0, *written]) / sum(written)
    parts = [part_of(progress, *bounds, doing) for bounds, doing in zip(pairwise(ends), PARTS, strict=True)]
    acceptance = measure_acceptance(
        calibration, pair, sampling=sampling, max_new_tokens=max_new_tokens, progress=parts[0]
    )
    profile = measure_profile(pair, progress=parts[1])
    trees = {"chain": best_chain(acceptance, profile), "sequoia": plan_tree(acceptance, profile)}
    dynamic = dynamic_trees(acceptance, profile, trees["sequoia"])
    raced_trees: dict[str, TokenTree | TreePolicy] = {**trees, "specinfer": SPECINFER_TREE, **dynamic}
    plain = [name for name, tree in raced_trees.items() if policy_of(tree).max_size == 1]
    for name in plain:  # the root alone is decoding without a draft, which races anyway
        del raced_trees[name]
    lanes = race(pair, raced, trees=raced_trees, sampling=sampling, max_new_tokens=max_new_tokens, progress=parts[2])
    results = {name: lane for name, lane in lanes.items() if not lane.left_out}
    fastest = fastest_beyond_noise(results)
    results |= dict.fromkeys(plain, results["autoregressive"])
    result: dict = {name: method.summary() for name, method in results.items()}
    context = float(np.mean([len(prompt) for prompt in raced])) + max_new_tokens / 2
    times: dict[str, Any] = {"context": context, "prompts": len(raced)}
    prediction = predict(trees["sequoia"], acceptance, profile, **times)
    predictions = {"sequoia": prediction}
    predictions |= {name: predict_policy(tree, acceptance, profile, **times) for name, tree in dynamic.items()}
    for name, prediction in predictions.items():
        held = _held(prediction, results["autoregressive"].sec_per_token / results[name].sec_per_token)
        result[name] |= held | {"over_best_other": over_best_other(results, name)}
        result |= held if name == "sequoia" else {}
    if sampling.greedy:
        result["texts_differ"] = {
            name: parted for name in results if (parted := _differences(pair, raced, results, name))
        }
    result["fastest"], result["same_as_plain"] = fastest, plain
    result["paper_speedup"] = prediction.paper_speedup
    result["tree"] = {"size": trees["sequoia"].size, "depth": trees["sequoia"].depth}
    result["chain_length"] = trees["chain"].depth
    if isinstance(adaptive := dynamic.get("adaptive"), AdaptiveTree):
        result["recipe"], result["growing_sec"] = adaptive.recipe, profile.growing_sec.tolist()
        if adaptive.fixed is not None:
            result["adaptive"] |= {"size": adaptive.fixed.size, "depth": adaptive.fixed.depth}
    result["lanes_left_out"] = {name: lane.left_out for name, lane in lanes.items() if lane.left_out}
    result["settings_left_out"] = left_out_settings(pair.target, top_k=sampling.top_k)
    result["settings"] = {
        "temperature": sampling.temperature,
        "max_new_tokens": max_new_tokens,
        "prompts": len(raced),
        "calibration_prompts": len(calibration),
        "device": profile.device,
        "dtype": profile.dtype,
        "passes_by": pair.target.backend,
        "target": pair.target.name,
        "draft": draft.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    repeated = np.array([repeated_share(output) for output in results["autoregressive"].outputs])
    result["repeated_4grams"] = repeated.round(3).tolist()
    result["not_looping"] = _compared(results, repeated <= LOOPS_FROM)
    result["looping"] = _compared(results, repeated > LOOPS_FROM)
    result["peak_memory_bytes"] = _peak_memory(pair.target.device)
    return Bench(result, {name: over_plain(results, name) for name in results})


def _differences(
    pair: ModelPair, prompts: Sequence[Sequence[int]], results: dict[str, MethodResult], name: str
) -> list[dict]:
    """Return where the greedy texts of a method part from the target's own, as plain JSON values."""
    texts = zip(prompts, results["autoregressive"].outputs, results[name].outputs, strict=True)
    parted = [first_difference(prompt, wanted, text, pair.target) for prompt, wanted, text in texts]
    return [
        {"prompt": number, "token": one.index + 1, "tokens": list(one.tokens), "logit_gap": one.gap}
        | {"near_tie": one.near_tie, "words": one.words(pair.tokenizer.decode)}
        for number, one in enumerate(parted, start=1)
        if one is not None
    ]


def _held(prediction: Prediction, measured: float) -> dict:
    """Return a method's predicted and measured figures, as plain JSON values."""
    return {
        "predicted_speedup": prediction.speedup.value,
        "predicted_interval": [prediction.speedup.low, prediction.speedup.high],
        "expected_tokens": prediction.tokens_per_step.value,
        "measured_speedup": measured,
        "held": prediction.holds(measured),
    }


def _compared(results: dict[str, MethodResult], chosen: np.ndarray) -> dict:
    """Return how many prompts are chosen, bool [prompts], and each method's speed-up on all of them."""
    rates = {
        name: float(np.array(result.tokens)[chosen].sum() / np.array(result.seconds)[chosen].sum())
        for name, result in results.items()
        if chosen.any()
    }
    ratios = {name: rate / rates["autoregressive"] for name, rate in rates.items()}
    return {"prompts": int(chosen.sum()), "over_autoregressive": ratios}


def _peak_memory(device: torch.device) -> int | None:
    """Return the most memory held so far: of the device where it counts it, else of the process; None on Windows."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource  # POSIX only
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
