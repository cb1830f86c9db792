"""Calibration: how likely a child is accepted, by its rank and the draft's probabilities at its node.

Shapes: m = prompts, T = tables, b = bins, k = ranks (from 3 on pooled in tables), r = rows kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from ..files.json_models import naming
from .conditions import check_sampling

RANKS = 16  # per node that are measured; later ones add almost nothing
ROWS_PER_PROMPT = 12
BINS = 24
MAX_PROMPTS = 4_096
_LOGITS = np.linspace(-9.0, 9.0, BINS + 1)  # fine near 0 and near 1, where most of a draft's probabilities are
EDGES = 1.0 / (1.0 + np.exp(-_LOGITS[1:-1]))
CENTRES = 1.0 / (1.0 + np.exp(-(_LOGITS[1:] + _LOGITS[:-1]) / 2))
MASS_EDGES = np.array([0.25, 0.75])  # draft mass not drawn yet, in three kinds: little, some, most
# of BEFORE the first is for rank 1, the others for ranks 2 and 3+ by mass left
MOST_LIKELY, AFTER, BEFORE = slice(0, 3), slice(3, 6), slice(6, 13)
TABLES = (
    *(f"most likely, rank {rank}" for rank in ("1", "2", "3+")),
    *(f"drawn, rank {rank}" for rank in ("1", "2", "3+")),
    "next, rank 1",
    *(f"next, rank {rank}, {mass} left" for rank in ("2", "3+") for mass in ("little", "some", "most")),
)
KINDS = {"most likely": (MOST_LIKELY, 0), "drawn": (AFTER, 1), "next": (BEFORE, 1)}  # tables, and which rank sums


class Sample(NamedTuple):
    """What both models said along one text; N = positions.

    Attributes:
        best_probs: float [N, k], the draft's largest probabilities.
        best_accepted: float [N, k], what the target gave those tokens.
        drawn_probs: float [N, k], of tokens drawn without replacement.
        largest_left: float [N, k], the largest probability not drawn before each.
        drawn_accepted: float [N, k], chance that each is the one accepted by Sequoia's rule.
    """

    best_probs: np.ndarray
    best_accepted: np.ndarray
    drawn_probs: np.ndarray
    largest_left: np.ndarray
    drawn_accepted: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class ChanceTables:
    """Fitted tables: monotone in the probability, with straight lines between the bins' centres.

    Args:
        values: float64 [T, b], in the order of `TABLES`.
        gain: factor on all chances, which stay <= 1; not 1 where a run finds them too high or too low.
    """

    values: np.ndarray
    gain: float = 1.0

    def most_likely(self, probs: np.ndarray) -> np.ndarray:
        """Return the chance of the draft's k most likely tokens, in that order, float64 [w, k] -> [w, k]."""
        return self._by_rank(probs, MOST_LIKELY)

    def of_tokens(self, best: np.ndarray, tokens: np.ndarray, probs: np.ndarray) -> np.ndarray:
        """Return the chance of certain tokens, each by its rank among the draft's most likely ones.

        Args:
            best: int64 [k], the most likely tokens in that order; others count as the last rank.
            tokens, probs: int64 and float64 [c], the tokens and their draft probabilities.
        """
        same = tokens[:, None] == best
        ranks = np.where(same.any(axis=1), same.argmax(axis=1), len(best))
        chances = np.empty(len(tokens))
        for table in range(3):
            chosen = np.minimum(ranks, 2) == table
            chances[chosen] = self._curve(MOST_LIKELY.start + table, probs[chosen])
        return chances

    def after(self, probs: np.ndarray) -> np.ndarray:
        """Return the chance of tokens drawn in that order, from their probabilities, float64 [w, k] -> [w, k]."""
        return self._by_rank(probs, AFTER)

    def before(self, left: np.ndarray, largest: np.ndarray) -> np.ndarray:
        """Return the chance of the next token before it is drawn, for ranks 1 to k, float64 [w, k].

        `left` and `largest`, float64 [w, k], are the draft mass not drawn before each rank, and the largest of it.
        """
        table, first = _before_table(left), BEFORE.start
        chances = np.empty(largest.shape)
        chances[:, 0] = self._curve(first, largest[:, 0])
        later = table[:, 1:]
        for number in np.unique(later):
            chosen = later == number
            chances[:, 1:][chosen] = self._curve(int(number), largest[:, 1:][chosen])
        return chances

    def _by_rank(self, probs: np.ndarray, tables: slice) -> np.ndarray:
        chances = np.empty(probs.shape)
        for rank in range(min(3, probs.shape[1])):
            columns = slice(rank, rank + 1) if rank < 2 else slice(2, None)
            chances[:, columns] = self._curve(tables.start + rank, probs[:, columns])
        return chances

    def _curve(self, table: int, probs: np.ndarray) -> np.ndarray:
        return np.minimum(self.gain * np.interp(probs, CENTRES, self.values[table]), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Acceptance by the draft's own probabilities, prompt by prompt.

    Args:
        counts: int64 [m, T, b], children seen.
        accepted: float64 [m, T, b], their chances of being accepted, summed.
        positions: int64 [m].
        accepted_by_rank: float64 [m, 2, k], the same by rank alone: most likely tokens, drawn tokens.
        rows: float64 [r, k], the draft's largest probabilities at some positions.
    """

    counts: np.ndarray
    accepted: np.ndarray
    positions: np.ndarray
    accepted_by_rank: np.ndarray
    rows: np.ndarray
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for name, kind in (("counts", int), ("positions", int), ("accepted", float), ("accepted_by_rank", float)):
            _keep(self, name, kind)
        _keep(self, "rows", float)
        prompts, ranks = len(self.positions), self.accepted_by_rank.shape[-1] if self.accepted_by_rank.ndim else 0
        shapes = {
            "counts": (prompts, len(TABLES), BINS),
            "accepted": (prompts, len(TABLES), BINS),
            "positions": (prompts,),
            "accepted_by_rank": (prompts, 2, ranks),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"calibration: found {name} of shape {getattr(self, name).shape}, expected {shape}")
        if not 1 <= prompts <= MAX_PROMPTS or not 1 <= ranks <= RANKS or self.positions.sum() < 1:
            raise ValueError(
                f"calibration: found {prompts} prompts and {ranks} ranks, expected 1 to {MAX_PROMPTS} and 1 to {RANKS}"
            )
        rows = self.rows
        if rows.ndim != 2 or rows.shape[1] != ranks or not 1 <= len(rows) <= prompts * ROWS_PER_PROMPT:
            raise ValueError(f"calibration: found rows of shape {rows.shape}, expected some of {ranks} probabilities")
        if (rows.sum(axis=1) > 1.001).any() or (np.diff(rows, axis=1) > 0).any():
            raise ValueError(
                "calibration: found a row that rises or sums to more than 1, expected probabilities, falling"
            )
        if (self.accepted > self.counts + 1e-3).any():
            raise ValueError("calibration: found more accepted than there were children, expected at most as many")
        with naming("calibration"):
            check_sampling(self.temperature)

    @classmethod
    def of_samples(cls, samples: Sequence[Sample], *, temperature: float) -> Calibration:
        """Count acceptance along texts, one sample per prompt."""
        return cls.joined([cls._of_one(sample, temperature) for sample in samples])

    @classmethod
    def _of_one(cls, sample: Sample, temperature: float) -> Calibration:
        left = 1.0 - (np.cumsum(sample.drawn_probs, axis=1) - sample.drawn_probs)
        ranks = np.broadcast_to(np.minimum(np.arange(sample.best_probs.shape[1]), 2), sample.best_probs.shape)
        counts, accepted = np.zeros((len(TABLES), BINS), np.int64), np.zeros((len(TABLES), BINS))
        for tables, probs, chances in (
            (MOST_LIKELY.start + ranks, sample.best_probs, sample.best_accepted),
            (AFTER.start + ranks, sample.drawn_probs, sample.drawn_accepted),
            (_before_table(left), sample.largest_left, sample.drawn_accepted),
        ):
            cells = tables, np.digitize(probs, EDGES)
            np.add.at(counts, cells, 1)
            np.add.at(accepted, cells, chances)
        positions = len(sample.best_probs)
        some = np.unique(np.linspace(0, positions - 1, min(ROWS_PER_PROMPT, positions)).astype(int))
        by_rank = np.stack([sample.best_accepted.sum(axis=0), sample.drawn_accepted.sum(axis=0)])
        return cls(
            counts[None], np.round(accepted, 6)[None], np.array([positions]), np.round(by_rank, 6)[None],
            np.floor(sample.best_probs[some] * 1e5) / 1e5, temperature,
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Calibration]) -> Calibration:
        """Put the prompts of several calibrations, all at one temperature, after each other."""
        names = ("counts", "accepted", "positions", "accepted_by_rank", "rows")
        whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**whole, temperature=parts[0].temperature)

    @property
    def ranks(self) -> int:
        return self.accepted_by_rank.shape[2]

    def expected(self, kind: str) -> np.ndarray:
        """Return the chance of each rank where nothing is known of the row, float64 [k]; `kind` is one of `KINDS`."""
        return self.accepted_by_rank[:, KINDS[kind][1]].sum(axis=0) / self.positions.sum()

    def rows_by_prompt(self) -> list[np.ndarray] | None:
        """Return each prompt's rows, float64 [its r, k]; None where they cannot be told apart."""
        counts = np.minimum(self.positions, ROWS_PER_PROMPT)
        return np.split(self.rows, np.cumsum(counts)[:-1]) if counts.sum() == len(self.rows) else None

    def gain_by_prompt(self, kind: str) -> np.ndarray:
        """Return accepted children ÷ those that the tables of all prompts predict, for each prompt, float64 [m]."""
        tables = KINDS[kind][0]
        predicted = (self.counts[:, tables] * self.tables().values[tables]).sum(axis=(1, 2))
        return self.accepted[:, tables].sum(axis=(1, 2)) / np.maximum(predicted, 1e-9)

    def tables(self, weights: np.ndarray | None = None) -> ChanceTables:
        """Fit the tables, with a weight for each prompt, float64 [m].

        Each bin starts with one pseudo-child: the draft's probability for most likely tokens, else the table's average.
        Chances of most likely tokens rise with their probability; those of drawn tokens rise or fall, whichever fits.
        """
        from scipy.optimize import isotonic_regression

        weights = np.ones(len(self.positions)) if weights is None else weights
        counts, accepted = np.tensordot(weights, self.counts, 1), np.tensordot(weights, self.accepted, 1)
        values = np.empty(counts.shape)
        for table, (seen, taken) in enumerate(zip(counts, accepted, strict=True)):
            rising_only = table < MOST_LIKELY.stop
            prior = CENTRES if rising_only else taken.sum() / max(seen.sum(), 1.0)
            rates, sure = (taken + prior) / (seen + 1.0), seen + 1.0
            curves = [
                isotonic_regression(rates, weights=sure, increasing=rising).x
                for rising in ((True,) if rising_only else (True, False))
            ]
            values[table] = min(curves, key=lambda curve: (sure * (curve - rates) ** 2).sum())
        return ChanceTables(np.clip(values, 0.0, 1.0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__
        )

    def __hash__(self) -> int:
        return hash((self.counts.tobytes(), self.temperature))

    def to_json(self) -> dict[str, Any]:
        arrays = {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(self).items()
        }
        return arrays | {"edges": EDGES.tolist()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Calibration:
        expected = [*cls.__dataclass_fields__, "edges"]
        names = list(fields) if isinstance(fields, Mapping) else []
        if sorted(names) != sorted(expected):
            found = ", ".join(str(key)[:40] for key in names) or "nothing"
            raise ValueError(f"calibration: found {found}, expected {', '.join(expected)}")
        if np.shape(fields["edges"]) != EDGES.shape or not np.allclose(np.array(fields["edges"], float), EDGES):
            raise ValueError(f"calibration: found other edges of bins, expected {BINS} evenly spaced in log-odds")
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


def _before_table(left: np.ndarray) -> np.ndarray:
    """Return which table applies to each rank before its draw, from the mass left, float64 [w, k] -> int64 [w, k]."""
    ranks = np.broadcast_to(np.minimum(np.arange(left.shape[1]), 2), left.shape)
    return np.where(ranks == 0, BEFORE.start, BEFORE.start + 1 + 3 * (ranks - 1) + np.digitize(left, MASS_EDGES))


def _keep(calibration: Calibration, name: str, kind: type) -> None:
    """Store an array of numbers from 0 up, read-only."""
    try:
        array = np.array(getattr(calibration, name))
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"calibration: found rows of different lengths in {name}, expected an array") from error
    if array.dtype.kind not in ("iu" if kind is int else "iuf"):
        raise ValueError(f"calibration: found {name} of {array.dtype}, expected numbers")
    if array.size and not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 2**53):
        raise ValueError(f"calibration: found a value in {name} below 0 or not finite, expected counts and chances")
    array = array.astype(np.int64 if kind is int else np.float64)
    array.setflags(write=False)
    object.__setattr__(calibration, name, array)
