"""The whole chain as one worker job: profile, measure acceptance, plan the tree, decode."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
from sequoia_core.measuring.run_summary import RunSummary
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import Prompting, encode_prompt
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import Prediction, predict, prompts_for
from ui.jobs.decode_job import decode_beside_baseline
from ui.jobs.jobs import JobContext
from ui.overview.film import Film
from ui.runs.runs import DecodeRequest, summarize

# The stages: start and end as fractions of the total progress, and a title.
TIMING = (0.0, 0.3, "Timing the passes")
MEASURING = (0.3, 0.75, "Counting right guesses")
PLANNING = (0.75, 0.77, "Planning the tree")
DECODING = (0.77, 1.0, "Decoding with it")
PROMPT_TOKENS = 96
NEW_TOKENS = 128
MEASURE_SEC = 15.0  # time limit for measuring acceptance
WHOLE_SEC = 18.0  # time limit for profiling and measuring together, so that the chain takes 30 s on two cores
LEAST_PROMPTS = 4  # minimum number of prompts to measure, even if time runs out
CHECK_EVERY = 4  # number of prompts between checks of the plan
WITHIN = 0.07  # relative precision of tokens per step required for a settled plan
WIDE = 2.0  # a prediction is too vague, so more prompts are decoded, if its bounds differ by a larger factor
DECODE_SEC = 8.0  # time after which no further prompt is decoded
SIZES = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 9
STREAMED_SIZES = (1, 8, 16, 32, 64, 128, 256)  # large trees pay off because every pass reads all streamed weights
STREAMED_REPEATS = 5


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The chain's results so far; later parts are missing until their stage begins.

    Attributes:
        runs: one run per decoded prompt.
        interval: predicted bounds of the speedup over all decoded prompts; None if unknown.
        film: the recorded progress; the worker appends to it while pages read it.
    """

    acceptance: AcceptanceVector | None = None
    profile: HardwareProfile | None = None
    tree: TokenTree | None = None
    runs: tuple[dict[str, Any], ...] = ()
    interval: tuple[float, float] | None = None
    film: Film = field(default_factory=Film)

    @property
    def is_wide(self) -> bool:
        """Whether the predicted interval is too wide to be confirmed or refuted."""
        return self.interval is not None and self.interval[1] > WIDE * self.interval[0]

    @property
    def summary(self) -> RunSummary:
        """The summary of all runs together."""
        baselines = [run["baseline"] for run in self.runs if run["baseline"] is not None]
        together = {
            "steps": [step for run in self.runs for step in run["steps"]],
            "baseline": {name: sum(each[name] for each in baselines) for name in ("tokens", "seconds")},
            "predicted_interval": self.interval,
        }
        return summarize(self.runs[0] | together)


class _StopRule:
    """Stops a measurement once the plan is settled, the time is up, or the user cancels.

    The time is up after `MEASURE_SEC`, or `WHOLE_SEC` after the film began. The plan is settled once tokens per step
    are known to within `WITHIN` and planning again gives the same size and depth.
    """

    def __init__(
        self, profile: HardwareProfile, cancel: threading.Event, report: Callable[[float, str], None], film: Film
    ) -> None:
        self.reached = threading.Event()
        now = time.monotonic()
        self._sec = max(min(MEASURE_SEC, WHOLE_SEC - film.now()), 1e-9)
        self._profile = profile
        self._cancel = cancel
        self._report = report
        self._film = film
        self._prompts = 0
        self._planned_at = 0
        self._end = now + self._sec
        self._tree: TokenTree | None = None

    def count(self, vector: AcceptanceVector) -> None:
        """Count one more measured prompt, and check the plan at intervals."""
        self._prompts += 1
        self._film.measured(vector, self._prompts)
        if self._prompts > 1 and self._prompts % CHECK_EVERY:
            return
        precise = self._is_precise(vector)
        if not precise and self._prompts < 2 * self._planned_at:
            return
        last = self._tree
        self._planned_at = self._prompts
        self._tree = plan_tree(vector, self._profile)
        self._film.planned(self._tree, vector, self._profile, last=False)
        same = last is not None and (last.size, last.depth) == (self._tree.size, self._tree.depth)
        if precise and same and self._is_precise(vector):
            self.reached.set()

    def _is_precise(self, vector: AcceptanceVector) -> bool:
        """Return whether the tokens per step of the latest planned tree are known to within `WITHIN`."""

        needed = None if self._tree is None else prompts_for(self._tree, vector, within=WITHIN)
        return needed is not None and needed <= self._prompts

    def progress(self, share: float, words: str) -> None:
        """Report the progress in prompts or in time, whichever is further; stop if the time is up."""
        left = (self._end - time.monotonic()) / self._sec
        measured = "1 prompt" if self._prompts == 1 else f"{self._prompts} prompts"
        self._report(min(1.0, max(share, 1.0 - left)), f"{measured}, until the plan is settled")
        if self._cancel.is_set() or (left <= 0 and self._prompts >= LEAST_PROMPTS):
            self.reached.set()


def chain_work(
    prompts: Sequence[str], decoded: Sequence[str], *, models: PairSpec
) -> Callable[[JobContext], ChainResult]:
    """Return the job that runs the whole chain at temperature 0: profile, measure, plan, decode.

    Acceptance is measured on `prompts` until the plan is settled; the prompts `decoded` are decoded until the
    prediction is precise enough.
    """

    def work(context: JobContext) -> ChainResult:
        chain = _Chain(context, models)
        for stage in (lambda: chain.measure(prompts), chain.plan, lambda: chain.decode(decoded)):
            if not context.cancel.is_set():
                stage()
        return chain.result

    return work


class _Chain:
    """The stages of the chain; each stores its part of the result for the page to draw."""

    def __init__(self, context: JobContext, models: PairSpec) -> None:
        self.result = ChainResult()
        self._context = context
        self._models = models
        self._store()
        self._pair = context.pair(models)

    def _store(self, **parts: Any) -> None:
        self.result = replace(self.result, **parts)
        self._context.store_partial(self.result)

    def measure(self, prompts: Sequence[str]) -> None:
        """Time the passes and measure acceptance."""
        from sequoia_core import SamplingConfig, measure_acceptance, measure_profile
        from sequoia_core.measuring.measure_acceptance import Checkpoints

        context = self._context
        pair = self._pair
        film = self.result.film
        ids = [encode_prompt(pair, prompt) for prompt in prompts]
        streams = self._models.offload is not None
        profile = measure_profile(
            pair,
            sizes=STREAMED_SIZES if streams else SIZES,
            repeats=STREAMED_REPEATS if streams else REPEATS,
            cancel=context.cancel,
            progress=context.subprogress(*TIMING),
            timed=film.timed,
        )
        self._store(profile=profile)
        if context.cancel.is_set():
            return
        stop = _StopRule(profile, context.cancel, context.subprogress(*MEASURING), film)
        vector = measure_acceptance(
            ids,
            pair,
            sampling=SamplingConfig(),
            max_new_tokens=PROMPT_TOKENS,
            cancel=stop.reached,
            checkpoints=Checkpoints(save=stop.count, prompted=Prompting().record(pair.tokenizer)),
            progress=stop.progress,
        )
        self._store(acceptance=vector)

    def plan(self) -> None:
        """Plan the tree to decode with."""
        self._context.subprogress(*PLANNING)
        vector, profile = self._measured
        tree = plan_tree(vector, profile)
        self.result.film.planned(tree, vector, profile, last=True)
        self._store(tree=tree)

    def decode(self, prompts: Sequence[str]) -> None:
        """Decode prompts with and without the tree until the predicted interval is narrow enough or the time is up."""

        context = self._context
        tree = self.result.tree
        assert tree is not None, "the tree is planned first"
        single = predict(tree, *self._measured, prompts=1)
        request = DecodeRequest(
            "",
            tree,
            "best tree for this acceptance and hardware",
            max_new_tokens=NEW_TOKENS,
            models=self._models,
            expected_tokens=single.tokens_per_step.value,
            predicted_speedup=single.speedup.value,
            predicted_interval=_bounds(single),
        )
        low, end, title = DECODING
        deadline = time.monotonic() + DECODE_SEC
        for number, prompt in enumerate(prompts, start=1):
            self._store(interval=_bounds(predict(tree, *self._measured, prompts=number)))
            high = low + (end - low) / (len(prompts) - number + 1 if self.result.is_wide else 1)
            decode_beside_baseline(
                context,
                self._pair,
                replace(request, prompt=prompt),
                progress=context.subprogress(low, high, title),
                store=lambda run: self._store(runs=(*self.result.runs, run)),
            )
            low = high
            if context.cancel.is_set() or not self.result.is_wide or time.monotonic() > deadline:
                break

    @property
    def _measured(self) -> tuple[AcceptanceVector, HardwareProfile]:
        vector = self.result.acceptance
        profile = self.result.profile
        assert vector is not None and profile is not None, "acceptance and profile are measured first"
        return vector, profile


def _bounds(prediction: Prediction) -> tuple[float, float] | None:
    _, low, high = prediction.speedup
    return None if low is None or high is None else (low, high)
