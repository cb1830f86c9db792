"""A server's speed relative to no speculation, at its current acceptance rate or at an assumed one."""

from collections.abc import Sequence
from typing import NamedTuple

from sequoia_core.acceptance.bootstrap import Estimate

from .chain_acceptance import ChainAcceptance, chain_acceptance
from .costs import ServerCosts
from .counts import ServerCounts, counts_from_survival
from .evidence import Facts
from .plan import BatchPlan, plan_server


class Speeds(NamedTuple):
    """A server's speed relative to no speculation.

    Attributes:
        present: current speed; None if unknown.
        doubt: assumption about the K in use if the counts do not contain it; otherwise empty.
        costs: costs behind the speed; None if unknown.
    """

    present: Estimate | None = None
    doubt: str = ""
    costs: ServerCosts | None = None

    def with_survival(self, survival: Sequence[float], tokens_now: float | None) -> float | None:
        """Return the speed at an assumed survival; `tokens_now` is the current tokens per step. None if unknown."""
        if self.costs is not None and max(survival) <= 1:
            supposed = chain_acceptance(counts_from_survival(survival, "supposed"))
            plan = _plan_known_batch(supposed, self.costs)
            return None if plan is None else plan.speedup[plan.best].value
        if self.present is None or self.doubt or not tokens_now:
            return None
        return self.present.value * (1 + sum(survival)) / tokens_now


def _plan_known_batch(chains: ChainAcceptance, costs: ServerCosts) -> BatchPlan | None:
    """Return the plan for the smallest batch size with costs at K = 0 and above; None without one."""
    try:
        return plan_server(chains, costs, (1, *costs.batches)).batches[0]
    except ValueError:
        return None


def find_speeds(
    counts: ServerCounts, timed: Sequence[tuple[int, float, int]] = (), costs: ServerCosts | None = None
) -> Speeds:
    """Return the current speed, measured at one batch size if possible, otherwise predicted from costs.

    Args:
        counts: counts from `request_spread.exclude_collapse`.
        timed: measured speeds as (k, tokens per second over all requests, batch size).
    """
    longest = len(counts.positions)
    doubt = ""
    if not longest:
        longest = max((k for k, _, _ in timed), default=0)
        per_step = (counts.draft_tokens or 0) / (Facts(counts).steps or 1)
        doubt = f"The counts do not say which K was used: K = {longest}, the largest that was timed, is assumed."
        if per_step > longest > 0:
            doubt = (
                f"{per_step:.2f} tokens are drafted per step, more than K = {longest}, the largest that was timed: "
                "the timed speeds do not match these counts and are ignored."
            )
            return Speeds(None, doubt, costs)
    for batch in sorted({batch for _, _, batch in timed}):
        rates = {k: rate for k, rate, at in timed if at == batch}
        if longest and {0, longest} <= set(rates):
            return Speeds(Estimate(rates[longest] / rates[0], None, None), doubt, costs)
    if costs is None or not counts.positions or not counts.drafts or counts.censored:
        return Speeds(costs=costs)
    chains = chain_acceptance(counts)
    plan = _plan_known_batch(chains, costs)
    if plan is None:
        doubt = "No batch size was timed both at K = 0 and at two other K, so the timed speeds are not compared."
        return Speeds(None, doubt)
    speeds = plan.speedup
    if longest >= len(speeds):
        return Speeds(costs=costs)
    value, low, high = speeds[longest]
    if high is not None:
        # Resamples of few drafts vary too little, so the upper bound is at least the exact one.
        most = 1 + chains.drafted_share * Facts(counts).most_accepted
        high = max(high, value * most / chains.tokens(longest).value)
    return Speeds(Estimate(value, low, high), costs=costs)
