"""Where the time of a step goes at the best shape, what would help most, and how much arithmetic lies idle."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from .planning import BestShape
from .profile import HardwareProfile

PAYS_FROM = 1.05  # smallest predicted speedup that counts as a gain
IDLE_SLACK = 0.1  # how much longer a pass may take before its tokens count as no longer free
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
    verify = min(float(profile.t(best.size)), total)  # drafting may hide behind weights that stream, and cost nothing
    draft = total - verify
    if best.size < 2 or best.predicted_speedup < PAYS_FROM:
        limit = "nothing pays"
    elif total < CHEAP_STEP:
        limit = "acceptance"
    else:
        limit = "drafting" if draft > verify - 1 else "verifying"
    return StepCost(total, verify, draft, limit)


class IdleArithmetic(NamedTuple):
    """What a target pass over several tokens costs, as speculation sees it.

    A pass over one token is bound by reading the weights. The arithmetic that lies idle meanwhile is what a tree is
    verified with.

    Attributes:
        tokens: the most tokens of a pass that takes at most `IDLE_SLACK` longer than one token.
        further_cost: what each token beyond costs, in passes over one token, up to the largest size profiled; 0 where
            nothing beyond was profiled.
    """

    tokens: int
    further_cost: float


def idle_arithmetic(profile: HardwareProfile) -> IdleArithmetic:
    """Return how many tokens a pass verifies almost for free, and what those beyond cost."""
    sizes = np.arange(1, profile.max_size + 1)
    times = profile.t(sizes)
    tokens = int(sizes[times <= 1 + IDLE_SLACK][-1])
    if tokens == profile.max_size:
        return IdleArithmetic(tokens, 0.0)
    return IdleArithmetic(tokens, float((times[-1] - times[tokens - 1]) / (profile.max_size - tokens)))
