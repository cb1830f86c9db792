"""Costs of a step's parts according to a profile, in seconds and in the tokens a run commits in that time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.profile_files import Streaming
from sequoia_core.planning.step_time import computing_sec, overlap_with_streaming

from .expansion import TokenCosts, TreeBounds

MEMORY_STEPS = 20  # a step's weight is 1 / e once it is this many steps old: a compromise between noise and lag
CONTEXT_STEP = 64  # number of committed tokens after which costs are recomputed
LOOK_UP_SEC = 1.5e-4  # time that look-ups add to a step outside the target's pass, on a 2025 CPU
MAX_LOSS_SHARE = 0.02  # largest share of a run's time that look-ups may waste
RESUME_TRIALS = 4  # a paused run resumes look-ups once it can afford this many unsuccessful ones
MAX_TRIALS = 64  # maximum budget, in unsuccessful look-ups
EXPOSED_DRAFT_SHARE = 0.5  # share of a draft pass not hidden by reading weights; 0.2 to 0.5 work equally well


@dataclass(frozen=True, slots=True, eq=False)
class StepCosts:
    """Profiled seconds of a step's parts for every size and width; entry 0 of each array is 0.

    Attributes:
        computing_sec: float64 [N + 1], time of the target's pass over n nodes, as `step_time.computing_sec` returns it.
        overhead_sec: float64 [N + 1], other time of a step with n nodes except drafting, including growing the tree.
        draft_sec: float64 [B + 1], time of a step's further draft passes over w nodes.
        streaming: how weights are streamed during a step; None if they are in memory.
        first_sec: additional time of a step's first draft pass.
        step_sec: float64 [N + 1], time of a step with n nodes without drafting.
    """

    computing_sec: np.ndarray
    overhead_sec: np.ndarray
    draft_sec: np.ndarray
    streaming: Streaming | None = None
    first_sec: float = 0.0
    step_sec: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        parts = overlap_with_streaming(self.streaming, self.computing_sec[1:], np.array(0.0), self.overhead_sec[1:])
        object.__setattr__(self, "step_sec", np.append(0.0, sum(parts)))

    @classmethod
    def from_profile(
        cls,
        profile: HardwareProfile,
        bounds: TreeBounds,
        *,
        drafted: bool = True,
        context: float | None = None,
        greedy: bool,
    ) -> StepCosts:
        """Return the costs of steps within the bounds; draft passes are included only if `drafted`."""
        sizes = np.arange(1, bounds.max_size + 1)
        overhead = profile.overhead_at(sizes, greedy=greedy)
        draft = np.empty(0)
        first_sec = (1.0 - profile.deeper_draft_share) * float(profile.draft_at(1, context))
        if drafted:
            overhead = overhead + profile.growing_at(greedy=greedy)
            draft = profile.draft_at(np.arange(1, bounds.beam + 1), context) - first_sec
        parts = (computing_sec(profile, sizes, context), overhead, draft)
        computing, overhead, draft = (np.append(0.0, part) for part in parts)
        return cls(computing, overhead, draft, profile.streaming, first_sec)

    def seconds(self, size: int, widths: Sequence[int]) -> float:
        """Return the seconds of a step with `size` nodes whose draft passes read `widths` nodes each."""
        draft = self.draft_sec[list(widths)].sum() + (self.first_sec if widths else 0.0)
        if self.streaming is None:
            return float(self.step_sec[size] + draft)
        return float(
            sum(overlap_with_streaming(self.streaming, self.computing_sec[size], draft, self.overhead_sec[size]))
        )

    @property
    def plain_rate(self) -> float:
        """Tokens per second with trees that contain only the root."""
        return 1.0 / float(self.step_sec[1])

    def token_costs(self, rate: float) -> TokenCosts:
        """Return the costs of nodes and draft passes in tokens, at `rate` tokens per second.

        If weights are streamed, only the `EXPOSED_DRAFT_SHARE` of a draft pass counts. The actual overlap with reading
        depends on the whole step, so the costs of single nodes are approximate; `seconds` is exact.
        """
        exposed = 1.0 if self.streaming is None else EXPOSED_DRAFT_SHARE
        return TokenCosts(rate * self.step_sec, rate * exposed * self.draft_sec)


class RunCosts:
    """Costs of a step's parts in tokens, at the current context length and the profiled speed of recent steps.

    Args:
        costs_at: number of committed tokens -> profiled costs; called again after every `CONTEXT_STEP` tokens.
        start: initially expected tokens per step and per second, weighted like `MEMORY_STEPS` steps; the rate then
            never drops below `StepCosts.plain_rate`. None for the rates of autoregressive decoding.
    """

    def __init__(self, costs_at: Callable[[int], StepCosts | None], start: tuple[float, float] | None = None) -> None:
        self._costs_at = costs_at
        self._start = start
        self._computed_at = 0
        self._step_costs: StepCosts | None = None
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def _costs(self) -> StepCosts:
        assert self._step_costs is not None, "set by `token_costs`; requires a profile"
        return self._step_costs

    def token_costs(self, context: int) -> TokenCosts:
        """Return the next step's costs in tokens, after `context` committed tokens."""
        if self._step_costs is None or context >= self._computed_at + CONTEXT_STEP:
            self._step_costs = self._costs_at(context)
            self._computed_at = context
        if not self._tokens:
            tokens_per_step, self.tokens_per_sec = self._start or (1.0, self._costs.plain_rate)
            self._tokens = MEMORY_STEPS * tokens_per_step
            self._seconds = self._tokens / self.tokens_per_sec
        return self._costs.token_costs(self.tokens_per_sec)

    def record_step(self, tokens: float, size: int, widths: Sequence[int] = ()) -> None:
        decay = 1.0 - 1.0 / MEMORY_STEPS
        self._tokens = decay * self._tokens + tokens
        self._seconds = decay * self._seconds + self._costs.seconds(size, widths)
        self.tokens_per_sec = self._tokens / self._seconds
        if self._start is not None:
            self.tokens_per_sec = max(self.tokens_per_sec, self._costs.plain_rate)

    def plain_sec(self) -> float:
        """Return the seconds that decoding a single token takes."""
        return float(self._costs.step_sec[1])

    def saved_sec(self, tokens: float, size: int) -> float:
        """Return the seconds that a step with looked-up nodes saved compared with decoding its tokens one by one."""
        return tokens * self.plain_sec() - float(self._costs.step_sec[size]) - LOOK_UP_SEC


class LookUpBudget:
    """Pauses look-ups in a run without a draft while they would lose more than `MAX_LOSS_SHARE` of its time.

    The budget depends only on committed tokens and profiled times, so look-ups are reproducible.
    """

    def __init__(self, temperature: float) -> None:
        # Greedy text eventually repeats itself, so it gets more trials.
        trials = max(2 * RESUME_TRIALS, MAX_TRIALS * (1.0 - temperature))
        self._sec = trials * LOOK_UP_SEC
        self.paused = False

    def record_step(self, plain_sec: float, saved_sec: float) -> None:
        self._sec = min(self._sec + MAX_LOSS_SHARE * plain_sec + saved_sec, MAX_TRIALS * LOOK_UP_SEC)
        self.paused = self._sec < (RESUME_TRIALS * LOOK_UP_SEC if self.paused else 0.0)
