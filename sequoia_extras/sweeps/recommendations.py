"""Recommend a draft for given hardware from the predicted speedups of a sweep's cells. m = prompts, r = resamples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sequoia_core.acceptance.bootstrap import Estimate, resample_prompts, widen_for_few_prompts
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import combine_spreads, resample_rates, resample_time_ratios
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import autoregressive_sec, padded_widths, step_parts, step_time
from sequoia_core.trees.tree import TokenTree

from .compare import Cell, Comparison, Key, Setting, SweepDrafter, decoded_prompts, replayed_prompts
from .plan import BOTH, LOOKUP

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class Speed:
    """The prediction for a cell on given hardware.

    Attributes:
        speedup: speedup over the target alone.
        tree: tree planned for the hardware; None for lookup and both.
        sizes: (maximum tree size of the fastest decode, number of sizes with times); None for a planned tree.
        prompts: tokens and seconds of each prompt, indexed by `PROMPT_COLUMNS`.
        ratios: float64 [r], time of a plain step ÷ time of a step with the tree, for resampled times; None if unknown.
    """

    speedup: Estimate
    tree: TokenTree | None
    sizes: tuple[int, int] | None
    prompts: pd.DataFrame
    autoregressive_sec: float
    ratios: np.ndarray | None

    @property
    def pays(self) -> bool:
        """Whether the speedup's interval lies above 1 and the tree is more than its root."""
        return (self.tree is None or self.tree.size > 1) and (self.speedup.low or 0.0) > 1.0


Speeds = Mapping[Key, Speed | str]  # a string explains why nothing is predicted


def predict_speeds(
    comparison: Comparison, profiles: Sequence[HardwareProfile], *, at: Setting | None = None, intervals: bool = True
) -> Speeds:
    """Predict each cell from the first profile that matches its drafter, or explain why there is no prediction.

    Args:
        profiles: profiles of one machine, one per pair; lookup can use any profile of its target.
        at: setting to predict; None for all settings.
        intervals: whether to compute intervals, which takes most of the time.
    """
    speeds: dict[Key, Speed | str] = {}
    for (drafter, setting), cell in comparison.cells.items():
        if at not in (None, setting):
            continue
        profile = next((each for each in profiles if fits(drafter, each)), None)
        if profile is None:
            pair = drafter.target if drafter.kind == LOOKUP else f"{drafter.target} ← {drafter.draft}"
            streamed = f", streamed from {drafter.offload}" if drafter.offload else ""
            speeds[drafter, setting] = f"no times for {pair} in {drafter.dtype}{streamed}"
        else:
            greedy = setting.temperature == 0
            speeds[drafter, setting] = _predict_cell(
                cell, profile, comparison.max_size, greedy=greedy, growing=drafter.kind == BOTH, intervals=intervals
            )
    return speeds


def fits(drafter: SweepDrafter, profile: HardwareProfile) -> bool:
    """Return whether a profile applies to a drafter; compare hashes, or names if the profile has no hashes."""

    def same(model: str) -> bool:
        key = f"{model}_hash" if f"{model}_hash" in profile.meta else model
        return profile.meta.get(key) == getattr(drafter, key)

    same_loading = (profile.dtype, profile.offload or "") == (drafter.dtype, drafter.offload)
    return same("target") and same_loading and (drafter.kind == LOOKUP or same("draft"))


PromptSeconds = Callable[[HardwareProfile], np.ndarray]  # profile -> seconds per prompt, float64 [m]


class _Candidate(NamedTuple):
    """One way to decode a cell's prompts."""

    prompts: pd.DataFrame
    seconds: PromptSeconds
    tree: TokenTree | None = None
    size: int = 0

    def rate(self, profile: HardwareProfile) -> float:
        return float(self.prompts["tokens"].sum() / self.seconds(profile).sum())


def _predict_cell(
    cell: Cell, profile: HardwareProfile, max_size: int, *, greedy: bool, growing: bool, intervals: bool
) -> Speed | str:
    if cell.vector is not None:
        chosen = _planned_candidate(cell, profile, max_size, greedy)
        sizes = None
    else:
        largest = {size: max(map(max, rows["nodes"])) for size, rows in cell.sizes.items()}
        candidates = [
            _Candidate(decoded_prompts(rows), _recorded_seconds(rows, growing, greedy), size=size)
            for size, rows in cell.sizes.items()
            if largest[size] <= profile.max_size
        ]
        if not candidates:
            return f"its trees have {min(largest.values())} nodes, but the profile ends at {profile.max_size}"
        chosen = max(candidates, key=lambda candidate: candidate.rate(profile))
        sizes = (chosen.size, len(candidates))
    seconds = chosen.seconds(profile)
    tokens = chosen.prompts["tokens"].to_numpy()
    steps = int(chosen.prompts["steps"].sum())
    alone = autoregressive_sec(profile, greedy=greedy)
    ratios = spread = None
    if intervals:
        ratios = resample_time_ratios(
            profile, lambda times: float(chosen.seconds(times).sum() / steps), context=None, greedy=greedy
        )
        if len(tokens) > 1:
            rates = resample_rates(tokens, seconds, None)
            spread = widen_for_few_prompts(rates, float(tokens.sum() / seconds.sum()), len(tokens))
    # The spread of times alone is not an interval over texts.
    speedup = combine_spreads(float(tokens.sum() * alone / seconds.sum()), spread, None if spread is None else ratios)
    return Speed(speedup, chosen.tree, sizes, chosen.prompts.assign(seconds=seconds), alone, ratios)


def _planned_candidate(cell: Cell, profile: HardwareProfile, max_size: int, greedy: bool) -> _Candidate:
    """Plan a tree for a cell's vector on the hardware, and return it with its prompts and times."""
    assert cell.vector is not None
    tree = plan_tree(cell.vector, profile, max_size=max_size)
    prompts = replayed_prompts(cell.rows, cell.vector, tree)
    steps = prompts["steps"].to_numpy()
    return _Candidate(prompts, lambda times: steps * step_time(tree, times, greedy=greedy).total_sec, tree)


def _recorded_seconds(rows: pd.DataFrame, growing: bool, greedy: bool) -> PromptSeconds:
    """Return a function that computes each prompt's seconds from its recorded steps."""
    sizes = np.concatenate(rows["nodes"].to_list())
    widths = padded_widths([passes for steps in rows["draft_widths"] for passes in steps])
    prompt_index = np.repeat(np.arange(len(rows)), [len(steps) for steps in rows["nodes"]])
    # Many steps have the same shape, so each distinct shape is timed only once.
    shapes, shape_index = np.unique(np.column_stack([sizes, widths]), axis=0, return_inverse=True)
    counts = np.zeros((len(rows), len(shapes)))
    np.add.at(counts, (prompt_index, shape_index), 1.0)

    def seconds(times: HardwareProfile) -> np.ndarray:
        parts = step_parts(shapes[:, 0], shapes[:, 1:], times, greedy=greedy, growing=growing)
        return counts @ np.sum(parts, axis=0)

    return seconds


class Recommendation(NamedTuple):
    """The recommendation for one target.

    Attributes:
        best: drafter with the largest speedup among those whose interval lies above 1; None if there is none.
        summary: one sentence, in which names are not escaped.
        details: sentences on the runner-up, on whether the two can be distinguished, and on unpredicted drafters.
    """

    best: SweepDrafter | None
    summary: str
    details: str


def recommend_drafts(comparison: Comparison, speeds: Speeds, setting: Setting) -> list[Recommendation]:
    """Return the recommendation for each target that was measured at a setting."""
    here = [drafter for drafter in comparison.drafters if (drafter, setting) in comparison.cells]
    targets = {drafter.target_hash: drafter.target for drafter in here}
    recommendations = []
    bases = dict.fromkeys(drafter.base for drafter in here)
    for base in bases:
        label = ""
        if len(bases) > 1:
            target = targets[base[0]]
            if list(targets.values()).count(target) > 1:
                target += f" ({base[0][:8]})"
            label = f", {', '.join(filter(None, (target, *base[1:])))}"
        best, summary, details = _recommend(
            {drafter: speeds[drafter, setting] for drafter in here if drafter.base == base}
        )
        recommendations.append(Recommendation(best, f"At {setting}{label}: {summary}", details))
    return recommendations


def _recommend(speeds: Mapping[SweepDrafter, Speed | str]) -> Recommendation:
    known = {drafter: speed for drafter, speed in speeds.items() if isinstance(speed, Speed)}
    ranked = sorted(known, key=lambda drafter: -known[drafter].speedup.value)
    unknown = [f"{drafter.name} ({why})" for drafter, why in speeds.items() if isinstance(why, str)]
    details = [f"Not predicted: {', '.join(unknown)}."] if unknown else []
    if not ranked:
        return Recommendation(None, "no speedup is predicted.", " ".join(details))
    best = next((drafter for drafter in ranked if known[drafter].pays), None)
    if best is None:
        first = known[ranked[0]].speedup
        why = "one prompt gives no interval" if first.low is None else "no interval lies above 1×"
        summary = f"no draft pays, because {why}; the best is {ranked[0].name}, {_format_ratio(first)}."
        return Recommendation(None, summary, " ".join(details))
    speedup = known[best].speedup
    others = [drafter for drafter in ranked if drafter != best]
    if others:
        other = known[others[0]].speedup
        runner_up = f"The runner-up is {others[0].name}, {_format_ratio(other)}"
        if other.value > speedup.value:
            runner_up = f"{others[0].name} may be faster, {_format_ratio(other)}, but its interval includes 1×"
        details.insert(0, f"{runner_up}; {_difference(best, others[0], known)}.")
    one_size = [drafter.name for drafter, speed in known.items() if speed.sizes is not None and speed.sizes[1] == 1]
    if one_size:
        details.append(
            f"Only trees of one size were decoded for {', '.join(one_size)}; another size may be faster here (max_size "
            "in the plan)."
        )
    summary = f"{best.name} pays: predicted {_format_ratio(speedup)} the speed of the target alone."
    return Recommendation(best, summary, " ".join(details))


def _format_ratio(ratio: Estimate) -> str:
    interval = "" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f}×)"
    return f"{ratio.value:.2f}×{interval}"


def _difference(first: SweepDrafter, second: SweepDrafter, speeds: Mapping[SweepDrafter, Speed]) -> str:
    """Describe how much two drafters differ on the same prompts, and whether that is significant."""
    ratio = paired_ratio(speeds[first], speeds[second])
    if ratio is None:
        return "they share too few prompts to be distinguished"
    sentence = f"on the same prompts, {first.name} has {_format_ratio(ratio)} the speed of {second.name}"
    significant = ratio.low is not None and ratio.high is not None and not ratio.low <= 1.0 <= ratio.high
    return sentence if significant else f"the two cannot be distinguished: {sentence}"


def paired_ratio(first: Speed, second: Speed) -> Estimate | None:
    """Return the first speed relative to the second on their common prompts; None if there are fewer than two."""
    common = first.prompts.index.intersection(second.prompts.index)
    if len(common) < 2:
        return None
    picks = resample_prompts(len(common))
    rates = []
    samples = []
    factors = []
    for speed in (first, second):
        prompts = speed.prompts.loc[common]
        tokens = prompts["tokens"].to_numpy()
        seconds = prompts["seconds"].to_numpy() / speed.autoregressive_sec
        rates.append(float(tokens.sum() / seconds.sum()))
        samples.append((picks @ tokens) / (picks @ seconds))
        factors.append(np.ones(1) if speed.ratios is None else speed.ratios / speed.ratios.mean())
    # With the same profile, both have the same resampled times, which cancel out.
    spread = None
    if first.ratios is not None or second.ratios is not None:
        spread = np.divide(*np.broadcast_arrays(*factors))
    ratio = rates[0] / rates[1]
    return combine_spreads(ratio, widen_for_few_prompts(samples[0] / samples[1], ratio, len(common)), spread)
