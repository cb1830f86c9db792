"""How far acceptance (p), draft cost (c) or verification cost (t) must change, each alone, until speculation pays."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from .acceptance import AcceptanceVector, of_levels
from .grown_trees import GrownTrees, grown_by_depth
from .planning import BestShape, SpeedupSurface, fastest_of_sizes, surface_of
from .profile import HardwareProfile
from .step_time import step_seconds

LARGEST, DEEPEST = 128, 12  # sizes and depths tried: small trees show whether speculation pays
MIN_SPEEDUP = 1.0 + 1e-9
HALVINGS = 30
LONGEST_CHAIN = 16  # tokens of a chain that is tried on a guess
SEARCH_RANGE = 1e-3, 1e3  # factors beyond these are not realistic


class BreakEven(NamedTuple):
    """How far one quantity can change, all others unchanged, until the speedup is 1.

    Attributes:
        factor: by which it would be multiplied; None where no factor reaches break-even.
        value: p_1, c or t(n) at that point; of t at the size of the best tree.
        now: the same at present.
    """

    factor: float | None
    value: float | None
    now: float


class Gains(NamedTuple):
    """Best predicted speedup if one thing were a tenth better, divided by the best now."""

    acceptance: float
    drafting: float
    verifying: float


@lru_cache(maxsize=1)
def _grown(acceptance: AcceptanceVector, size: int) -> GrownTrees:
    """Return the best trees of a vector; cached because replaying its texts takes long."""
    return grown_by_depth(acceptance, max_size=min(LARGEST, size), max_depth=DEEPEST)


def _speedups(trees: GrownTrees, profile: HardwareProfile) -> np.ndarray:
    """Return predicted speedups of trees that draft something, float64 [N - 1, D + 1]; NaN where none exists."""
    return surface_of(trees, profile).speedup[2:]


def break_even(acceptance: AcceptanceVector, profile: HardwareProfile) -> dict[str, BreakEven]:
    """Return where speculation breaks even: in "p_1" (with all of p), "c" (of all draft passes) and "t", each alone."""
    trees = _grown(acceptance, profile.max_size)
    speedups = _speedups(trees, profile)
    size = int(np.unravel_index(np.nanargmax(speedups), speedups.shape)[0]) + 2
    now = {"p_1": float(acceptance.probs[0]), "c": profile.c, "t": float(profile.t(size))}
    results = {}
    for name, change in CHANGES.items():
        factor = _factor(change, trees, profile)
        value = None if factor is None else now[name] * factor if name != "t" else 1 + (now["t"] - 1) * factor
        results[name] = BreakEven(factor, value, now[name])
    return results


def gains(acceptance: AcceptanceVector, profile: HardwareProfile, *, share: float = 0.1) -> Gains:
    """Return what a tenth more acceptance, a tenth less draft time, or a tenth less t(n) - 1 would bring."""
    trees = _grown(acceptance, profile.max_size)
    now = max(1.0, _best(trees, profile))
    return Gains(
        max(1.0, _best(*_accepted(trees, profile, 1 + share))) / now,
        max(1.0, _best(*_drafted(trees, profile, 1 - share))) / now,
        max(1.0, _best(*_verified(trees, profile, 1 - share))) / now,
    )


def _best(trees: GrownTrees, profile: HardwareProfile) -> float:
    """Return the largest predicted speedup of a tree with at least one drafted token."""
    return float(np.nanmax(_speedups(trees, profile)))


def _accepted(trees: GrownTrees, profile: HardwareProfile, by: float) -> tuple[GrownTrees, HardwareProfile]:
    """Multiply every p_k, as far as a sum of 1 allows."""
    levels = trees.acceptance.levels * by
    plain = of_levels(levels / np.maximum(1.0, levels.sum(axis=1, keepdims=True)), trees.acceptance.holds_for)
    size, depth = trees.tokens.shape
    grown = grown_by_depth(plain, max_size=size - 1, max_depth=depth - 1)
    return replace(grown, correction=trees.correction), profile


def _drafted(trees: GrownTrees, profile: HardwareProfile, by: float) -> tuple[GrownTrees, HardwareProfile]:
    return trees, replace(
        profile, draft_sec=profile.draft_sec * by, draft_width_sec=profile.draft_width_sec * by, draft_samples=()
    )


def _verified(trees: GrownTrees, profile: HardwareProfile, by: float) -> tuple[GrownTrees, HardwareProfile]:
    smooth = profile.smooth_verify_sec
    return trees, replace(profile, verify_sec=smooth[0] + (smooth - smooth[0]) * by, verify_samples=())


Change = Callable[[GrownTrees, HardwareProfile, float], tuple[GrownTrees, HardwareProfile]]
CHANGES: dict[str, Change] = {"p_1": _accepted, "c": _drafted, "t": _verified}


def _factor(change: Change, trees: GrownTrees, profile: HardwareProfile) -> float | None:
    """Return the factor at which the best speedup crosses 1; None outside `SEARCH_RANGE`."""

    def best(by: float) -> float:
        return _best(*change(trees, profile, by))

    pays = best(1.0) > MIN_SPEEDUP
    other = next((by for by in SEARCH_RANGE if (best(by) > MIN_SPEEDUP) != pays), None)
    if other is None:
        return None
    inside, outside = 0.0, float(np.log(other))
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if (best(float(np.exp(middle))) > MIN_SPEEDUP) == pays else (inside, middle)
    return float(np.exp((inside + outside) / 2))


class ChainPays(NamedTuple):
    """Whether chains pay if the draft is right in a share of its guesses, each independent of the others.

    Attributes:
        guess: that share; length, speedup: of the best chain.
        breaks_even: the least share from which a chain pays; None where none does.
    """

    guess: float
    length: int
    speedup: float
    breaks_even: float | None


def chain_pays(guess: float, profile: HardwareProfile) -> ChainPays:
    """Return the best chain of up to `LONGEST_CHAIN` tokens, and the guess at which chains break even."""
    lengths = np.arange(1, min(LONGEST_CHAIN, profile.max_size - 1) + 1)
    plain = float(step_seconds(np.array([1]), np.zeros((1, 1), dtype=np.int64), profile)[0])
    cost = step_seconds(lengths + 1, (np.arange(LONGEST_CHAIN) < lengths[:, None]).astype(np.int64), profile) / plain

    def speedups(share: float) -> np.ndarray:
        return (share ** np.arange(lengths[-1] + 1)).cumsum()[lengths] / cost

    best = int(speedups(guess).argmax())
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if speedups(middle).max() > MIN_SPEEDUP else (middle, high)
    return ChainPays(guess, int(lengths[best]), float(speedups(guess)[best]), high if high < 1 else None)


PAYS_FROM = 1.05  # smallest predicted speedup that counts as a gain
IDLE_SLACK = 0.1  # how much longer a pass may take before its tokens count as no longer free
CHEAP_STEP = 1.25  # steps that cost less than this many one-token passes: acceptance is the limit


Limit = Literal["nothing pays", "acceptance", "drafting", "verifying"]


class StepCost(NamedTuple):
    """The time of one step at a shape, in target passes over one token.

    Attributes:
        total: of the whole step; `verify` and `draft` are its parts.
        limit: what limits the speedup: "nothing pays", "acceptance" where a step costs hardly more than a token, else
            "drafting" or "verifying", whichever takes longer.
    """

    total: float
    verify: float
    draft: float
    limit: Limit


def step_limit(best: BestShape, profile: HardwareProfile) -> StepCost:
    """Return what a step costs at the best shape and what limits its speedup."""
    total = best.expected_tokens / best.predicted_speedup
    verify = min(float(profile.t(best.size)), total)  # drafting may overlap with streaming weights and cost nothing
    draft = total - verify
    if best.size < 2 or best.predicted_speedup < PAYS_FROM:
        limit: Limit = "nothing pays"
    elif total < CHEAP_STEP:
        limit = "acceptance"
    else:
        limit = "drafting" if draft > verify - 1 else "verifying"
    return StepCost(total, verify, draft, limit)


class Larger(NamedTuple):
    """What a tree of twice the size, or of the largest there is below that, would bring.

    Attributes:
        more_tokens, more_time: of a step, as shares of the best tree's.
    """

    size: int
    more_tokens: float
    more_time: float


def larger_tree(surface: SpeedupSurface, best: BestShape) -> Larger | None:
    """Return what a larger tree than the best would bring; None where the surface has none."""
    sizes = np.flatnonzero(np.isfinite(surface.speedup[: 2 * best.size + 1]).any(axis=1))
    other = fastest_of_sizes(surface, int(sizes[-1]), int(sizes[-1]))
    if other is None or other.size == best.size:
        return None
    tokens = other.expected_tokens / best.expected_tokens
    return Larger(other.size, tokens - 1.0, tokens * best.predicted_speedup / other.predicted_speedup - 1.0)


class IdleArithmetic(NamedTuple):
    """What further tokens in a target pass cost: a pass over one token waits for the weights, its arithmetic is idle.

    Attributes:
        tokens: the most tokens of a pass that takes at most `IDLE_SLACK` longer than one token.
        further_cost: what each token beyond costs, in passes over one token; 0 where nothing beyond was profiled.
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
