"""A fair race: the methods take turns decoding the same prompts, with the same lengths, dtype and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel

from ..acceptance.bootstrap import Estimate, ratio_estimate
from ..decoding.loop import decode
from ..decoding.record import TOKENS_ONLY, DecodeStep
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import ROOT_ONLY, TreePolicy
from ..files.model_names import require_draft
from ..files.safe_files import one_line
from ..models.language_model import HuggingFaceModel, ModelPair
from ..trees.tree import TokenTree
from .prompt_loop import Progress, Report, take_turns, tokens_within_context

LOOPING_SHARE = 0.5  # an output with a larger share of repeated 4-grams loops, which makes it easy to draft
PHASES = ("draft_sec", "verify_sec", "walk_sec", "commit_sec")
ASSISTANT_TOKENS = (None, 3, 5, 8)  # draft lengths to try, None for transformers' default; the fastest is reported


@dataclass(frozen=True, slots=True)
class Decoded:
    """A method's output for one prompt.

    Attributes:
        output: generated token ids.
        passes: number of target passes.
        seconds: decoding time, including reading the prompt.
        steps: step records; empty for transformers' methods.
    """

    output: list[int]
    passes: int
    seconds: float
    steps: Sequence[DecodeStep] = ()


# A function of a prompt, the number of tokens to generate, the prompt's index and a callback for the completed
# fraction. It returns None if it was cancelled or is disabled.
Method = Callable[[Sequence[int], int, int, Report], Decoded | None]


@dataclass(slots=True)
class MethodResult:
    """The results of a method, with one entry per prompt or, for repeated decoding of a single prompt, per round.

    Attributes:
        seconds: decoding time per prompt, including reading the prompt.
        step_sec: decoding time per prompt spent in steps; empty for transformers' methods.
        phase_sec: seconds per phase, summed over the prompts.
        left_out: the reason why the method could not run; empty if it ran.
    """

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    step_sec: list[float] = field(default_factory=list)
    phase_sec: dict[str, float] = field(default_factory=dict)
    left_out: str = ""

    def add(self, decoded: Decoded) -> None:
        self.outputs.append(decoded.output)
        self.tokens.append(len(decoded.output))
        self.steps.append(decoded.passes)
        self.seconds.append(decoded.seconds)
        if decoded.steps:
            phases = {name: sum(getattr(step, name) for step in decoded.steps) for name in PHASES}
            self.phase_sec = {name: self.phase_sec.get(name, 0.0) + taken for name, taken in phases.items()}
            self.step_sec.append(sum(phases.values()))

    @property
    def sec_per_token(self) -> float:
        """Seconds per token over all prompts, counting only the time spent in steps, not reading the prompts."""
        return sum(self.step_sec) / sum(self.tokens)

    @property
    def median_step_sec(self) -> float:
        """Median over the rounds of a single prompt of the time spent in steps."""
        return float(np.median(self.step_sec))

    @property
    def tokens_per_sec(self) -> float:
        """Tokens per second over all prompts, including the time for reading the prompts."""
        return sum(self.tokens) / sum(self.seconds)

    def summary(self) -> dict:
        """Return the rates over all prompts and the quartiles of the per-prompt rates as plain JSON values."""
        low, high = np.percentile(np.array(self.tokens) / np.array(self.seconds), [25, 75])
        row = {
            "tokens_per_sec": self.tokens_per_sec,
            "tokens_per_sec_quartiles": [float(low), float(high)],
            "tokens_per_step": sum(self.tokens) / max(1, sum(self.steps)),
            "tokens": sum(self.tokens),
        }
        if self.phase_sec:
            row["phase_sec"] = {name: value / max(1, sum(self.steps)) for name, value in self.phase_sec.items()}
        return row


def tree_method(
    pair: ModelPair, tree: TokenTree | TreePolicy, sampling: SamplingConfig, *, seed: int = 0, **options
) -> Method:
    """Return a method that decodes with a tree and ignores EOS; with `ROOT_ONLY` it is the autoregressive baseline.

    `options` are passed to `decode`; by default, steps record tokens only.
    """
    endless = pair.ignore_eos()
    options = {"tree": tree, "sampling": sampling, "details": TOKENS_ONLY, **options}

    def run(prompt: Sequence[int], length: int, turn: int, report: Report) -> Decoded | None:
        generator = torch.Generator().manual_seed(seed + turn)
        steps: list[DecodeStep] = []
        output: list[int] = []
        seconds = 0.0
        started = time.perf_counter()
        for step in decode(prompt, endless, **options, max_new_tokens=length, generator=generator):
            seconds += time.perf_counter() - started
            steps.append(step)
            output += step.new_tokens
            report(len(output) / length)
            started = time.perf_counter()  # Restart the clock, to exclude progress reports.
        return Decoded(output, len(steps), seconds, steps) if steps and steps[-1].finished else None

    return run


def race(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    *,
    trees: Mapping[str, TokenTree | TreePolicy],
    sampling: SamplingConfig,
    max_new_tokens: int,
    with_transformers: bool = True,
    progress: Progress | None = None,
) -> dict[str, MethodResult]:
    """Decode every prompt with each method in turn; EOS is ignored, so that all outputs are equally long.

    Args:
        trees: trees by method name, such as {"chain": …, "sequoia": …}.
        with_transformers: whether to also race transformers' `hf_generate` and `hf_assisted`, the latter with several
            draft lengths. They are left out if they fail, and for GGUF files, which transformers would run in a
            different format.

    Returns:
        Results by method name, "autoregressive" first; `hf_assisted` is the result of the fastest draft length. A
        method that was left out has no entries in its result.
    """
    max_new_tokens = min(tokens_within_context(prompts, pair, max_new_tokens))
    trees = {"autoregressive": ROOT_ONLY, **trees}
    methods = {name: tree_method(pair, tree, sampling) for name, tree in trees.items()}
    lanes: dict[str, Method] = {}
    if with_transformers and isinstance(pair.target, HuggingFaceModel):
        lanes["hf_generate"] = transformers_method(pair, sampling, assisted=False, length_hint=None)
        for hint in ASSISTANT_TOKENS if pair.in_transformers else ():
            lanes[f"hf_assisted/{hint}"] = transformers_method(pair, sampling, assisted=True, length_hint=hint)
    results = {name: MethodResult() for name in (*methods, *lanes)}
    methods |= {name: disable_on_failure(lane, results[name]) for name, lane in lanes.items()}
    for name, decoded in take_turns(methods, prompts, max_new_tokens, progress=progress):
        results[name].add(decoded)
    for name, result in results.items():
        if result.left_out:
            results[name] = MethodResult(left_out=result.left_out)
    settings = [results.pop(name) for name in lanes if name.startswith("hf_assisted/")]
    if settings:
        ran = [result for result in settings if not result.left_out]
        results["hf_assisted"] = max(ran, key=lambda result: result.tokens_per_sec, default=settings[0])
    elif with_transformers:
        reason = "transformers would run a GGUF file in a different format"
        if pair.draft is not None and pair.draft.state_indices:
            reason = "transformers does not support draft heads"
        for name in ("hf_generate", "hf_assisted"):
            results.setdefault(name, MethodResult(left_out=reason))
    return results


def transformers_method(
    pair: ModelPair,
    sampling: SamplingConfig,
    *,
    assisted: bool = False,
    length_hint: int | None = None,
    prompt_lookup: int | None = None,
) -> Method:
    """Return a method that calls `model.generate`: plain, with the draft as assistant model, or with prompt lookup."""
    target = pair.target
    draft = require_draft(pair.draft, "assisted generation runs two models") if assisted else None
    if not isinstance(target, HuggingFaceModel) or not isinstance(draft, HuggingFaceModel | None):
        raise ValueError("transformers: found a model loaded by a different library, expected a transformers model")
    config = request_config(sampling, prompt_lookup_num_tokens=prompt_lookup)
    extra = {} if draft is None else {"assistant_model": draft.model}
    drafting = GenerationConfig()  # transformers reads these settings from the assistant model.
    if length_hint is not None:
        drafting.num_assistant_tokens = length_hint
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0

    def run(prompt: Sequence[int], length: int, turn: int, report: Report) -> Decoded:
        ids = torch.tensor([list(prompt)], device=target.device)
        config.max_new_tokens = length
        torch.manual_seed(turn)  # transformers samples from the global generator.
        passes = 0

        def count(module, arguments, output) -> None:
            nonlocal passes
            passes += 1

        with ExitStack() as undo:
            if draft is not None:
                undo.enter_context(replaced_generation_settings(draft.model, draft.vocab_size, drafting))
            undo.enter_context(replaced_generation_settings(target.model, target.vocab_size))
            undo.callback(target.model.register_forward_hook(count).remove)
            started = time.perf_counter()
            # Without an explicit mask, transformers would ignore prompt tokens equal to the padding token.
            output = target.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **extra)
            seconds = time.perf_counter() - started
        text = output[0, ids.shape[1] :].tolist()
        if len(text) != length:
            raise ValueError(f"transformers: found {len(text)} generated tokens, expected {length}")
        return Decoded(text, passes, seconds)

    return run


def request_config(sampling: SamplingConfig, **options: Any) -> GenerationConfig:
    """Return settings for `generate` without an EOS token; `options` sets additional fields."""
    config = GenerationConfig(do_sample=not sampling.greedy, pad_token_id=0, **options)
    if config.do_sample:
        # transformers divides the draft's logits by the temperature twice, so its square must not underflow.
        config.temperature = max(sampling.temperature, 1e-15)
        config.top_p = sampling.top_p
        config.top_k = sampling.top_k
    return config


@contextmanager
def replaced_generation_settings(
    model: PreTrainedModel, vocab_size: int, settings: GenerationConfig | None = None
) -> Iterator[None]:
    """Temporarily replace a model's generation settings and truncate its logits to the vocabulary.

    This is necessary because `generate` falls back to the model's settings, such as the EOS token, and assumes that two
    models have different tokenizers if they output different numbers of logits.

    Args:
        vocab_size: number of logits that stand for real tokens, rather than padding.
        settings: generation settings to use instead, such as those for an assistant model.
    """

    def truncate(module, arguments, output):
        output.logits = output.logits[..., :vocab_size]
        return output

    config = model.config.get_text_config()
    with ExitStack() as undo:
        undo.callback(setattr, config, "vocab_size", config.vocab_size)
        undo.callback(setattr, model, "generation_config", model.generation_config)
        config.vocab_size = vocab_size
        model.generation_config = settings or GenerationConfig()
        undo.callback(model.register_forward_hook(truncate).remove)
        yield


def disable_on_failure(method: Method, result: MethodResult) -> Method:
    """Wrap a method so that its first failure disables it and is recorded in its result's `left_out`."""

    def run(prompt: Sequence[int], length: int, turn: int, report: Report) -> Decoded | None:
        try:
            return None if result.left_out else method(prompt, length, turn, report)
        except Exception as error:  # Code that ships with a model can raise any exception.
            result.left_out = one_line(error)
            return None

    return run


def compare_with_best_other(results: Mapping[str, MethodResult], name: str) -> dict:
    """Return the fastest other method and the speedup of `name` over it as plain JSON values.

    Speeds are total tokens ÷ total seconds spent in steps, and intervals come from a paired bootstrap over prompts.
    transformers' methods are not compared.
    """
    others = [other for other, result in results.items() if other != name and result.step_sec]
    best = min(others, key=lambda other: results[other].sec_per_token)
    other, this = (np.array(result.step_sec) / np.array(result.tokens) for result in (results[best], results[name]))
    return {"lane": best, **ratio_estimate(other, this, few=True).to_json()}


def clear_winner(results: Mapping[str, MethodResult]) -> str | None:
    """Return the fastest method; None if its lead is within the noise or decoding without a tree is faster overall."""
    best = min((name for name in results if results[name].step_sec), key=lambda name: results[name].sec_per_token)
    lead = compare_with_best_other(results, best)["low"]
    if lead is None or lead <= 1.0 or results[best].tokens_per_sec < results["autoregressive"].tokens_per_sec:
        return None
    return best


def level_with_fastest(results: Mapping[str, MethodResult]) -> list[str]:
    """Return the fastest method by its median over the rounds, and the methods whose times overlap with its times.

    With three rounds, two equally fast methods do not overlap in one of ten races.
    """
    ordered = sorted(results, key=lambda name: results[name].median_step_sec)
    slowest = max(results[ordered[0]].step_sec)
    return [name for name in ordered if min(results[name].step_sec) <= slowest]


def speedup_over_plain(results: Mapping[str, MethodResult], name: str) -> Estimate:
    """Estimate the speedup of a method over autoregressive decoding, with a paired bootstrap over prompts.

    Only the time spent in steps counts; for transformers' methods, the whole decoding time.
    """
    clock = "step_sec" if results[name].step_sec else "seconds"
    plain, this = (np.array(getattr(results[each], clock)) for each in ("autoregressive", name))
    return ratio_estimate(plain, this, few=True)


def repeated_share(tokens: Sequence[int]) -> float:
    """Return the share of 4-grams that repeat an earlier one, which is close to 1 for looping output."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
