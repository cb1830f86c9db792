"""Time decoding steps, using the same drafter and judge as in decoding, and build the trees to be timed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from ..decoding.assemble import assemble
from ..decoding.loop import End, take_step
from ..decoding.record import DecodeStep
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import FixedTree, TreePolicy
from ..decoding.verifiers import choose_verifier
from ..files.faults import Cancelled
from ..models.language_model import ModelPair
from ..models.protocol import prefill
from ..planning.profile import HardwareProfile
from ..planning.step_time import level_widths
from ..trees.tree import TokenTree

DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32)
TREE_LEVELS = 4
MAX_CHILDREN = 8
STEPS_PER_SAMPLE = 3  # consecutive timed steps, after an untimed one that warms the CPU caches as in decoding
GREEDY_SAMPLING = SamplingConfig(0.0)
CHECKED_SIZE = 8  # tokens in the passes that check a profile
CHECKED_STEPS = 5


def even_tree(size: int, max_children: int = MAX_CHILDREN) -> TokenTree:
    """Return a tree of `size` nodes with about equally wide levels, `TREE_LEVELS` below the root or more if needed."""
    levels = TREE_LEVELS
    width = 0
    widths: list[int] = []
    while sum(max_children**level for level in range(1, levels + 1)) < size - 1:
        levels += 1
    while sum(widths) < size - 1:
        width += 1
        widths = [min(max_children**level, width) for level in range(1, levels + 1)]
    parents = [np.array([-1])]
    above = range(1)
    for width in widths:
        count = min(width, size - above.stop)
        children = np.arange(count)
        if count > len(above):
            children = children * len(above) // count
        parents.append(above.start + children)
        above = range(above.stop, above.stop + count)
    return TokenTree(np.concatenate(parents))


class StepTimer:
    """Times decoding steps with a policy's trees after a context; each time is the mean of `STEPS_PER_SAMPLE` steps.

    Once `cancel` is set, no more steps are taken, and the times are invalid.

    Attributes:
        widths: number of tokens in each draft pass of a static tree; empty for other policies.
    """

    def __init__(
        self,
        pair: ModelPair,
        policy: TreePolicy,
        context: int,
        cancel: threading.Event,
        sampling: SamplingConfig = GREEDY_SAMPLING,
    ) -> None:
        generator = torch.Generator().manual_seed(policy.max_size)
        self.sequence = torch.randint(pair.vocab_size, (context + 1,), generator=generator).tolist()
        self.cancel = cancel
        longest = len(self.sequence) + policy.max_depth + 1
        self.end = End(eos_ids=frozenset(), length=longest + 1, reason="length")
        self.drafter, self.judge, self.sessions, _ = assemble(
            pair,
            policy,
            verifier=choose_verifier(policy.verifiers[0], greedy=sampling.greedy),
            sampling=sampling,
            capacity=longest,
            generator=generator,
        )
        for session in self.sessions:
            prefill(session, self.sequence[:-1], reader=self.sessions[-1], cancel=cancel)
        self.widths = [] if policy.fixed is None else level_widths(policy.fixed)

    def run(self) -> tuple[float, float, float]:
        """Return the seconds per step spent on drafting the tree, on the target pass, and on the rest."""
        self._step()
        return tuple(np.mean([_phases(self._step()) for _ in range(STEPS_PER_SAMPLE)], axis=0).tolist())

    def _step(self) -> DecodeStep | None:
        if self.cancel.is_set():
            return None
        sequence = list(self.sequence)
        step = take_step(self.drafter, self.judge, sequence, self.end, sessions=self.sessions, cancel=self.cancel)
        for session in self.sessions:
            session.commit(len(self.sequence) - 1, [])
        return step


def pass_time_ratio(pair: ModelPair, profile: HardwareProfile, *, cancel: threading.Event | None = None) -> float:
    """Return the time that a target pass takes now, the median of five, ÷ its time in a profile of the same pair."""
    tree = even_tree(min(CHECKED_SIZE, profile.max_size), min(MAX_CHILDREN, pair.vocab_size))
    cancel = cancel or threading.Event()
    timer = StepTimer(pair, FixedTree(tree), max(1, min(profile.context, pair.max_context - 16)), cancel)
    _, *verify = [_phases(timer._step())[1] for _ in range(1 + CHECKED_STEPS)]
    if cancel.is_set():
        raise Cancelled("profile: cancelled before the check was complete")
    return float(np.median(verify) / profile.verify_at(tree.size))


def _phases(step: DecodeStep | None) -> tuple[float, float, float]:
    return (0.0, 0.0, 0.0) if step is None else (step.draft_sec, step.verify_sec, step.walk_sec + step.commit_sec)


def draft_pass_times(
    levels: Sequence[Sequence[int]], seconds: np.ndarray, at_once: bool = False
) -> tuple[np.ndarray, np.ndarray, float]:
    """Estimate the time of a draft pass over w tokens from the times of drafting whole trees.

    The fit is linear between `DRAFT_WIDTHS`, does not decrease with w, and minimises the squared relative errors.

    Args:
        levels: number of tokens in each draft pass of each tree; trees without draft passes are ignored.
        seconds: time of drafting each tree, float64.
        at_once: whether the first pass does most of the work of all (see `protocol.LanguageModel`).

    Returns:
        Widths, int64 [j], which are 1 and those in `DRAFT_WIDTHS` that bound the timed widths; seconds, float64 [j];
        and the time of passes after a tree's first relative to the first, for one token.
    """
    from scipy.optimize import nnls

    timed = {width for tree in levels for width in tree}
    knots = [1]
    for width in (*DRAFT_WIDTHS, max(timed)):
        if any(knots[-1] < w <= width for w in timed):
            knots.append(width)
    # The time of a pass is the one-token time plus the increase over the covered part of each interval between knots.
    trees = [(tree[at_once:], time) for tree, time in zip(levels, seconds, strict=True) if tree]
    covered = [
        [sum(np.clip((w - low) / (high - low), 0.0, 1.0) for w in tree) for low, high in pairwise(knots)]
        for tree, _ in trees
    ]
    terms = np.array([[at_once, len(tree), *parts] for (tree, _), parts in zip(trees, covered, strict=True)])
    times = np.array([time for _, time in trees])
    (first, *rises), _ = nnls(terms / times[:, None], np.ones(len(times)))
    passes = np.cumsum(rises)
    first = max(first, passes[0])
    return np.array(knots), passes + (first - passes[0]), passes[0] / first
