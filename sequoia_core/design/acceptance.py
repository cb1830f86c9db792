"""Acceptance vectors: how often the draft's k-th choice is accepted. B = ranks, L = levels, m = prompts"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..files.json_models import naming
from ..files.safe_files import json_bytes, packed_json, read_bytes, write_atomic
from .acceptance_files import MAX_BYTES, checked_probs, checked_prompts, checked_ranks, read_vector
from .acceptance_matrix import AcceptanceMatrix
from .bootstrap import LEVEL, RESAMPLES, interval, resampled_means, wilson_interval, with_unseen
from .calibration import Calibration
from .conditions import Conditions

if TYPE_CHECKING:
    import pandas as pd


class PowerLawFit(NamedTuple):
    """`P(all of the first k children rejected) ~ scale * k**-b`, with the R^2 of the log-log line."""

    b: float
    scale: float
    r_squared: float


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceVector:
    """The probability, below an accepted node, that the child of each rank is the one accepted.

    Args:
        probs: float64 [B], `probs[k - 1]` for rank k; siblings exclude each other, so the sum is <= 1. A sum above 1 by
            less than 1e-3 is rounding and is scaled back. Stored read-only.
        trials: positions measured, or None when unknown; counted from prompt_trials when those are given.
        prompt_sums: float64 [m, B], acceptance probability summed over the positions of each prompt.
        prompt_trials: int64 [m], positions of each prompt.
        prompt_ranks: int16 [prompt_trials[i]] for each prompt i, the rank accepted at each position, 0 where all were
            rejected; `replay` reads it.
        prompt_matched: int16, the same shapes: 1 where the text's token is the draft's likeliest one, which is all that
            an engine with greedy drafts accepts (`chain_acceptance.counts_of_vector`).
        meta: where the vector comes from (JSON values).
        note: what was assumed when the file was read.
        calibration: acceptance by the draft's own probabilities, from the same text.
        holds_for: the pair, sampling and verifier; None when unknown, and then nothing is predicted from the vector.
        by_depth: of a draft head, whose chances change with depth; its first row is `probs`. Trees are planned by it.
    """

    probs: np.ndarray
    trials: int | None = None
    prompt_sums: np.ndarray | None = None
    prompt_trials: np.ndarray | None = None
    prompt_ranks: tuple[np.ndarray, ...] | None = None
    prompt_matched: tuple[np.ndarray, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    holds_for: Conditions | None = None
    calibration: Calibration | None = None
    by_depth: AcceptanceMatrix | None = None

    def __post_init__(self) -> None:
        probs = checked_probs(self.probs)
        probs.setflags(write=False)
        object.__setattr__(self, "probs", probs)
        if self.by_depth is not None and not (
            len(self.by_depth) == len(self.probs) and np.allclose(self.by_depth.probs[0], self.probs)
        ):
            raise ValueError("by_depth: found another first level than the vector, expected its probabilities")
        if self.trials is not None:
            if self.trials < 1:
                raise ValueError(f"trials: found {self.trials}, expected at least 1")
            object.__setattr__(self, "trials", int(self.trials))
        prompts = checked_prompts(self.prompt_sums, self.prompt_trials, self.probs.shape)
        if prompts is None:
            if self.prompt_ranks is not None or self.prompt_matched is not None:
                raise ValueError("found prompt_ranks without prompt_sums and prompt_trials, expected all or none")
            return
        sums, counts = prompts
        object.__setattr__(self, "prompt_sums", sums)
        object.__setattr__(self, "prompt_trials", counts)
        if self.trials is None:
            object.__setattr__(self, "trials", int(counts.sum()))
        for name, largest in (("prompt_ranks", self.probs.size), ("prompt_matched", 1)):
            if (ranks := getattr(self, name)) is not None:
                object.__setattr__(self, name, checked_ranks(ranks, counts, largest, name))

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, AcceptanceVector):
            return self is other
        # probabilities first: most vectors differ there, and writing out the other fields takes milliseconds
        return np.array_equal(self.probs, other.probs) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.probs.tobytes(), self.trials))

    def __len__(self) -> int:
        return self.probs.size

    @property
    def reject(self) -> float:
        """Probability that every child is rejected: one minus the sum."""
        return max(0.0, 1.0 - float(self.probs.sum()))

    def differences(self, wanted: Conditions) -> list[str]:
        """Return what keeps the vector from predicting under these conditions, such as "temperature 0, not 0.6"."""
        if self.holds_for is None:
            return ["the vector does not say which pair and settings it was measured for"]
        return self.holds_for.differences(wanted)

    @property
    def levels(self) -> np.ndarray:
        """The probabilities by depth, float64 [L, B]; deeper than the last row: as the last row."""
        return self.probs[None] if self.by_depth is None else self.by_depth.probs

    def interval(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the confidence bounds of every rank, float64 [B] each; None for an unknown sample or a single prompt.

        Positions of one prompt resemble each other, so whole prompts are resampled (percentile bootstrap). With only a
        number of trials it is the Wilson interval, which takes positions as independent; so does the bound of a rank
        that was accepted nowhere or everywhere, of which resampling says nothing.
        """
        if self.trials is None or self.of_one_prompt:
            return None
        if self.prompt_sums is None or self.prompt_trials is None:
            return wilson_interval(self.probs, self.trials, LEVEL)
        low, high = interval(resampled_means(self.prompt_sums, self.prompt_trials, RESAMPLES))
        return with_unseen((low, high), self.probs, self.trials)

    def more_prompts(self, width: float) -> int | None:
        """Return how many more prompts narrow every rank's interval (high - low) to `width`; None without sums."""
        bounds = self.interval()
        if bounds is None or self.prompt_trials is None:
            return None
        now = float((bounds[1] - bounds[0]).max())
        prompts = len(self.prompt_trials)
        return max(0, int(np.ceil(prompts * (now / width) ** 2)) - prompts)

    def resampled(self, count: int = RESAMPLES) -> np.ndarray | None:
        """Return `probs` that the same measurement might have found, float64 [count, B].

        Whole prompts are resampled where their sums are known, else positions are drawn as if independent. None for an
        unknown sample or a single prompt.
        """
        if self.trials is None or self.of_one_prompt:
            return None
        if self.prompt_sums is not None and self.prompt_trials is not None:
            return resampled_means(self.prompt_sums, self.prompt_trials, count)
        outcomes = np.append(self.probs, self.reject)
        drawn = np.random.default_rng(0).multinomial(self.trials, outcomes / outcomes.sum(), size=count)
        return drawn[:, :-1] / self.trials

    def resamples(self, count: int) -> list[AcceptanceVector] | None:
        """Return `resampled` as vectors."""
        rows = self.resampled(count) if self.by_depth is None else self.by_depth.resampled(count)
        return None if rows is None else [of_levels(np.atleast_2d(row)) for row in rows]

    def of_answers(self, tokens: int) -> AcceptanceVector:
        """Return the vector of the first so many positions of each text: a tree's end is lost where answers end."""
        if self.prompt_ranks is None or self.by_depth is not None:
            raise ValueError(
                "found a vector without the ranks accepted along its texts, expected one of the measure command "
                "to plan for answers of a length"
            )
        longest = max(map(len, self.prompt_ranks), default=0)
        if tokens > longest:
            raise ValueError(
                f"found texts of at most {longest:,} positions, expected {tokens:,} or more to plan for such answers"
            )
        texts = tuple(ranks[:tokens] for ranks in self.prompt_ranks)
        counts = np.array([len(ranks) for ranks in texts])
        sums = np.array([np.bincount(ranks, minlength=len(self) + 1)[1:] for ranks in texts], dtype=np.float64)
        return replace(
            self, probs=sums.sum(axis=0) / counts.sum(), trials=None, prompt_sums=sums, prompt_trials=counts,
            prompt_ranks=texts, prompt_matched=None,
        )  # fmt: skip

    @property
    def of_one_prompt(self) -> bool:
        return self.prompt_trials is not None and len(self.prompt_trials) == 1

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each rank: `rank`, `probability`, and its 95 % bounds, `low` and `high`, where known."""
        import pandas as pd

        bounds = dict(zip(("low", "high"), self.interval() or (), strict=False))
        return pd.DataFrame({"rank": np.arange(1, len(self) + 1), "probability": self.probs, **bounds})

    def fit_power_law(self, first: int = 1) -> PowerLawFit:
        """Fit a straight line through log P(reject all k) over log k, for k from `first` on."""
        rejection = 1.0 - np.cumsum(self.probs)
        # below 1e-9 it is rounding of a vector that sums to 1
        usable = first - 1 + np.flatnonzero(rejection[first - 1 :] > 1e-9)
        if usable.size < 2:
            raise ValueError(f"power law: found {usable.size} ranks with rejection above 0, expected at least 2")
        from scipy import stats  # a second to import; only this method needs it

        line = stats.linregress(np.log(usable + 1.0), np.log(rejection[usable]))
        # A flat line (nothing is ever accepted) fits exactly, but has no variance to explain.
        r_squared = float(line.rvalue**2) if np.ptp(rejection[usable]) > 0 else 1.0
        return PowerLawFit(b=0.0 - float(line.slope), scale=float(np.exp(line.intercept)), r_squared=r_squared)

    @classmethod
    def load(cls, path: str | Path, entries: str | None = None) -> AcceptanceVector:
        """Read a vector from a `.json`, `.csv`, `.npy`, `.safetensors` or `.pt` file; `entries` as in `read_vector`."""
        return cls.loads(read_bytes(path, limit=MAX_BYTES), str(path), entries)

    @classmethod
    def loads(cls, data: bytes, name: str, entries: str | None = None) -> AcceptanceVector:
        """Read a vector from a file's content; `name` is for the error message."""
        with naming(name):
            fields = read_vector(data, entries)
            by_depth = fields.pop("by_depth", None)
            return cls(**fields, by_depth=None if by_depth is None else AcceptanceMatrix(**by_depth))

    def save(self, path: str | Path) -> None:
        write_atomic(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        fields = self._fields()
        if self.calibration is not None:
            fields["calibration"] = packed_json(fields["calibration"])
        return json_bytes({"format": "sequoia-acceptance", "version": 2, **fields})

    def _fields(self) -> dict[str, Any]:
        optional = {
            "prompt_sums": None if self.prompt_sums is None else self.prompt_sums.tolist(),
            "prompt_trials": None if self.prompt_trials is None else self.prompt_trials.tolist(),
            "prompt_ranks": None if self.prompt_ranks is None else [ranks.tolist() for ranks in self.prompt_ranks],
            "prompt_matched": None if self.prompt_matched is None else [row.tolist() for row in self.prompt_matched],
            "note": self.note or None,
            "holds_for": None if self.holds_for is None else self.holds_for.to_json(),
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "by_depth": None if self.by_depth is None else self.by_depth.to_json(),
        }
        fields = {"probs": self.probs.tolist(), "trials": self.trials, "meta": self.meta}
        return fields | {key: value for key, value in optional.items() if value is not None}


def of_levels(levels: np.ndarray, holds_for: Conditions | None = None) -> AcceptanceVector:
    """Return the vector of probabilities by depth, float64 [L, B]."""
    matrix = AcceptanceMatrix(levels)
    return AcceptanceVector(matrix.probs[0], holds_for=holds_for, by_depth=matrix if len(levels) > 1 else None)
