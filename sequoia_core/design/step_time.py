"""What one step costs: the target's pass, the draft's passes, each over its own level, and the rest of the step.

Adds up the times of a profile for a tree; knows nothing of acceptance. Shapes: N = largest tree size, D = levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .profile import HardwareProfile
from .tree import TokenTree


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by its parts.

    Args:
        verify_sec: the target's pass over all nodes.
        draft_sec: the draft's passes, one for each level that has children.
        overhead_sec: drawing, walking, committing, keeping the record.
    """

    verify_sec: float
    draft_sec: float
    overhead_sec: float

    @property
    def total_sec(self) -> float:
        return self.verify_sec + self.draft_sec + self.overhead_sec


def level_widths(tree: TokenTree) -> list[int]:
    """Return how many nodes each draft pass of a step runs over: those of a level that have children."""
    counts = tree.child_counts
    return [int(np.count_nonzero(counts[level])) for level in tree.levels[:-1]]


def step_time(
    tree: TokenTree, profile: HardwareProfile, *, context: float | None = None, greedy: bool = True
) -> StepTime:
    """Return what a step with this tree takes: t(n) + the sum over levels of c(width) + o(n), each in seconds.

    Args:
        context: tokens in the cache; None for as many as the profile was timed with.
        greedy: at temperature 0.

    Raises:
        ValueError: when the tree is larger than what was profiled.
    """
    return StepTime(
        float(profile.verify_at(tree.size, context)),
        float(profile.draft_at(np.array(level_widths(tree)), context).sum()) if tree.size > 1 else 0.0,
        float(profile.overhead_at(tree.size, greedy=greedy)),
    )


def autoregressive_sec(profile: HardwareProfile, *, context: float | None = None, greedy: bool = True) -> float:
    """Return the seconds of one token without speculation: a step of the root alone."""
    return float(profile.verify_at(1, context)) + float(profile.overhead_at(1, greedy=greedy))


def step_seconds(
    sizes: np.ndarray,
    widths: np.ndarray,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    greedy: bool = True,
) -> np.ndarray:
    """Return the seconds of a step for many shapes at once.

    Args:
        sizes: int, any shape S.
        widths: int [*S, D], nodes that each level's draft pass runs over; 0 where there is no pass.

    Returns:
        float64 S.
    """
    drafting = np.where(widths > 0, profile.draft_at(widths, context), 0.0).sum(axis=-1)
    return profile.verify_at(sizes, context) + drafting + profile.overhead_at(sizes, greedy=greedy)
