"""Time of a server step: a target pass over B · (k + 1) tokens and k draft passes, for B requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sequoia_core.planning.profile import LLAMA_CPP, HardwareProfile
from sequoia_core.planning.profile_files import check_context, describe_odd_times
from sequoia_core.planning.step_time import step_seconds

from .chain_acceptance import ChainAcceptance

MAX_K = 1024
MAX_BATCH = 65_536
# Minimum step time relative to a step without a draft. It is below 1 because the tokens per step of short chains are
# underestimated by up to 13 %.
MIN_STEP_RATIO = 0.85
DRAFT_COST = (0.02, 0.2)  # assumed cost of a draft token ÷ that of a target pass, for a small draft on common hardware
FOREIGN_FACTORS = (0.5, 2.0)  # assumed error of the cost of drafting, relative to a pass, with times of other software


class Shape(Protocol):
    """The part of a target model's shape that costs depend on, implemented by `hardware_models.ModelShape`."""

    @property
    def num_experts(self) -> int: ...

    def experts_read(self, tokens: int) -> np.ndarray: ...


class TimedSetting(NamedTuple):
    """A measured server setting: k draft tokens, seconds per step and `batch` concurrent requests."""

    k: int
    step_sec: float
    batch: int = 1


class FittedLine(NamedTuple):
    """Linear fit of the seconds per step for k > 0, excluding the target pass if there is a profile."""

    fixed_sec: float
    per_token_sec: float


def timed_setting(k: int, tokens_per_sec: float, acceptance: ChainAcceptance, *, batch: int = 1) -> TimedSetting:
    """Build a `TimedSetting` from the measured total throughput of all concurrent requests."""
    if not 0 < tokens_per_sec < math.inf:
        raise ValueError(f"tokens per second: found {tokens_per_sec:g}, expected a number above 0")
    return TimedSetting(k, batch * acceptance.tokens(k).value / tokens_per_sec, batch)


@dataclass(frozen=True, slots=True, eq=False)
class ServerCosts:
    """Seconds per step of a server.

    Args:
        profile: pass times; None if only settings were timed.
        drafts_free: whether drafting takes no time, as with n-grams.
        target: the target model's shape; None if unknown. For a mixture of experts, step time grows with the number of
            experts read.
        context: number of tokens in the KV cache; None for the profile's context.
        factors: range of the true time that a draft adds to a step ÷ the time given here; None for the server's own
            times.
        assumed: whether the cost of a draft token is an assumption, not a time.
    """

    source: str
    profile: HardwareProfile | None = None
    settings: tuple[TimedSetting, ...] = ()
    drafts_free: bool = False
    target: Shape | None = None
    context: int | None = None
    factors: tuple[float, float] | None = None
    assumed: bool = False

    def __post_init__(self) -> None:
        check_context(self.context or 0)
        for k, sec, batch in self.settings:
            if not (0 <= k <= MAX_K and 1 <= batch <= MAX_BATCH and 0 < sec < math.inf):
                raise ValueError(
                    f"setting: found K = {k}, batch {batch}, {sec:g} seconds, expected K >= 0, batch >= 1 and time > 0"
                )
        for k, sec, batch in self.settings:
            plain = min((other.step_sec for other in self._settings_at(batch) if other.k == 0), default=0.0)
            if k and sec < MIN_STEP_RATIO * plain:
                raise ValueError(
                    f"setting: found {1e3 * sec:.3g} ms per step at K = {k} and {1e3 * plain:.3g} ms at K = 0, "
                    f"expected K = {k} to take at least as long: counts and times are from different runs"
                )
        if self.profile is None and not self._has_line:
            raise ValueError(
                f"found {len(self.settings)} timed settings, expected a profile, or at least two settings with "
                "different K > 0 at the same batch size"
            )

    def _settings_at(self, batch: int) -> list[TimedSetting]:
        return [setting for setting in self.settings if setting.batch == batch]

    @property
    def _has_line(self) -> bool:
        return any(self._line(batch) for batch in self.batches)

    @property
    def batches(self) -> list[int]:
        return sorted({setting.batch for setting in self.settings})

    @property
    def notes(self) -> list[str]:
        """The assumptions behind these costs."""
        profile = self.profile
        if profile is None:
            return []
        notes = []
        if self.factors is not None:
            notes.append(
                "These are not the server's own times, so a draft may cost half or twice as much, relative to a pass."
            )
        if not self._has_line:
            notes.append("The overhead of speculation beyond model passes is unknown and assumed to be zero.")
        if profile.modelled:
            notes.append("Costs are modelled, not measured.")
        if self.context is not None and not len(profile.verify_growth_sec):
            notes.append(f"The profile contains times only for a context of {profile.context:,} tokens.")
        if fall := describe_odd_times(profile.sizes, profile.verify_sec):
            notes.append(fall)
        return notes

    def step_sec(self, k: int, batch: int = 1, verified: int | None = None) -> float:
        """Return the seconds per step if each of `batch` requests drafts k tokens; NaN if unknown.

        The target verifies only the first `verified` of them, by default all.
        """
        checked = k if verified is None else verified
        timed = [setting.step_sec for setting in self._settings_at(batch) if setting.k == 0]
        if k == 0 and timed:
            return float(np.mean(timed))
        line = self._line(batch if self.profile is None else self._nearest_batch(batch))
        seconds = self._passes_sec(checked, batch, drafted=k if line is None else 0)
        if k and line is not None:
            seconds += line.fixed_sec + line.per_token_sec * self._length(k, batch)
            if checked < k:
                seconds -= (k - checked) * self._verifying_sec(line)
        elif self.profile is None:
            return math.nan
        # A line that is extrapolated must not fall below every measured step.
        shortest = min((setting.step_sec for setting in self._settings_at(batch)), default=1e-12)
        return seconds if math.isnan(seconds) else max(seconds, shortest)

    def _verifying_sec(self, line: FittedLine) -> float:
        """Return the part of a line's slope that is verification; 0 with a profile, NaN if unknown.

        Drafting a token is assumed to take the same time under any load. It takes at most the slope at the smallest
        batch size, so the rest of a slope is verification.
        """
        if self.profile is not None:
            return 0.0
        if self.target is not None and self.target.num_experts:  # the line is over experts, not tokens
            return math.nan
        slopes = [each.per_token_sec for each in map(self._line, self.batches) if each is not None]
        return line.per_token_sec - slopes[0]

    def _nearest_batch(self, batch: int) -> int:
        fitted = (each for each in self.batches if self._line(each))
        return min(fitted, key=lambda each: abs(math.log(each / batch)), default=batch)

    def _passes_sec(self, verified: int, batch: int, *, drafted: int = 0) -> float:
        """Return the total pass time of a step in seconds; 0 without a profile, NaN beyond the profile's sizes."""
        if self.profile is None:
            return 0.0
        nodes = batch * (verified + 1)
        if nodes > self.profile.max_size:
            return math.nan
        passes = 0 if self.drafts_free else drafted
        widths = np.full((1, max(passes, 1)), batch if passes else 0)
        return float(step_seconds(np.array([nodes]), widths, self.profile, context=self.context)[0])

    def _length(self, k: int, batch: int) -> float:
        """Return the number that step time is linear in: draft tokens, or experts read if there is no profile."""
        if self.target is None or not self.target.num_experts or self.profile is not None:
            return k
        return float(self.target.experts_read(batch * (k + 1)))

    def _line(self, batch: int) -> FittedLine | None:
        """Fit a line to the step times for k > 0, excluding the target pass; None unless two different k are timed."""
        drafting = [setting for setting in self._settings_at(batch) if setting.k]
        rest = [(k, sec - self._passes_sec(k, batch)) for k, sec, _ in drafting]
        known = np.array([(self._length(k, batch), sec) for k, sec in rest if not math.isnan(sec)])
        if len({length for length, _ in known}) < 2:
            return None
        slope, fixed = np.polyfit(known[:, 0], known[:, 1], 1)
        if slope < 0:  # more draft tokens cannot save time, so this is noise
            return FittedLine(float(known[:, 1].mean()), 0.0)
        return FittedLine(float(fixed), float(slope))


def build_costs(
    profile: HardwareProfile | None,
    settings: Sequence[TimedSetting] = (),
    *,
    drafts_free: bool = False,
    target: Shape | None = None,
    context: int | None = None,
    engine: str | None = None,
) -> ServerCosts | None:
    """Return the costs from a profile, timed settings or both; None if neither is given.

    `engine` is the server's: without timed settings, a profile of other software or of modelled times has a wide range
    of error. If it is None, the profile is taken to be the server's.
    """
    parts = []
    if profile is not None:
        origin = profile.meta.get("source") or ("modelled times" if profile.modelled else "measured times")
        models = [str(profile.meta[role]) for role in ("target", "draft") if profile.meta.get(role)]
        if models:
            origin = f"{origin} of {' ← '.join(models)}"
        parts.append(f"{origin} on {profile.device}, {profile.dtype}")
    if settings:
        parts.append(f"the server's measured speed at {len(settings)} settings")
    if not parts:
        return None
    factors = None
    if engine is not None and profile is not None and not settings:
        own = engine == LLAMA_CPP and profile.timed_by_llama_cpp and not profile.modelled
        factors = None if own else FOREIGN_FACTORS
    return ServerCosts(" and ".join(parts), profile, tuple(settings), drafts_free, target, context, factors)


def assumed_costs(low: float = DRAFT_COST[0], high: float = DRAFT_COST[1]) -> ServerCosts:
    """Return the costs if drafting and checking a token takes a share of a target pass between two bounds."""
    share = f"{100 * low:.3g}" if low == high else f"{100 * low:.3g} to {100 * high:.3g}"
    source = f"a draft token is assumed to cost {share}% of a target pass"
    # One pass for each token; the factors scale this to the shares.
    settings = tuple(TimedSetting(k, 1.0 + k) for k in range(3))
    return ServerCosts(source, settings=settings, factors=(low, high), assumed=True)
