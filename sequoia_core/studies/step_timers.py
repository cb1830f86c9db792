"""Timers of decoding steps, with the drafter and judge of decoding, and the trees that are timed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from ..decoding.assemble import assemble
from ..decoding.growing.policies import AdaptiveTree
from ..decoding.loop import End, take_step
from ..decoding.record import DecodeStep
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import TreePolicy
from ..decoding.verifiers import choose_verifier
from ..design.calibration import RANKS, Calibration, Sample
from ..design.profile import HardwareProfile
from ..design.step_time import level_widths
from ..design.tree import TokenTree
from ..models.language_model import ModelPair
from ..models.protocol import prefill

DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32)
LEVELS, MOST_CHILDREN = 4, 8  # of the trees that are timed
STEPS = 3  # in a row make one sample, after one with cold caches that is not timed: decoding repeats such steps
GREEDY = SamplingConfig(0.0)


def even_tree(size: int, most_children: int = MOST_CHILDREN) -> TokenTree:
    """Return a tree of that many nodes: `LEVELS` levels below the root, or as many as needed, about equally wide."""
    levels, width = LEVELS, 0
    widths: list[int] = []
    while sum(most_children**level for level in range(1, levels + 1)) < size - 1:
        levels += 1
    while sum(widths) < size - 1:
        width += 1
        widths = [min(most_children**level, width) for level in range(1, levels + 1)]
    parents, above = [np.array([-1])], range(1)
    for width in widths:
        count = min(width, size - above.stop)
        children = np.arange(count)
        parents.append(above.start + (children * len(above) // count if count > len(above) else children))
        above = range(above.stop, above.stop + count)
    return TokenTree(np.concatenate(parents))


def growing_tree(size: int, sampling: SamplingConfig, vocabulary: int) -> TreePolicy:
    """Return a policy of trees of at most so many nodes that grow to their limits, by the draft's probabilities."""
    falling = np.linspace(0.05, 0.95, 19)[:, None]
    rows = falling * (1 - falling) ** np.arange(min(RANKS, vocabulary))
    largest = np.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
    calibration = Calibration.of_samples([Sample(rows, rows, rows, largest, rows)], temperature=sampling.temperature)
    free = HardwareProfile(sizes=np.array([1, size]), verify_sec=np.ones(2), draft_sec=1e-9)
    recipe = "deterministic" if sampling.greedy else "sampled"
    policy: Any = AdaptiveTree(  # it has a size once it is created
        profile=free,
        calibration=calibration,
        max_size=size,
        max_depth=LEVELS,
        branch=MOST_CHILDREN,
        recipe=recipe,
    )
    return policy


class StepTimer:
    """Times steps with the trees of a policy on top of a context, the mean of `STEPS` in a row after an untimed one.

    Once cancelled it takes no more steps, and its times are invalid.

    Attributes:
        widths: how many tokens each draft pass of a static tree runs over.
    """

    def __init__(
        self,
        pair: ModelPair,
        policy: TreePolicy,
        context: int,
        cancel: threading.Event,
        sampling: SamplingConfig = GREEDY,
    ) -> None:
        generator = torch.Generator().manual_seed(policy.max_size)
        self.sequence = torch.randint(pair.vocab_size, (context + 1,), generator=generator).tolist()
        self.cancel = cancel
        longest = len(self.sequence) + policy.max_depth + 1
        self.end = End(eos_ids=frozenset(), length=longest + 1, reason="length")
        self.drafter, self.judge, self.sessions = assemble(
            pair, policy, verifier=choose_verifier(policy.verifiers[0], greedy=sampling.greedy),
            sampling=sampling, capacity=longest, generator=generator,
        )  # fmt: skip
        for session in self.sessions:
            prefill(session, self.sequence[:-1], reader=self.sessions[-1], cancel=cancel)
        self.widths = [] if policy.fixed is None else level_widths(policy.fixed)

    def run(self) -> tuple[float, float, float]:
        """Return the seconds of drafting the tree, of the target's pass over it, and of the rest of the step."""
        self._step()
        return tuple(np.mean([_phases(self._step()) for _ in range(STEPS)], axis=0).tolist())

    def _step(self) -> DecodeStep | None:
        if self.cancel.is_set():
            return None
        sequence = list(self.sequence)
        step = take_step(self.drafter, self.judge, sequence, self.end, sessions=self.sessions, cancel=self.cancel)
        for session in self.sessions:
            session.commit(len(self.sequence) - 1, [])
        return step


def _phases(step: DecodeStep | None) -> tuple[float, float, float]:
    return (0.0, 0.0, 0.0) if step is None else (step.draft_sec, step.verify_sec, step.walk_sec + step.commit_sec)


class GrowthTimer(StepTimer):
    """Times steps of dynamic trees, and keeps their sizes and widths."""

    def steps(self) -> list[GrownStep]:
        """Return the steps of a round; fewer once cancelled."""
        self._step()
        drafter: Any = self.drafter  # a drafter of dynamic trees
        return [
            GrownStep(step.draft_sec + step.walk_sec + step.commit_sec, step.tree.size, list(drafter.widths))
            for step in (self._step() for _ in range(STEPS))
            if step is not None
        ]


class GrownStep(NamedTuple):
    """A timed step: its seconds without verifying, its nodes, and how many each draft pass read."""

    seconds: float
    size: int
    widths: list[int]

    def beyond(self, profile: HardwareProfile, *, greedy: bool) -> float:
        """Return its seconds beyond those that the profile has for a static tree of that size and widths."""
        drafting = profile.draft_at(np.array(self.widths)).sum()
        return self.seconds - float(drafting + profile.overhead_at(self.size, greedy=greedy))


def draft_pass_times(levels: Sequence[Sequence[int]], seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the time of a draft pass over w tokens from the times of drafting whole trees.

    It is taken to be linear between `DRAFT_WIDTHS` and never to fall with w, by least squares of the relative errors.

    Args:
        levels: for each tree, how many tokens each of its draft passes ran over; may be empty.
        seconds: float64, what drafting each of these trees took.

    Returns:
        Widths int64 [j], 1 and those of `DRAFT_WIDTHS` that bound widths which were timed, and seconds float64 [j].
    """
    from scipy.optimize import nnls

    timed = {width for tree in levels for width in tree}
    knots = [1]
    for width in (*DRAFT_WIDTHS, max(timed)):
        if any(knots[-1] < w <= width for w in timed):
            knots.append(width)
    # The time of a pass is that for one token plus the part that w covers of each interval between two knots.
    trees = [(tree, time) for tree, time in zip(levels, seconds, strict=True) if tree]
    covered = [
        [sum(np.clip((w - low) / (high - low), 0.0, 1.0) for w in tree) for low, high in pairwise(knots)]
        for tree, _ in trees
    ]
    terms = np.array([[len(tree), *parts] for (tree, _), parts in zip(trees, covered, strict=True)])
    times = np.array([time for _, time in trees])
    rises, _ = nnls(terms / times[:, None], np.ones(len(times)))
    return np.array(knots), np.cumsum(rises)
