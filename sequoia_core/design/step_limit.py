"""Where the time of a step goes at the best shape, and what would help most."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .planning import BestShape
from .profile import HardwareProfile

PAYS_FROM = 1.05  # smallest predicted speedup that counts as a gain
CHEAP_STEP = 1.25  # steps that cost less than this many one-token passes: acceptance is the limit


class StepCost(NamedTuple):
    """The time of one step at a shape, in target passes over one token.

    Attributes:
        total: of the whole step; `verify` and `draft` are its parts.
        limit: what keeps the speedup from growing: "nothing pays" where speculation brings next to nothing,
            "acceptance" where a step costs hardly more than a token, else "drafting" or "verifying", the larger part.
    """

    total: float
    verify: float
    draft: float
    limit: Literal["nothing pays", "acceptance", "drafting", "verifying"]


def step_limit(best: BestShape, profile: HardwareProfile) -> StepCost:
    """Return what a step costs at the best shape and what limits its speedup."""
    total = best.expected_tokens / best.predicted_speedup
    verify = float(profile.t(best.size))
    draft = total - verify
    if best.size < 2 or best.predicted_speedup < PAYS_FROM:
        limit = "nothing pays"
    elif total < CHEAP_STEP:
        limit = "acceptance"
    else:
        limit = "drafting" if draft > verify - 1 else "verifying"
    return StepCost(total, verify, draft, limit)
