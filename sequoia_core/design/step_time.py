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
    drafting = profile.draft_at(np.array(level_widths(tree)), context).sum() if tree.size > 1 else np.array(0.0)
    overhead = profile.overhead_at(tree.size, greedy=greedy)
    return StepTime(*map(float, _overlapped(profile, profile.verify_at(tree.size, context), drafting, overhead)))


def _overlapped(
    profile: HardwareProfile, verify: np.ndarray, drafting: np.ndarray, overhead: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of verifying, of drafting and of the rest that a step waits for, each of the shape given.

    While weights stream in, a pass takes as long as all layers do to arrive, and what happens between two passes costs
    only what is longer than filling the buffers. A pass that computes for longer than its layers arrive hides nothing.
    """
    streaming = profile.streaming
    if streaming is None:
        return verify, drafting, overhead
    reading = verify <= streaming.pass_sec
    ahead = np.where(reading, streaming.ahead_sec, 0.0)
    rest = np.maximum(overhead - ahead, 0.0)
    still_ahead = np.maximum(ahead - overhead, 0.0)
    return np.where(reading, streaming.pass_sec, verify), np.maximum(drafting - still_ahead, 0.0), rest


def autoregressive_sec(profile: HardwareProfile, *, context: float | None = None, greedy: bool = True) -> float:
    """Return the seconds of one token without speculation: a step of the root alone."""
    overhead = profile.overhead_at(1, greedy=greedy)
    return float(sum(_overlapped(profile, profile.verify_at(1, context), np.array(0.0), overhead)))


def step_parts(
    sizes: np.ndarray,
    widths: np.ndarray,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    greedy: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of verifying, of drafting and of the rest of a step, for many shapes at once.

    Args:
        sizes: int, any shape S.
        widths: int [*S, D], nodes that each level's draft pass runs over; 0 where there is no pass.

    Returns:
        Three float64 S.
    """
    drafting = np.where(widths > 0, profile.draft_at(widths, context), 0.0).sum(axis=-1)
    overhead = profile.overhead_at(sizes, greedy=greedy)
    return _overlapped(profile, profile.verify_at(sizes, context), drafting, overhead)


def step_seconds(
    sizes: np.ndarray,
    widths: np.ndarray,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    greedy: bool = True,
) -> np.ndarray:
    """Return the seconds of a step for many shapes at once, float64 S; arguments as for `step_parts`."""
    return sum(step_parts(sizes, widths, profile, context=context, greedy=greedy))
