"""What the parts of a step cost by a profile, in seconds and in tokens of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...design.profile import HardwareProfile
from ...design.profile_files import Streaming
from ...design.step_time import computing_sec, overlapped
from .expansion import TokenCosts, TreeBounds

MEMORY_STEPS = 20  # steps after which a past step counts 1 / e: long enough to average, short enough to follow the text
CONTEXT_STEP = 64  # committed tokens after which costs are computed again
LOOK_UP_SEC = 1.5e-4  # of a step with look-ups, outside the target's pass, beyond one without: on a CPU of 2025
LOSS_SHARE = 0.02  # of a run's time that look-ups may lose
TRIALS, MOST_TRIALS = 4, 64  # look-ups that a run can lose after a rest, and at most
EXPOSED_DRAFT_SHARE = 0.5  # of a draft pass, not overlapped by reading weights; 0.2 to 0.5 work equally well


@dataclass(frozen=True, slots=True, eq=False)
class StepCosts:
    """Profiled seconds of a step's parts for every size and width; entry 0 of each array is 0.

    Attributes:
        computing_sec: float64 [N + 1], the target's pass over n nodes, as `step_time.computing_sec` gives it.
        overhead_sec: float64 [N + 1], the rest of a step of n nodes without drafting, growing the tree included.
        draft_sec: float64 [B + 1], a draft pass over w nodes.
        streaming: how weights stream in meanwhile; None where they are in memory.
        step_sec: float64 [N + 1], a step of n nodes without drafting.
    """

    computing_sec: np.ndarray
    overhead_sec: np.ndarray
    draft_sec: np.ndarray
    streaming: Streaming | None = None
    step_sec: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        verify, draft, rest = overlapped(self.streaming, self.computing_sec[1:], np.array(0.0), self.overhead_sec[1:])
        object.__setattr__(self, "step_sec", np.append(0.0, verify + draft + rest))

    @classmethod
    def of_profile(
        cls,
        profile: HardwareProfile,
        bounds: TreeBounds,
        *,
        drafted: bool = True,
        context: float | None = None,
        greedy: bool,
    ) -> StepCosts:
        """Return the times of steps within the bounds; of text alone there are no draft passes to grow a tree by."""
        sizes, drafting = np.arange(1, bounds.max_size + 1), np.empty(0)
        overhead = profile.overhead_at(sizes, greedy=greedy)
        if drafted:
            overhead = overhead + profile.growing_at(greedy=greedy)
            drafting = profile.draft_at(np.arange(1, bounds.beam + 1), context)
        parts = computing_sec(profile, sizes, context), overhead, drafting
        computing, beside, draft = (np.append(0.0, part) for part in parts)
        return cls(computing, beside, draft, profile.streaming)

    def seconds(self, size: int, widths: Sequence[int]) -> float:
        """Return the seconds of a step of `size` nodes, whose draft passes read `widths` nodes."""
        drafting = self.draft_sec[list(widths)].sum()
        if self.streaming is None:
            return float(self.step_sec[size] + drafting)
        target, draft, rest = overlapped(self.streaming, self.computing_sec[size], drafting, self.overhead_sec[size])
        return float(target + rest + draft)

    def at_least(self, theta: float) -> float:
        """Return a rate, but at least that of trees that are the root alone."""
        return max(theta, 1.0 / float(self.step_sec[1]))

    def token_costs(self, theta: float) -> TokenCosts:
        """Return what nodes and draft passes cost in tokens, at `theta` tokens per second.

        Where weights stream in, draft passes cost their `EXPOSED_DRAFT_SHARE`. How much of drafting overlaps with
        reading depends on the whole step, so costs of single nodes are approximate; `seconds` is exact.
        """
        return TokenCosts(
            theta * self.step_sec, theta * (1.0 if self.streaming is None else EXPOSED_DRAFT_SHARE) * self.draft_sec
        )


class RunCosts:
    """Cost of each part of a step, in tokens, at the current length and the speed of the last steps by the profile.

    Args:
        costs_at: committed tokens -> profiled times; asked again after every `CONTEXT_STEP` of them.
        start: tokens per step and per second that the run is expected to begin with, and then its speed never counts as
            less than that of the root alone; None begins as autoregressive decoding. It counts as `MEMORY_STEPS` steps.
    """

    def __init__(self, costs_at: Callable[[int], StepCosts | None], start: tuple[float, float] | None = None) -> None:
        self._costs_at, self._start = costs_at, start
        self._asked_at = 0
        self._costs: StepCosts | None = None
        self._tokens = self._seconds = 0.0

    def token_costs(self, context: int) -> TokenCosts:
        """Return the costs of the next step, after `context` committed tokens."""
        if self._costs is None or context >= self._asked_at + CONTEXT_STEP:
            self._costs, self._asked_at = self._costs_at(context), context
        assert self._costs is not None, "costs are followed only where there is a profile"
        if not self._tokens:
            tokens_per_step, self.tokens_per_sec = self._start or (1.0, 1.0 / float(self._costs.step_sec[1]))
            self._tokens = MEMORY_STEPS * tokens_per_step
            self._seconds = self._tokens / self.tokens_per_sec
        return self._costs.token_costs(self.tokens_per_sec)

    def seen(self, tokens: float, size: int, widths: Sequence[int] = ()) -> None:
        assert self._costs is not None, "a step's costs were asked for before it was taken"
        kept = 1.0 - 1.0 / MEMORY_STEPS
        self._tokens = kept * self._tokens + tokens
        self._seconds = kept * self._seconds + self._costs.seconds(size, widths)
        rate = self._tokens / self._seconds
        self.tokens_per_sec = rate if self._start is None else self._costs.at_least(rate)

    def plain_sec(self) -> float:
        """Return the seconds of a token decoded alone."""
        assert self._costs is not None, "a step's costs were asked for before it was taken"
        return float(self._costs.step_sec[1])

    def saved_sec(self, tokens: float, size: int) -> float:
        """Return what a step of looked-up nodes saved over decoding its tokens one by one."""
        assert self._costs is not None, "a step's costs were asked for before it was taken"
        return tokens * self.plain_sec() - float(self._costs.step_sec[size]) - LOOK_UP_SEC


class LookUpBudget:
    """When a run without a draft looks nothing up: where look-ups would lose more than `LOSS_SHARE` of its time.

    Goes by committed tokens and profiled times alone, so equal runs look up alike.
    """

    def __init__(self, temperature: float) -> None:
        trials = max(2 * TRIALS, MOST_TRIALS * (1.0 - temperature))  # greedy texts repeat themselves sooner or later
        self._sec, self.rests = trials * LOOK_UP_SEC, False

    def seen(self, plain_sec: float, saved_sec: float) -> None:
        self._sec = min(self._sec + LOSS_SHARE * plain_sec + saved_sec, MOST_TRIALS * LOOK_UP_SEC)
        self.rests = self._sec < (TRIALS * LOOK_UP_SEC if self.rests else 0.0)
