"""A fair race: the same prompts, tokens, dtype and threads for every way of decoding, interleaved in one run.

Knows how to call transformers' own generation beside our engine, and how to plan the trees that take part.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import transformers

from ..decoding.adaptive import AdaptiveTree
from ..decoding.growing import GrowingTree
from ..decoding.loop import autoregressive, decode
from ..decoding.sampling import SamplingConfig
from ..decoding.spec_exec import SpecExecTree
from ..decoding.tree_policy import TreePolicy
from ..design.acceptance import AcceptanceVector
from ..design.bootstrap import ratio_estimate
from ..design.growing_prediction import predict_growing
from ..design.optimal_trees import optimal_tree
from ..design.plain_trees import chain_tree
from ..design.planning import best_shape, speedup_surface
from ..design.prediction import Prediction, predict, predicted_speedup
from ..design.profile import HardwareProfile
from ..design.tree import TokenTree
from ..models.language_model import ModelPair
from .measure_acceptance import measure_acceptance
from .measure_profile import measure_profile
from .prompt_loop import Progress, Report, one_by_one

if TYPE_CHECKING:
    import pandas as pd

LOOPS_FROM = 0.5  # share of repeated 4-grams from which a text counts as looping, and is trivially easy to draft
ASSISTANT_TOKENS = (None, 3, 5, 8)  # transformers' default and fixed lengths: the best of them is reported


@dataclass(slots=True)
class Lane:
    """What one method did: one entry per prompt.

    Attributes:
        seconds: of the whole decode; `step_sec` those in steps alone, for our own methods.
        phase_sec: seconds in each phase, all prompts together.
    """

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    step_sec: list[float] = field(default_factory=list)
    phase_sec: dict[str, float] = field(default_factory=dict)

    def add(self, output: list[int], steps: int, seconds: float) -> None:
        self.outputs.append(output)
        self.tokens.append(len(output))
        self.steps.append(steps)
        self.seconds.append(seconds)

    @property
    def sec_per_token(self) -> float:
        """Seconds in steps ÷ tokens, all prompts together; prompt reading is left out."""
        return sum(self.step_sec) / sum(self.tokens)

    @property
    def tokens_per_sec(self) -> float:
        """All tokens ÷ the seconds of all decodes, reading prompts counted."""
        return sum(self.tokens) / sum(self.seconds)

    @property
    def rates(self) -> np.ndarray:
        """Tokens per second of each prompt, float64 [prompts]."""
        return np.array(self.tokens) / np.array(self.seconds)

    def summary(self) -> dict:
        """Return the rate over all prompts, and its quartiles over single ones, as plain JSON values."""
        low, high = np.percentile(self.rates, [25, 75])
        row = {
            "tokens_per_sec": self.tokens_per_sec,
            "tokens_per_sec_quartiles": [float(low), float(high)],
            "tokens_per_step": sum(self.tokens) / max(1, sum(self.steps)),
            "tokens": sum(self.tokens),
        }
        if self.phase_sec:
            row["phase_sec"] = {name: value / max(1, sum(self.steps)) for name, value in self.phase_sec.items()}
        return row

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each prompt: `tokens`, `steps`, `seconds`, and `step_sec` of our own methods."""
        import pandas as pd

        own = {"step_sec": self.step_sec} if self.step_sec else {}
        return pd.DataFrame({"tokens": self.tokens, "steps": self.steps, "seconds": self.seconds, **own})


Method = Callable[[Sequence[int], int, int, Lane], None]  # prompt, tokens, turn, and the lane that it is entered in


def best_chain(acceptance: AcceptanceVector, profile: HardwareProfile, *, longest: int = 32) -> TokenTree:
    """Return the chain with the largest predicted speedup, at least one drafted token long."""
    lengths = range(1, min(longest, profile.max_size - 1) + 1)
    return max((chain_tree(n) for n in lengths), key=lambda tree: predicted_speedup(tree, acceptance, profile))


def plan_tree(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, max_depth: int = 24
) -> TokenTree:
    """Return the optimal tree at the planner's best shape."""
    best = best_shape(speedup_surface(acceptance, profile, max_size=max_size, max_depth=max_depth))
    return optimal_tree(acceptance, size=best.size, depth=best.depth)


def predict_policy(
    policy: GrowingTree,
    acceptance: AcceptanceVector,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    prompts: int | None = None,
) -> Prediction:
    """Predict what decoding with dynamic trees does, or with the one tree that an adaptive policy may answer.

    Args:
        acceptance: a vector with a calibration.
        context, prompts: as for `predict`.
    """
    if policy.fixed is not None:
        return predict(policy.fixed, acceptance, profile, context=context, prompts=prompts)
    return predict_growing(
        policy.shaper_at_start(context), policy, acceptance.calibration, profile, kind=policy.kind, context=context,
        prompts=prompts,
    )  # fmt: skip


def dynamic_trees(acceptance: AcceptanceVector, profile: HardwareProfile, planned: TokenTree) -> dict[str, TreePolicy]:
    """Return the policies that race against a planned tree; none for a vector without calibration.

    SpecExec has the planned tree's budget and depth. The adaptive policy has only the profile to hold it.
    """
    if acceptance.calibration is None:
        return {}
    return {
        "specexec": SpecExecTree(max_size=planned.size, max_depth=max(1, planned.depth)),
        "adaptive": AdaptiveTree(profile=profile, calibration=acceptance.calibration, holds_for=acceptance.holds_for),
    }


def own_method(
    pair: ModelPair, tree: TokenTree | TreePolicy | None, sampling: SamplingConfig, *, seed: int = 0
) -> Method:
    """Return what decodes a prompt with a tree, or token by token without one, EOS off, and enters it in a lane."""
    target, draft = pair.target.endless(), pair.draft.endless()

    def run(prompt: Sequence[int], length: int, turn: int, lane: Lane) -> None:
        generator = torch.Generator().manual_seed(seed + turn)
        options = {"sampling": sampling, "max_new_tokens": length, "generator": generator}
        started = time.perf_counter()
        if tree is None:
            steps = list(autoregressive(prompt, target=target, **options))
        else:
            steps = list(decode(prompt, target=target, draft=draft, tree=tree, explain=False, **options))
        seconds = time.perf_counter() - started
        names = ("draft_sec", "verify_sec", "walk_sec", "commit_sec")
        phases = {name: sum(getattr(step, name) for step in steps) for name in names}
        lane.phase_sec = {name: lane.phase_sec.get(name, 0.0) + taken for name, taken in phases.items()}
        lane.step_sec.append(sum(phases.values()))
        lane.add([token for step in steps for token in step.new_tokens], len(steps), seconds)

    return run


def race(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    *,
    trees: Mapping[str, TokenTree | TreePolicy],
    sampling: SamplingConfig,
    max_new_tokens: int,
    with_transformers: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Lane]:
    """Decode every prompt with every method, methods taking turns, EOS switched off so that all write equally much.

    Args:
        trees: method name -> tree, such as {"chain": …, "sequoia": …}.
        with_transformers: also race `hf_generate` and `hf_assisted` (one lane per setting).

    Returns:
        method -> lane; `hf_assisted` is the fastest of its settings.
    """
    methods = {"autoregressive": own_method(pair, None, sampling, seed=seed)}
    methods |= {name: own_method(pair, tree, sampling, seed=seed) for name, tree in trees.items()}
    if with_transformers:
        methods["hf_generate"] = _transformers_method(pair, sampling, assisted=False, length_hint=None)
        for hint in ASSISTANT_TOKENS:
            methods[f"hf_assisted/{hint}"] = _transformers_method(pair, sampling, assisted=True, length_hint=hint)
    for run in methods.values():  # warm-up: first calls allocate, import and pick kernels
        run(prompts[0], min(16, max_new_tokens), 0, Lane())
    lanes = {name: Lane() for name in methods}
    names = list(methods)

    def decode_with_all(turn: int, report: Report) -> int:
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            methods[name](prompts[turn], max_new_tokens, turn, lanes[name])
        report(1.0)
        return turn

    for _ in one_by_one(len(prompts), decode_with_all, progress=progress):
        pass
    settings = {name: lane for name, lane in lanes.items() if name.startswith("hf_assisted/")}
    if settings:
        lanes = {name: lane for name, lane in lanes.items() if name not in settings}
        lanes["hf_assisted"] = max(settings.values(), key=lambda lane: lane.tokens_per_sec)
    return lanes


def _transformers_method(pair: ModelPair, sampling: SamplingConfig, *, assisted: bool, length_hint: int | None):
    """Return a runner of `model.generate`, plain or with the draft as assistant."""
    model, assistant = pair.target.model, pair.draft.model
    config = copy.deepcopy(model.generation_config)
    config.eos_token_id = None
    config.pad_token_id = 0
    config.do_sample = not sampling.greedy
    if config.do_sample:
        temperature = max(sampling.temperature, 1e-15)  # the draft is divided by it twice, and its square must not be 0
        config.temperature, config.top_p, config.top_k = temperature, sampling.top_p, sampling.top_k
    extra = {"assistant_model": assistant} if assisted else {}
    assistant_config = copy.deepcopy(assistant.generation_config)
    assistant_config.eos_token_id = None
    if length_hint is not None:
        assistant_config.num_assistant_tokens = length_hint
        assistant_config.num_assistant_tokens_schedule = "constant"
        assistant_config.assistant_confidence_threshold = 0.0

    def run(prompt: Sequence[int], length: int, turn: int, lane: Lane) -> None:
        ids = torch.tensor([list(prompt)], device=pair.target.device)
        config.max_new_tokens = length
        torch.manual_seed(turn)  # transformers samples from the global generator
        passes = 0

        def count(module, arguments, output) -> None:
            nonlocal passes
            passes += 1

        hook = model.register_forward_hook(count)
        own_config = assistant.generation_config
        assistant.generation_config = assistant_config  # where transformers looks for the assistant's settings
        started = time.perf_counter()
        try:
            output = model.generate(ids, generation_config=config, **extra)
        finally:
            seconds = time.perf_counter() - started
            assistant.generation_config = own_config
            hook.remove()
        lane.add(output[0, ids.shape[1] :].tolist(), passes, seconds)

    return run


def bench(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: SamplingConfig,
    max_new_tokens: int,
    calibration: Sequence[Sequence[int]] = (),
    progress: Progress | None = None,
) -> dict:
    """Measure, plan, race and compare: one JSON-ready record.

    Args:
        calibration: other prompts, on which the vector is measured; when empty, the last quarter of `prompts` is kept
            from the race for that.

    Returns:
        method -> summary, and the planned shape with predicted and measured speedup over `autoregressive`: totals
        against totals, prompt reading left out, and whether the measured one is inside the predicted interval. The
        lanes `specexec` and `adaptive` have the same of their own, the latter with the shape of its tree where that is
        static. All three say how they compare with the fastest other lane. `growing_sec` is the profile's.
    """
    raced = prompts
    if not calibration:
        calibration = prompts[-max(1, len(prompts) // 4) :] if len(prompts) > 1 else prompts
        raced = prompts[: len(prompts) - len(calibration)] if len(prompts) > 1 else prompts
    acceptance = measure_acceptance(
        calibration, target=pair.target, draft=pair.draft, sampling=sampling, max_new_tokens=max_new_tokens
    )
    profile = measure_profile(target=pair.target, draft=pair.draft)
    trees = {"chain": best_chain(acceptance, profile), "sequoia": plan_tree(acceptance, profile)}
    dynamic = dynamic_trees(acceptance, profile, trees["sequoia"])
    lanes = race(
        pair, raced, trees=trees | dynamic, sampling=sampling, max_new_tokens=max_new_tokens, progress=progress
    )
    result: dict = {name: lane.summary() for name, lane in lanes.items()}
    context = float(np.mean([len(prompt) for prompt in raced])) + max_new_tokens / 2
    times = {"context": context, "prompts": len(raced)}
    prediction = predict(trees["sequoia"], acceptance, profile, **times)
    predictions = {"sequoia": prediction}
    predictions |= {name: predict_policy(tree, acceptance, profile, **times) for name, tree in dynamic.items()}
    for name, found in predictions.items():
        held = _held(found, lanes["autoregressive"].sec_per_token / lanes[name].sec_per_token)
        result[name] |= held | {"over_best_other": over_best_other(lanes, name)}
        result |= held if name == "sequoia" else {}
    result["paper_speedup"] = prediction.paper_speedup
    result["tree"] = {"size": trees["sequoia"].size, "depth": trees["sequoia"].depth}
    result["chain_length"] = trees["chain"].depth
    if "adaptive" in dynamic:
        adaptive = dynamic["adaptive"]
        result["recipe"], result["growing_sec"] = adaptive.recipe, profile.growing_sec.tolist()
        if adaptive.fixed is not None:
            result["adaptive"] |= {"size": adaptive.fixed.size, "depth": adaptive.fixed.depth}
    result["settings"] = {
        "temperature": sampling.temperature,
        "max_new_tokens": max_new_tokens,
        "prompts": len(raced),
        "calibration_prompts": len(calibration),
        "device": profile.device,
        "dtype": profile.dtype,
        "passes_by": pair.target.forward_by,
        "target": pair.target.name,
        "draft": pair.draft.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    repeated = np.array([repeated_share(output) for output in lanes["autoregressive"].outputs])
    result["repeated_4grams"] = repeated.round(3).tolist()
    result["not_looping"] = _compared(lanes, repeated <= LOOPS_FROM)
    result["looping"] = _compared(lanes, repeated > LOOPS_FROM)
    result["peak_memory_bytes"] = _peak_memory(pair.target.device)
    return result


def _held(prediction: Prediction, measured: float) -> dict:
    """Return what was predicted of a lane beside what was measured, as plain JSON values."""
    return {
        "predicted_speedup": prediction.speedup.value,
        "predicted_interval": [prediction.speedup.low, prediction.speedup.high],
        "expected_tokens": prediction.tokens_per_step.value,
        "measured_speedup": measured,
        "held": prediction.holds(measured),
    }


def over_best_other(lanes: Mapping[str, Lane], name: str) -> dict:
    """Return the fastest other lane of ours, and how many times as fast as it a lane is, as plain JSON values.

    Tokens of all prompts over seconds in all steps, with a paired bootstrap over prompts.
    """
    others = [other for other, lane in lanes.items() if other != name and lane.step_sec]
    best = min(others, key=lambda other: lanes[other].sec_per_token)
    theirs, own = (np.array(lane.step_sec) / np.array(lane.tokens) for lane in (lanes[best], lanes[name]))
    return {"lane": best, **ratio_estimate(theirs, own).to_json()}


def repeated_share(tokens: Sequence[int], length: int = 4) -> float:
    """Return the share of n-grams that occurred before: near 1 for text that loops (and is easy to draft)."""
    grams = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def _compared(lanes: dict[str, Lane], chosen: np.ndarray) -> dict:
    """Return how many prompts are chosen, bool [prompts], and each method's speed-up on all of them, as JSON."""
    rates = {
        name: float(np.array(lane.tokens)[chosen].sum() / np.array(lane.seconds)[chosen].sum())
        for name, lane in lanes.items()
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
