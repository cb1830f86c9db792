"""What one step costs: target pass, draft passes by level width, and the rest. N = largest tree size, D = levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .profile import HardwareProfile
from .profile_files import Streaming
from .tree import TokenTree

READING_SLACK = 0.1  # a pass this much longer than reading its weights is limited by computation


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


def padded_widths(steps: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the nodes of each draft pass of each step, int64 [S, passes], 0 where a step has no such pass."""
    padded = np.zeros((len(steps), max(1, *map(len, steps), 1)), np.int64)
    for row, widths in enumerate(steps):
        padded[row, : len(widths)] = widths
    return padded


def step_time(
    tree: TokenTree, profile: HardwareProfile, *, context: float | None = None, greedy: bool = True
) -> StepTime:
    """Return what a step with this tree takes: t(n) + the sum over levels of c(width) + o(n), each in seconds."""
    widths = np.array(level_widths(tree), dtype=np.int64)
    return StepTime(*map(float, step_parts(np.array(tree.size), widths, profile, context=context, greedy=greedy)))


def reading_ends(profile: HardwareProfile, context: float | None = None) -> int | None:
    """Return the most tokens of a pass whose computation takes no longer than reading the weights.

    None where no weights stream, and where a pass over one token already takes longer.
    """
    if profile.streaming is None:
        return None
    timed = profile.verify_at(np.arange(1, profile.max_size + 1), context)
    longer = np.flatnonzero(timed > (1 + READING_SLACK) * profile.streaming.pass_sec)
    return int(longer[0]) or None if len(longer) else profile.max_size


def computing_sec(profile: HardwareProfile, sizes: np.ndarray, context: float | None) -> np.ndarray:
    """Return the seconds of computation in passes, float64 like `sizes`; as timed where weights are resident.

    A pass that waits for its weights does not show how long it computes. Sizes that take longer than reading are taken
    as timed; smaller ones get a share of that by their tokens.
    """
    if profile.streaming is None:
        return profile.verify_at(sizes, context)
    first = (reading_ends(profile, context) or 0) + 1
    if first > profile.max_size:
        return np.zeros(np.shape(sizes))
    below = profile.verify_at(first, context) * sizes / first
    return np.where(sizes >= first, profile.verify_at(sizes, context), below)


def overlapped(
    streaming: Streaming | None, computing: np.ndarray, drafting: np.ndarray, overhead: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of verifying, of drafting and of the rest that a step waits for; all of one shape.

    While weights stream in, a step takes the longer of two times: reading all layers, plus the part of drafting and
    overhead that takes longer than filling the buffers; or computing the pass, drafting and overhead.

    Args:
        computing: of the target's pass, as `computing_sec` gives it.
    """
    if streaming is None:
        return computing, drafting, overhead
    between = drafting + overhead
    reading = streaming.pass_sec + np.maximum(between - streaming.ahead_sec, 0.0) >= computing + between
    ahead = reading * streaming.ahead_sec
    rest = np.maximum(overhead - ahead, 0.0)
    still_ahead = np.maximum(ahead - overhead, 0.0)
    return np.where(reading, streaming.pass_sec, computing), np.maximum(drafting - still_ahead, 0.0), rest


def autoregressive_sec(profile: HardwareProfile, *, context: float | None = None, greedy: bool = True) -> float:
    """Return the seconds of one token without speculation: a step of the root alone."""
    return float(step_seconds(np.array(1), np.zeros(0, dtype=np.int64), profile, context=context, greedy=greedy))


def step_parts(
    sizes: np.ndarray,
    widths: np.ndarray,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    greedy: bool = True,
    growing: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of verifying, of drafting and of the rest of a step, for many trees at once: three float64 S.

    Args:
        sizes: int, any shape S.
        widths: int [*S, D], nodes that each level's draft pass runs over; 0 where there is no pass.
        growing: whether the trees are dynamic, that is, grown while they are drafted.
    """
    drafting = np.where(widths > 0, profile.draft_at(widths, context), 0.0).sum(axis=-1)
    overhead = profile.overhead_at(sizes, greedy=greedy)
    if growing:
        overhead = overhead + profile.growing_at(greedy=greedy)
    return overlapped(profile.streaming, computing_sec(profile, sizes, context), drafting, overhead)


def step_seconds(
    sizes: np.ndarray,
    widths: np.ndarray,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    greedy: bool = True,
) -> np.ndarray:
    """Return the seconds of a step for many trees at once, float64 S; arguments as for `step_parts`."""
    verify, draft, rest = step_parts(sizes, widths, profile, context=context, greedy=greedy)
    return verify + draft + rest
