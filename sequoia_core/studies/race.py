"""A fair race: every method decodes the same prompts with the same tokens, dtype and threads, in turns in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel

from ..decoding.loop import decode
from ..decoding.record import TOKENS_ONLY, DecodeStep
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import ROOT_ONLY, TreePolicy
from ..design.bootstrap import Estimate, ratio_estimate
from ..design.tree import TokenTree
from ..files.model_names import needed_draft
from ..files.safe_files import one_line
from ..models.language_model import HuggingFaceModel, ModelPair
from .prompt_loop import Progress, Report, room_after, take_turns

if TYPE_CHECKING:
    import pandas as pd

LOOPS_FROM = 0.5  # share of repeated 4-grams from which a text counts as looping; it is very easy to draft
PHASES = ("draft_sec", "verify_sec", "walk_sec", "commit_sec")
ASSISTANT_TOKENS = (None, 3, 5, 8)  # transformers' default and fixed lengths: the best of them is reported


@dataclass(frozen=True, slots=True)
class Decoded:
    """One prompt decoded by one method.

    Attributes:
        steps: their records, of our own methods only.
    """

    output: list[int]
    passes: int
    seconds: float
    steps: Sequence[DecodeStep] = ()


# takes a prompt, tokens to write, the prompt's number, and a callback for the fraction done
# returns None when cancelled or left out
Method = Callable[[Sequence[int], int, int, Report], Decoded | None]


@dataclass(slots=True)
class MethodResult:
    """What one method did: one entry per prompt.

    Attributes:
        seconds: of the whole decode; `step_sec` those in steps alone, for our own methods.
        phase_sec: seconds in each phase, all prompts together.
        left_out: why the method could not run; empty where it ran.
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
        """Seconds in steps ÷ tokens, all prompts together; prompt reading is left out."""
        return sum(self.step_sec) / sum(self.tokens)

    @property
    def tokens_per_sec(self) -> float:
        """All tokens ÷ the seconds of all decodes, reading prompts counted."""
        return sum(self.tokens) / sum(self.seconds)

    def summary(self) -> dict:
        """Return the rate over all prompts, and its quartiles over single ones, as plain JSON values."""
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

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each prompt: `tokens`, `steps`, `seconds`, and `step_sec` of our own methods."""
        import pandas as pd

        own = {"step_sec": self.step_sec} if self.step_sec else {}
        return pd.DataFrame({"tokens": self.tokens, "steps": self.steps, "seconds": self.seconds, **own})


def own_method(
    pair: ModelPair, tree: TokenTree | TreePolicy, sampling: SamplingConfig, *, seed: int = 0, **options
) -> Method:
    """Return what decodes a prompt with a tree, EOS switched off; `ROOT_ONLY` is the autoregressive baseline.

    `options` are those of `decode`; steps record tokens only by default.
    """
    endless = pair.ignore_eos()
    options = {"tree": tree, "sampling": sampling, "details": TOKENS_ONLY, **options}

    def run(prompt: Sequence[int], length: int, turn: int, report: Report) -> Decoded | None:
        generator = torch.Generator().manual_seed(seed + turn)
        steps, output, seconds = [], [], 0.0
        started = time.perf_counter()
        for step in decode(prompt, endless, **options, max_new_tokens=length, generator=generator):
            seconds += time.perf_counter() - started
            steps.append(step)
            output += step.new_tokens
            report(len(output) / length)
            started = time.perf_counter()  # reporting progress is not timed
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
    """Decode every prompt with every method, methods taking turns, EOS switched off so that all write equally much.

    Args:
        trees: method name -> tree, such as {"chain": …, "sequoia": …}.
        with_transformers: also race `hf_generate` and `hf_assisted` (one method per setting). They are left out where
            they cannot run, and where a model is a GGUF file, which transformers would run in another format.

    Returns:
        method -> result, "autoregressive" first; `hf_assisted` is the fastest of its settings. One that is `left_out`
        has no entries.
    """
    max_new_tokens = min(room_after(prompts, pair, max_new_tokens))
    trees = {"autoregressive": ROOT_ONLY, **trees}
    methods = {name: own_method(pair, tree, sampling) for name, tree in trees.items()}
    lanes: dict[str, Method] = {}
    if with_transformers and isinstance(pair.target, HuggingFaceModel):
        lanes["hf_generate"] = transformers_method(pair, sampling, assisted=False, length_hint=None)
        for hint in ASSISTANT_TOKENS if pair.in_transformers else ():
            lanes[f"hf_assisted/{hint}"] = transformers_method(pair, sampling, assisted=True, length_hint=hint)
    results = {name: MethodResult() for name in (*methods, *lanes)}
    methods |= {name: unless_it_fails(lane, results[name]) for name, lane in lanes.items()}
    for name, decoded in take_turns(methods, prompts, max_new_tokens, progress=progress):
        results[name].add(decoded)
    results = {
        name: MethodResult(left_out=result.left_out) if result.left_out else result for name, result in results.items()
    }
    settings = [results.pop(name) for name in lanes if name.startswith("hf_assisted/")]
    if settings:
        ran = [result for result in settings if not result.left_out]
        results["hf_assisted"] = max(ran, key=lambda result: result.tokens_per_sec, default=settings[0])
    elif with_transformers:
        head = pair.draft is not None and pair.draft.reads
        in_another = "a GGUF file, which transformers would run in another format"
        for name in ("hf_generate", "hf_assisted"):
            results.setdefault(name, MethodResult(left_out="transformers takes no draft head" if head else in_another))
    return results


def transformers_method(
    pair: ModelPair,
    sampling: SamplingConfig,
    *,
    assisted: bool = False,
    length_hint: int | None = None,
    prompt_lookup: int | None = None,
) -> Method:
    """Return a runner of `model.generate`: plain, with the draft as assistant, or with prompt lookup."""
    target, draft = pair.target, needed_draft(pair.draft, "assisted generation runs two models") if assisted else None
    if not isinstance(target, HuggingFaceModel) or not isinstance(draft, HuggingFaceModel | None):
        raise ValueError("transformers: found another kind of model, expected transformers' own to generate with")
    config = request_config(sampling, prompt_lookup_num_tokens=prompt_lookup)
    extra = {} if draft is None else {"assistant_model": draft.model}
    drafting = GenerationConfig()  # transformers looks for it among the assistant's own settings
    if length_hint is not None:
        drafting.num_assistant_tokens = length_hint
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0

    def run(prompt: Sequence[int], length: int, turn: int, report: Report) -> Decoded:
        ids = torch.tensor([list(prompt)], device=target.device)
        config.max_new_tokens = length
        torch.manual_seed(turn)  # transformers samples from the global generator
        passes = 0

        def count(module, arguments, output) -> None:
            nonlocal passes
            passes += 1

        with ExitStack() as undo:
            if draft is not None:
                undo.enter_context(only_the_request(draft.model, draft.vocab_size, drafting))
            undo.enter_context(only_the_request(target.model, target.vocab_size))
            undo.callback(target.model.register_forward_hook(count).remove)
            started = time.perf_counter()
            # without a mask, tokens of the prompt that look like padding would not be read
            output = target.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **extra)
            seconds = time.perf_counter() - started
        text = output[0, ids.shape[1] :].tolist()
        if len(text) != length:
            raise ValueError(f"transformers wrote {len(text)} tokens, expected {length}")
        return Decoded(text, passes, seconds)

    return run


def request_config(sampling: SamplingConfig, **options: Any) -> GenerationConfig:
    """Return the settings of a request to `generate`, with no end of text; `options` are further fields."""
    config = GenerationConfig(do_sample=not sampling.greedy, pad_token_id=0, **options)
    if config.do_sample:
        temperature = max(sampling.temperature, 1e-15)  # the draft is divided by it twice, and its square must not be 0
        config.temperature, config.top_p, config.top_k = temperature, sampling.top_p, sampling.top_k
    return config


@contextmanager
def only_the_request(model: PreTrainedModel, vocab_size: int, own: GenerationConfig | None = None) -> Iterator[None]:
    """Put aside meanwhile what a model brings itself: its settings for generation, and its padded rows of logits.

    `generate` fills what a request leaves open, an end of text too, from the model's own settings. It takes two models
    for ones of different tokenizers where their rows differ in number.

    Args:
        vocab_size: V, how many of the first logits stand for real tokens.
        own: settings to give it instead, such as an assistant's.
    """

    def cut(module, arguments, output):
        output.logits = output.logits[..., :vocab_size]
        return output

    config, shipped = model.config.get_text_config(), model.generation_config
    with ExitStack() as undo:
        undo.callback(setattr, config, "vocab_size", config.vocab_size)
        undo.callback(setattr, model, "generation_config", shipped)
        config.vocab_size = vocab_size
        model.generation_config = own or GenerationConfig()
        undo.callback(model.register_forward_hook(cut).remove)
        yield


def unless_it_fails(method: Method, result: MethodResult) -> Method:
    """Return a method that is left out from its first failure on; its result says why."""

    def run(prompt: Sequence[int], length: int, turn: int, report: Report) -> Decoded | None:
        try:
            return None if result.left_out else method(prompt, length, turn, report)
        except Exception as error:  # any model's own code may run here, and fail in its own way
            result.left_out = one_line(error)
            return None

    return run


def over_best_other(results: Mapping[str, MethodResult], name: str) -> dict:
    """Return our fastest other method, and how many times as fast as it `name` is, as plain JSON values.

    Tokens of all prompts over seconds in all steps, with a paired bootstrap over prompts.
    """
    others = [other for other, result in results.items() if other != name and result.step_sec]
    best = min(others, key=lambda other: results[other].sec_per_token)
    theirs, own = (np.array(result.step_sec) / np.array(result.tokens) for result in (results[best], results[name]))
    return {"lane": best, **ratio_estimate(theirs, own, few=True).to_json()}


def fastest_beyond_noise(results: Mapping[str, MethodResult]) -> str | None:
    """Return our fastest method; None where another may be as fast, or where plain decoding has the better rate."""
    best = min((name for name in results if results[name].step_sec), key=lambda name: results[name].sec_per_token)
    lead = over_best_other(results, best)["low"]
    behind = results[best].tokens_per_sec < results["autoregressive"].tokens_per_sec
    return None if lead is None or lead <= 1.0 or behind else best


def over_plain(results: Mapping[str, MethodResult], name: str) -> Estimate:
    """Estimate how many times as fast as autoregressive decoding a method is, with a paired bootstrap over prompts.

    Seconds in steps; for transformers' methods of whole decodes, prompt reading counted.
    """
    clock = "step_sec" if results[name].step_sec else "seconds"
    plain, own = (np.array(getattr(results[each], clock)) for each in ("autoregressive", name))
    return ratio_estimate(plain, own, few=True)


def repeated_share(tokens: Sequence[int]) -> float:
    """Return the share of 4-grams that occurred before: near 1 for text that loops (and is easy to draft)."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
