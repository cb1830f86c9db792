"""The whole chain as one job for the engine's worker: profile, measure acceptance, plan the tree, decode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sequoia_core.design.planning import plan_tree
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import Prompting, encode_prompt
from ui.jobs.decode_job import decode_beside_baseline
from ui.jobs.jobs import JobContext
from ui.runs.runs import DecodeRequest

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree


@dataclass(frozen=True, slots=True)
class Stage:
    """One named part of the whole chain, from `low` to `high` of its progress."""

    name: str
    low: float
    high: float


STAGES = (
    Stage("Profile the hardware", 0.0, 0.3),
    Stage("Measure acceptance", 0.3, 0.85),
    Stage("Plan the best tree", 0.85, 0.87),
    Stage("Decode a prompt", 0.87, 1.0),
)
PROMPT_TOKENS, NEW_TOKENS = 96, 128
MEASURE_SEC = 15.0  # acceptance is measured until the plan is settled, or for as long as this,
WHOLE_SEC = 18.0  # or until so long after the start, so that all of it takes half a minute on two cores
LEAST_PROMPTS = 4  # at least, however long they take
CHECK_EVERY = 4  # prompts between two looks at how well tokens per step are known
WITHIN = 0.07  # of its value: how well tokens per step are known once the plan is settled
SIZES, REPEATS = (1, 2, 4, 8, 16, 32, 64), 9
STREAMED_SIZES, STREAMED_REPEATS = (1, 8, 16, 32, 64, 128, 256), 5  # large trees pay, and each pass reads all weights


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What the chain has found so far; later parts are None until their stage is over."""

    acceptance: AcceptanceVector | None = None
    profile: HardwareProfile | None = None
    tree: TokenTree | None = None
    run: dict[str, Any] | None = None


DEMO = PairSpec()


class _Enough:
    """Ends a measurement once the plan is settled, when its time is over, or when the user cancels.

    Its time is over after `MEASURE_SEC`, and `WHOLE_SEC` after the chain began (time.monotonic; None is now).
    Settled: tokens per step are known within `WITHIN`, and planning again, once prompts have doubled, finds the same
    best size and depth.
    """

    def __init__(
        self,
        profile: HardwareProfile,
        cancel: threading.Event,
        report: Callable[[float, str], None],
        *,
        began: float | None = None,
    ) -> None:
        self.reached = threading.Event()
        now = time.monotonic()
        self._sec = max(min(MEASURE_SEC, (now if began is None else began) + WHOLE_SEC - now), 1e-9)
        self._profile, self._cancel, self._report = profile, cancel, report
        self._prompts, self._planned_at, self._end = 0, 0, now + self._sec
        self._tree: TokenTree | None = None

    def count(self, vector: AcceptanceVector) -> None:
        """Note that one more prompt is complete, and look at the plan where it is time to."""
        self._prompts += 1
        if self._prompts % CHECK_EVERY:
            return
        known = self._is_known(vector)
        if not known and self._prompts < 2 * self._planned_at:
            return
        last, self._planned_at = self._tree, self._prompts
        self._tree = plan_tree(vector, self._profile)
        same = last is not None and (last.size, last.depth) == (self._tree.size, self._tree.depth)
        if known and same and self._is_known(vector):
            self.reached.set()

    def _is_known(self, vector: AcceptanceVector) -> bool:
        """Whether tokens per step of the tree last planned are known within `WITHIN`."""
        from sequoia_core.design.prediction import prompts_for

        needed = None if self._tree is None else prompts_for(self._tree, vector, within=WITHIN)
        return needed is not None and needed <= self._prompts

    def progress(self, share: float, words: str) -> None:
        """Pass progress on, by prompts or by time, whichever is further."""
        left = (self._end - time.monotonic()) / self._sec
        self._report(min(1.0, max(share, 1.0 - left)), words)
        if self._cancel.is_set() or (left <= 0 and self._prompts >= LEAST_PROMPTS):
            self.reached.set()


def chain_work(prompts: Sequence[str], *, models: PairSpec = DEMO) -> Callable[[JobContext], ChainResult]:
    """Return the work of the whole chain at temperature 0: profile, measure, plan, decode.

    Of two prompts or more the last is decoded; acceptance is measured on the others until the plan is settled.
    """

    def work(context: JobContext) -> ChainResult:
        from sequoia_core import SamplingConfig, measure_acceptance, measure_profile
        from sequoia_core.design.prediction import predict
        from sequoia_core.studies.measure_acceptance import Checkpoints

        found, began = ChainResult(), time.monotonic()

        def keep(**parts: Any) -> ChainResult:
            more = replace(found, **parts)
            context.keep(more)
            return more

        def stage(index: int) -> Callable[[float, str], None]:
            part = STAGES[index]
            return context.part(part.low, part.high, part.name)

        pair = context.pair(models)
        ids = [encode_prompt(pair, prompt) for prompt in prompts]
        sizes, repeats = (SIZES, REPEATS) if models.offload is None else (STREAMED_SIZES, STREAMED_REPEATS)
        profile = measure_profile(pair, sizes=sizes, repeats=repeats, cancel=context.cancel, progress=stage(0))
        found = keep(profile=profile)
        if context.cancel.is_set():
            return found
        enough = _Enough(profile, context.cancel, stage(1), began=began)
        vector = measure_acceptance(
            ids[:-1], pair, sampling=SamplingConfig(), max_new_tokens=PROMPT_TOKENS, cancel=enough.reached,
            checkpoints=Checkpoints(save=enough.count, prompted=Prompting().record(pair.tokenizer)),
            progress=enough.progress,
        )  # fmt: skip
        found = keep(acceptance=vector)
        if context.cancel.is_set():
            return found
        stage(2)
        tree = plan_tree(vector, profile)
        found = keep(tree=tree)
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

        def keep_run(run: dict[str, Any]) -> None:
            keep(run=run)

        run = decode_beside_baseline(context, pair, request, keep=keep_run, progress=last)
        return keep(run=run)

    return work
