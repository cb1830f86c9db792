"""Acceptance by depth and rank. B = ranks, L = levels, m = prompts"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..files.json_models import naming
from .acceptance_files import checked_probs, checked_prompts
from .bootstrap import RESAMPLES, interval, resampled_means, with_unseen
from .conditions import MAX_RANKS


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceMatrix:
    """How often the child of each rank is accepted, by the depth where it is.

    Args:
        probs: float64 [L, B], `probs[l - 1, k - 1]` = probability that the child of rank k at depth l is the accepted
            one, given that its parent was accepted. Depths beyond L take the last row. Stored read-only.
        trials: int64 [L, B], parents seen for each entry, or None when unknown.
        meta: where the matrix comes from (JSON values).
        prompt_sums: float64 [m, L, B], acceptance probability summed over the positions of each prompt.
        prompt_trials: int64 [m, L], positions of each prompt.
        prompt_ranks: int16 [L, positions] for each prompt, the rank accepted at each position of its text by a chain
            that began so many positions before; 0 where all were rejected, or no chain began.
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
            raise ValueError(f"matrix: found shape {raw.shape}, expected one row of ranks for each of 1 or more levels")
        rows = []
        for level, row in enumerate(raw, start=1):
            with naming(f"level {level}"):
                rows.append(checked_probs(row))
        self._set("probs", np.array(rows))
        if self.trials is not None:
            trials = np.array(self.trials, dtype=np.int64)
            if trials.shape != raw.shape or (trials < 0).any():
                raise ValueError(f"trials: found shape {trials.shape}, expected counts of shape {raw.shape}")
            self._set("trials", trials)
        with naming("by depth"):
            prompts = checked_prompts(self.prompt_sums, self.prompt_trials, raw.shape)
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
        """Return `probs` that the same measurement might have found, float64 [count, L, B]; None without prompts."""
        sums, trials = self.prompt_sums, self.prompt_trials
        if sums is None or trials is None or len(sums) < 2:
            return None
        return resampled_means(sums, trials, count)

    def interval(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the confidence bounds of every entry, float64 [L, B] each; None for an unknown or a single prompt."""
        again = self.resampled()
        if again is None or self.prompt_trials is None:
            return None
        low, high = interval(again)
        return with_unseen((low, high), self.probs, self.prompt_trials.sum(axis=0)[:, None])

    def to_json(self) -> dict[str, Any]:
        ranks = self.prompt_ranks
        fields = {"trials": self.trials, "prompt_sums": self.prompt_sums, "prompt_trials": self.prompt_trials}
        return (
            {"matrix": self.probs.tolist(), "meta": self.meta}
            | {name: array.tolist() for name, array in fields.items() if array is not None}
            | ({} if ranks is None else {"prompt_ranks": [rows.tolist() for rows in ranks]})
        )
