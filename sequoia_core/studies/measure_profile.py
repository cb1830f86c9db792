"""Times the passes of a pair on this machine: what a target pass over n tokens and a draft pass over a few cost.

They are timed where they happen: in whole steps of the drafter and the judge that decoding runs, on trees of several
sizes. Times are medians of repeats after warm-up, device-synchronised, with raw samples kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from ..decoding.assemble import assemble
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import FixedTree
from ..decoding.verifiers import choose_verifier
from ..design.profile import HardwareProfile
from ..design.tree import TokenTree
from ..files.faults import Cancelled
from ..models.device import describe_device
from ..models.prefill import prefill
from ..models.protocol import LanguageModel, dtype_name

DEFAULT_SIZES = (1, 2, 4, 8, 16, 32, 64)
DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32)
LEVELS, MOST_CHILDREN = 4, 8  # of the trees that are timed
STEPS = 3  # in a row make one sample: decoding repeats steps of one kind, and the first finds the caches cold
MAX_MEASURED = 4096  # tokens of a pass that is timed: its mask alone is 64 MiB


def measure_profile(
    *,
    target: LanguageModel,
    draft: LanguageModel,
    sizes: Sequence[int] = DEFAULT_SIZES,
    context: int = 128,
    repeats: int = 9,
    progress: Callable[[float, str], None] | None = None,
    cancel: threading.Event | None = None,
) -> HardwareProfile:
    """Time target passes over `sizes` tokens and draft passes over a few, with `context` tokens in the cache.

    Each size is that of a tree of at most four levels below the root. Its steps are taken as decoding takes them, at
    temperature 0: drafting, one target pass, walking, committing; then the caches go back to the context. Sizes are
    interleaved within each repeat, so that a slow moment of the machine touches all of them. What a draft pass over w
    tokens costs, drawing included, is fitted to the drafting of all trees.

    Args:
        cancel: looked at between drafting and target passes, and while the context is read after every 512 tokens; the
            repeats complete by then are kept.

    Raises:
        ValueError: for sizes or a context that the models cannot hold.
        Cancelled: before the first full repeat.
    """
    cancel = cancel or threading.Event()
    sizes = sorted(set(int(n) for n in sizes) | {1})
    if sizes[0] < 1 or len(sizes) < 2:
        raise ValueError(f"sizes: found {sizes}, expected positive numbers with at least one above 1")
    if sizes[-1] > MAX_MEASURED:
        raise ValueError(f"sizes: found {sizes[-1]:,}, expected at most {MAX_MEASURED:,} tokens in one pass")
    room = min(target.max_context, draft.max_context)
    if not 1 <= context < room:
        raise ValueError(f"context: found {context}, expected 1 to {room - 1} as the models allow")
    if repeats < 1:
        raise ValueError(f"repeats: found {repeats}, expected at least 1")
    timers = [
        _StepTimer(target, draft, even_tree(n, min(MOST_CHILDREN, target.vocab_size)), context, cancel) for n in sizes
    ]
    verify, drafting = [], []
    for repeat in range(-1, repeats):  # one round of warm-up
        found = [timer.run() for timer in timers]
        if cancel.is_set():
            break
        if repeat >= 0:
            drafting.append([times[0] for times in found])
            verify.append([times[1] for times in found])
        if progress is not None:
            progress((repeat + 2) / (repeats + 1), f"profiling, round {repeat + 2} of {repeats + 1}")
    if not verify:
        raise Cancelled("profile: cancelled before the first round, expected at least one")
    widths, width_sec = draft_pass_times([timer.widths for timer in timers], np.median(drafting, axis=0))
    return HardwareProfile(
        sizes=np.array(sizes),
        verify_sec=np.median(verify, axis=0),
        draft_sec=float(width_sec[0]),
        device=describe_device(target.device),
        dtype=dtype_name(target),
        context=context,
        draft_widths=widths,
        draft_width_sec=width_sec,
        verify_samples=tuple(map(tuple, np.transpose(verify).tolist())),
        meta={
            "target": target.name,
            "draft": draft.name,
            "repeats": len(verify),
            "passes_by": getattr(target, "forward_by", "unknown"),
        },
    )


def even_tree(size: int, most_children: int = MOST_CHILDREN) -> TokenTree:
    """Return a tree of that many nodes: `LEVELS` levels below the root, or as many as it takes, about equally wide."""
    levels, width, widths = LEVELS, 0, []
    while sum(most_children**level for level in range(1, levels + 1)) < size - 1:
        levels += 1
    while sum(widths) < size - 1:
        width += 1
        widths = [min(most_children**level, width) for level in range(1, levels + 1)]
    parents, above = [np.array([-1])], range(1)
    for width in widths:
        count = min(width, size - above.stop)
        children = np.arange(count)
        parents.append(above.start + (children * len(above) // count if count > len(above) else children))
        above = range(above.stop, above.stop + count)
    return TokenTree(np.concatenate(parents))


def draft_pass_times(levels: Sequence[Sequence[int]], seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Work out what a draft pass over w tokens takes from what drafting whole trees took.

    The time of a pass is taken to be linear between `DRAFT_WIDTHS` and never to fall with w; the least squares of the
    relative errors decide.

    Args:
        levels: for each tree, how many tokens each of its draft passes ran over; may be empty.
        seconds: float64, what drafting each of these trees took.

    Returns:
        Widths int64 [j], 1 and those of `DRAFT_WIDTHS` that bound widths which were timed, and seconds float64 [j].
    """
    from scipy.optimize import nnls

    timed = {width for tree in levels for width in tree}
    knots = [1]
    for width in (*DRAFT_WIDTHS, max(timed)):
        if any(knots[-1] < w <= width for w in timed):
            knots.append(width)
    # A pass over w tokens takes the time for one, and of each stretch between two knots the part that w has covered.
    trees = [(tree, time) for tree, time in zip(levels, seconds, strict=True) if tree]
    covered = [
        [sum(np.clip((w - low) / (high - low), 0.0, 1.0) for w in tree) for low, high in pairwise(knots)]
        for tree, _ in trees
    ]
    terms = np.array([[len(tree), *parts] for (tree, _), parts in zip(trees, covered, strict=True)])
    times = np.array([time for _, time in trees])
    found, _ = nnls(terms / times[:, None], np.ones(len(times)))
    return np.array(knots), np.cumsum(found)


class _StepTimer:
    """Times steps with one tree on top of a context, the mean of `STEPS` in a row after an untimed one.

    Once cancelled it makes no more steps, and its times mean nothing.

    Attributes:
        widths: how many tokens each draft pass runs over.
    """

    def __init__(
        self, target: LanguageModel, draft: LanguageModel, tree: TokenTree, context: int, cancel: threading.Event
    ) -> None:
        generator = torch.Generator().manual_seed(tree.size)
        self.sequence = torch.randint(target.vocab_size, (context + 1,), generator=generator).tolist()
        self.cancel = cancel
        self.drafter, self.judge, self.sessions = assemble(
            target, draft, FixedTree(tree), verifier=choose_verifier("sequoia", greedy=True),
            sampling=SamplingConfig(0.0), capacity=len(self.sequence),
            context=min(target.max_context, draft.max_context), generator=generator,
        )  # fmt: skip
        for session in self.sessions:
            prefill(session, self.sequence[:-1], cancel=cancel)
        counts = tree.child_counts
        self.widths = [int(np.count_nonzero(counts[level])) for level in tree.levels[:-1]]

    def run(self) -> tuple[float, float]:
        """Return the seconds of drafting the tree and of the target's pass over it."""
        self._step()
        times = [self._step() for _ in range(STEPS)]
        return tuple(np.mean(times, axis=0).tolist())

    def _step(self) -> tuple[float, float]:
        if self.cancel.is_set():
            return 0.0, 0.0
        started = time.perf_counter()
        draft = self.drafter.grow(self.sequence)
        self.drafter.wait()
        drafted = time.perf_counter()
        if self.cancel.is_set():
            return 0.0, 0.0
        self.judge.score(draft)
        self.judge.wait()
        verified = time.perf_counter()
        path = self.judge.walk(draft).path
        self.judge.commit(draft, path)
        self.drafter.commit(draft, path)
        for session in self.sessions:
            session.commit(len(self.sequence) - 1, [])
        return drafted - started, verified - drafted
