"""Time a pair's decoding steps on this machine: medians over rounds after a warm-up, excluding disturbed rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..decoding.pass_times import time_rounds
from ..files.faults import Cancelled
from ..files.model_names import NO_DRAFT
from ..models.device import describe_device
from ..models.language_model import ModelPair
from ..models.other_load import busiest
from ..models.protocol import LanguageModel, dtype_name
from ..models.threads import TimedLoad, release_threads
from ..planning.profile import HardwareProfile
from .step_rounds import (
    DEFAULT_SIZES,
    StepRounds,
    checked_sizes,
    describe_installation,
    describe_streaming,
    samples_by_size,
)

PREPARING = 0.5  # time to prepare the timers ÷ time of a round


@release_threads()
def measure_profile(
    pair: ModelPair,
    *,
    sizes: Sequence[int] = DEFAULT_SIZES,
    context: int = 128,
    repeats: int = 9,
    brief: bool = False,
    resume: HardwareProfile | None = None,
    progress: Callable[[float, str], None] | None = None,
    timed: Callable[[int, float], None] | None = None,
    cancel: threading.Event | None = None,
) -> HardwareProfile:
    """Time decoding steps with trees of different sizes, and the effects of sampling and of a longer context.

    Trees have about four levels below the root. Steps are decoding steps at temperature 0, after which the caches are
    truncated to the context. Every round times all sizes, so that a temporary slowdown of the machine affects all of
    them. The cost of a draft pass over w tokens, including sampling, is fitted to the drafting times of all trees.
    Three sizes are also timed at a temperature above 0 and after a longer context: three times `context`, or as much
    as fits; an increase below 25 % is not timed. The overhead of dynamic trees is timed if they are installed.

    Args:
        sizes: tree sizes in nodes; for a target without a draft, which is timed alone, pass sizes in tokens.
        resume: profile of the same pair, sizes and context on this device; its rounds count towards `repeats`.
        brief: whether to leave out the effects of a longer context and the overhead of dynamic trees.
        timed: callback that receives the tree size and the seconds of each target pass.
    """
    if repeats < 1:
        raise ValueError(f"repeats: found {repeats}, expected at least 1")
    if pair.draft is None and resume is None:
        return _target_alone(pair.target, checked_sizes(sizes), context, repeats, progress, cancel)
    shown = 0.0

    def report(fraction: float, message: str) -> None:
        nonlocal shown
        shown = max(shown, fraction)  # The bar must not move back if rounds are repeated.
        if progress is not None:
            progress(shown, message)

    wanted = repeats
    rounds = StepRounds(pair, sizes=sizes, context=context, brief=brief, cancel=cancel, report=_part(report, 0, wanted))
    if resume is not None:
        wanted = repeats = max(1, repeats - _count_rounds(resume, rounds))
    number = 0
    rounds.warm_up(_part(report, 1, wanted))
    while number < wanted:
        if not rounds.take(timed, _part(report, number + 2, wanted), f"round {number + 1} of {wanted}"):
            break
        number += 1
        if number == repeats:
            wanted += rounds.drop_disturbed()
    report(1.0, "profiled")
    if not rounds.taken:
        raise Cancelled("profile: cancelled before the first round was complete")
    profile = rounds.profile()
    return profile if resume is None else _merge(resume, profile)


def _part(report: Callable[[float, str], None], part: int, rounds: int) -> Callable[[float, str], None]:
    """Return the progress of one part of a profile: 0 for the preparation, 1 for the warm-up, then the rounds."""
    before, length = (0.0, PREPARING) if part == 0 else (PREPARING + part - 1, 1.0)
    return lambda share, message: report((before + length * share) / (PREPARING + 1 + rounds), message)


def _target_alone(
    target: LanguageModel,
    sizes: Sequence[int],
    context: int,
    repeats: int,
    progress: Callable[[float, str], None] | None,
    cancel: threading.Event | None,
) -> HardwareProfile:
    """Time the passes of a target without a draft; the one-token time also serves as the draft time."""
    longest = target.max_context - sizes[-1]
    if not 1 <= context <= longest:
        raise ValueError(f"context: found {context}, expected 1 to {longest} for this model and these sizes")

    def wants_more(done: int) -> bool:
        if progress is not None:
            progress(done / repeats, f"timing passes: round {min(done + 1, repeats)} of {repeats}")
        if cancel is not None and cancel.is_set():
            raise Cancelled("profile: cancelled before all rounds were complete")
        return done < repeats

    load = TimedLoad()
    rounds = time_rounds(target, sizes, context, wants_more)
    verify = np.median(rounds, axis=0)
    return HardwareProfile(
        np.array(sizes),
        verify,
        float(verify[0]),
        device=describe_device(target.device),
        dtype=dtype_name(target),
        context=context,
        verify_samples=samples_by_size(rounds),
        meta={
            "target": target.name,
            "draft": NO_DRAFT,
            "repeats": repeats,
            **describe_installation(target, load),
            **describe_streaming(target, float(verify[0])),
        },
    )


def _count_rounds(profile: HardwareProfile, rounds: StepRounds) -> int:
    """Return the number of rounds of an earlier profile; refuse one of a different pair or with different settings."""
    wanted = {
        "sizes": list(rounds.sizes),
        "context": rounds.context,
        "device": describe_device(rounds.target.device),
        "dtype": dtype_name(rounds.target),
        "target": rounds.target.name,
        "draft": rounds.draft.name,
        "offload": rounds.target.offload,
    }
    found = {"sizes": profile.sizes.tolist(), "target": profile.meta.get("target"), "draft": profile.meta.get("draft")}
    found |= {name: getattr(profile, name) for name in ("context", "device", "dtype", "offload")}
    for name, value in wanted.items():
        if found[name] != value:
            raise ValueError(f"resume: found {name} {str(found[name])[:60]}, expected {str(value)[:60]}")
    counts = {len(row) for row in (*profile.verify_samples, *profile.draft_samples, *profile.overhead_samples)}
    if len(counts) != 1 or not profile.overhead_samples or not profile.draft_samples:
        raise ValueError("resume: found a profile without all its samples, expected a measured one in format 2")
    return counts.pop()


def _merge(first: HardwareProfile, second: HardwareProfile) -> HardwareProfile:
    """Merge the rounds of two profiles; average their costs of sampling, of a longer context and of growing trees."""
    names = ("verify_samples", "draft_samples", "overhead_samples")
    samples: dict[str, Any] = {
        name: tuple((*a, *b) for a, b in zip(getattr(first, name), getattr(second, name), strict=True))
        for name in names
    }
    verify, draft, overhead = (np.median(np.array(samples[name]), axis=1) for name in names)
    counts = [len(profile.verify_samples[0]) for profile in (first, second)]
    added: dict[str, Any] = {
        name: np.average([getattr(first, name), getattr(second, name)], axis=0, weights=counts)
        for name in ("sampling_sec", "verify_growth_sec", "growing_sec")
        if len(getattr(first, name)) and len(getattr(second, name))
    }
    growth = float(np.average([first.draft_growth_sec, second.draft_growth_sec], weights=counts))
    meta = second.meta | {"repeats": sum(counts)}
    if first.meta.get("installation") != meta["installation"]:
        meta["installation"] = None  # Some of the rounds were timed by a different installation.
    meta["load"] = busiest(first.meta.get("load"), meta["load"])
    return replace(
        second,
        verify_sec=verify,
        draft_width_sec=draft,
        draft_sec=float(draft[0]),
        overhead_sec=overhead,
        draft_growth_sec=growth,
        meta=meta,
        **added,
        **samples,
    )
