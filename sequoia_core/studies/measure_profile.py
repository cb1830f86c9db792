"""Times the steps of a pair on this machine: medians of rounds after a warm-up; disturbed rounds are timed again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress, zip_longest
from typing import Any

import numpy as np
import torch

from ..decoding.pass_times import timed_rounds
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import FixedTree
from ..design.plain_trees import chain_tree
from ..design.profile import HardwareProfile
from ..files.faults import Cancelled
from ..files.model_names import NO_DRAFT, needed_draft
from ..models.device import describe_device
from ..models.installation import installation_id
from ..models.language_model import ModelPair
from ..models.protocol import LanguageModel, dtype_name
from ..native.instruction_sets import instructions_in_use
from ..native.processor import allowed_cores
from ..native.threads import OtherLoad, release_threads
from .step_timers import (
    GREEDY,
    LEVELS,
    MOST_CHILDREN,
    GrownStep,
    GrowthTimer,
    StepTimer,
    draft_pass_times,
    even_tree,
    growing_tree,
)

DEFAULT_SIZES = (1, 2, 4, 8, 16, 32, 64)
GROWN_SIZE = 16  # nodes of the dynamic trees that are timed, at most
SAMPLED_AT = 0.6  # any temperature above 0 draws and walks in the same way
GROWN_AT = (GREEDY, SamplingConfig(SAMPLED_AT))
DISTURBED_RATIO = 1.5  # times the median round: other work used the machine
MAX_MEASURED = 4096  # tokens of a pass that is timed: its mask alone is 64 MiB


@release_threads()
def measure_profile(
    pair: ModelPair,
    *,
    sizes: Sequence[int] = DEFAULT_SIZES,
    context: int = 128,
    repeats: int = 9,
    resume: HardwareProfile | None = None,
    progress: Callable[[float, str], None] | None = None,
    timed: Callable[[int, float], None] | None = None,
    cancel: threading.Event | None = None,
) -> HardwareProfile:
    """Time steps of trees of `sizes` nodes, with `context` tokens in the cache, and what a longer context adds.

    Each size is that of a tree of at most four levels below the root. Its steps are taken as decoding takes them, at
    temperature 0: drafting, one target pass, walking, committing; then the caches go back to the context. Sizes are
    interleaved within each round, so that a slow moment of the machine affects all of them. What a draft pass over w
    tokens costs, drawing included, is fitted to the drafting of all trees. Three of the sizes are timed at a
    temperature above 0 as well, and at three times the context, or as much as the models have room for; where that is
    less than a quarter more, growth is not timed. What dynamic trees add to that is timed with adaptive trees of at
    most 16 nodes, whose calibration says that a token is accepted as often as the draft's probability of it.

    Of a target without a draft, passes over that many tokens are timed, and nothing else.

    Args:
        resume: an earlier measurement of the same pair, sizes and context on this device; its rounds count among
            `repeats`.
        timed: called with a tree's nodes and the seconds of the target's pass over it, as they are taken.
    """
    if repeats < 1:
        raise ValueError(f"repeats: found {repeats}, expected at least 1")
    if pair.draft is None and resume is None:
        return _target_alone(pair.target, checked_sizes(sizes), context, repeats, progress, cancel)
    rounds = StepRounds(pair, sizes=sizes, context=context, cancel=cancel)
    done = 0 if resume is None else _rounds_of(resume, rounds)
    repeats = max(1, repeats - done)
    wanted, number, shown = repeats, 0, 0.0
    if progress is not None:
        progress(0.0, "profiling, warming up")
    rounds.warm_up()
    while True:
        if progress is not None:
            shown = max(shown, (number + 1) / (wanted + 1))  # rounds that are taken again do not take the bar back
            progress(shown, f"profiling, round {number + 1} of {wanted + 1}")
        if number == wanted or not rounds.take(timed):
            break
        number += 1
        if number == repeats:
            wanted += rounds.drop_disturbed()
    if not rounds.taken:
        raise Cancelled("profile: cancelled before the first round, expected at least one")
    profile = rounds.profile()
    return profile if resume is None else _joined(resume, profile)


def _target_alone(
    target: LanguageModel,
    sizes: Sequence[int],
    context: int,
    repeats: int,
    progress: Callable[[float, str], None] | None,
    cancel: threading.Event | None,
) -> HardwareProfile:
    """Return times of the target's passes, which stand in the draft's place too: trees that look up need no more."""
    if not 1 <= context <= (room := target.max_context - sizes[-1]):
        raise ValueError(f"context: found {context}, expected 1 to {room} as the model and the sizes allow")

    def more(done: int) -> bool:
        if progress is not None:
            progress(done / repeats, f"profiling, round {min(done + 1, repeats)} of {repeats}")
        if cancel is not None and cancel.is_set():
            raise Cancelled("profile: cancelled, expected all its rounds")
        return done < repeats

    load = OtherLoad()
    rounds = timed_rounds(target, sizes, context, more)
    verify = np.median(rounds, axis=0)
    return HardwareProfile(
        np.array(sizes), verify, float(verify[0]), device=describe_device(target.device), dtype=dtype_name(target),
        context=context, verify_samples=_rows(rounds),
        meta={"target": target.name, "draft": NO_DRAFT, "repeats": repeats, **_passes_by(target, load)}
        | _streaming(target, float(verify[0])),
    )  # fmt: skip


def _passes_by(target: Any, load: OtherLoad) -> dict[str, Any]:
    """Return what the times depend on besides the models: what runs the passes, where, and on how many cores.

    `load` is how many cores' worth of time other processes used meanwhile.
    """
    made = {"passes_by": target.backend, "installation": installation_id(), "instructions": None}
    made["load"] = round(load.since_last_look(), 2)
    if torch.device(target.device).type == "cpu":
        threads, cores = torch.get_num_threads(), allowed_cores()
        made |= {"instructions": instructions_in_use(), "threads": threads, "allowed_cores": cores}
    return made


def _rounds_of(profile: HardwareProfile, rounds: StepRounds) -> int:
    """Return how many rounds an earlier profile has; refuse another pair or other settings."""
    wanted = {
        "sizes": list(rounds.sizes), "context": rounds.context, "device": describe_device(rounds.target.device),
        "dtype": dtype_name(rounds.target), "target": rounds.target.name, "draft": rounds.draft.name,
        "offload": rounds.target.offload,
    }  # fmt: skip
    found = {"sizes": profile.sizes.tolist(), "target": profile.meta.get("target"), "draft": profile.meta.get("draft")}
    found |= {name: getattr(profile, name) for name in ("context", "device", "dtype", "offload")}
    for name, value in wanted.items():
        if found[name] != value:
            raise ValueError(f"resume: found {name} {str(found[name])[:60]}, expected {str(value)[:60]}")
    counts = {len(row) for row in (*profile.verify_samples, *profile.draft_samples, *profile.overhead_samples)}
    if len(counts) != 1 or not profile.overhead_samples or not profile.draft_samples:
        raise ValueError("resume: found a profile without all its samples, expected one of format 2 that was measured")
    return counts.pop()


def _joined(first: HardwareProfile, second: HardwareProfile) -> HardwareProfile:
    """Return one profile of the rounds of two; what a temperature or a longer context adds is averaged by rounds."""
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
        meta["installation"] = None  # some of the rounds were timed elsewhere
    if isinstance(before := first.meta.get("load"), int | float):
        meta["load"] = round(float(np.average([before, meta["load"]], weights=counts)), 2)
    return replace(
        second, verify_sec=verify, draft_width_sec=draft, draft_sec=float(draft[0]), overhead_sec=overhead,
        draft_growth_sec=growth, meta=meta, **added, **samples,
    )  # fmt: skip


class StepRounds:
    """Rounds of timed steps of trees of several sizes; arguments as for `measure_profile`.

    Attributes:
        taken: of each round, for every timer seconds of drafting, of verifying and of the rest of a step.
    """

    def __init__(
        self,
        pair: ModelPair,
        *,
        sizes: Sequence[int] = DEFAULT_SIZES,
        context: int = 128,
        cancel: threading.Event | None = None,
    ) -> None:
        draft = needed_draft(pair.draft, "a profile has the times of two models")
        self.target, self.draft, self.context = pair.target, draft, context
        self.cancel = cancel = cancel or threading.Event()
        self.sizes = checked_sizes(sizes)
        trees = [FixedTree(even_tree(n, min(MOST_CHILDREN, pair.vocab_size))) for n in self.sizes]
        deepest = max(LEVELS, *(tree.max_depth for tree in trees))
        room = pair.max_context - deepest - 2  # no tree is cut
        if not 1 <= context <= room:
            raise ValueError(f"context: found {context}, expected 1 to {room} as the models and the trees allow")
        longer = min(3 * context, room)
        self.longer = longer if longer >= 1.25 * context else None
        chain = FixedTree(chain_tree(LEVELS))  # for the cost of passes over one token
        timers = [StepTimer(pair, tree, context, cancel) for tree in (*trees, chain)]
        # three sizes are enough to time what a temperature or a longer context adds to a step
        self.shown = sorted({0, len(trees) // 2, len(trees) - 1})
        timers += [StepTimer(pair, trees[i], context, cancel, SamplingConfig(SAMPLED_AT)) for i in self.shown]
        if self.longer is not None:
            timers += [StepTimer(pair, trees[i], self.longer, cancel) for i in self.shown]
        self.timers, self.load = timers, OtherLoad()
        grown = min(GROWN_SIZE, self.sizes[-1])
        self.growers = [
            GrowthTimer(pair, growing_tree(grown, sampling, pair.vocab_size), context, cancel, sampling)
            for sampling in GROWN_AT
        ]
        self.taken: list[list[tuple[float, float, float]]] = []
        self.grown: list[list[list[GrownStep]]] = []  # of each round, at temperature 0 and above

    def warm_up(self) -> None:
        """Let every timer take its steps once, without recording them."""
        for timer in (*self.timers, *self.growers):
            timer.run()
        self.load = OtherLoad()

    def take(self, timed: Callable[[int, float], None] | None = None) -> bool:
        """Let every timer take its steps, in turns; return False when cancelled, and then nothing is recorded."""
        times = []
        for size, timer in zip_longest(self.sizes, self.timers):
            times.append(timer.run())
            if timed is not None and size is not None and not self.cancel.is_set():
                timed(size, times[-1][1])
        grown = [grower.steps() for grower in self.growers]
        if self.cancel.is_set():
            return False
        self.taken.append(times)
        self.grown.append(grown)
        return True

    def drop_disturbed(self) -> int:
        """Forget rounds that took more than `DISTURBED_RATIO` times the median of all, and return their number."""
        totals = np.array(self.taken).sum(axis=(1, 2))
        calm = totals <= DISTURBED_RATIO * np.median(totals)
        self.taken, self.grown = list(compress(self.taken, calm)), list(compress(self.grown, calm))
        return int((~calm).sum())

    def profile(self) -> HardwareProfile:
        """Return the profile of all rounds taken: medians, since a slow moment spoils a difference of two means."""
        k, shown = len(self.sizes), self.shown
        greedy, sampled, longer = np.split(np.array(self.taken), [k + 1, k + 1 + len(shown)], axis=1)
        verify, overhead = greedy[:, :k, 1], greedy[:, :k, 2]
        levels, drafting = [timer.widths for timer in self.timers[: k + 1]], greedy[..., 0]
        sampling = np.maximum(np.median((sampled - greedy[:, shown]).sum(axis=2), axis=0), 0.0)
        widths, width_sec = draft_pass_times(levels, np.median(drafting, axis=0))
        by_round = np.array([np.maximum(draft_pass_times(levels, row)[1], 1e-9) for row in drafting])
        growth: dict = {}
        if self.longer is not None:
            more = (longer - greedy[:, shown]) / (self.longer - self.context)
            passes = np.array([len(levels[i]) for i in shown[1:]])
            per_token = np.maximum(np.median(more, axis=0), 0.0)
            growth = {
                "verify_growth_sec": np.interp(self.sizes, np.array(self.sizes)[shown], per_token[:, 1]),
                "draft_growth_sec": float(np.median(per_token[1:, 0] / passes, axis=0)),
            }
        profile = HardwareProfile(
            sizes=np.array(self.sizes),
            verify_sec=np.median(verify, axis=0),
            draft_sec=float(width_sec[0]),
            device=describe_device(self.target.device),
            dtype=dtype_name(self.target),
            context=self.context,
            draft_widths=widths,
            draft_width_sec=width_sec,
            overhead_sec=np.median(overhead, axis=0),
            sampling_sec=np.interp(self.sizes, np.array(self.sizes)[shown], sampling),
            verify_samples=_rows(verify),
            draft_samples=_rows(by_round),
            overhead_samples=_rows(overhead),
            meta={
                "target": self.target.name,
                "draft": self.draft.name,
                "repeats": len(self.taken),
                "further_context": self.longer,
                **_passes_by(self.target, self.load),
                **_streaming(self.target, float(np.median(verify[:, 0] + overhead[:, 0], axis=0))),
            },
            **growth,
        )
        beyond = [
            [
                np.mean([step.beyond(profile, greedy=sampling.greedy) for step in steps])
                for sampling, steps in zip(GROWN_AT, grown, strict=True)
            ]
            for grown in self.grown
        ]
        return replace(profile, growing_sec=np.maximum(np.median(np.array(beyond), axis=0), 0.0))


def _streaming(target: Any, one_token_sec: float) -> dict:
    """Return a profile's entry for streamed weights: a step over one token takes as long as reading them."""
    if target.offload is None:
        return {}
    layers = target.model.config.get_text_config().num_hidden_layers
    return {
        "offload": target.offload,
        "streaming": {"layers": layers, "buffers": target.ring_slots, "layer_read_sec": one_token_sec / layers},
    }


def checked_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the sizes in order, with 1 among them."""
    sizes = sorted(set(int(n) for n in sizes) | {1})
    if sizes[0] < 1 or len(sizes) < 2:
        raise ValueError(f"sizes: found {sizes}, expected positive numbers with at least one above 1")
    if sizes[-1] > MAX_MEASURED:
        raise ValueError(f"sizes: found {sizes[-1]:,}, expected at most {MAX_MEASURED:,} tokens in one pass")
    return sizes


def _rows(samples: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Turn samples by round, float64 [r, k], into one tuple of rounds for each of the k."""
    return tuple(map(tuple, samples.T.tolist()))
