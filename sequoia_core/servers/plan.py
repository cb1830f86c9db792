"""Which length of draft pays on a server, at every batch size. K = positions that the server counted, r = resamples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..design.bootstrap import Estimate, estimate, interval
from .chain_acceptance import ChainAcceptance
from .costs import MAX_BATCH, ServerCosts

FLAT_SHARE = 0.98  # of the best speed: less is lost in a machine's noise
DEVIATIONS = 1.96  # standard deviations
MIN_HELP = 1.02


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """What to set at one batch size. Intervals are of the acceptance alone.

    Args:
        batch: requests side by side.
        tokens_per_sec: of all of them together, for k = 0, 1, … as far as costs are known.
        speedup: over k = 0.
        best: the k with the most tokens per second; best_low, best_high: its 95 % interval.
        flat: every k that has at least 98 % of the best speed.
        more: how many more requests (or drafts) would tell the best from what lies outside `flat`; None if unknown.
        helps: what would make the best setting faster -> speed over the best one now.
    """

    batch: int
    tokens_per_sec: tuple[Estimate, ...]
    speedup: tuple[Estimate, ...]
    best: int
    best_low: int
    best_high: int
    flat: tuple[int, ...]
    more: int | None
    helps: dict[str, float]

    def share_of_best(self, k: int) -> float | None:
        """Return the speed at another k ÷ that of the best; None where its cost is unknown."""
        if not 0 <= k < len(self.tokens_per_sec):
            return None
        return self.tokens_per_sec[k].value / self.tokens_per_sec[self.best].value


@dataclass(frozen=True, slots=True, eq=False)
class ServerPlan:
    """What to set at each batch size; of those `unknown` no costs are known."""

    batches: tuple[BatchPlan, ...]
    unknown: tuple[int, ...]
    source: str
    notes: tuple[str, ...]

    @property
    def best(self) -> dict[int, int]:
        """Batch size -> k."""
        return {plan.batch: plan.best for plan in self.batches}

    @property
    def off_from(self) -> int | None:
        """The smallest batch size from which on not speculating is best."""
        batch = None
        for plan in reversed(self.batches):
            if plan.best:
                break
            batch = plan.batch
        return batch

    def sentence(self, present: int) -> str:
        """Say what to set at each batch size, and how far from it the present k is."""
        parts = []
        for plan in self.batches:
            speed, share = plan.speedup[plan.best], plan.share_of_best(present)
            low = "" if speed.low is None else f", {speed.low:.2f} to {speed.high:.2f}"
            facts = [f"{speed.value:.2f}× the speed without{low}"] if plan.best else []
            if share is not None and present != plan.best:
                facts.append(f"K = {present} now reaches {share:.0%} of the best")
            what = f"K = {plan.best}" if plan.best else "no speculation"
            parts.append(f"{what} for {at_once(plan.batch)}" + (f" ({'; '.join(facts)})" if facts else ""))
        off = "" if self.off_from is None else f" Turn it off from {at_once(self.off_from)} on."
        return f"Set {', '.join(parts)}.{off}"


def at_once(batch: int) -> str:
    """Say a batch size in words."""
    return "one request at a time" if batch == 1 else f"{batch} at once"


def plan_server(acceptance: ChainAcceptance, costs: ServerCosts, batches: Sequence[int] = (1,)) -> ServerPlan:
    """Return the length of draft that pays at each batch size."""
    if not batches or not all(1 <= batch <= MAX_BATCH for batch in batches):
        raise ValueError(f"batch: found {list(batches)[:8]}, expected sizes from 1 to {MAX_BATCH:,}")
    plans, unknown = [], []
    notes = [*acceptance.notes, *costs.notes]
    for batch in sorted(set(batches)):
        seconds = _step_seconds(acceptance, costs, batch)
        if len(seconds) < 2:
            unknown.append(batch)
            continue
        if len(seconds) <= acceptance.longest:
            notes.append(f"For {at_once(batch)} costs are known up to K = {len(seconds) - 1}.")
        plans.append(_of_batch(acceptance, seconds, batch, costs))
    if not plans:
        raise ValueError(
            f"found no costs at batch size {', '.join(map(str, unknown[:8]))}, expected times of K = 0 and two K > 0 "
            "there, or a profile of passes that large"
        )
    if unknown:
        notes.append(f"Batch size {', '.join(map(str, unknown))}: passes that large were not timed.")
    return ServerPlan(tuple(plans), tuple(unknown), costs.source, tuple(notes))


def _step_seconds(acceptance: ChainAcceptance, costs: ServerCosts, batch: int) -> np.ndarray:
    """Return seconds of a step with chains of 0, 1, … as far as they are known, float64 [up to K + 1]."""
    plain = costs.step_sec(0, batch)
    # The server's own times are averages over steps with a draft and without: passes are not.
    share = acceptance.drafted_share if costs.profile is not None else 1.0
    seconds = [plain, *(costs.step_sec(k, batch) for k in range(1, acceptance.longest + 1))]
    mixed = np.array([share * each + (1 - share) * plain for each in seconds])
    unknown = np.flatnonzero(np.isnan(mixed))
    return mixed[: unknown[0]] if len(unknown) else mixed


def _of_batch(acceptance: ChainAcceptance, seconds: np.ndarray, batch: int, costs: ServerCosts) -> BatchPlan:
    count = len(seconds)
    speeds = batch * acceptance.tokens_per_step[:count] / seconds
    samples = batch * acceptance.samples[:, :count] / seconds
    best = int(speeds.argmax())
    flat = tuple(int(k) for k in np.flatnonzero(speeds >= FLAT_SHARE * speeds[best]))
    low, high = best, best
    if len(samples) > 1:
        # of equally fast ones the least, as for `best`
        low, high = (round(float(bound)) for bound in interval(samples.argmax(axis=1)))
    return BatchPlan(
        batch, tuple(_estimate(speed, samples[:, k]) for k, speed in enumerate(speeds)),
        tuple(_estimate(speed / speeds[0], samples[:, k] / samples[:, 0]) for k, speed in enumerate(speeds)),
        best, min(low, best), max(high, best), flat, _more(acceptance.trials, samples, best, flat),
        _what_helps(acceptance, seconds, batch, costs, float(speeds[best])),
    )  # fmt: skip


def _estimate(value: float, samples: np.ndarray) -> Estimate:
    return Estimate(float(value), None, None) if len(samples) < 2 else estimate(float(value), samples)


def _more(trials: int, samples: np.ndarray, best: int, flat: tuple[int, ...]) -> int | None:
    """Return how many more requests or drafts tell the best k from those outside the flat region."""
    if len(samples) < 2:
        return None
    others = [k for k in range(samples.shape[1]) if k not in flat]
    wanted = 1.0
    for other in others:
        ratio = np.log(samples[:, best] / samples[:, other])
        wanted = max(wanted, (DEVIATIONS * float(ratio.std()) / max(abs(float(ratio.mean())), 1e-9)) ** 2)
    return int(np.ceil(trials * (wanted - 1)))


def _what_helps(
    acceptance: ChainAcceptance, seconds: np.ndarray, batch: int, costs: ServerCosts, now: float
) -> dict[str, float]:
    """Return what a draft that is refused half as often, or is half as expensive, would bring at its own best k."""
    count = len(seconds)
    survival = np.concatenate([[1.0], acceptance.survival])
    given = np.divide(survival[1:], survival[:-1], out=np.zeros(acceptance.longest), where=survival[:-1] > 0)
    gained = np.concatenate([[0.0], np.cumprod((1 + given) / 2).cumsum()]) * acceptance.drafted_share
    better = float((batch * (1 + gained[:count]) / seconds).max()) / now
    helps = {"half the refusals": better}
    drafting = np.array([costs.drafting_sec(k, batch) for k in range(count)]) * acceptance.drafted_share
    if drafting.any():
        speeds = batch * acceptance.tokens_per_step[:count] / (seconds - drafting / 2)
        helps["half the draft's time"] = float(speeds.max()) / now
    return {what: speed for what, speed in helps.items() if speed >= MIN_HELP}
