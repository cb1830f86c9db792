"""Hardware profiles: times of each part of a step on one device. k = sizes, j = draft widths, r = timing rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..files.extras import provided
from ..files.json_models import prefix_errors
from ..files.model_names import NO_DRAFT
from ..files.safe_files import json_bytes, read_bytes, write_atomic
from .profile_files import (
    ARRAYS,
    FORMAT,
    MAX_FILE_BYTES,
    PER_SIZE,
    SAMPLES,
    VERSION,
    Streaming,
    check_context,
    read_profile,
    validate_fields,
)

if TYPE_CHECKING:
    import pandas as pd

LLAMA_CPP = "llama.cpp"  # engine name in profiles and step counts
MAX_SEQUENCES = 256  # per llama.cpp context (LLAMA_MAX_SEQ)
# Lower bound on the time of a pass with less context, as a share of its profiled time; guards against noise.
LEAST_SHARE = 0.5
TIER_NAMES = {None: "in memory", "disk": "on disk", "host": "in the host's memory"}  # where the target's weights are
Rows = tuple[tuple[float, ...], ...]


def _empty() -> np.ndarray:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class HardwareProfile:
    """Times of a target and its draft on one device. Optional arrays are empty if that part of a step was not timed."""

    sizes: np.ndarray  # int64 [k], tokens in a target pass, increasing from 1
    verify_sec: np.ndarray  # float64 [k], seconds of a target pass of each size
    draft_sec: float  # seconds of a one-token draft pass, including sampling
    device: str = "unknown"
    dtype: str = "unknown"
    context: int = 0  # number of tokens in the cache while timing
    draft_widths: np.ndarray = field(default_factory=_empty)  # int64 [j], tokens in a draft pass, increasing
    draft_width_sec: np.ndarray = field(default_factory=_empty)  # float64 [j], seconds of each such pass
    verify_samples: Rows = ()  # float64 [k][r], seconds of target passes by round
    meta: dict = field(default_factory=dict)
    overhead_sec: np.ndarray = field(default_factory=_empty)  # float64 [k], seconds of a step outside its passes
    sampling_sec: np.ndarray = field(default_factory=_empty)  # float64 [k], seconds added at temperatures above 0
    draft_samples: Rows = ()  # float64 [j][r], seconds of draft passes by round
    overhead_samples: Rows = ()  # float64 [k][r], overhead seconds by round
    verify_growth_sec: np.ndarray = field(default_factory=_empty)  # float64 [k], target seconds per cached token
    draft_growth_sec: float = 0.0  # draft seconds per cached token, for any width
    # float64 [2], additional seconds per step for growing a tree dynamically, compared with a static tree of the same
    # size and widths: first at temperature 0, then at higher temperatures.
    growing_sec: np.ndarray = field(default_factory=_empty)
    deeper_draft_share: float = 1.0  # time of a step's further draft passes over one token, relative to its first

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in validate_fields(given).items():
            object.__setattr__(self, name, value)

    @property
    def max_size(self) -> int:
        return int(self.sizes[-1])

    @property
    def modelled(self) -> bool:
        """Whether the times were computed from a hardware model rather than measured."""
        return bool(self.meta.get("modelled"))

    @property
    def timed_by_llama_cpp(self) -> bool:
        return self.meta.get("passes_by") == LLAMA_CPP

    @property
    def max_leaves(self) -> int | None:
        """The largest number of leaves that the target's backend supports; None if unlimited."""
        return MAX_SEQUENCES if self.timed_by_llama_cpp else None  # llama.cpp uses one sequence per leaf

    @property
    def offload(self) -> str | None:
        """The tier from which the target's layers are streamed, "disk" or "host"; None if they are in memory."""
        tier = self.meta.get("offload")
        return tier if tier in ("disk", "host") else None

    @property
    def streaming(self) -> Streaming | None:
        """How the target's layers are streamed from a slower tier; None if they are in memory or this is unknown."""
        return Streaming.from_meta(self.meta)

    @property
    def smooth_verify_sec(self) -> np.ndarray:
        """The non-decreasing times closest to `verify_sec`, so that noise cannot make a larger pass look cheaper."""
        from scipy.optimize import isotonic_regression

        return isotonic_regression(self.verify_sec).x

    @property
    def quartiles(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper quartiles of the target pass times, float64 [k] each; None without samples."""
        if not self.verify_samples or not all(self.verify_samples):
            return None
        low, high = zip(*(np.percentile(row, [25, 75]) for row in self.verify_samples), strict=True)
        return np.array(low), np.array(high)

    def verify_at(self, n: int | np.ndarray, context: float | None = None) -> np.ndarray:
        """Return the seconds of a target pass over n tokens, float64 of n's shape, interpolated between profiled sizes.

        Args:
            context: number of tokens in the cache; None for the profile's number.
        """
        n = np.asarray(n)
        if n.size and (n.min() < 1 or n.max() > self.max_size):
            raise ValueError(f"size: found {n.min()} to {n.max()}, expected 1 to {self.max_size}, the profiled sizes")
        seconds = np.interp(n, self.sizes, self.smooth_verify_sec)
        further = 0.0 if context is None else check_context(context) - self.context
        if not further or len(self.verify_growth_sec) == 0:
            return seconds
        grown = seconds + further * np.interp(n, self.sizes, self.verify_growth_sec)
        return np.maximum(grown, LEAST_SHARE * seconds)

    def draft_at(self, tokens: float | np.ndarray, context: float | None = None) -> np.ndarray:
        """Return the seconds of a draft pass over this number of tokens (any shape), extrapolated if necessary."""
        tokens = np.asarray(tokens, dtype=np.float64)
        widths = self.draft_widths
        if len(widths) == 0:
            sec = np.full(tokens.shape, float(self.draft_sec))
        else:
            sec = np.interp(tokens, widths, self.draft_width_sec)
            if len(widths) > 1:
                slope = max(0.0, (self.draft_width_sec[-1] - self.draft_width_sec[-2]) / (widths[-1] - widths[-2]))
                sec = sec + slope * np.maximum(tokens - widths[-1], 0.0)
        grown = 0.0 if context is None else (check_context(context) - self.context) * self.draft_growth_sec
        return np.maximum(sec + grown, LEAST_SHARE * sec)

    def drafting_at(self, widths: np.ndarray, context: float | None = None) -> np.ndarray:
        """Return the seconds of all draft passes of a step, float64 [*S].

        Args:
            widths: int [*S, D], number of nodes in each pass, in order; 0 if there is no pass.
        """
        seconds = self.draft_at(widths, context)
        seconds[..., 1:] -= (1.0 - self.deeper_draft_share) * self.draft_at(1, context)
        return np.sum(seconds, axis=-1, where=widths > 0)

    def overhead_at(self, n: int | np.ndarray, *, greedy: bool = True) -> np.ndarray:
        """Return the seconds that a step with n nodes spends outside its passes; 0 if not timed."""
        parts = (self.overhead_sec,) if greedy else (self.overhead_sec, self.sampling_sec)
        return np.zeros(np.shape(n)) + sum(np.interp(n, self.sizes, part) for part in parts if len(part))

    def growing_at(self, *, greedy: bool) -> float:
        """Return the seconds that growing a tree dynamically adds to a step; 0 if not timed."""
        return float(self.growing_sec[0 if greedy else 1]) if len(self.growing_sec) else 0.0

    def t(self, n: int | np.ndarray) -> np.ndarray:
        """Return t(n), the time of a target pass over n tokens divided by that of a one-token target pass."""
        return self.verify_at(n) / self.smooth_verify_sec[0]

    @property
    def c(self) -> float:
        """The time of a one-token draft pass divided by that of a one-token target pass."""
        return float(self.draft_sec / self.smooth_verify_sec[0])

    def draft_cost(self, tokens: float | np.ndarray) -> np.ndarray:
        """Return the time of a draft pass over this number of tokens divided by that of a one-token target pass."""
        return self.draft_at(tokens) / self.smooth_verify_sec[0]

    def resampled(self, count: int, generator: np.random.Generator, *, rounds: int | None = None) -> list[Self] | None:
        """Return `count` profiles from resampled timing rounds; None with fewer than two rounds.

        All parts of a round are resampled together, because a slow phase of the machine affects all of them.

        Args:
            rounds: number of rounds to draw and average, comparable to a run's totals; None for medians over as many
                rounds as were timed.
        """
        counts = {len(row) for name in SAMPLES for row in getattr(self, name)}
        if len(counts) != 1 or not self.verify_samples or (timed := counts.pop()) < 2:
            return None
        average = np.median if rounds is None else np.mean
        verify, draft, overhead = map(np.array, (self.verify_samples, self.draft_samples, self.overhead_samples))
        profiles = []
        for picks in generator.integers(timed, size=(count, rounds or timed)):
            averages = {"verify_sec": average(verify[:, picks], axis=1)}
            if len(draft):
                averages["draft_width_sec"] = average(draft[:, picks], axis=1)
                averages["draft_sec"] = float(averages["draft_width_sec"][0])
            if len(overhead):
                averages["overhead_sec"] = average(overhead[:, picks], axis=1)
            profiles.append(replace(self, **averages, verify_samples=(), draft_samples=(), overhead_samples=()))
        return profiles

    def matches_device(self, device: str) -> bool:
        """Return whether `device` is the profile's device, ignoring the number of threads."""
        return self.device.split(", ")[0] == device.split(", ")[0]

    def measured_by(self, installation: str) -> bool:
        """Return whether this installation, identified by `installation_id`, measured the times."""
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
        """Return the reasons why these times do not apply to a run, such as "measured in bfloat16, not float32".

        Modelled times do not apply to any run.

        Args:
            target, draft: model names, as in `PairSpec.names`.
            device: name of the processor or GPU; the number of threads is ignored.
            instructions: result of `instructions_in_use`; None if unknown.
            installation: id of the installation that must have measured the times; None for any.
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
        if not self.matches_device(device):
            phrases.append(f"measured on {self.device}, not on {device}")
        elif not self.modelled and installation is not None and not self.measured_by(installation):
            phrases.append("measured on a machine of the same name, perhaps not this one")
        measured = self.meta.get("instructions")
        if measured and instructions and measured != instructions:
            phrases.append(f"measured with {measured}, not {instructions}")
        if self.offload != offload:
            found = TIER_NAMES[self.offload]
            phrases.append(f"measured with the target's weights {found}, not {TIER_NAMES[offload]}")
        return phrases

    def to_frame(self) -> pd.DataFrame:
        """Return one row per timed pass: `model`, `tokens`, `sec`, and, for the target, all other times by size."""
        import pandas as pd

        by_size = {name: getattr(self, name) for name in PER_SIZE if len(getattr(self, name))}
        target = pd.DataFrame({"model": "target", "tokens": self.sizes, "sec": self.verify_sec, **by_size})
        widths, sec = (self.draft_widths, self.draft_width_sec) if len(self.draft_widths) else ([1], self.draft_sec)
        return pd.concat([target, pd.DataFrame({"model": "draft", "tokens": widths, "sec": sec})], ignore_index=True)

    def to_json(self) -> dict[str, Any]:
        fields = {"format": FORMAT, "version": VERSION}
        fields |= {name: getattr(self, name).tolist() for name in ARRAYS}
        fields |= {name: [list(row) for row in getattr(self, name)] for name in SAMPLES}
        plain = ("draft_sec", "draft_growth_sec", "deeper_draft_share", "device", "dtype", "context", "meta")
        return fields | {name: getattr(self, name) for name in plain}

    def to_bytes(self) -> bytes:
        return json_bytes(self.to_json())

    def save(self, path: str | Path) -> None:
        write_atomic(path, self.to_bytes())

    @classmethod
    def loads(cls, data: bytes, name: str) -> HardwareProfile:
        """Read a profile from the content of a native file; `name` appears in error messages."""
        with prefix_errors(name):
            content = read_profile(data)
            return cls(**{name: content[name] for name in cls.__dataclass_fields__ if name in content})

    @classmethod
    def load(cls, path: str | Path) -> HardwareProfile:
        return cls.loads(read_bytes(path, limit=MAX_FILE_BYTES), str(path))


def load_profile(path: str | Path, draft: str | Path | None = None, *, needs_draft: bool = True) -> HardwareProfile:
    """Read a profile, native or from another program, which may store the draft's times in a second file."""
    paths = [path] if draft is None else [path, draft]
    return profile_from_files([(read_bytes(each), str(each)) for each in paths], needs_draft=needs_draft)


def profile_from_files(files: Sequence[tuple[bytes, str]], *, needs_draft: bool = True) -> HardwareProfile:
    """Read a profile from one native file, or from files of a format that an optional package reads.

    Args:
        files: content and name of each.
        needs_draft: whether to refuse profiles without a draft.
    """
    if len(files) != 1 or f'"{FORMAT}"'.encode() not in files[0][0][:4096]:
        for reader in provided("profile_readers"):
            return reader(files, needs_draft=needs_draft)
    if len(files) != 1:
        raise ValueError(
            f"profile: found {len(files)} files, expected one (several require the optional package hardware_models)"
        )
    profile = HardwareProfile.loads(*files[0])
    if needs_draft and profile.meta.get("draft") == NO_DRAFT:
        raise ValueError(f"{files[0][1]}: found only a target's times, expected those of a target and its draft")
    return profile
