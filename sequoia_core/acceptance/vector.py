"""Acceptance vectors: how often the draft token of each rank is accepted. B = ranks, L = levels, m = prompts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..files.json_models import prefix_errors
from ..files.safe_files import json_bytes, packed_json, read_bytes, write_atomic
from .bootstrap import CONFIDENCE_LEVEL, RESAMPLES, interval, resample_means, widen_for_unseen, wilson_interval
from .calibration import Calibration
from .conditions import Conditions
from .matrix import AcceptanceMatrix
from .vector_files import (
    MAX_BYTES,
    PercentageError,
    json_value,
    read_vector,
    validate_probs,
    validate_prompts,
    validate_ranks,
)

if TYPE_CHECKING:
    import pandas as pd


class PowerLawFit(NamedTuple):
    """`P(first k children all rejected) ~ scale * k**-b`, with the R² of the log-log fit."""

    b: float
    scale: float
    r_squared: float


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceVector:
    """The probability that the child of each rank is accepted, given that its parent was accepted.

    Args:
        probs: float64 [B]; `probs[k - 1]` is for rank k. At most one sibling is accepted, so the sum is at most 1; an
            excess of less than 1e-3 is treated as rounding and scaled back. Stored read-only.
        trials: number of positions measured; None if unknown. Computed from `prompt_trials` if given.
        prompt_sums: float64 [m, B], acceptance probabilities summed over each prompt's positions.
        prompt_trials: int64 [m], number of positions in each prompt.
        prompt_ranks: int16 [prompt_trials[i]] for each prompt i, the rank accepted at each position, or 0 if all were
            rejected; used by `replay`.
        prompt_matched: int16, same shapes; 1 where the next token is the draft's most likely token, the only one that
            an engine with greedy drafts can accept.
        meta: provenance of the vector, as JSON values.
        note: assumptions made when the file was read.
        calibration: acceptance by draft probability, measured on the same texts.
        holds_for: the pair, sampling settings and verifier; None if unknown, in which case nothing is predicted.
        by_depth: acceptance by depth, for draft heads, whose acceptance changes with depth. Its first row is `probs`;
            trees are planned from it.
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
        probs = validate_probs(self.probs)
        probs.setflags(write=False)
        object.__setattr__(self, "probs", probs)
        if self.by_depth is not None and not (
            len(self.by_depth) == len(probs) and np.allclose(self.by_depth.probs[0], probs)
        ):
            raise ValueError("by_depth: found a first level that differs from the vector, expected equal values")
        if self.trials is not None:
            if self.trials < 1:
                raise ValueError(f"trials: found {self.trials}, expected at least 1")
            object.__setattr__(self, "trials", int(self.trials))
        prompts = validate_prompts(self.prompt_sums, self.prompt_trials, probs.shape)
        if prompts is None:
            if self.prompt_ranks is not None or self.prompt_matched is not None:
                raise ValueError("found ranks per prompt without prompt_sums and prompt_trials, expected them together")
            return
        sums, counts = prompts
        object.__setattr__(self, "prompt_sums", sums)
        object.__setattr__(self, "prompt_trials", counts)
        if self.trials is None:
            object.__setattr__(self, "trials", int(counts.sum()))
        for name, largest in (("prompt_ranks", probs.size), ("prompt_matched", 1)):
            ranks = getattr(self, name)
            if ranks is not None:
                object.__setattr__(self, name, validate_ranks(ranks, counts, largest, name))

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, AcceptanceVector):
            return self is other
        # Compare the probabilities first, because serialising the other fields takes milliseconds.
        return np.array_equal(self.probs, other.probs) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.probs.tobytes(), self.trials))

    def __len__(self) -> int:
        return self.probs.size

    @property
    def reject(self) -> float:
        """Probability that every child is rejected: one minus the sum of `probs`."""
        return max(0.0, 1.0 - float(self.probs.sum()))

    def differences(self, wanted: Conditions) -> list[str]:
        """Return the reasons why the vector does not apply to these conditions, such as "temperature 0, not 0.6"."""
        if self.holds_for is None:
            return ["the vector does not state its pair and sampling settings"]
        return self.holds_for.differences(wanted)

    @property
    def levels(self) -> np.ndarray:
        """The probabilities by depth, float64 [L, B]; deeper levels use the last row."""
        return self.probs[None] if self.by_depth is None else self.by_depth.probs

    def interval(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return confidence bounds for every rank, float64 [B] each; None for an unknown sample or a single prompt.

        Positions within a prompt are correlated, so whole prompts are resampled (percentile bootstrap). If only the
        number of trials is known, this is the Wilson interval, which assumes independent positions. So do the bounds
        for ranks that were always or never accepted, which resampling cannot give.
        """
        if self.trials is None or self.has_one_prompt:
            return None
        if self.prompt_sums is None or self.prompt_trials is None:
            return wilson_interval(self.probs, self.trials, CONFIDENCE_LEVEL)
        low, high = interval(resample_means(self.prompt_sums, self.prompt_trials, RESAMPLES))
        return widen_for_unseen((low, high), self.probs, self.trials)

    def more_prompts(self, width: float) -> int | None:
        """Return how many more prompts would narrow every interval to `width`; None without prompt sums."""
        bounds = self.interval()
        if bounds is None or self.prompt_trials is None:
            return None
        widest = float((bounds[1] - bounds[0]).max())
        prompts = len(self.prompt_trials)
        return max(0, int(np.ceil(prompts * (widest / width) ** 2)) - prompts)

    def resampled(self, count: int = RESAMPLES) -> np.ndarray | None:
        """Return `probs` for bootstrap resamples, float64 [count, B]; None for an unknown sample or a single prompt.

        Whole prompts are resampled if their sums are known; otherwise positions are drawn independently.
        """
        if self.trials is None or self.has_one_prompt:
            return None
        if self.prompt_sums is not None and self.prompt_trials is not None:
            return resample_means(self.prompt_sums, self.prompt_trials, count)
        outcomes = np.append(self.probs, self.reject)
        drawn = np.random.default_rng(0).multinomial(self.trials, outcomes / outcomes.sum(), size=count)
        return drawn[:, :-1] / self.trials

    def resamples(self, count: int) -> list[AcceptanceVector] | None:
        """Return the resamples as vectors; None in the same cases as `resampled`."""
        rows = self.resampled(count) if self.by_depth is None else self.by_depth.resampled(count)
        return None if rows is None else [AcceptanceVector.from_levels(np.atleast_2d(row)) for row in rows]

    def for_answer_length(self, tokens: int) -> AcceptanceVector:
        """Return the vector for answers of `tokens` tokens, using only the first `tokens` positions of each text."""
        if self.prompt_ranks is None or self.by_depth is not None:
            raise ValueError(
                "planning for a fixed answer length needs the accepted rank at every position, which this vector "
                "lacks: measure it with the measure command"
            )
        longest = max(map(len, self.prompt_ranks), default=0)
        if tokens > longest:
            raise ValueError(
                f"found texts of at most {longest:,} positions, expected at least {tokens:,}, the answer length"
            )
        texts = tuple(ranks[:tokens] for ranks in self.prompt_ranks)
        counts = np.array([len(ranks) for ranks in texts])
        sums = np.array([np.bincount(ranks, minlength=len(self) + 1)[1:] for ranks in texts], dtype=np.float64)
        return replace(
            self,
            probs=sums.sum(axis=0) / counts.sum(),
            trials=None,
            prompt_sums=sums,
            prompt_trials=counts,
            prompt_ranks=texts,
            prompt_matched=None,
        )

    @property
    def has_one_prompt(self) -> bool:
        return self.prompt_trials is not None and len(self.prompt_trials) == 1

    def to_frame(self) -> pd.DataFrame:
        """Return one row per rank: `rank`, `probability`, and the 95% bounds `low` and `high` if known."""
        import pandas as pd

        bounds = dict(zip(("low", "high"), self.interval() or (), strict=False))
        return pd.DataFrame({"rank": np.arange(1, len(self) + 1), "probability": self.probs, **bounds})

    def fit_power_law(self, first: int = 1) -> PowerLawFit:
        """Fit log P(first k children all rejected) as a linear function of log k, for k >= `first`."""
        rejection = 1.0 - np.cumsum(self.probs)
        # Values below 1e-9 are rounding errors in a vector that sums to 1.
        usable = first - 1 + np.flatnonzero(rejection[first - 1 :] > 1e-9)
        if usable.size < 2:
            raise ValueError(f"power law: found {usable.size} ranks with nonzero rejection, expected at least 2")
        from scipy import stats  # importing takes a second

        line = stats.linregress(np.log(usable + 1.0), np.log(rejection[usable]))
        # A flat line (nothing is ever accepted) fits exactly, but has no variance to explain.
        r_squared = float(line.rvalue**2) if np.ptp(rejection[usable]) > 0 else 1.0
        return PowerLawFit(b=0.0 - float(line.slope), scale=float(np.exp(line.intercept)), r_squared=r_squared)

    @classmethod
    def from_levels(cls, levels: np.ndarray, holds_for: Conditions | None = None) -> AcceptanceVector:
        """Return a vector from probabilities by depth, float64 [L, B]."""
        matrix = AcceptanceMatrix(levels)
        return cls(matrix.probs[0], holds_for=holds_for, by_depth=matrix if len(levels) > 1 else None)

    @classmethod
    def load(cls, path: str | Path, entries: str | None = None) -> AcceptanceVector:
        """Read a `.json`, `.csv`, `.npy`, `.safetensors` or `.pt` file; for `entries`, see `read_vector`."""
        return cls.loads(read_bytes(path, limit=MAX_BYTES), str(path), entries)

    @classmethod
    def loads(cls, data: bytes, name: str, entries: str | None = None, *, percent: bool = False) -> AcceptanceVector:
        """Parse a vector from a file's content; `name` appears in error messages. For `percent`, see `read_vector`."""
        with prefix_errors(name, keep=PercentageError):
            fields = read_vector(data, entries, percent)
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
        fields = {"probs": self.probs.tolist(), "trials": self.trials, "meta": self.meta}
        for name in ("prompt_sums", "prompt_trials", "prompt_ranks", "prompt_matched"):
            fields[name] = json_value(getattr(self, name))
        fields["note"] = self.note or None
        for name in ("holds_for", "calibration", "by_depth"):
            part = getattr(self, name)
            fields[name] = part and part.to_json()
        required = ("probs", "trials", "meta")
        return {name: value for name, value in fields.items() if name in required or value is not None}
