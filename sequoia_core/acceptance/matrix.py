"""Acceptance by depth and rank. B = ranks, L = levels, m = prompts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..files.json_models import prefix_errors
from .bootstrap import RESAMPLES, interval, resample_means, widen_for_unseen
from .conditions import MAX_RANKS
from .vector_files import json_value, validate_probs, validate_prompts


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceMatrix:
    """The probability that the child of each rank at each depth is accepted.

    Args:
        probs: float64 [L, B]; `probs[l - 1, k - 1]` is the probability that the child of rank k at depth l is accepted,
            given that its parent was accepted. Depths beyond L use the last row. Stored read-only.
        trials: int64 [L, B], number of parents measured for each entry; None if unknown.
        meta: provenance of the matrix, as JSON values.
        prompt_sums: float64 [m, L, B], acceptance probabilities summed over each prompt's positions.
        prompt_trials: int64 [m, L], number of positions in each prompt.
        prompt_ranks: int16 [L, positions] for each prompt; row l contains the rank accepted at each position by a chain
            that began l positions earlier, or 0 if all ranks were rejected or no chain began there.
    """

    probs: np.ndarray
    trials: np.ndarray | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    prompt_sums: np.ndarray | None = None
    prompt_trials: np.ndarray | None = None
    prompt_ranks: tuple[np.ndarray, ...] | None = None

    def __post_init__(self) -> None:
        raw = np.asarray(self.probs)
        if raw.ndim != 2 or not 1 <= raw.shape[0] <= MAX_RANKS:
            raise ValueError(f"matrix: found shape {raw.shape}, expected one row of ranks for each level")
        rows = []
        for level, row in enumerate(raw, start=1):
            with prefix_errors(f"level {level}"):
                rows.append(validate_probs(row))
        self._set("probs", np.array(rows))
        if self.trials is not None:
            trials = np.array(self.trials, dtype=np.int64)
            if trials.shape != raw.shape or (trials < 0).any():
                raise ValueError(f"trials: found shape {trials.shape}, expected counts of shape {raw.shape}")
            self._set("trials", trials)
        with prefix_errors("by depth"):
            prompts = validate_prompts(self.prompt_sums, self.prompt_trials, raw.shape)
        if prompts is not None:
            self._set("prompt_sums", prompts[0])
            self._set("prompt_trials", prompts[1])

    def _set(self, name: str, array: np.ndarray) -> None:
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return self.probs.shape[1]

    @property
    def levels(self) -> np.ndarray:
        """The probabilities by depth, float64 [L, B]."""
        return self.probs

    def resampled(self, count: int = RESAMPLES) -> np.ndarray | None:
        """Return `probs` for each bootstrap resample, float64 [count, L, B]; None with fewer than two prompts."""
        if self.prompt_sums is None or self.prompt_trials is None or len(self.prompt_sums) < 2:
            return None
        return resample_means(self.prompt_sums, self.prompt_trials, count)

    def interval(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return confidence bounds for every entry, float64 [L, B] each; None with fewer than two prompts."""
        again = self.resampled()
        if again is None or self.prompt_trials is None:
            return None
        low, high = interval(again)
        return widen_for_unseen((low, high), self.probs, self.prompt_trials.sum(axis=0)[:, None])

    def to_json(self) -> dict[str, Any]:
        names = ("trials", "prompt_sums", "prompt_trials", "prompt_ranks")
        optional = {name: json_value(getattr(self, name)) for name in names if getattr(self, name) is not None}
        return {"matrix": self.probs.tolist(), "meta": self.meta} | optional
