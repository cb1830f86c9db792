"""Which draft pays on this hardware, if any? Speedups predicted of a sweep's cells. m = prompts, r = resamples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..design.bootstrap import Estimate, resampled, stretched
from ..design.planning import plan_tree
from ..design.prediction import combined, rate_samples, time_ratios
from ..design.profile import HardwareProfile
from ..design.step_time import autoregressive_sec, padded_widths, step_parts, step_time
from ..design.tree import TokenTree
from .compare import Cell, Comparison, Drafter, Key, Setting, decoded_prompts, replayed
from .plan import BOTH, LOOKUP

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Speed:
    """What is predicted of a cell on some hardware.

    Attributes:
        speedup: over the target alone.
        tree: the one planned for the hardware; None where trees were decoded.
        sizes: (the largest tree of the decode that is fastest, how many sizes have times); None where one was planned.
        prompts: tokens and seconds of each, by `PROMPT`.
        ratios: seconds of a plain step ÷ those of a step, for times measured again, float64 [r]; None where unknown.
    """

    speedup: Estimate
    tree: TokenTree | None
    sizes: tuple[int, int] | None
    prompts: pd.DataFrame
    autoregressive_sec: float
    ratios: np.ndarray | None

    @property
    def pays(self) -> bool:
        """Whether its interval lies above 1 and its tree is more than the root."""
        return (self.tree is None or self.tree.size > 1) and (self.speedup.low or 0.0) > 1.0


Speeds = Mapping[Key, Speed | str]  # or why none is predicted


def predict_speeds(
    comparison: Comparison, profiles: Sequence[HardwareProfile], *, at: Setting | None = None, intervals: bool = True
) -> Speeds:
    """Predict cells from the first of some profiles that fits its drafter, or say why none does.

    Args:
        profiles: of one machine, each of one pair; for lookup any of the target's serves.
        at: the setting whose cells are predicted; None for all.
        intervals: which take most of the time.
    """
    return {
        (drafter, setting): _speed(cell, drafter, setting, profiles, comparison.max_size, intervals)
        for (drafter, setting), cell in comparison.cells.items()
        if at in (None, setting)
    }


def fits(drafter: Drafter, profile: HardwareProfile) -> bool:
    """Whether a profile holds the times of a drafter's steps: by hashes, or by names where it has none."""

    def same(model: str) -> bool:
        key = f"{model}_hash" if f"{model}_hash" in profile.meta else model
        return profile.meta.get(key) == getattr(drafter, key)

    at_home = (profile.dtype, profile.offload or "") == (drafter.dtype, drafter.offload)
    return same("target") and at_home and (drafter.kind == LOOKUP or same("draft"))


def _speed(
    cell: Cell, drafter: Drafter, setting: Setting, profiles: Iterable[HardwareProfile], size: int, intervals: bool
) -> Speed | str:
    profile = next((each for each in profiles if fits(drafter, each)), None)
    if profile is None:
        whose = drafter.target if drafter.kind == LOOKUP else f"{drafter.target} ← {drafter.draft}"
        streamed = f", streamed from {drafter.offload}" if drafter.offload else ""
        return f"no times of {whose} in {drafter.dtype}{streamed}"
    greedy, tree, sizes = setting.temperature == 0, None, None
    if cell.vector is not None:
        tree = plan_tree(cell.vector, profile, max_size=size)
        prompts = replayed(cell.rows, cell.vector, tree)
        seconds = _seconds_with(tree, prompts["steps"].to_numpy(), greedy)
        spent = seconds(profile)
    else:
        options = []
        largest = {n: max(map(max, rows["nodes"])) for n, rows in cell.sizes.items()}
        for n, rows in cell.sizes.items():
            if largest[n] <= profile.max_size:
                each = _seconds_of(rows, drafter.kind == BOTH, greedy)
                options.append((each(profile), n, rows, each))
        if not options:
            return f"trees of {min(largest.values())} nodes, and the times end at {profile.max_size}"
        spent, n, rows, seconds = max(options, key=lambda option: option[2]["tokens"].sum() / option[0].sum())
        prompts, sizes = decoded_prompts(rows), (n, len(options))
    tokens, steps = prompts["tokens"].to_numpy(), int(prompts["steps"].sum())
    alone = autoregressive_sec(profile, greedy=greedy)
    value = float(tokens.sum() * alone / spent.sum())
    ratios = several = None
    if intervals:
        ratios = time_ratios(profile, lambda times: float(seconds(times).sum() / steps), context=None, greedy=greedy)
        if len(tokens) > 1:  # how times vary is no interval over texts
            several = stretched(rate_samples(tokens, spent, None), float(tokens.sum() / spent.sum()), len(tokens))
    speedup = combined(value, several, None if several is None else ratios)
    return Speed(speedup, tree, sizes, prompts.assign(seconds=spent), alone, ratios)


Seconds = Callable[[HardwareProfile], np.ndarray]  # of each prompt, float64 [m], by some times


def _seconds_with(tree: TokenTree, steps: np.ndarray, greedy: bool) -> Seconds:
    """Return what steps with one tree take, int [m]."""
    return lambda times: steps * step_time(tree, times, greedy=greedy).total_sec


def _seconds_of(rows: pd.DataFrame, growing: bool, greedy: bool) -> Seconds:
    """Return what recorded steps of several trees take."""
    sizes = np.concatenate(rows["nodes"].to_list())
    widths = padded_widths([passes for steps in rows["draft_widths"] for passes in steps])
    owners = np.repeat(np.arange(len(rows)), [len(steps) for steps in rows["nodes"]])
    kinds, kind = np.unique(np.column_stack([sizes, widths]), axis=0, return_inverse=True)  # most steps are alike
    counts = np.zeros((len(rows), len(kinds)))
    np.add.at(counts, (owners, kind), 1.0)

    def seconds(times: HardwareProfile) -> np.ndarray:
        parts = step_parts(kinds[:, 0], kinds[:, 1:], times, greedy=greedy, growing=growing)
        return counts @ np.sum(parts, axis=0)

    return seconds


class Answer(NamedTuple):
    """What pays for one target.

    Attributes:
        best: the drafter with the largest speedup of those whose interval lies above 1; None where there is none.
        words: one sentence for people; names in it are as they came.
        beside: the runner-up, whether it can be told apart, and what is not predicted; may be empty.
    """

    best: Drafter | None
    words: str
    beside: str


def which_pays(comparison: Comparison, speeds: Speeds, setting: Setting) -> list[Answer]:
    """Return the answer for each target that was measured at a setting."""
    here = [drafter for drafter in comparison.drafters if (drafter, setting) in comparison.cells]
    names = {drafter.target_hash: drafter.target for drafter in here}
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    called = {
        drafter.base: drafter.target + (f" ({drafter.target_hash[:8]})" if drafter.target in twice else "")
        for drafter in here
    }
    bases = list(dict.fromkeys(drafter.base for drafter in here))
    answers = []
    for base in bases:
        best, words, beside = _answer({drafter: speeds[drafter, setting] for drafter in here if drafter.base == base})
        whose = f", {', '.join(filter(None, (called[base], *base[1:])))}" if len(bases) > 1 else ""
        answers.append(Answer(best, f"At {setting}{whose}: {words}", beside))
    return answers


def _answer(speeds: dict[Drafter, Speed | str]) -> tuple[Drafter | None, str, str]:
    known = {drafter: speed for drafter, speed in speeds.items() if isinstance(speed, Speed)}
    ranked = sorted(known, key=lambda drafter: -known[drafter].speedup.value)
    unknown = [f"{drafter.name} ({why})" for drafter, why in speeds.items() if isinstance(why, str)]
    missing = [f"Not predicted: {', '.join(unknown)}."] if unknown else []
    if not ranked:
        return None, "no speedup is predicted.", " ".join(missing)
    paying = [drafter for drafter in ranked if known[drafter].pays]
    if not paying:
        first = known[ranked[0]].speedup
        why = "one prompt gives no interval" if first.low is None else "no interval lies above 1×"
        return None, f"none pays, {why}; the best is {ranked[0].name}, {_times(first)}.", " ".join(missing)
    best, *others = [paying[0], *(drafter for drafter in ranked if drafter != paying[0])]
    words = f"{best.name} pays: {_times(known[best].speedup)} the speed of the target alone is predicted."
    if others:
        other = known[others[0]].speedup
        following = f"Next comes {others[0].name}, {_times(other)}"
        if other.value > known[best].speedup.value:  # not `paying`, else it were the best
            following = f"{others[0].name} may be faster, {_times(other)}, but its interval reaches below 1×"
        missing.insert(0, f"{following}; {_apart(best, others[0], known)}.")
    one_size = [drafter.name for drafter, speed in known.items() if speed.sizes is not None and speed.sizes[1] == 1]
    if one_size:
        missing.append(
            f"Trees of one size only were decoded of {', '.join(one_size)}; another may be faster here (max_size in "
            "the plan)."
        )
    return best, words, " ".join(missing)


def _times(ratio: Estimate) -> str:
    sure = "" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f}×)"
    return f"{ratio.value:.2f}×{sure}"


def _apart(first: Drafter, second: Drafter, speeds: Mapping[Drafter, Speed]) -> str:
    """Say whether two can be told apart, and by how much they differ on the same prompts."""
    ratio = paired_ratio(speeds[first], speeds[second])
    if ratio is None:
        return "they share too few prompts to tell them apart"
    words = f"on the same prompts {first.name} has {_times(ratio)} the speed of {second.name}"
    told = ratio.low is not None and ratio.high is not None and not ratio.low <= 1.0 <= ratio.high
    return words if told else f"the two cannot be told apart: {words}"


def paired_ratio(first: Speed, second: Speed) -> Estimate | None:
    """Return how many times as fast the first is, over prompts that both have; None for fewer than two."""
    common = first.prompts.index.intersection(second.prompts.index)
    if len(common) < 2:
        return None
    picks = resampled(len(common))
    values, samples, factors = [], [], []
    for speed in (first, second):
        prompts = speed.prompts.loc[common]
        tokens, seconds = prompts["tokens"].to_numpy(), prompts["seconds"].to_numpy() / speed.autoregressive_sec
        values.append(float(tokens.sum() / seconds.sum()))
        samples.append((picks @ tokens) / (picks @ seconds))
        factors.append(np.ones(1) if speed.ratios is None else speed.ratios / speed.ratios.mean())
    # Times measured again are the same again for both where one profile serves both.
    spread = None if first.ratios is None and second.ratios is None else np.divide(*np.broadcast_arrays(*factors))
    ratio = values[0] / values[1]
    return combined(ratio, stretched(samples[0] / samples[1], ratio, len(common)), spread)
