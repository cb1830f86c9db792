"""The whole chain as one job for the engine's worker: profile, measure acceptance, plan the tree, decode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sequoia_core.design.planning import plan_tree
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import Prompting, encode_prompt
from ui.jobs.decode_job import decode_beside_baseline
from ui.jobs.jobs import JobContext
from ui.overview.film import Film
from ui.runs.runs import DecodeRequest, summary_of

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
    from sequoia_core.design.prediction import Prediction
    from sequoia_core.studies.run_summary import RunSummary


# each from how much to how much of the progress
TIMING, COUNTING = (0.0, 0.3, "Timing the passes"), (0.3, 0.75, "Counting right guesses")
PLANNING, DECODING = (0.75, 0.77, "Planning the tree"), (0.77, 1.0, "Decoding with it")
PROMPT_TOKENS, NEW_TOKENS = 96, 128
MEASURE_SEC = 15.0  # acceptance is measured until the plan is settled, or for as long as this,
WHOLE_SEC = 18.0  # or until so long after the start, so that all of it takes half a minute on two cores
LEAST_PROMPTS = 4  # at least, however long they take
CHECK_EVERY = 4  # prompts between two looks at how well tokens per step are known
WITHIN = 0.07  # of its value: how well tokens per step are known once the plan is settled
WIDE = 2.0  # upper ÷ lower bound: a wider prediction says too little, so more prompts are decoded,
DECODE_SEC = 8.0  # but none is begun later than this
SIZES, REPEATS = (1, 2, 4, 8, 16, 32, 64), 9
STREAMED_SIZES, STREAMED_REPEATS = (1, 8, 16, 32, 64, 128, 256), 5  # large trees pay, and each pass reads all weights


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What the chain has found so far; later parts are missing until their stage has begun.

    Attributes:
        runs: one for each prompt that was decoded.
        interval: between which bounds the speedup over all of these prompts was predicted.
        film: how it came; the worker adds to it while pages read.
    """

    acceptance: AcceptanceVector | None = None
    profile: HardwareProfile | None = None
    tree: TokenTree | None = None
    runs: tuple[dict[str, Any], ...] = ()
    interval: tuple[float, float] | None = None
    film: Film = field(default_factory=Film)

    @property
    def is_wide(self) -> bool:
        """Whether the prediction says too little for a measured speedup to hold or miss it."""
        return self.interval is not None and self.interval[1] > WIDE * self.interval[0]

    @property
    def summary(self) -> RunSummary:
        """The figures of all prompts together."""
        baselines = [run["baseline"] for run in self.runs if run["baseline"] is not None]
        together = {
            "steps": [step for run in self.runs for step in run["steps"]],
            "baseline": {name: sum(each[name] for each in baselines) for name in ("tokens", "seconds")},
            "predicted_interval": self.interval,
        }
        return summary_of(self.runs[0] | together)


class _Enough:
    """Ends a measurement once the plan is settled, when its time is over, or when the user cancels.

    Its time is over after `MEASURE_SEC`, and `WHOLE_SEC` after the film began.
    Settled: tokens per step are known within `WITHIN`, and planning again, once prompts have doubled, finds the same
    best size and depth.
    """

    def __init__(
        self, profile: HardwareProfile, cancel: threading.Event, report: Callable[[float, str], None], film: Film
    ) -> None:
        self.reached = threading.Event()
        now = time.monotonic()
        self._sec = max(min(MEASURE_SEC, WHOLE_SEC - film.now()), 1e-9)
        self._profile, self._cancel, self._report, self._film = profile, cancel, report, film
        self._prompts, self._planned_at, self._end = 0, 0, now + self._sec
        self._tree: TokenTree | None = None

    def count(self, vector: AcceptanceVector) -> None:
        """Note that one more prompt is complete, and look at the plan where it is time to."""
        self._prompts += 1
        self._film.measured(vector, self._prompts)
        if self._prompts > 1 and self._prompts % CHECK_EVERY:
            return
        known = self._is_known(vector)
        if not known and self._prompts < 2 * self._planned_at:
            return
        last, self._planned_at = self._tree, self._prompts
        self._tree = plan_tree(vector, self._profile)
        self._film.planned(self._tree, vector, self._profile, last=False)
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
        known = "1 prompt" if self._prompts == 1 else f"{self._prompts} prompts"
        self._report(min(1.0, max(share, 1.0 - left)), f"{known}, until the plan is settled")
        if self._cancel.is_set() or (left <= 0 and self._prompts >= LEAST_PROMPTS):
            self.reached.set()


def chain_work(
    prompts: Sequence[str], decoded: Sequence[str], *, models: PairSpec
) -> Callable[[JobContext], ChainResult]:
    """Return the work of the whole chain at temperature 0: profile, measure, plan, decode.

    Acceptance is measured on `prompts` until the plan is settled; of `decoded` as many are decoded as it takes for the
    prediction to say something.
    """

    def work(context: JobContext) -> ChainResult:
        from sequoia_core import SamplingConfig, measure_acceptance, measure_profile
        from sequoia_core.design.prediction import predict
        from sequoia_core.studies.measure_acceptance import Checkpoints

        found = ChainResult()

        def keep(**parts: Any) -> None:
            nonlocal found
            found = replace(found, **parts)
            context.keep(found)

        keep()
        pair = context.pair(models)
        ids = [encode_prompt(pair, prompt) for prompt in prompts]
        sizes, repeats = (SIZES, REPEATS) if models.offload is None else (STREAMED_SIZES, STREAMED_REPEATS)
        profile = measure_profile(
            pair, sizes=sizes, repeats=repeats, cancel=context.cancel, progress=context.part(*TIMING),
            timed=found.film.timed,
        )  # fmt: skip
        keep(profile=profile)
        if context.cancel.is_set():
            return found
        enough = _Enough(profile, context.cancel, context.part(*COUNTING), found.film)
        vector = measure_acceptance(
            ids, pair, sampling=SamplingConfig(), max_new_tokens=PROMPT_TOKENS, cancel=enough.reached,
            checkpoints=Checkpoints(save=enough.count, prompted=Prompting().record(pair.tokenizer)),
            progress=enough.progress,
        )  # fmt: skip
        keep(acceptance=vector)
        if context.cancel.is_set():
            return found
        context.part(*PLANNING)
        tree = plan_tree(vector, profile)
        found.film.planned(tree, vector, profile, last=True)
        keep(tree=tree)
        alone = predict(tree, vector, profile, prompts=1)
        request = DecodeRequest(
            "", tree, "best tree for this acceptance and hardware", max_new_tokens=NEW_TOKENS, models=models,
            expected_tokens=alone.tokens_per_step.value, predicted_speedup=alone.speedup.value,
            predicted_interval=_bounds(alone),
        )  # fmt: skip
        (low, whole, name), end = DECODING, time.monotonic() + DECODE_SEC
        for number, prompt in enumerate(decoded, start=1):
            keep(interval=_bounds(predict(tree, vector, profile, prompts=number)))
            high = low + (whole - low) / (len(decoded) - number + 1 if found.is_wide else 1)
            decode_beside_baseline(
                context, pair, replace(request, prompt=prompt), progress=context.part(low, high, name),
                keep=lambda run: keep(runs=(*found.runs, run)),
            )  # fmt: skip
            low = high
            if context.cancel.is_set() or not found.is_wide or time.monotonic() > end:
                break
        return found

    return work


def _bounds(prediction: Prediction) -> tuple[float, float] | None:
    low, high = prediction.speedup[1:]
    return None if low is None or high is None else (low, high)
