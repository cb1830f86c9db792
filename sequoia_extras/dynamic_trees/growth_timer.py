"""Times steps with grown trees for `measure_profile`: their extra seconds compared with static trees."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sequoia_core.acceptance.calibration import MEASURED_RANKS, Calibration, Sample
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import TreePolicy
from sequoia_core.measuring.step_timers import MAX_CHILDREN, STEPS_PER_SAMPLE, TREE_LEVELS, StepTimer
from sequoia_core.models.language_model import ModelPair
from sequoia_core.planning.profile import HardwareProfile

from .policies import AdaptiveTree

MAX_TIMED_SIZE = 16  # number of nodes


def full_growth_policy(size: int, sampling: SamplingConfig, vocabulary: int) -> TreePolicy:
    """Return a policy whose trees grow to their limits and whose acceptance probabilities are the draft's."""
    rates = np.linspace(0.05, 0.95, 19)[:, None]
    rows = rates * (1 - rates) ** np.arange(min(MEASURED_RANKS, vocabulary))
    largest = np.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
    calibration = Calibration.from_samples([Sample(rows, rows, rows, largest, rows)], temperature=sampling.temperature)
    return AdaptiveTree(
        profile=HardwareProfile(sizes=np.array([1, size]), verify_sec=np.ones(2), draft_sec=1e-9),
        calibration=calibration,
        max_size=size,
        max_depth=TREE_LEVELS,
        branch=MAX_CHILDREN,
        recipe="deterministic" if sampling.greedy else "sampled",
    )


class GrownStep(NamedTuple):
    """A timed step: seconds without verification, number of nodes, and number of nodes that each draft pass read."""

    seconds: float
    size: int
    widths: list[int]


class GrowthTimer(StepTimer):
    """Times steps with adaptive trees of up to `size` nodes, and no more than `MAX_TIMED_SIZE`."""

    def __init__(
        self, pair: ModelPair, size: int, context: int, cancel: threading.Event, sampling: SamplingConfig
    ) -> None:
        policy = full_growth_policy(min(MAX_TIMED_SIZE, size), sampling, pair.vocab_size)
        super().__init__(pair, policy, context, cancel, sampling)
        self.greedy = sampling.greedy

    def steps(self) -> list[GrownStep]:
        """Return the steps of one round; fewer if cancelled."""
        self._step()
        drafter: Any = self.drafter  # a `GrowingDrafter`
        return [
            GrownStep(step.draft_sec + step.walk_sec + step.commit_sec, step.tree.size, list(drafter.widths))
            for step in (self._step() for _ in range(STEPS_PER_SAMPLE))
            if step is not None
        ]

    def excess_sec(self, profile: HardwareProfile, steps: Sequence[GrownStep]) -> float:
        """Return the mean extra seconds compared with steps of static trees of the same sizes and widths."""
        static = [
            float(profile.drafting_at(np.array(step.widths)) + profile.overhead_at(step.size, greedy=self.greedy))
            for step in steps
        ]
        return float(np.mean([step.seconds - sec for step, sec in zip(steps, static, strict=True)]))
