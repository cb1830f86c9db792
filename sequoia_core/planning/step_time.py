"""The time of one step: the target pass, one draft pass per level, and overhead. D = levels, S = shape of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trees.tree import TokenTree
from .profile import HardwareProfile
from .profile_files import Streaming

READING_SLACK = 0.1  # passes that exceed the reading time by more than this share are compute-bound


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds per step, broken down by part.

    Args:
        verify_sec: the target's pass over all nodes.
        draft_sec: the draft's passes, one for each level with children.
        overhead_sec: sampling, walking the tree, committing and recording tokens.
    """

    verify_sec: float
    draft_sec: float
    overhead_sec: float

    @property
    def total_sec(self) -> float:
        return self.verify_sec + self.draft_sec + self.overhead_sec


def level_widths(tree: TokenTree) -> list[int]:
    """Return the number of nodes in each draft pass of a step: the nodes of a level that have children."""
    counts = tree.child_counts
    return [int(np.count_nonzero(counts[level])) for level in tree.levels[:-1]]


def padded_widths(steps: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the number of nodes in each draft pass of each step, int64 [steps, passes], padded with 0."""
    padded = np.zeros((len(steps), max(1, *map(len, steps), 1)), np.int64)
    for row, widths in enumerate(steps):
        padded[row, : len(widths)] = widths
    return padded


def step_time(
    tree: TokenTree, profile: HardwareProfile, *, context: float | None = None, greedy: bool = True
) -> StepTime:
    """Return the seconds of a step with this tree: verify(n) + drafting(widths of levels) + overhead(n)."""
    widths = np.array(level_widths(tree), dtype=np.int64)
    return StepTime(*map(float, step_parts(np.array(tree.size), widths, profile, context=context, greedy=greedy)))


def reading_ends(profile: HardwareProfile, context: float | None = None) -> int | None:
    """Return the largest number of tokens whose computation takes no longer than reading the weights.

    None if no weights are streamed, or if a one-token pass already takes longer.
    """
    if profile.streaming is None:
        return None
    timed = profile.verify_at(np.arange(1, profile.max_size + 1), context)
    longer = np.flatnonzero(timed > (1 + READING_SLACK) * profile.streaming.pass_sec)
    return int(longer[0]) or None if len(longer) else profile.max_size


def computing_sec(profile: HardwareProfile, sizes: np.ndarray, context: float | None) -> np.ndarray:
    """Return the seconds of computation in target passes, float64 with the shape of `sizes`.

    A pass that waits for its weights hides its computation, so its computing time cannot be measured. Passes that take
    longer than reading are assumed to be compute-bound; the time of smaller passes is scaled down from the smallest of
    these, in proportion to their tokens.
    """
    if profile.streaming is None:
        return profile.verify_at(sizes, context)
    first = (reading_ends(profile, context) or 0) + 1
    if first > profile.max_size:
        return np.zeros(np.shape(sizes))
    below = profile.verify_at(first, context) * sizes / first
    return np.where(sizes >= first, profile.verify_at(sizes, context), below)


def overlap_with_streaming(
    streaming: Streaming | None, computing: np.ndarray, drafting: np.ndarray, overhead: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of verifying, drafting and overhead that are not hidden; all arrays have the same shape.

    With streamed weights, a step takes the longer of two times: reading all layers, plus any drafting and overhead that
    takes longer than filling the buffers; or computing the pass, plus drafting and overhead.

    Args:
        computing: seconds of computation in the target's pass, from `computing_sec`.
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
    """Return the seconds per token without speculation, which is the time of a step with only the root."""
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
    """Return the seconds of verifying, drafting and overhead per step for many trees at once; float64 [*S] each.

    Args:
        sizes: int [*S], tree sizes.
        widths: int [*S, D], number of nodes in each level's draft pass; 0 if there is no pass.
        growing: whether the trees are grown dynamically while drafting.
    """
    drafting = profile.drafting_at(widths, context)
    overhead = profile.overhead_at(sizes, greedy=greedy)
    if growing:
        overhead = overhead + profile.growing_at(greedy=greedy)
    return overlap_with_streaming(profile.streaming, computing_sec(profile, sizes, context), drafting, overhead)


def step_seconds(
    sizes: np.ndarray,
    widths: np.ndarray,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    greedy: bool = True,
) -> np.ndarray:
    """Return the seconds per step for many trees at once, float64 [*S]; for the arguments, see `step_parts`."""
    verify, draft, rest = step_parts(sizes, widths, profile, context=context, greedy=greedy)
    return verify + draft + rest
