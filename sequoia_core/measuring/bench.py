"""The benchmark behind the command `bench`: measure a pair, plan a tree, and race it against other methods."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from ..acceptance.bootstrap import Estimate
from ..acceptance.vector import AcceptanceVector
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_kinds import TREE_KINDS
from ..decoding.tree_policy import SPECINFER_TREE, DynamicTree, TreePolicy, as_policy
from ..files.model_names import require_draft
from ..models.generation_settings import ignored_settings
from ..models.language_model import ModelPair
from ..models.threads import TimedLoad
from ..planning.plan import plan_tree
from ..planning.prediction import Prediction, best_chain, predict
from ..planning.profile import HardwareProfile
from ..trees.tree import TokenTree
from .first_difference import first_difference
from .measure_acceptance import measure_acceptance
from .measure_profile import measure_profile
from .prompt_loop import Progress, progress_slice
from .race import (
    LOOPING_SHARE,
    MethodResult,
    clear_winner,
    compare_with_best_other,
    race,
    repeated_share,
    speedup_over_plain,
)

# Estimated costs used as weights in the progress bar, in units of one token decoded autoregressively.
PROFILE_COST = 1024  # cost of the profile, which does not depend on max_new_tokens
RACE_COST = 12  # cost per prompt and new token, over all methods


@dataclass(frozen=True, slots=True)
class Bench:
    """The results of a benchmark.

    Attributes:
        record: the results as plain JSON values; see `bench`.
        over_plain: speedup over decoding without a draft, by method name.
    """

    record: dict[str, Any]
    over_plain: dict[str, Estimate]


def dynamic_trees(acceptance: AcceptanceVector, profile: HardwareProfile, planned: TokenTree) -> dict[str, DynamicTree]:
    """Return the dynamic trees that race against a planned tree; empty if the vector has no calibration.

    Trees with a node budget are limited to the planned tree's size and depth, and left out if that tree drafts
    nothing. The others are limited only by the profile.
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
    """Measure a pair's acceptance and step times, plan a tree, and race it against other methods.

    Args:
        calibration: prompts on which acceptance is measured. By default, the last quarter of `prompts`, which is then
            excluded from the race.

    Returns:
        The results; their record maps each method to its summary. For the planned tree and each dynamic tree, the
        summary includes the predicted and the measured speedup over `autoregressive` (both count only the time spent in
        steps), whether the prediction held, and a comparison with the fastest other method. At temperature 0,
        `texts_differ` lists the first differences from the output of `autoregressive`. `fastest` is None if the lead is
        within the noise. `load` is the load of other processes during profile and race. `same_as_plain` lists the
        methods whose tree drafts nothing.
    """
    require_draft(pair.draft, "bench races trees of draft tokens")
    raced, calibration = _split_prompts(prompts, calibration)
    options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": max_new_tokens}
    costs = [max_new_tokens * len(calibration), PROFILE_COST, RACE_COST * max_new_tokens * len(raced)]
    _, measured, profiled, _ = np.cumsum([0, *costs]) / sum(costs)
    measuring = progress_slice(progress, 0.0, measured, "acceptance: ")
    acceptance = measure_acceptance(calibration, pair, **options, progress=measuring)
    load = TimedLoad()
    profile = measure_profile(pair, progress=progress_slice(progress, measured, profiled))
    planned = plan_tree(acceptance, profile)
    dynamic = dynamic_trees(acceptance, profile, planned)
    chain = best_chain(acceptance, profile)
    trees: dict[str, TokenTree | TreePolicy] = {"chain": chain, "sequoia": planned, "specinfer": SPECINFER_TREE}
    trees |= dynamic
    # A one-node tree is the same as decoding without a draft, which is raced anyway.
    drafting = {name: tree for name, tree in trees.items() if as_policy(tree).max_size > 1}
    lanes = race(pair, raced, trees=drafting, **options, progress=progress_slice(progress, profiled, 1.0, "race: "))
    results = {name: lane for name, lane in lanes.items() if not lane.left_out}
    fastest = clear_winner(results)
    results |= {name: results["autoregressive"] for name in trees if name not in drafting}
    record = _compare_results(results, _predict_trees(planned, dynamic, acceptance, profile, raced, max_new_tokens))
    if sampling.greedy:
        differences = {name: _differences(pair, raced, results, name) for name in results}
        record["texts_differ"] = {name: found for name, found in differences.items() if found}
    _describe_trees(record, planned, dynamic, profile)
    record |= {
        "fastest": fastest,
        "same_as_plain": [name for name in trees if name not in drafting],
        "chain_length": chain.depth,
        "lanes_left_out": {name: lane.left_out for name, lane in lanes.items() if lane.left_out},
        "settings_left_out": ignored_settings(pair.target, top_k=sampling.top_k),
        "settings": _settings(pair, profile, sampling, max_new_tokens)
        | {"prompts": len(raced), "calibration_prompts": len(calibration)},
        "load": load.record(),
        "peak_memory_bytes": _peak_memory(pair.target.device),
    }
    return Bench(record, {name: speedup_over_plain(results, name) for name in results})


def _split_prompts(
    prompts: Sequence[Sequence[int]], calibration: Sequence[Sequence[int]]
) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]:
    """Split the prompts into those for the race and those for calibration; a single prompt serves as both."""
    if calibration or len(prompts) == 1:
        return prompts, calibration or prompts
    raced = len(prompts) - max(1, len(prompts) // 4)
    return prompts[:raced], prompts[raced:]


def _predict_trees(
    planned: TokenTree,
    dynamic: Mapping[str, DynamicTree],
    acceptance: AcceptanceVector,
    profile: HardwareProfile,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> dict[str, Prediction]:
    """Predict the speedups of the planned tree and the dynamic trees at the race's mean context length."""
    context = float(np.mean([len(prompt) for prompt in prompts])) + max_new_tokens / 2
    times: dict[str, Any] = {"context": context, "prompts": len(prompts)}
    predictions = {"sequoia": predict(planned, acceptance, profile, **times)}
    predictions |= {name: tree.predict(acceptance, profile, **times) for name, tree in dynamic.items()}
    return predictions


def _compare_results(results: Mapping[str, MethodResult], predictions: Mapping[str, Prediction]) -> dict[str, Any]:
    """Return the summary and prediction of each method; the prediction for "sequoia" is also at the top level."""
    record: dict[str, Any] = {name: method.summary() for name, method in results.items()}
    for name, prediction in predictions.items():
        measured = results["autoregressive"].sec_per_token / results[name].sec_per_token
        compared = {
            "predicted_speedup": prediction.speedup.value,
            "predicted_interval": [prediction.speedup.low, prediction.speedup.high],
            "expected_tokens": prediction.tokens_per_step.value,
            "measured_speedup": measured,
            "held": prediction.holds(measured),
        }
        record[name] |= compared | {"over_best_other": compare_with_best_other(results, name)}
        if name == "sequoia":
            record |= compared
    record["paper_speedup"] = predictions["sequoia"].paper_speedup
    repeated = np.array([repeated_share(output) for output in results["autoregressive"].outputs])
    record["repeated_4grams"] = repeated.round(3).tolist()
    record["not_looping"] = _compare_prompts(results, repeated <= LOOPING_SHARE)
    record["looping"] = _compare_prompts(results, repeated > LOOPING_SHARE)
    return record


def _describe_trees(
    record: dict[str, Any], planned: TokenTree, dynamic: Mapping[str, DynamicTree], profile: HardwareProfile
) -> None:
    """Add to the record the planned tree's shape, the adaptive trees' recipe, and the shapes of fixed dynamic trees."""
    record["tree"] = {"size": planned.size, "depth": planned.depth}
    for name, tree in dynamic.items():
        if tree.recipe is not None:
            record["recipe"] = tree.recipe
            record["growing_sec"] = profile.growing_sec.tolist()
        if tree.fixed is not None:
            record[name] |= {"size": tree.fixed.size, "depth": tree.fixed.depth}


def _settings(
    pair: ModelPair, profile: HardwareProfile, sampling: SamplingConfig, max_new_tokens: int
) -> dict[str, Any]:
    assert pair.draft is not None
    return {
        "temperature": sampling.temperature,
        "max_new_tokens": max_new_tokens,
        "device": profile.device,
        "dtype": profile.dtype,
        "passes_by": pair.target.backend,
        "target": pair.target.name,
        "draft": pair.draft.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _differences(
    pair: ModelPair, prompts: Sequence[Sequence[int]], results: Mapping[str, MethodResult], name: str
) -> list[dict]:
    """Return the first differences between a method's greedy outputs and the target's, as plain JSON values."""
    texts = zip(prompts, results["autoregressive"].outputs, results[name].outputs, strict=True)
    found = [first_difference(prompt, wanted, text, pair.target) for prompt, wanted, text in texts]
    return [
        {
            "prompt": number,
            "token": difference.index + 1,
            "tokens": list(difference.tokens),
            "logit_gap": difference.gap,
            "near_tie": difference.near_tie,
            "words": difference.words(pair.tokenizer.decode),
        }
        for number, difference in enumerate(found, start=1)
        if difference is not None
    ]


def _compare_prompts(results: Mapping[str, MethodResult], chosen: np.ndarray) -> dict[str, Any]:
    """Return the number of prompts selected by `chosen`, bool [prompts], and each method's speedup on them."""
    if not chosen.any():
        return {"prompts": 0, "over_autoregressive": {}}
    rates = {
        name: float(np.array(result.tokens)[chosen].sum() / np.array(result.seconds)[chosen].sum())
        for name, result in results.items()
    }
    speedups = {name: rate / rates["autoregressive"] for name, rate in rates.items()}
    return {"prompts": int(chosen.sum()), "over_autoregressive": speedups}


def _peak_memory(device: torch.device) -> int | None:
    """Return the peak GPU memory or, on a CPU, the peak process memory, in bytes; None on a CPU under Windows."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource  # available only on POSIX systems
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
