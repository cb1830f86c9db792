"""What would have to change for speculation to pay, or to stop paying, and what changing it a little is worth.

Three things decide: how often the draft is right (p), what its passes cost (c), and what further tokens of a target
pass cost (t). Each is varied alone, and the best shape chosen anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .acceptance import AcceptanceVector
from .planning import SpeedupSurface, speedup_surface
from .profile import HardwareProfile

LARGEST, DEEPEST = 128, 12  # shapes looked at: whether speculation pays at all shows in small ones
EVEN = 1.0 + 1e-9
HALVINGS = 30
LEAST, MOST = 1e-3, 1e3  # factors beyond these are no change that anybody could make


class BreakEven(NamedTuple):
    """How far one thing could change, all else as it is, before speculation neither pays nor costs.

    Attributes:
        factor: by which it would be multiplied; None where no factor reaches break-even.
        value: p_1, c or t(n) then; of t at the size of the best tree.
        now: the same today.
    """

    factor: float | None
    value: float | None
    now: float


class Gains(NamedTuple):
    """Best predicted speedup if one thing were a tenth better, divided by the best now."""

    acceptance: float
    drafting: float
    verifying: float


def break_even(acceptance: AcceptanceVector, profile: HardwareProfile) -> dict[str, BreakEven]:
    """Return where speculation breaks even: in "p_1", "c" and "t", each changed alone.

    All ranks of p are multiplied by one number, all draft passes by one, and all that a target pass takes beyond one
    over a single token by one.
    """
    best = _surface(acceptance, profile)
    size = int(np.unravel_index(np.nanargmax(best.speedup[2:]), best.speedup[2:].shape)[0]) + 2
    now = {"p_1": float(acceptance.probs[0]), "c": profile.c, "t": float(profile.t(size))}
    found = {}
    for name, change in CHANGES.items():
        factor = _factor(lambda by, change=change: _best(*change(acceptance, profile, by)))
        value = None if factor is None else now[name] * factor if name != "t" else 1 + (now["t"] - 1) * factor
        found[name] = BreakEven(factor, value, now[name])
    return found


def gains(acceptance: AcceptanceVector, profile: HardwareProfile, *, share: float = 0.1) -> Gains:
    """Return what a tenth more acceptance, a tenth less draft time, or a tenth less t(n) - 1 would bring."""
    now = max(1.0, _best(acceptance, profile))
    return Gains(
        max(1.0, _best(*CHANGES["p_1"](acceptance, profile, 1 + share))) / now,
        max(1.0, _best(*CHANGES["c"](acceptance, profile, 1 - share))) / now,
        max(1.0, _best(*CHANGES["t"](acceptance, profile, 1 - share))) / now,
    )


def _accepted(acceptance: AcceptanceVector, profile: HardwareProfile, by: float):
    probs = acceptance.probs * by
    plain = AcceptanceVector(probs / max(1.0, probs.sum()), holds_for=acceptance.holds_for)
    return plain, profile


def _drafted(acceptance: AcceptanceVector, profile: HardwareProfile, by: float):
    return acceptance, replace(
        profile, draft_sec=profile.draft_sec * by, draft_width_sec=profile.draft_width_sec * by, draft_samples=()
    )


def _verified(acceptance: AcceptanceVector, profile: HardwareProfile, by: float):
    smooth = profile.smooth_verify_sec
    return acceptance, replace(profile, verify_sec=smooth[0] + (smooth - smooth[0]) * by, verify_samples=())


Change = Callable[[AcceptanceVector, HardwareProfile, float], tuple[AcceptanceVector, HardwareProfile]]
CHANGES: dict[str, Change] = {"p_1": _accepted, "c": _drafted, "t": _verified}


def _surface(acceptance: AcceptanceVector, profile: HardwareProfile) -> SpeedupSurface:
    return speedup_surface(acceptance, profile, max_size=min(LARGEST, profile.max_size), max_depth=DEEPEST)


def _best(acceptance: AcceptanceVector, profile: HardwareProfile) -> float:
    """Return the largest predicted speedup of a tree with at least one drafted token."""
    return float(np.nanmax(_surface(acceptance, profile).speedup[2:]))


def _factor(best: Callable[[float], float]) -> float | None:
    """Return the factor at which the best speedup crosses 1; None where it does not between `LEAST` and `MOST`."""
    pays = best(1.0) > EVEN
    other = next((by for by in (LEAST, MOST) if (best(by) > EVEN) != pays), None)
    if other is None:
        return None
    inside, outside = 0.0, float(np.log(other))
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if (best(float(np.exp(middle))) > EVEN) == pays else (inside, middle)
    return float(np.exp((inside + outside) / 2))
