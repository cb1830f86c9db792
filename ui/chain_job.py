"""The whole chain as one job for the engine's worker: measure acceptance, profile, plan the tree, decode.

Runs on the worker's thread, so no Streamlit here. What each stage finds is kept as it comes.
"""

from __future__ import annotations

import threading
import time
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
PROMPT_TOKENS, NEW_TOKENS = 96, 128
MEASURE_SEC = 60.0  # acceptance is measured on as many prompts as this allows
LEAST_PROMPTS = 4  # at least, however long they take
SIZES, REPEATS = (1, 2, 4, 8, 16, 32, 64), 9
STREAMED_SIZES, STREAMED_REPEATS = (1, 8, 16, 32, 64, 128, 256), 5  # large trees pay, and each pass reads all weights


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What the chain has found so far; later parts are None until their stage is over."""

    acceptance: AcceptanceVector | None = None
    profile: HardwareProfile | None = None
    shape: BestShape | None = None
    tree: TokenTree | None = None
    run: dict[str, Any] | None = None


DEMO = PairSpec()


class _Limit:
    """Ends a measurement when the user cancels, or when its time is over and enough prompts are complete."""

    def __init__(self, cancel: threading.Event, report: Callable[[float, str], None]) -> None:
        self.reached = threading.Event()
        self._cancel, self._report = cancel, report
        self._prompts, self._end = 0, time.monotonic() + MEASURE_SEC

    def count(self, vector: AcceptanceVector) -> None:
        """Note that one more prompt is complete."""
        self._prompts += 1

    def progress(self, share: float, words: str) -> None:
        """Pass progress on, by prompts or by time, whichever is further."""
        left = (self._end - time.monotonic()) / MEASURE_SEC
        self._report(min(1.0, max(share, 1.0 - left)), words)
        if self._cancel.is_set() or (left <= 0 and self._prompts >= LEAST_PROMPTS):
            self.reached.set()


def chain_work(prompts: Sequence[str], *, models: PairSpec = DEMO) -> Callable[[JobContext], ChainResult]:
    """Return the work of the whole chain at temperature 0: measure, profile, plan, decode.

    Args:
        prompts: the last one is decoded; acceptance is measured on as many of those before it as a minute allows. At
            least two.
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
        from sequoia_core.design.prediction import predict

        found = ChainResult()

        def keep(**parts: Any) -> ChainResult:
            more = replace(found, **parts)
            context.keep(more)
            return more

        def stage(index: int) -> Callable[[float, str], None]:
            part = STAGES[index]
            return context.part(part.low, part.high, part.name)

        pair = context.pair(models)
        both = {"target": pair.target, "draft": pair.draft}
        ids = [encode_prompt(pair.tokenizer, prompt) for prompt in prompts]
        limit = _Limit(context.cancel, stage(0))
        vector = measure_acceptance(
            ids[:-1], **both, sampling=SamplingConfig(), max_new_tokens=PROMPT_TOKENS, cancel=limit.reached,
            checkpoint=limit.count, progress=limit.progress,
        )  # fmt: skip
        found = keep(acceptance=vector)
        if context.cancel.is_set():
            return found
        sizes, repeats = (SIZES, REPEATS) if models.offload is None else (STREAMED_SIZES, STREAMED_REPEATS)
        profile = measure_profile(**both, sizes=sizes, repeats=repeats, cancel=context.cancel, progress=stage(1))
        found = keep(profile=profile)
        if context.cancel.is_set():
            return found
        stage(2)
        shape = best_shape(speedup_surface(vector, profile))
        tree = optimal_tree(vector, size=shape.size, depth=shape.depth)
        found = keep(shape=shape, tree=tree)
        stage(3)
        prediction = predict(tree, vector, profile, prompts=1)
        low, high = prediction.speedup[1:]
        request = DecodeRequest(
            prompts[-1],
            tree,
            "best tree for this acceptance and hardware",
            max_new_tokens=NEW_TOKENS,
            models=models,
            expected_tokens=prediction.tokens_per_step.value,
            predicted_speedup=prediction.speedup.value,
            predicted_interval=None if low is None or high is None else (low, high),
        )
        last = context.part(STAGES[3].low, STAGES[3].high)
        run = decode_beside_baseline(context, pair, request, keep=lambda run: keep(run=run), progress=last)
        return keep(run=run)

    return work
