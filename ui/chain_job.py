"""The whole chain as one job for the engine's worker: measure acceptance, profile, plan the tree, decode.

Runs on the worker's thread, so no Streamlit here. What each stage finds is kept as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sequoia_core.models.chat import encode_prompt
from ui.decode_job import decode_beside_baseline
from ui.jobs import JobContext
from ui.model_pairs import PairSpec
from ui.runs import DecodeRequest

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
    from sequoia_core.design.planning import BestShape


@dataclass(frozen=True, slots=True)
class Stage:
    """One named part of the whole chain, from `low` to `high` of its progress."""

    name: str
    low: float
    high: float


STAGES = (
    Stage("Measure acceptance", 0.0, 0.4),
    Stage("Profile the hardware", 0.4, 0.6),
    Stage("Plan the best tree", 0.6, 0.62),
    Stage("Decode a prompt", 0.62, 1.0),
)
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 96, 128
SIZES, REPEATS = (1, 2, 4, 8, 16, 32, 64), 9


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What the chain has found so far; later parts are None until their stage is over."""

    acceptance: AcceptanceVector | None = None
    profile: HardwareProfile | None = None
    shape: BestShape | None = None
    tree: TokenTree | None = None
    run: dict[str, Any] | None = None


DEMO = PairSpec()


def chain_work(prompts: Sequence[str], *, models: PairSpec = DEMO) -> Callable[[JobContext], ChainResult]:
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
            part = STAGES[index]
            return context.part(part.low, part.high, part.name)

        pair = context.pair(models)
        both = {"target": pair.target, "draft": pair.draft, "cancel": context.cancel}
        ids = [encode_prompt(pair.tokenizer, prompt) for prompt in prompts]
        vector = measure_acceptance(
            ids[:-1], **both, sampling=SamplingConfig(), max_new_tokens=PROMPT_TOKENS, progress=stage(0)
        )
        found = keep(acceptance=vector)
        if context.cancel.is_set():
            return found
        profile = measure_profile(**both, sizes=SIZES, repeats=REPEATS, progress=stage(1))
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
            max_new_tokens=NEW_TOKENS,
            models=models,
            expected_tokens=shape.expected_tokens,
            predicted_speedup=shape.predicted_speedup,
        )
        last = context.part(STAGES[3].low, STAGES[3].high)
        run = decode_beside_baseline(context, pair, request, keep=lambda run: keep(run=run), progress=last)
        return keep(run=run)

    return work
