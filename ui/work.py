"""What the engine's worker does for the decode and overview pages: one decode with its baseline, or the whole chain.

Runs on the worker's thread, so no Streamlit here; what it leaves is a run as `ui.runs` describes it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sequoia_core.models.chat import encode_prompt
from ui import jobs
from ui.jobs import Job, JobContext
from ui.runs import DecodeRequest, TokenText, step_record

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
    from sequoia_core.design.planning import BestShape
    from sequoia_core.models.language_model import ModelPair

WARM_TOKENS = 4


def decode_work(request: DecodeRequest) -> Callable[[JobContext], dict[str, Any]]:
    """Return the work of one decode: the tree run step by step, and beside it the baseline of the same length."""

    def work(context: JobContext) -> dict[str, Any]:
        return _decode(context, context.pair(request.models), request, context.keep)

    return work


def record_run(request: DecodeRequest) -> dict[str, Any]:
    """Run a request here and now, without a queue, and return the run."""
    work = decode_work(request)
    return work(JobContext(Job("record", work)))


def _decode(
    context: JobContext,
    pair: ModelPair,
    request: DecodeRequest,
    keep: Callable[[dict[str, Any]], None],
    low: float = 0.0,
    high: float = 1.0,
) -> dict[str, Any]:
    """Decode with the tree and without it, in turns, so that a slow moment of the machine touches both.

    `keep` gets the run early, so that a cancel or failure loses nothing.
    """
    import torch

    from sequoia_core import SamplingConfig, autoregressive, decode

    def progress(fraction: float, message: str) -> None:
        context.progress(low + fraction * (high - low), message)

    prompt = encode_prompt(pair.tokenizer, request.prompt)
    sampling = SamplingConfig(temperature=request.temperature, top_p=request.top_p)
    common = {"target": pair.target, "sampling": sampling, "cancel": context.cancel}
    speculative = {**common, "draft": pair.draft, "tree": request.tree, "verifier": request.verifier}
    run = request.header() | {"device": str(pair.target.device), "target": pair.target.name, "draft": pair.draft.name}
    keep(run)

    progress(0.0, "Warming up")
    seeds = [torch.Generator().manual_seed(request.seed) for _ in range(4)]
    for warm in (
        decode(prompt, **speculative, max_new_tokens=WARM_TOKENS, generator=seeds[0]),
        autoregressive(prompt, **common, max_new_tokens=WARM_TOKENS, generator=seeds[1]),
    ):
        for _ in warm:
            pass
    text = TokenText(pair.tokenizer.decode, prompt)
    tokens: list[int] = []
    run["baseline"] = baseline = {"tokens": 0, "seconds": 0.0, "median_sec": None}
    plain_sec: list[float] = []
    length = request.max_new_tokens
    plain_steps = autoregressive(prompt, **common, max_new_tokens=length, generator=seeds[3])
    for step in decode(prompt, **speculative, max_new_tokens=length, generator=seeds[2]):
        tokens.extend(step.new_tokens)
        for plain in plain_steps:
            baseline["tokens"] += len(plain.new_tokens)
            baseline["seconds"] += plain.seconds
            plain_sec.append(plain.seconds)
            if baseline["tokens"] >= len(tokens):
                break
        baseline["median_sec"] = statistics.median(plain_sec) if plain_sec else None
        record = step_record(step, text)
        run["steps"].append(record)
        context.append(record)
        run["text"] = pair.tokenizer.decode(tokens, skip_special_tokens=True)
        progress(len(tokens) / length, "Decoding, with the tree and without it in turns")
    return run


@dataclass(frozen=True, slots=True)
class Stage:
    """One named part of the whole chain, from `low` to `high` of its progress."""

    name: str
    low: float
    high: float


CHAIN_STAGES = (
    Stage("Measure acceptance", 0.0, 0.4),
    Stage("Profile the hardware", 0.4, 0.6),
    Stage("Plan the best tree", 0.6, 0.62),
    Stage("Decode a prompt", 0.62, 1.0),
)
CHAIN_PROMPTS, CHAIN_PROMPT_TOKENS, CHAIN_TOKENS = 8, 96, 128
CHAIN_SIZES, CHAIN_REPEATS = (1, 2, 4, 8, 16, 32, 64), 9


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What the chain has found so far; later parts are None until their stage is over."""

    acceptance: AcceptanceVector | None = None
    profile: HardwareProfile | None = None
    shape: BestShape | None = None
    tree: TokenTree | None = None
    run: dict[str, Any] | None = None


DEMO = jobs.PairSpec()


def chain_work(prompts: Sequence[str], *, models: jobs.PairSpec = DEMO) -> Callable[[JobContext], ChainResult]:
    """Return the work of the whole chain at temperature 0: measure, profile, plan, decode.

    Args:
        prompts: the last one is decoded, the ones before it are measured on; at least two.
    """

    def work(context: JobContext) -> ChainResult:
        from sequoia_core import (
            SamplingConfig,
            best_shape,
            measure_acceptance,
            measure_profile,
            optimal_tree,
            speedup_surface,
        )

        found = ChainResult()

        def keep(**parts: Any) -> ChainResult:
            more = replace(found, **parts)
            context.keep(more)
            return more

        def stage(index: int) -> Callable[[float, str], None]:
            part = CHAIN_STAGES[index]
            context.progress(part.low, part.name)
            return lambda fraction, message: context.progress(
                part.low + fraction * (part.high - part.low), f"{part.name}: {message}"
            )

        pair = context.pair(models)
        both = {"target": pair.target, "draft": pair.draft, "cancel": context.cancel}
        ids = [encode_prompt(pair.tokenizer, prompt) for prompt in prompts]
        vector = measure_acceptance(
            ids[:-1], **both, sampling=SamplingConfig(), max_new_tokens=CHAIN_PROMPT_TOKENS, progress=stage(0)
        )
        found = keep(acceptance=vector)
        if context.cancel.is_set():
            return found
        profile = measure_profile(**both, sizes=CHAIN_SIZES, repeats=CHAIN_REPEATS, progress=stage(1))
        found = keep(profile=profile)
        if context.cancel.is_set():
            return found
        stage(2)
        shape = best_shape(speedup_surface(vector, profile))
        tree = optimal_tree(vector, size=shape.size, depth=shape.depth)
        found = keep(shape=shape, tree=tree)
        stage(3)
        request = DecodeRequest(
            prompts[-1],
            tree,
            "best tree for this acceptance and hardware",
            max_new_tokens=CHAIN_TOKENS,
            models=models,
            expected_tokens=shape.expected_tokens,
            predicted_speedup=shape.predicted_speedup,
        )
        last = CHAIN_STAGES[3]
        return keep(run=_decode(context, pair, request, lambda run: keep(run=run), last.low, last.high))

    return work
