"""Hardware profiles: seconds of each part of a step on one device. k = sizes, j = draft widths, r = timing rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from ..files.gguf_header import LLAMA_CPP, MOST_SEQUENCES
from ..files.json_models import naming
from ..files.safe_files import json_bytes, read_bytes, write_atomic
from .profile_files import (
    FORMAT,
    MAX_FILE_BYTES,
    MAX_SEC,
    MIN_SEC,
    VERSION,
    Streaming,
    read_profile,
    seconds_above_0,
    seconds_from_0,
    short,
    tokens_cached,
    whole_numbers,
)

if TYPE_CHECKING:
    import pandas as pd

LEAST_SHARE = 0.5  # of a pass remains in an empty cache, however noisy the times of a longer one are
PER_SIZE = ("overhead_sec", "sampling_sec", "verify_growth_sec")  # one number for each size, or none at all
PLACES = {None: "in memory", "disk": "on disk", "host": "in the host's memory"}  # of a target's weights


@dataclass(frozen=True, slots=True, eq=False)
class HardwareProfile:
    """Measured times of a pair on one device. Optional arrays are empty where they were not timed.

    Args:
        sizes: int64 [k], tokens in one target pass, increasing, starting at 1.
        verify_sec: float64 [k], seconds of a target pass over that many tokens.
        draft_sec: seconds of one draft pass over one token, drawing included.
        context: tokens already in the cache during measurement.
        draft_widths, draft_width_sec: int64 [j] and float64 [j], draft passes over several tokens.
        verify_samples: float64 [k][r], raw seconds.
        overhead_sec: float64 [k], seconds of a step outside its passes: walking, committing, keeping the record.
        sampling_sec: float64 [k], seconds that a temperature above 0 adds to a step.
        draft_samples: float64 [j][r], draft passes round by round.
        verify_growth_sec: float64 [k], seconds that each further cached token adds to a target pass.
        draft_growth_sec: the same for a draft pass of any width.
        growing_sec: float64 [2], seconds that a dynamic tree adds to a step, beyond those of a static tree of its size
            and widths: at temperature 0, and above.
    """

    sizes: np.ndarray
    verify_sec: np.ndarray
    draft_sec: float
    device: str = "unknown"
    dtype: str = "unknown"
    context: int = 0
    draft_widths: np.ndarray = field(default_factory=lambda: np.empty(0))
    draft_width_sec: np.ndarray = field(default_factory=lambda: np.empty(0))
    verify_samples: tuple[tuple[float, ...], ...] = ()
    meta: dict = field(default_factory=dict)
    overhead_sec: np.ndarray = field(default_factory=lambda: np.empty(0))
    sampling_sec: np.ndarray = field(default_factory=lambda: np.empty(0))
    draft_samples: tuple[tuple[float, ...], ...] = ()
    overhead_samples: tuple[tuple[float, ...], ...] = ()
    verify_growth_sec: np.ndarray = field(default_factory=lambda: np.empty(0))
    draft_growth_sec: float = 0.0
    growing_sec: np.ndarray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        for name in ("sizes", "draft_widths"):
            object.__setattr__(self, name, whole_numbers(name, getattr(self, name)))
        for name in ("verify_sec", "draft_width_sec"):
            object.__setattr__(self, name, seconds_above_0(name, getattr(self, name)))
        for name in (*PER_SIZE, "growing_sec"):
            object.__setattr__(self, name, seconds_from_0(name, getattr(self, name)))
        if len(self.growing_sec) not in (0, 2):
            raise ValueError(
                f"growing_sec: found {len(self.growing_sec)} times, expected 2: at temperature 0, and above"
            )
        if len(self.sizes) < 2 or self.sizes[0] != 1 or np.any(np.diff(self.sizes) <= 0):
            raise ValueError(
                f"sizes: found {self.sizes.tolist()[:8]}, expected at least two increasing sizes from 1 up"
            )
        optional = [(name, len(self.sizes), "sizes") for name in PER_SIZE if len(getattr(self, name))]
        widths = ("draft_width_sec", len(self.draft_widths), "widths")
        for name, count, what in (("verify_sec", len(self.sizes), "sizes"), *optional, widths):
            if (found := len(getattr(self, name))) != count:
                raise ValueError(f"{name}: found {found} times, expected one for each of {count} {what}")
        if np.any(np.diff(self.draft_widths) <= 0):
            raise ValueError(f"draft_widths: found {self.draft_widths.tolist()[:8]}, expected increasing widths")
        for name, least in (("draft_sec", MIN_SEC), ("draft_growth_sec", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MAX_SEC:
                raise ValueError(f"{name}: found {short(value)}, expected a positive number of seconds")
        tokens_cached(self.context)
        for name in ("verify_samples", "overhead_samples"):
            self._check_samples(name, len(self.sizes), "sizes")
        self._check_samples("draft_samples", len(self.draft_widths), "widths")
        if not isinstance(self.meta, dict):
            raise ValueError(f"meta: found {type(self.meta).__name__}, expected names with values")

    def _check_samples(self, name: str, rows: int, what: str) -> None:
        samples = getattr(self, name)
        if samples and len(samples) != rows:
            raise ValueError(f"{name}: found {len(samples)} rows, expected one for each of {rows} {what}")
        for row in samples:
            seconds_from_0(name, row) if name == "overhead_samples" else seconds_above_0(name, row)
        object.__setattr__(self, name, tuple(map(tuple, samples)))

    @property
    def max_size(self) -> int:
        return int(self.sizes[-1])

    @property
    def modelled(self) -> bool:
        """Whether the times were worked out rather than measured."""
        return bool(self.meta.get("modelled"))

    @property
    def by_llama_cpp(self) -> bool:
        return self.meta.get("passes_by") == LLAMA_CPP

    @property
    def most_leaves(self) -> int | None:
        """The most leaves that the target's backend can take; None without a limit."""
        return MOST_SEQUENCES if self.by_llama_cpp else None  # there each leaf is a sequence

    @property
    def offload(self) -> str | None:
        """The slower tier that the target's layers stream from, "disk" or "host"; None where they are in memory."""
        tier = self.meta.get("offload")
        return tier if tier in ("disk", "host") else None

    @property
    def streaming(self) -> Streaming | None:
        """How the target's layers stream from a slower tier; None where weights are resident or it is unknown."""
        return Streaming.recorded_in(self.meta)

    @property
    def smooth_verify_sec(self) -> np.ndarray:
        """Closest times that never decrease (isotonic regression): noise must not make a larger pass look cheaper."""
        from scipy.optimize import isotonic_regression

        return isotonic_regression(self.verify_sec).x

    @property
    def quartiles(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper quartile of a target pass's seconds, float64 [k] each; None where no samples were kept."""
        if not self.verify_samples or not all(self.verify_samples):
            return None
        low, high = zip(*(np.percentile(row, [25, 75]) for row in self.verify_samples), strict=True)
        return np.array(low), np.array(high)

    def verify_at(self, n: int | np.ndarray, context: float | None = None) -> np.ndarray:
        """Return the seconds of a target pass over n tokens, interpolated between measured sizes; float64 of n's shape.

        `context` is tokens in the cache; None for as many as were there when it was timed.
        """
        n = np.asarray(n)
        if n.size and (n.min() < 1 or n.max() > self.max_size):
            raise ValueError(f"size: found {n.min()} to {n.max()}, expected 1 to {self.max_size} as profiled")
        seconds = np.interp(n, self.sizes, self.smooth_verify_sec)
        further = 0.0 if context is None else tokens_cached(context) - self.context
        if not further or len(self.verify_growth_sec) == 0:
            return seconds
        grown = seconds + further * np.interp(n, self.sizes, self.verify_growth_sec)
        return np.maximum(grown, LEAST_SHARE * seconds)

    def draft_at(self, tokens: float | np.ndarray, context: float | None = None) -> np.ndarray:
        """Return the seconds of one draft pass over some tokens (any shape); beyond the widest by the last slope."""
        tokens = np.asarray(tokens, dtype=np.float64)
        widths, seconds = self.draft_widths, self.draft_width_sec
        if len(widths) == 0:
            sec = np.full(tokens.shape, float(self.draft_sec))
        else:
            sec = np.interp(tokens, widths, seconds)
            if len(widths) > 1:
                slope = max(0.0, (seconds[-1] - seconds[-2]) / (widths[-1] - widths[-2]))
                sec = sec + slope * np.maximum(tokens - widths[-1], 0.0)
        grown = 0.0 if context is None else (tokens_cached(context) - self.context) * self.draft_growth_sec
        return np.maximum(sec + grown, LEAST_SHARE * sec)

    def overhead_at(self, n: int | np.ndarray, *, greedy: bool = True) -> np.ndarray:
        """Return the seconds of a step of n nodes outside its passes; 0 where they were not timed."""
        parts = (self.overhead_sec,) if greedy else (self.overhead_sec, self.sampling_sec)
        return np.zeros(np.shape(n)) + sum(np.interp(n, self.sizes, part) for part in parts if len(part))

    def growing_at(self, *, greedy: bool) -> float:
        """Return the seconds that a dynamic tree adds to a step, beyond a static one of its size and widths."""
        return float(self.growing_sec[0 if greedy else 1]) if len(self.growing_sec) else 0.0

    def t(self, n: int | np.ndarray) -> np.ndarray:
        """Return t(n), a target pass over n tokens ÷ over one."""
        return self.verify_at(n) / self.smooth_verify_sec[0]

    @property
    def c(self) -> float:
        """One draft pass over one token ÷ one target pass over one token."""
        return float(self.draft_sec / self.smooth_verify_sec[0])

    def draft_cost(self, tokens: float | np.ndarray) -> np.ndarray:
        """Return one draft pass over some tokens ÷ a target pass over one; `c` where only single tokens were timed."""
        return self.draft_at(tokens) / self.smooth_verify_sec[0]

    def resampled(self, count: int, generator: np.random.Generator, *, rounds: int | None = None) -> list[Self] | None:
        """Return `count` profiles that the same measurement might have found; None without two rounds of target passes.

        All parts of a round stay together, because a slow moment affects all of them.

        Args:
            rounds: None for medians of as many rounds as were taken; else means of so many, as totals of a run have.
        """
        counts = {len(row) for row in (*self.verify_samples, *self.draft_samples, *self.overhead_samples)}
        if len(counts) != 1 or not self.verify_samples or (number := counts.pop()) < 2:
            return None
        average = np.median if rounds is None else np.mean
        verify, draft, overhead = map(np.array, (self.verify_samples, self.draft_samples, self.overhead_samples))
        profiles = []
        for picks in generator.integers(number, size=(count, rounds or number)):
            again = {"verify_sec": average(verify[:, picks], axis=1)}
            if len(draft):
                again["draft_width_sec"] = average(draft[:, picks], axis=1)
                again["draft_sec"] = float(again["draft_width_sec"][0])
            if len(overhead):
                again["overhead_sec"] = average(overhead[:, picks], axis=1)
            profiles.append(replace(self, **again, verify_samples=(), draft_samples=(), overhead_samples=()))
        return profiles

    def is_of(self, device: str) -> bool:
        """Whether the times are of a device of that name, with or without its number of threads."""
        return self.device.split(", ")[0] == device.split(", ")[0]

    def measured_by(self, installation: str) -> bool:
        """Whether the file says that this installation, as `installation_id` names it, measured the times."""
        return not self.modelled and self.meta.get("installation") == installation

    def differences(
        self,
        *,
        target: str,
        draft: str,
        dtype: str,
        device: str,
        offload: str | None = None,
        instructions: str | None = None,
        installation: str | None = None,
    ) -> list[str]:
        """Return why these times do not hold for a pair on a device, such as "measured in bfloat16, not float32".

        Modelled times never hold.

        Args:
            target, draft: names as `PairSpec.names` has them.
            device: the name of the processor or GPU, with or without its number of threads.
            instructions: as `instructions_in_use` names them; None, here or in the file, is unknown.
            installation: which one must have measured the times, as `installation_id` names it; None for any.
        """
        phrases = ["the times are modelled, not measured"] if self.modelled else []
        for role, name in (("target", target), ("draft", draft)):
            measured = self.meta.get(role)
            if measured is None:
                phrases.append(f"the profile does not name its {role}")
            elif measured != name:
                phrases.append(f"{role} {measured}, not {name}")
        if self.dtype != dtype:
            phrases.append(f"measured in {self.dtype}, not {dtype}")
        if not self.is_of(device):
            phrases.append(f"measured on {self.device}, not on {device}")
        elif not self.modelled and installation is not None and not self.measured_by(installation):
            phrases.append("measured on a machine of the same name, perhaps not this one")
        own = self.meta.get("instructions")
        if own and instructions and own != instructions:
            phrases.append(f"measured with {own}, not {instructions}")
        if self.offload != offload:
            phrases.append(f"measured with the target's weights {PLACES[self.offload]}, not {PLACES[offload]}")
        return phrases

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each pass timed: `model`, `tokens`, `sec`, and for the target what else was timed."""
        import pandas as pd

        beside = {name: getattr(self, name) for name in PER_SIZE if len(getattr(self, name))}
        target = pd.DataFrame({"model": "target", "tokens": self.sizes, "sec": self.verify_sec, **beside})
        widths, sec = (self.draft_widths, self.draft_width_sec) if len(self.draft_widths) else ([1], self.draft_sec)
        return pd.concat([target, pd.DataFrame({"model": "draft", "tokens": widths, "sec": sec})], ignore_index=True)

    def to_json(self) -> dict:
        arrays = ("sizes", "verify_sec", "draft_widths", "draft_width_sec", *PER_SIZE, "growing_sec")
        samples = ("verify_samples", "draft_samples", "overhead_samples")
        plain = ("draft_sec", "draft_growth_sec", "device", "dtype", "context", "meta")
        return {
            "format": FORMAT, "version": VERSION, **{name: getattr(self, name).tolist() for name in arrays},
            **{name: [list(row) for row in getattr(self, name)] for name in samples},
            **{name: getattr(self, name) for name in plain},
        }  # fmt: skip

    def to_bytes(self) -> bytes:
        return json_bytes(self.to_json())

    def save(self, path: str | Path) -> None:
        write_atomic(path, self.to_bytes())

    @classmethod
    def loads(cls, data: bytes, name: str) -> HardwareProfile:
        with naming(name):
            return cls(**read_profile(data))

    @classmethod
    def load(cls, path: str | Path) -> HardwareProfile:
        return cls.loads(read_bytes(path, limit=MAX_FILE_BYTES), str(path))
