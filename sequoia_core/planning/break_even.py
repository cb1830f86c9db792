"""How much acceptance (p), draft cost (c) or verification cost (t) must change for speculation to break even."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import exp, log
from typing import Literal, NamedTuple

import numpy as np

from ..acceptance.vector import AcceptanceVector
from ..trees.grown import GrownTrees, grow_best_trees
from .plan import BestShape, SpeedupSurface, best_shape, fastest_within_sizes, surface_from_trees
from .profile import HardwareProfile
from .step_time import step_seconds

# Largest size and depth tried: small trees already show whether speculation is worth it.
MAX_TRIED_SIZE = 128
MAX_TRIED_DEPTH = 12
MIN_SPEEDUP = 1.0 + 1e-9
HALVINGS = 30
MAX_CHAIN = 16  # longest chain planned from an assumed acceptance rate, in drafted tokens
SEARCH_RANGE = 1e-3, 1e3  # range of realistic factors


class BreakEven(NamedTuple):
    """The change in one quantity, with all others fixed, at which the speedup is 1.

    Attributes:
        factor: factor on the quantity; None if no factor reaches break-even.
        value: p_1, c or t(n) at break-even, where n is the size of the best tree; None if `factor` is None.
        now: the current value.
    """

    factor: float | None
    value: float | None
    now: float


class Gains(NamedTuple):
    """Factors by which the best predicted speedup would grow if one quantity improved."""

    acceptance: float
    drafting: float
    verifying: float


@lru_cache(maxsize=1)
def _grown(acceptance: AcceptanceVector, size: int) -> GrownTrees:
    """Return the best trees of a vector; cached because replaying its texts is slow."""
    return grow_best_trees(acceptance, max_size=min(MAX_TRIED_SIZE, size), max_depth=MAX_TRIED_DEPTH)


def _drafting_surface(trees: GrownTrees, profile: HardwareProfile) -> SpeedupSurface:
    """Return the predicted speedups of trees that draft at least one token; index 0 is size 2."""
    surface = surface_from_trees(trees, profile)
    return SpeedupSurface(surface.expected_tokens[2:], surface.speedup[2:])


def break_even(acceptance: AcceptanceVector, profile: HardwareProfile) -> dict[str, BreakEven]:
    """Return the break-even points for "p_1" (scales p), "c" (scales all draft passes) and "t" (scales t(n) - 1)."""
    trees = _grown(acceptance, profile.max_size)
    size = best_shape(_drafting_surface(trees, profile)).size + 2
    now = {"p_1": float(acceptance.probs[0]), "c": profile.c, "t": float(profile.t(size))}
    results = {}
    for name, change in CHANGES.items():
        factor = _break_even_factor(change, trees, profile)
        value = None
        if factor is not None:
            value = 1 + (now["t"] - 1) * factor if name == "t" else now[name] * factor
        results[name] = BreakEven(factor, value, now[name])
    return results


def gains(acceptance: AcceptanceVector, profile: HardwareProfile, *, share: float = 0.1) -> Gains:
    """Return the gains from improving acceptance, draft time or t(n) - 1 by this share."""
    trees = _grown(acceptance, profile.max_size)
    factors = (1 + share, 1 - share, 1 - share)
    now = max(1.0, _best(trees, profile))
    changed = [change(trees, profile, by) for change, by in zip(CHANGES.values(), factors, strict=True)]
    return Gains(*(max(1.0, _best(*each)) / now for each in changed))


def _best(trees: GrownTrees, profile: HardwareProfile) -> float:
    """Return the largest predicted speedup of a tree with at least one drafted token."""
    return best_shape(_drafting_surface(trees, profile)).predicted_speedup


def _scale_acceptance(trees: GrownTrees, profile: HardwareProfile, by: float) -> tuple[GrownTrees, HardwareProfile]:
    """Scale every p_k, but not beyond a sum of 1."""
    levels = trees.acceptance.levels * by
    levels = levels / np.maximum(1.0, levels.sum(axis=1, keepdims=True))
    size, depth = trees.tokens.shape
    scaled = AcceptanceVector.from_levels(levels, trees.acceptance.holds_for)
    grown = grow_best_trees(scaled, max_size=size - 1, max_depth=depth - 1)
    return replace(grown, correction=trees.correction), profile


def _scale_drafting(trees: GrownTrees, profile: HardwareProfile, by: float) -> tuple[GrownTrees, HardwareProfile]:
    return trees, replace(
        profile, draft_sec=profile.draft_sec * by, draft_width_sec=profile.draft_width_sec * by, draft_samples=()
    )


def _scale_verifying(trees: GrownTrees, profile: HardwareProfile, by: float) -> tuple[GrownTrees, HardwareProfile]:
    smooth = profile.smooth_verify_sec
    return trees, replace(profile, verify_sec=smooth[0] + (smooth - smooth[0]) * by, verify_samples=())


Change = Callable[[GrownTrees, HardwareProfile, float], tuple[GrownTrees, HardwareProfile]]
CHANGES: dict[str, Change] = {"p_1": _scale_acceptance, "c": _scale_drafting, "t": _scale_verifying}


def _break_even_factor(change: Change, trees: GrownTrees, profile: HardwareProfile) -> float | None:
    """Return the factor at which the best speedup crosses 1; None outside `SEARCH_RANGE`."""

    def pays(log_factor: float) -> bool:
        return _best(*change(trees, profile, exp(log_factor))) > MIN_SPEEDUP

    pays_now = pays(0.0)
    for by in SEARCH_RANGE:
        if pays(log(by)) != pays_now:
            return exp(sum(_bisect(0.0, log(by), lambda at: pays(at) == pays_now)) / 2)
    return None


def _bisect(inside: float, outside: float, is_inside: Callable[[float], bool]) -> tuple[float, float]:
    """Bisect the interval between a point where a condition holds and one where it does not."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return inside, outside


class GuessedChain(NamedTuple):
    """The best chain if each draft token is accepted independently with an assumed probability.

    Attributes:
        guess: the assumed probability.
        length: number of drafted tokens in the best chain.
        speedup: predicted speedup of the best chain.
        breaks_even: the lowest probability at which a chain is faster than not speculating; None if there is none.
    """

    guess: float
    length: int
    speedup: float
    breaks_even: float | None


def best_guessed_chain(guess: float, profile: HardwareProfile) -> GuessedChain:
    """Find the best chain of up to `MAX_CHAIN` tokens, and the acceptance probability at which chains break even."""
    lengths = np.arange(1, min(MAX_CHAIN, profile.max_size - 1) + 1)
    plain = float(step_seconds(np.array([1]), np.zeros((1, 1), dtype=np.int64), profile)[0])
    cost = step_seconds(lengths + 1, (np.arange(MAX_CHAIN) < lengths[:, None]).astype(np.int64), profile) / plain

    def speedups(share: float) -> np.ndarray:
        return (share ** np.arange(lengths[-1] + 1)).cumsum()[lengths] / cost

    best = int(speedups(guess).argmax())
    _, pays = _bisect(0.0, 1.0, lambda share: speedups(share).max() <= MIN_SPEEDUP)
    return GuessedChain(guess, int(lengths[best]), float(speedups(guess)[best]), pays if pays < 1 else None)


PAYS_FROM = 1.05  # a smaller predicted speedup does not count as a gain
IDLE_SLACK = 0.1  # additional tokens count as free if they lengthen a pass by at most this fraction
CHEAP_STEP = 1.25  # only acceptance limits the speedup of a step that costs less than this many one-token passes

Limit = Literal["nothing pays", "acceptance", "drafting", "verifying"]


class StepCost(NamedTuple):
    """The time of one step, in units of a one-token target pass.

    Attributes:
        total: time of the whole step, the sum of `verify` and `draft`.
        limit: what limits the speedup: "nothing pays"; "acceptance" if a step costs little more than a
            one-token pass; otherwise "drafting" or "verifying", whichever takes longer.
    """

    total: float
    verify: float
    draft: float
    limit: Limit


def step_limit(best: BestShape, profile: HardwareProfile) -> StepCost:
    """Return the cost of a step at the best shape, and what limits its speedup."""
    total = best.expected_tokens / best.predicted_speedup
    verify = min(float(profile.t(best.size)), total)  # weight streaming may hide the drafting time
    draft = total - verify
    if best.size < 2 or best.predicted_speedup < PAYS_FROM:
        limit: Limit = "nothing pays"
    elif total < CHEAP_STEP:
        limit = "acceptance"
    else:
        limit = "drafting" if draft > verify - 1 else "verifying"
    return StepCost(total, verify, draft, limit)


class LargerTree(NamedTuple):
    """A tree at most twice as large as the best one.

    Attributes:
        more_tokens, more_time: additional tokens and time per step, relative to the best tree.
    """

    size: int
    more_tokens: float
    more_time: float


def larger_tree(surface: SpeedupSurface, best: BestShape) -> LargerTree | None:
    """Return the largest tree at most twice as large as the best one; None if the surface has no larger tree."""
    sizes = np.flatnonzero(np.isfinite(surface.speedup[: 2 * best.size + 1]).any(axis=1))
    other = fastest_within_sizes(surface, int(sizes[-1]), int(sizes[-1]))
    if other is None or other.size == best.size:
        return None
    tokens = other.expected_tokens / best.expected_tokens
    return LargerTree(other.size, tokens - 1.0, tokens * best.predicted_speedup / other.predicted_speedup - 1.0)


class IdleArithmetic(NamedTuple):
    """The cost of additional tokens in a target pass, in which arithmetic units are idle while weights are loaded.

    Attributes:
        tokens: largest number of tokens in a pass that takes at most `IDLE_SLACK` longer than a one-token pass.
        further_cost: cost of each token beyond these, in one-token passes; 0 if no larger pass was profiled.
    """

    tokens: int
    further_cost: float


def idle_arithmetic(profile: HardwareProfile) -> IdleArithmetic:
    """Return the number of tokens that a pass verifies almost for free, and the cost of each token beyond them."""
    sizes = np.arange(1, profile.max_size + 1)
    times = profile.t(sizes)
    tokens = int(sizes[times <= 1 + IDLE_SLACK][-1])
    if tokens == profile.max_size:
        return IdleArithmetic(tokens, 0.0)
    return IdleArithmetic(tokens, float((times[-1] - times[tokens - 1]) / (profile.max_size - tokens)))
