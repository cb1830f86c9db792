"""Rounds of timed decoding steps with trees of several sizes, and the profile that they give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress, zip_longest
from typing import Any

import numpy as np
import torch

from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import FixedTree
from ..files.extras import provided
from ..files.model_names import require_draft
from ..models.device import describe_device, gpu_record
from ..models.installation import installation_id
from ..models.language_model import ModelPair
from ..models.processor import allowed_cores, instructions_in_use
from ..models.protocol import dtype_name
from ..models.threads import TimedLoad
from ..planning.profile import HardwareProfile
from ..trees.plain import chain_tree
from .step_timers import GREEDY_SAMPLING, MAX_CHILDREN, TREE_LEVELS, StepTimer, draft_pass_times, even_tree

DEFAULT_SIZES = (1, 2, 4, 8, 16, 32, 64)
RANDOM_SAMPLING = SamplingConfig(0.6)  # representative, since step time is the same at all temperatures above 0
DISTURBED_RATIO = 1.5  # a round that takes longer than this multiple of the median was disturbed
MAX_PASS_TOKENS = 4096  # maximum number of tokens per pass, at which the attention mask takes 64 MiB


def describe_installation(target: Any, load: TimedLoad) -> dict[str, Any]:
    """Return the other factors that affect the times: backend, installation, cores, and load from other processes."""
    meta: dict[str, Any] = {
        "passes_by": target.backend,
        "installation": installation_id(),
        "instructions": None,
        "load": load.record(),
    }
    kind = torch.device(target.device).type
    if kind == "cuda":
        meta["gpu"] = gpu_record(target.device)
    if kind == "cpu":
        threads = torch.get_num_threads()
        meta |= {"instructions": instructions_in_use(), "threads": threads, "allowed_cores": allowed_cores()}
    return meta


class StepRounds:
    """Rounds of timed steps with trees of several sizes; see `measure_profile` for the arguments.

    Attributes:
        timers: timers of static trees, each with a description of what it times.
        warm_up_sec: seconds that each timer took in the warm-up, growth timers included.
        taken: for each round and timer, the seconds spent on drafting, on verifying, and on the rest of a step.
    """

    def __init__(
        self,
        pair: ModelPair,
        *,
        sizes: Sequence[int] = DEFAULT_SIZES,
        context: int = 128,
        brief: bool = False,
        cancel: threading.Event | None = None,
        report: Callable[[float, str], None] | None = None,
    ) -> None:
        draft = require_draft(pair.draft, "a profile contains the times of two models")
        self.target = pair.target
        self.draft = draft
        self.context = context
        self.cancel = cancel = cancel or threading.Event()
        self.sizes = checked_sizes(sizes)
        trees = [FixedTree(even_tree(n, min(MAX_CHILDREN, pair.vocab_size))) for n in self.sizes]
        deepest = max(TREE_LEVELS, *(tree.max_depth for tree in trees))
        longest = pair.max_context - deepest - 2  # the longest context after which no tree is truncated
        if not 1 <= context <= longest:
            raise ValueError(f"context: found {context}, expected 1 to {longest} for these models and trees")
        longer = min(3 * context, longest)
        self.longer = longer if longer >= 1.25 * context and not brief else None
        # Gives the time of one-token draft passes.
        chain = FixedTree(chain_tree(1 if draft.depths_per_pass > 1 else TREE_LEVELS))
        wanted: list[tuple[FixedTree, int, SamplingConfig]]
        wanted = [(tree, context, GREEDY_SAMPLING) for tree in (*trees, chain)]
        # Three sizes are enough for the effects of sampling and of a longer context.
        self.compared = sorted({0, len(trees) // 2, len(trees) - 1})
        wanted += [(trees[i], context, RANDOM_SAMPLING) for i in self.compared]
        if self.longer is not None:
            wanted += [(trees[i], self.longer, GREEDY_SAMPLING) for i in self.compared]
        self.timers: list[tuple[str, StepTimer]] = []
        for number, (tree, length, sampling) in enumerate(wanted):
            words = "passes of 1 token" if tree.max_size == 1 else f"passes of {tree.max_size} tokens"
            if length != context:
                words += f" after {length}"
            if report is not None:
                report(number / len(wanted), f"preparing {words}")
            self.timers.append((words, StepTimer(pair, tree, length, cancel, sampling)))
        self.load = TimedLoad()
        self.growth_timers: list[Any] = [
            timer(pair, self.sizes[-1], context, cancel, sampling)
            for timer in provided("growth_timers")
            for sampling in (GREEDY_SAMPLING, RANDOM_SAMPLING)
            if not brief
        ]
        self.warm_up_sec: list[float] = []
        self.taken: list[list[tuple[float, float, float]]] = []
        self.growth_steps: list[list[Any]] = []  # per round, the steps of each growth timer

    def warm_up(self, report: Callable[[float, str], None] | None = None) -> None:
        """Run every timer once without recording its times."""
        timers = [*self.timers, *(("growing trees", timer) for timer in self.growth_timers)]
        for number, (words, timer) in enumerate(timers):
            if report is not None:
                report(number / len(timers), f"warming up {words}")
            started = time.perf_counter()
            timer.run()
            self.warm_up_sec.append(time.perf_counter() - started)
        self.load = TimedLoad()

    def take(
        self,
        timed: Callable[[int, float], None] | None = None,
        report: Callable[[float, str], None] | None = None,
        which: str = "",
    ) -> bool:
        """Run every timer once and record the round; return False, without recording it, if cancelled.

        Args:
            report: progress within the round, which is assumed to take as long as the warm-up; `which` names the round.
        """
        shares = np.cumsum([0.0, *self.warm_up_sec]) / max(sum(self.warm_up_sec), 1e-9)
        times = []
        for size, (words, timer), share in zip_longest(self.sizes, self.timers, shares[: len(self.timers)]):
            if report is not None:
                report(share, f"timing {words}: {which}")
            times.append(timer.run())
            if timed is not None and size is not None and not self.cancel.is_set():
                timed(size, times[-1][1])
        if report is not None and self.growth_timers:
            report(shares[len(self.timers)], f"timing the growing of trees: {which}")
        steps_of_round = [timer.steps() for timer in self.growth_timers]
        if self.cancel.is_set():
            return False
        self.taken.append(times)
        self.growth_steps.append(steps_of_round)
        return True

    def drop_disturbed(self) -> int:
        """Drop rounds that took longer than `DISTURBED_RATIO` times the median, and return how many were dropped."""
        totals = np.array(self.taken).sum(axis=(1, 2))
        calm = totals <= DISTURBED_RATIO * np.median(totals)
        self.taken = list(compress(self.taken, calm))
        self.growth_steps = list(compress(self.growth_steps, calm))
        return int((~calm).sum())

    def profile(self) -> HardwareProfile:
        """Return the profile of all recorded rounds, using medians: outliers would distort differences of means."""
        k, compared = len(self.sizes), self.compared
        greedy, sampled, longer = np.split(np.array(self.taken), [k + 1, k + 1 + len(compared)], axis=1)
        drafting = greedy[..., 0]
        verify = greedy[:, :k, 1]
        overhead = greedy[:, :k, 2]
        levels = [timer.widths for _, timer in self.timers[: k + 1]]
        sampling = np.maximum(np.median((sampled - greedy[:, compared]).sum(axis=2), axis=0), 0.0)
        at_once = self.draft.depths_per_pass > 1
        widths, width_sec, share = draft_pass_times(levels, np.median(drafting, axis=0), at_once)
        by_round = np.maximum([draft_pass_times(levels, row, at_once)[1] for row in drafting], 1e-9)
        growth: dict = {}
        if self.longer is not None:
            more = (longer - greedy[:, compared]) / (self.longer - self.context)
            passes = np.array([1 + share * (len(levels[i]) - 1) for i in compared[1:]])
            per_token = np.maximum(np.median(more, axis=0), 0.0)
            growth = {
                "verify_growth_sec": np.interp(self.sizes, np.array(self.sizes)[compared], per_token[:, 1]),
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
            deeper_draft_share=share,
            overhead_sec=np.median(overhead, axis=0),
            sampling_sec=np.interp(self.sizes, np.array(self.sizes)[compared], sampling),
            verify_samples=samples_by_size(verify),
            draft_samples=samples_by_size(by_round),
            overhead_samples=samples_by_size(overhead),
            meta={
                "target": self.target.name,
                "draft": self.draft.name,
                "repeats": len(self.taken),
                "further_context": self.longer,
                **describe_installation(self.target, self.load),
                **describe_streaming(self.target, float(np.median(verify[:, 0] + overhead[:, 0], axis=0))),
            },
            **growth,
        )
        beyond = [
            [timer.excess_sec(profile, steps) for timer, steps in zip(self.growth_timers, steps_of_round, strict=True)]
            for steps_of_round in self.growth_steps
        ]
        return replace(profile, growing_sec=np.maximum(np.median(np.array(beyond), axis=0), 0.0))


def describe_streaming(target: Any, one_token_sec: float) -> dict:
    """Return the profile entries for streamed weights, assuming that a one-token step only waits for the weights."""
    if target.offload is None:
        return {}
    layers = target.model.config.get_text_config().num_hidden_layers
    return {
        "offload": target.offload,
        "streaming": {"layers": layers, "buffers": target.ring_slots, "layer_read_sec": one_token_sec / layers},
    }


def checked_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the sizes in ascending order, with 1 added."""
    sizes = sorted({1, *map(int, sizes)})
    if sizes[0] < 1 or len(sizes) < 2:
        raise ValueError(f"sizes: found {sizes}, expected positive numbers with at least one above 1")
    if sizes[-1] > MAX_PASS_TOKENS:
        raise ValueError(f"sizes: found {sizes[-1]:,}, expected at most {MAX_PASS_TOKENS:,} tokens in one pass")
    return sizes


def samples_by_size(samples: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Transpose samples, float64 [rounds, sizes], into one tuple per size."""
    return tuple(map(tuple, samples.T.tolist()))
