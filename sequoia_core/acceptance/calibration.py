"""Calibration: the probability that a child is accepted, given its rank and the draft's probabilities at its parent.

Shapes: m = prompts, T = tables, b = bins, k = ranks (ranks 3 and above share a table), r = stored rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from ..files.json_models import prefix_errors
from .conditions import check_sampling

MEASURED_RANKS = 16  # maximum number of ranks measured per node; higher ranks add almost nothing
ROWS_PER_PROMPT = 12
PROBABILITY_BINS = 24
MAX_PROMPTS = 4_096
# Bins are narrower near 0 and 1, where most draft probabilities lie.
_LOGITS = np.linspace(-9.0, 9.0, PROBABILITY_BINS + 1)
BIN_EDGES = 1.0 / (1.0 + np.exp(-_LOGITS[1:-1]))
BIN_CENTRES = 1.0 / (1.0 + np.exp(-(_LOGITS[1:] + _LOGITS[:-1]) / 2))
MASS_EDGES = np.array([0.25, 0.75])  # below the first, little mass is left to draw; above the second, most of it
# The first table of BEFORE is for rank 1; the others are for ranks 2 and 3+, with little, some or most mass left.
MOST_LIKELY = slice(0, 3)
AFTER = slice(3, 6)
BEFORE = slice(6, 13)
TABLE_NAMES = (
    *(f"most likely, rank {rank}" for rank in ("1", "2", "3+")),
    *(f"drawn, rank {rank}" for rank in ("1", "2", "3+")),
    "next, rank 1",
    *(f"next, rank {rank}, {mass} left" for rank in ("2", "3+") for mass in ("little", "some", "most")),
)
# Maps each group to its tables and its row in `Calibration.accepted_by_rank`.
TABLE_GROUPS = {"most likely": (MOST_LIKELY, 0), "drawn": (AFTER, 1), "next": (BEFORE, 1)}


class Sample(NamedTuple):
    """Probabilities from both models at each position of a text; N = positions.

    Attributes:
        best_probs: float [N, k], the draft's largest probabilities.
        best_accepted: float [N, k], the target's probabilities for the same tokens.
        drawn_probs: float [N, k], the draft's probabilities of tokens drawn without replacement.
        largest_left: float [N, k], the largest draft probability among the tokens left before each draw.
        drawn_accepted: float [N, k], the probability that Sequoia's rule accepts each drawn token.
    """

    best_probs: np.ndarray
    best_accepted: np.ndarray
    drawn_probs: np.ndarray
    largest_left: np.ndarray
    drawn_accepted: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class ChanceTables:
    """Fitted acceptance tables: monotone in the draft's probability, and linear between bin centres.

    Args:
        values: float64 [T, b], acceptance probabilities at the bin centres, in the order of `TABLE_NAMES`.
        gain: factor applied to all acceptance probabilities, which are then capped at 1; it is adjusted during a run
            that accepts more or less than predicted.
    """

    values: np.ndarray
    gain: float = 1.0

    def most_likely(self, probs: np.ndarray) -> np.ndarray:
        """Return each most likely token's acceptance probability, given its draft probability; float64 [w, k]."""
        return self._by_rank(probs, MOST_LIKELY)

    def token_chances(self, best: np.ndarray, tokens: np.ndarray, probs: np.ndarray) -> np.ndarray:
        """Return each token's acceptance probability, float64 [c], by its rank among the draft's most likely tokens.

        Args:
            best: int64 [k], the most likely tokens, in order; all other tokens are treated as rank 3+.
            tokens: int64 [c], the token ids.
            probs: float64 [c], their draft probabilities.
        """
        same = tokens[:, None] == best
        ranks = np.where(same.any(axis=1), same.argmax(axis=1), len(best))
        return self._lookup(MOST_LIKELY.start + np.minimum(ranks, 2), probs)

    def after_draw(self, probs: np.ndarray) -> np.ndarray:
        """Return each drawn token's acceptance probability, given its draft probability; float64 [w, k]."""
        return self._by_rank(probs, AFTER)

    def before_draw(self, left: np.ndarray, largest: np.ndarray) -> np.ndarray:
        """Return the acceptance probability of each rank's token before it is drawn, float64 [w, k].

        Args:
            left: float64 [w, k], the draft's probability mass not yet drawn before each rank.
            largest: float64 [w, k], the largest probability within that mass.
        """
        return self._lookup(_before_table(left), largest)

    def _by_rank(self, probs: np.ndarray, tables: slice) -> np.ndarray:
        chances = np.empty(probs.shape)
        for rank, columns in enumerate((slice(0, 1), slice(1, 2), slice(2, None))):
            chances[:, columns] = self._curve(tables.start + rank, probs[:, columns])
        return chances

    def _lookup(self, tables: np.ndarray, probs: np.ndarray) -> np.ndarray:
        """Interpolate each draft probability in its table; both arrays have the same shape."""
        chances = np.empty(probs.shape)
        for table in np.unique(tables):
            chosen = tables == table
            chances[chosen] = self._curve(int(table), probs[chosen])
        return chances

    def _curve(self, table: int, probs: np.ndarray) -> np.ndarray:
        return np.minimum(self.gain * np.interp(probs, BIN_CENTRES, self.values[table]), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Acceptance by draft probability, for each prompt.

    Args:
        counts: int64 [m, T, b], number of children in each bin.
        accepted: float64 [m, T, b], sum of their acceptance probabilities.
        positions: int64 [m], number of positions measured.
        accepted_by_rank: float64 [m, 2, k], sum of acceptance probabilities per rank: row 0 for the most likely tokens,
            row 1 for drawn tokens.
        rows: float64 [r, k], the draft's largest probabilities at some positions.
    """

    counts: np.ndarray
    accepted: np.ndarray
    positions: np.ndarray
    accepted_by_rank: np.ndarray
    rows: np.ndarray
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for name in ("counts", "positions"):
            self._store(name, integers=True)
        for name in ("accepted", "accepted_by_rank", "rows"):
            self._store(name, integers=False)
        prompts = len(self.positions)
        ranks = self.accepted_by_rank.shape[-1]
        shapes = {
            "counts": (prompts, len(TABLE_NAMES), PROBABILITY_BINS),
            "accepted": (prompts, len(TABLE_NAMES), PROBABILITY_BINS),
            "positions": (prompts,),
            "accepted_by_rank": (prompts, 2, ranks),
            "rows": (len(self.rows), ranks),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"calibration: found {name} of shape {getattr(self, name).shape}, expected {shape}")
        if not 1 <= prompts <= MAX_PROMPTS or not 1 <= ranks <= MEASURED_RANKS or self.positions.sum() < 1:
            raise ValueError(
                f"calibration: found {prompts} prompts and {ranks} ranks, expected 1 to {MAX_PROMPTS} prompts and "
                f"1 to {MEASURED_RANKS} ranks"
            )
        if not 1 <= len(self.rows) <= prompts * ROWS_PER_PROMPT:
            raise ValueError(f"calibration: found {len(self.rows)} rows, expected 1 to {prompts * ROWS_PER_PROMPT}")
        if (self.rows.sum(axis=1) > 1.001).any() or (np.diff(self.rows, axis=1) > 0).any():
            raise ValueError("calibration: found a row that increases or sums to more than 1, expected neither")
        if (self.accepted > self.counts + 1e-3).any():
            raise ValueError("calibration: found more accepted children than counted, expected at most as many")
        with prefix_errors("calibration"):
            check_sampling(self.temperature)

    def _store(self, name: str, *, integers: bool) -> None:
        """Replace a field with a read-only array after checking that its numbers are not negative."""
        try:
            array = np.array(getattr(self, name), ndmin=1)
        except ValueError as error:  # The rows differ in length.
            raise ValueError(f"calibration: found rows of different lengths in {name}, expected an array") from error
        if array.dtype.kind not in ("iu" if integers else "iuf"):
            raise ValueError(f"calibration: found {name} of dtype {array.dtype}, expected numbers")
        if array.size and not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 2**53):
            raise ValueError(f"calibration: {name}: found a negative or infinite value, expected counts or sums")
        array = array.astype(np.int64 if integers else np.float64)
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], *, temperature: float) -> Calibration:
        """Build a calibration from one sample per prompt."""
        return cls.joined([cls._from_sample(sample, temperature) for sample in samples])

    @classmethod
    def _from_sample(cls, sample: Sample, temperature: float) -> Calibration:
        left = 1.0 - (np.cumsum(sample.drawn_probs, axis=1) - sample.drawn_probs)
        ranks = _table_ranks(sample.best_probs.shape)
        counts = np.zeros((len(TABLE_NAMES), PROBABILITY_BINS), np.int64)
        accepted = np.zeros(counts.shape)
        for tables, probs, chances in (
            (MOST_LIKELY.start + ranks, sample.best_probs, sample.best_accepted),
            (AFTER.start + ranks, sample.drawn_probs, sample.drawn_accepted),
            (_before_table(left), sample.largest_left, sample.drawn_accepted),
        ):
            cells = tables, np.digitize(probs, BIN_EDGES)
            np.add.at(counts, cells, 1)
            np.add.at(accepted, cells, chances)
        positions = len(sample.best_probs)
        stored = np.unique(np.linspace(0, positions - 1, min(ROWS_PER_PROMPT, positions)).astype(int))
        by_rank = np.stack([sample.best_accepted.sum(axis=0), sample.drawn_accepted.sum(axis=0)])
        return cls(
            counts[None],
            np.round(accepted, 6)[None],
            np.array([positions]),
            np.round(by_rank, 6)[None],
            np.floor(sample.best_probs[stored] * 1e5) / 1e5,
            temperature,
        )

    @classmethod
    def joined(cls, parts: Sequence[Calibration]) -> Calibration:
        """Concatenate the prompts of calibrations with the same temperature."""
        names = ("counts", "accepted", "positions", "accepted_by_rank", "rows")
        whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**whole, temperature=parts[0].temperature)

    @property
    def ranks(self) -> int:
        return self.accepted_by_rank.shape[2]

    def expected(self, group: str) -> np.ndarray:
        """Return each rank's mean acceptance over all positions, float64 [k]; `group` is a key of `TABLE_GROUPS`."""
        return self.accepted_by_rank[:, TABLE_GROUPS[group][1]].sum(axis=0) / self.positions.sum()

    def rows_by_prompt(self) -> list[np.ndarray] | None:
        """Split the rows by prompt, float64 [rows per prompt, k] each; None if the prompts are unknown."""
        counts = np.minimum(self.positions, ROWS_PER_PROMPT)
        return np.split(self.rows, np.cumsum(counts)[:-1]) if counts.sum() == len(self.rows) else None

    def gain_by_prompt(self, group: str) -> np.ndarray:
        """Return each prompt's ratio of accepted to predicted children, float64 [m]."""
        tables = TABLE_GROUPS[group][0]
        predicted = (self.counts[:, tables] * self.tables().values[tables]).sum(axis=(1, 2))
        return self.accepted[:, tables].sum(axis=(1, 2)) / np.maximum(predicted, 1e-9)

    def tables(self, weights: np.ndarray | None = None) -> ChanceTables:
        """Fit the tables; `weights` is float64 [m], one weight per prompt.

        Each bin starts with a pseudo-count of one child, accepted with the draft's probability (most likely tokens) or
        the table's average (drawn tokens). Curves increase with the draft probability; those of drawn tokens may
        decrease instead if that fits better.
        """
        from scipy.optimize import isotonic_regression

        weights = np.ones(len(self.positions)) if weights is None else weights
        counts = np.tensordot(weights, self.counts, 1)
        accepted = np.tensordot(weights, self.accepted, 1)
        values = np.empty(counts.shape)
        for table, (seen, taken) in enumerate(zip(counts, accepted, strict=True)):
            ranked = table < MOST_LIKELY.stop
            prior = BIN_CENTRES if ranked else taken.sum() / max(seen.sum(), 1.0)
            trials = seen + 1.0
            rates = (taken + prior) / trials
            directions = (True,) if ranked else (True, False)
            curves = [isotonic_regression(rates, weights=trials, increasing=rising).x for rising in directions]
            values[table] = min(curves, key=lambda curve: (trials * (curve - rates) ** 2).sum())
        return ChanceTables(np.clip(values, 0.0, 1.0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__
        )

    def __hash__(self) -> int:
        return hash((self.counts.tobytes(), self.temperature))

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self) | {"edges": BIN_EDGES}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Calibration:
        expected = [*cls.__dataclass_fields__, "edges"]
        names = list(fields) if isinstance(fields, Mapping) else []
        if set(names) != set(expected):
            found = ", ".join(str(key)[:40] for key in names) or "none"
            raise ValueError(f"calibration: found keys {found}, expected {', '.join(expected)}")
        if np.shape(fields["edges"]) != BIN_EDGES.shape or not np.allclose(np.array(fields["edges"], float), BIN_EDGES):
            raise ValueError(f"calibration: found different bin edges, expected those of the {PROBABILITY_BINS} bins")
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


def _table_ranks(shape: tuple[int, ...]) -> np.ndarray:
    """Return each rank's table index within its group (0 to 2), int64 [w, k]."""
    return np.broadcast_to(np.minimum(np.arange(shape[1]), 2), shape)


def _before_table(left: np.ndarray) -> np.ndarray:
    """Return the index of each rank's `BEFORE` table, int64 [w, k], given the mass left, float64 [w, k]."""
    ranks = _table_ranks(left.shape)
    return np.where(ranks == 0, BEFORE.start, BEFORE.start + 1 + 3 * (ranks - 1) + np.digitize(left, MASS_EDGES))
