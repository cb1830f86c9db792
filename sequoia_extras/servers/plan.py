"""Find a server's fastest draft length at each batch size. K = number of positions counted, r = resamples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sequoia_core.acceptance.bootstrap import Estimate, estimate, interval

from .chain_acceptance import ChainAcceptance, survival_tokens
from .costs import MAX_BATCH, ServerCosts

FLAT_SHARE = 0.98  # speeds of at least this share of the best one differ from it only by noise
MIN_GAIN = 1.02


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """The plan at one batch size.

    Intervals cover the uncertainty of acceptance, and that of the costs if they are not the server's own. In that case,
    `best` is the k that loses least at either end of the range of costs.

    Args:
        batch: number of concurrent requests.
        tokens_per_sec: total over these requests for k = 0, 1, … up to the last k whose cost is known; empty if costs
            are assumed.
        speedup: speed relative to k = 0.
        best: the k with the most tokens per second; best_low, best_high: its 95 % interval.
        shares: speed at each k ÷ the best speed; over a range of costs, the lowest.
        flat: every k that reaches at least 98 % of the best speed.
        better_draft: best speed with half as many rejections ÷ the best speed; None over a range of costs.
        prefix: speed if all K tokens are drafted and only the first 0, 1, … are verified ÷ that if all are, in a range
            of costs the lowest; empty if unknown.
    """

    batch: int
    tokens_per_sec: tuple[Estimate, ...]
    speedup: tuple[Estimate, ...]
    best: int
    best_low: int
    best_high: int
    flat: tuple[int, ...]
    better_draft: float | None
    shares: tuple[float, ...]
    prefix: tuple[float, ...] = ()

    @property
    def verified(self) -> int | None:
        """Number of the K drafted tokens to verify; None if verifying fewer does not pay, or if it is unknown."""
        gain = max(self.prefix, default=0.0)
        return self.prefix.index(gain) or None if gain >= MIN_GAIN else None

    def relative_speed(self, k: int | None) -> float | None:
        """Return the speed at k ÷ the best speed; None if k or its cost is unknown."""
        return None if k is None or k >= len(self.shares) else self.shares[k]

    @property
    def best_range(self) -> str:
        """The range of the best k, such as "2 to 4 or more"; k is known only up to the server's draft length."""
        low, high = ("off" if k == 0 else str(k) for k in (self.best_low, self.best_high))
        more = " or more" if self.best_high == len(self.speedup) - 1 else ""
        return (low if low == high else f"{low} to {high}") + more

    def speed_range(self, k: int) -> str:
        """Return the range of the speed at k, with one decimal."""
        value, low, high = self.speedup[k]
        bounds = (f"{value if bound is None else bound:.1f}" for bound in (low, high))
        return f"{' to '.join(dict.fromkeys(bounds))}×"


@dataclass(frozen=True, slots=True, eq=False)
class ServerPlan:
    """The plan at each batch size.

    Args:
        costs: the costs behind the plan.
    """

    batches: tuple[BatchPlan, ...]
    costs: ServerCosts
    notes: tuple[str, ...]

    @property
    def ranged(self) -> bool:
        """Whether the costs have a range, because they are not the server's own."""
        return self.costs.factors is not None

    @property
    def best(self) -> dict[int, int]:
        """Best k at each batch size."""
        return {plan.batch: plan.best for plan in self.batches}

    @property
    def off_from(self) -> int | None:
        """Batch size at and above which not speculating is fastest; None if there is none."""
        batch = None
        for plan in reversed(self.batches):
            if plan.best:
                break
            batch = plan.batch
        return batch

    def sentence(self, current: int | None) -> str:
        """Return sentences on what to set at each batch size and how the current k, if known, compares."""
        best = self._range_sentence(current) if self.ranged else self._best_sentence(current)
        shorter = [plan for plan in self.batches if plan.verified]
        if not shorter:
            return best
        listed = ", ".join(
            f"{plan.verified} for {describe_batch(plan.batch)} "
            f"({'at least ' if self.ranged else ''}{max(plan.prefix):.2f}×)"
            for plan in shorter
        )
        longest = len(shorter[0].prefix) - 1
        return f"{best} If K = {longest} is drafted at any load, verifying only the first tokens is faster: {listed}."

    def _best_sentence(self, current: int | None) -> str:
        parts = []
        for plan in self.batches:
            speed = plan.speedup[plan.best]
            share = plan.relative_speed(current)
            facts = []
            if plan.best:
                between = "" if speed.low is None else f", {speed.low:.2f} to {speed.high:.2f}"
                facts.append(f"{speed.value:.2f}× the speed without speculation{between}")
            if share is not None and current != plan.best:
                facts.append(f"the current K = {current} reaches {share:.0%} of the best speed")
            setting = f"K = {plan.best}" if plan.best else "no speculation"
            parts.append(f"{setting} for {describe_batch(plan.batch)}" + (f" ({'; '.join(facts)})" if facts else ""))
        off = "" if self.off_from is None else f" Turn speculation off at batch size {self.off_from} and above."
        return f"Use {', '.join(parts)}.{off}"

    def _range_sentence(self, current: int | None) -> str:
        first, *others = self.batches
        if others:
            ranges = (
                f"{plan.best_range} for {describe_batch(plan.batch)} (set K = {plan.best})" for plan in self.batches
            )
            return f"Best K: {', '.join(ranges)}."
        setting = f"K = {first.best}" if first.best else "No speculation"
        lost = f"{1 - first.shares[first.best]:.0%}"
        rank = "is the fastest" if lost == "0%" else f"loses at most {lost} of the best speed"
        share = first.relative_speed(current)
        now = "" if share is None or current == first.best else f" (the current K = {current}: {1 - share:.0%})"
        speed = f", predicted {first.speed_range(first.best)} the speed without speculation" if first.best else ""
        advice = f"{setting} {rank} at any of these costs{now}{speed}"
        return f"Best K: {first.best_range} for {describe_batch(first.batch)}. {advice}."


def no_plan_sentence(reason: str) -> str:
    """Return the sentence on why nothing can be planned from a source."""
    return f"No plan can be made: {reason}."


def describe_batch(batch: int) -> str:
    """Describe a batch size in words."""
    return "one request at a time" if batch == 1 else f"{batch} concurrent requests"


def plan_server(acceptance: ChainAcceptance, costs: ServerCosts, batches: Sequence[int] = (1,)) -> ServerPlan:
    """Return the fastest draft length at each batch size, or its range if the costs have one."""
    if not batches or not all(1 <= batch <= MAX_BATCH for batch in batches):
        raise ValueError(f"batch: found {list(batches)[:8]}, expected sizes from 1 to {MAX_BATCH:,}")
    plans: list[BatchPlan] = []
    unknown = []
    notes = [*acceptance.notes, *costs.notes]
    for batch in sorted(set(batches)):
        seconds = _step_seconds(acceptance, costs, batch)
        known = seconds.shape[1] - 1
        if known < 1:
            unknown.append(batch)
            continue
        if known < acceptance.longest:
            notes.append(f"For {describe_batch(batch)}, costs are known only up to K = {known}.")
        plan = _plan_batch if costs.factors is None else _plan_range
        plans.append(plan(acceptance, seconds, batch, costs))
    if not plans:
        raise ValueError(
            f"found no costs at batch size {', '.join(map(str, unknown[:8]))}, expected times for K = 0 and two "
            "different K > 0, or a profile with passes of that size"
        )
    if costs.factors is not None and any(plan.best_high == acceptance.longest for plan in plans):
        notes.append(
            f"Drafts longer than K = {acceptance.longest} were not counted; counts at a larger K would show whether "
            "they are faster."
        )
    if costs.profile is None and any(plan.verified for plan in plans):
        notes.append("Verifying is timed by its growth with the batch size, as if drafting took as long at any load.")
    if unknown:
        notes.append(f"Batch size {', '.join(map(str, unknown))}: passes of that size were not timed.")
    return ServerPlan(tuple(plans), costs, tuple(notes))


def _step_seconds(acceptance: ChainAcceptance, costs: ServerCosts, batch: int) -> np.ndarray:
    """Return the seconds per step, float64 [2, up to K + 1], up to the longest chain whose time is known.

    The first row is for chains of 0, 1, … tokens. The second is for K drafted tokens, of which as many are verified; it
    is NaN where unknown.
    """
    plain = costs.step_sec(0, batch)
    # The server's measured times average over steps with and without a draft; pass times and assumed costs do not.
    share = acceptance.drafted_share if costs.profile is not None or costs.assumed else 1.0
    longest = acceptance.longest
    chains = range(1, longest + 1)
    seconds = np.array(
        [
            [plain, *(costs.step_sec(k, batch) for k in chains)],
            [plain, *(costs.step_sec(longest, batch, verified) for verified in chains)],
        ]
    )
    mixed = share * seconds + (1 - share) * plain
    return mixed[:, : int(np.argmax(np.append(np.isnan(mixed[0]), True)))]


def _plan_batch(acceptance: ChainAcceptance, times: np.ndarray, batch: int, costs: ServerCosts) -> BatchPlan:
    seconds, prefix_sec = times
    count = len(seconds)
    prefix = acceptance.tokens_per_step[:count] / prefix_sec
    speeds = batch * acceptance.tokens_per_step[:count] / seconds
    samples = batch * acceptance.samples[:, :count] / seconds
    best = int(speeds.argmax())
    low = high = best
    if len(samples) > 1:
        # Among equally fast k, argmax takes the smallest, as for `best`.
        low, high = (round(float(bound)) for bound in interval(samples.argmax(axis=1)))
    flat = tuple(int(k) for k in np.flatnonzero(speeds >= FLAT_SHARE * speeds[best]))
    return BatchPlan(
        batch,
        _estimates(speeds, samples),
        _estimates(speeds / speeds[0], samples / samples[:, :1]),
        best,
        min(low, best),
        max(high, best),
        flat,
        _better_draft(acceptance, seconds, batch) / float(speeds[best]),
        tuple(float(speed) for speed in speeds / speeds[best]),
        () if count <= acceptance.longest or np.isnan(prefix[-1]) else tuple(map(float, prefix / prefix[-1])),
    )


def _plan_range(acceptance: ChainAcceptance, times: np.ndarray, batch: int, costs: ServerCosts) -> BatchPlan:
    """Return the plan over a range of costs.

    Speed falls as costs rise. The speed at one k ÷ that at another is monotone in the cost, so the lowest share of the
    best speed is reached at one end of the range.
    """
    assert costs.factors is not None
    low, high = costs.factors
    cheap, middle, dear = (
        _plan_batch(acceptance, times[:, :1] + factor * (times - times[:, :1]), batch, costs)
        for factor in (low, (low + high) / 2, high)
    )
    shares = tuple(map(min, cheap.shares, dear.shares))
    best = int(np.argmax(shares))
    rates = tuple(map(_span, middle.tokens_per_sec, dear.tokens_per_sec, cheap.tokens_per_sec))
    return replace(
        middle,
        tokens_per_sec=() if costs.assumed else rates,
        speedup=tuple(map(_span, middle.speedup, dear.speedup, cheap.speedup)),
        best=best,
        best_low=min(cheap.best_low, dear.best_low),
        best_high=max(cheap.best_high, dear.best_high),
        flat=tuple(k for k, share in enumerate(shares) if share >= FLAT_SHARE),
        better_draft=None,
        shares=shares,
        prefix=tuple(map(min, cheap.prefix, dear.prefix)),
    )


def _span(middle: Estimate, lowest: Estimate, highest: Estimate) -> Estimate:
    """Return the middle estimate with the lower bound of the lowest and the upper bound of the highest."""
    low = lowest.value if lowest.low is None else lowest.low
    return Estimate(middle.value, low, highest.value if highest.high is None else highest.high)


def _estimates(values: np.ndarray, samples: np.ndarray) -> tuple[Estimate, ...]:
    return tuple(estimate(float(value), samples[:, k]) for k, value in enumerate(values))


def _better_draft(acceptance: ChainAcceptance, seconds: np.ndarray, batch: int) -> float:
    """Return the best speed if the draft were rejected half as often at every position."""
    survival = np.concatenate([[1.0], acceptance.survival])
    given = np.divide(survival[1:], survival[:-1], out=np.zeros(acceptance.longest), where=survival[:-1] > 0)
    tokens = survival_tokens(np.cumprod((1 + given) / 2), acceptance.drafted_share)
    return float((batch * tokens[: len(seconds)] / seconds).max())
