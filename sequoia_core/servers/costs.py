"""What a step of a server costs with k drafted tokens and B requests: target B · (k + 1) tokens, k drafts of B."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..design.model_shapes import ModelShape
from ..design.profile import HardwareProfile
from ..design.profile_files import odd_times, tokens_cached
from ..design.step_time import step_seconds
from .chain_acceptance import ChainAcceptance

MAX_K = 1024
LEAST_STEP = 0.85  # of a step without a draft; tokens per step of short chains come out up to 13 % too low
MAX_BATCH = 65_536


class TimedSetting(NamedTuple):
    """A setting that the server ran with: k drafted tokens, B requests side by side, and the seconds of a step."""

    k: int
    step_sec: float
    batch: int = 1


class Line(NamedTuple):
    """Seconds of a step beyond the target's pass (without a profile: of all) in settings with k > 0."""

    fixed_sec: float
    per_token_sec: float


def timed_setting(k: int, tokens_per_sec: float, acceptance: ChainAcceptance, *, batch: int = 1) -> TimedSetting:
    """Return a setting from the tokens per second of all its requests together."""
    if not 0 < tokens_per_sec < math.inf:
        raise ValueError(f"tokens per second: found {tokens_per_sec:g}, expected a number above 0")
    return TimedSetting(k, batch * acceptance.tokens(k).value / tokens_per_sec, batch)


@dataclass(frozen=True, slots=True, eq=False)
class ServerCosts:
    """Seconds of a server's steps.

    Args:
        profile: of the passes; None where only settings were timed.
        drafts_free: the draft is no model (n-grams), so that its passes cost nothing.
        target: its shape where known: steps of a mixture of experts grow with the experts that they read.
        context: tokens in the cache while passes run; None for as many as in the profile. Settings are of it.
    """

    source: str
    profile: HardwareProfile | None = None
    settings: tuple[TimedSetting, ...] = ()
    drafts_free: bool = False
    target: ModelShape | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        tokens_cached(self.context or 0)
        for k, sec, batch in self.settings:
            if not (0 <= k <= MAX_K and 1 <= batch <= MAX_BATCH and 0 < sec < math.inf):
                raise ValueError(
                    f"setting: found K = {k}, batch {batch}, {sec:g} seconds, expected K from 0, batch from 1, time > 0"
                )
        for batch in self.batches:
            plain = min((sec for k, sec, at in self.settings if (k, at) == (0, batch)), default=0.0)
            for k, sec, at in self.settings:
                if k and at == batch and sec < LEAST_STEP * plain:
                    raise ValueError(
                        f"setting: found {1e3 * sec:.3g} ms for a step of K = {k} against {1e3 * plain:.3g} ms for one "
                        "of K = 0, expected no less (it verifies more tokens): counts and times are not of one run"
                    )
        if self.profile is None and not any(self._line(batch) for batch in self.batches):
            raise ValueError(
                f"found {len(self.settings)} timed settings, expected two with different K > 0 at one batch size, or a "
                "profile"
            )

    @property
    def batches(self) -> list[int]:
        return sorted({setting.batch for setting in self.settings})

    @property
    def notes(self) -> list[str]:
        notes = []
        if self.profile is not None and not any(self._line(batch) for batch in self.batches):
            notes.append("What turning speculation on costs beside its passes is unknown and counted as nothing.")
        if self.profile is not None and self.profile.modelled:
            notes.append("Costs are modelled, not measured.")
        if self.profile is not None and self.context is not None and not len(self.profile.verify_growth_sec):
            notes.append(f"The profile has times at {self.profile.context:,} tokens of context alone.")
        if self.profile is not None and (fall := odd_times(self.profile.sizes, self.profile.verify_sec)):
            notes.append(fall)
        return notes

    def step_sec(self, k: int, batch: int = 1) -> float:
        """Return the seconds of one step of `batch` requests that each verify k drafted tokens; NaN where unknown."""
        timed = [setting.step_sec for setting in self.settings if (setting.k, setting.batch) == (0, batch)]
        if k == 0 and timed:
            return float(np.mean(timed))
        line = self._line(batch if self.profile is None else self._nearest(batch))
        verify = self._passes_sec(k, batch, drafts=line is None)
        if k and line is not None:
            verify += line.fixed_sec + line.per_token_sec * self._length(k, batch)
        elif self.profile is None:
            return math.nan
        return verify if math.isnan(verify) else max(verify, 1e-12)

    def drafting_sec(self, k: int, batch: int) -> float:
        """Return how much of such a step is drafting; 0 where passes are not known apart."""
        if self.profile is None or not k:
            return 0.0
        line = self._line(self._nearest(batch))
        if line is not None:
            return line.per_token_sec * k
        return self._passes_sec(k, batch, drafts=True) - self._passes_sec(k, batch, drafts=False)

    def _nearest(self, batch: int) -> int:
        return min((b for b in self.batches if self._line(b)), key=lambda b: abs(math.log(b / batch)), default=batch)

    def _passes_sec(self, k: int, batch: int, *, drafts: bool) -> float:
        """Return the seconds of a step's passes by the profile."""
        if self.profile is None:
            return 0.0
        nodes = batch * (k + 1)
        if nodes > self.profile.max_size:
            return math.nan
        passes = k if drafts and not self.drafts_free else 0
        widths = np.full((1, max(passes, 1)), batch * (passes > 0))
        return float(step_seconds(np.array([nodes]), widths, self.profile, context=self.context)[0])

    def _length(self, k: int, batch: int) -> float:
        """Return what a step's time grows with: drafted tokens, or experts read where no profile has the passes."""
        if self.target is None or not self.target.num_experts or self.profile is not None:
            return k
        return float(self.target.experts_read(batch * (k + 1)))

    def _line(self, batch: int) -> Line | None:
        """Fit what settings with k > 0 take beyond the target's pass; None without two of different k."""
        drafting = [setting for setting in self.settings if setting.k and setting.batch == batch]
        left = [(k, sec - self._passes_sec(k, batch, drafts=False)) for k, sec, _ in drafting]
        known = np.array([(self._length(k, batch), sec) for k, sec in left if not math.isnan(sec)])
        if len({k for k, _ in known}) < 2:
            return None
        slope, fixed = np.polyfit(known[:, 0], known[:, 1], 1)
        if slope < 0:  # a draft does not give time back: noise
            return Line(float(known[:, 1].mean()), 0.0)
        return Line(float(fixed), float(slope))


def costs_of(
    profile: HardwareProfile | None,
    settings: Sequence[TimedSetting] = (),
    *,
    drafts_free: bool = False,
    target: ModelShape | None = None,
    context: int | None = None,
) -> ServerCosts | None:
    """Return the costs that a profile and timed settings tell, naming their source; None without either."""
    parts = []
    if profile is not None:
        kind = profile.meta.get("source") or ("modelled times" if profile.modelled else "times measured")
        models = [str(profile.meta[role]) for role in ("target", "draft") if profile.meta.get(role)]
        parts.append(f"{kind}{' of ' if models else ''}{' ← '.join(models)} on {profile.device}, {profile.dtype}")
    if settings:
        parts.append(f"the server's own speed at {len(settings)} settings")
    if not parts:
        return None
    return ServerCosts(" and ".join(parts), profile, tuple(settings), drafts_free, target, context)
