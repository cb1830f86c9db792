"""Times the passes of a pair on this machine: what a target pass over n tokens and a draft pass over a few cost.

Times are medians of repeats after warm-up, device-synchronised, with raw samples kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..design.profile import HardwareProfile
from ..files.faults import Cancelled
from ..models.device import describe_device
from ..models.prefill import prefill
from ..models.protocol import LanguageModel

DEFAULT_SIZES = (1, 2, 4, 8, 16, 32, 64)
DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32)
PASSES = 4  # in a row make one sample: decoding repeats passes of one kind, and the first finds the caches cold
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

    Sizes are interleaved within each repeat, so that a slow moment of the machine touches all of them.

    Args:
        cancel: looked at between passes, and while the context is read after every 512 tokens; the repeats complete by
            then are kept.

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
    widths = [w for w in DRAFT_WIDTHS if w <= sizes[-1]]
    timers = {("verify", n): _PassTimer(target, n, context, sizes[-1], cancel) for n in sizes}
    timers |= {("draft", w): _PassTimer(draft, w, context, widths[-1], cancel) for w in widths}
    samples: dict[tuple[str, int], list[float]] = {key: [] for key in timers}
    for repeat in range(-1, repeats):  # one round of warm-up
        seconds = [timer.run() for timer in timers.values()]
        if cancel.is_set():
            break
        if repeat >= 0:
            for kept, value in zip(samples.values(), seconds, strict=True):
                kept.append(value)
        if progress is not None:
            progress((repeat + 2) / (repeats + 1), f"profiling, round {repeat + 2} of {repeats + 1}")
    if not samples["verify", 1]:
        raise Cancelled("profile: cancelled before the first round, expected at least one")
    median = {key: float(np.median(values)) for key, values in samples.items()}
    return HardwareProfile(
        sizes=np.array(sizes),
        verify_sec=np.array([median["verify", n] for n in sizes]),
        draft_sec=median["draft", 1],
        device=describe_device(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        context=context,
        draft_widths=np.array(widths),
        draft_width_sec=np.array([median["draft", w] for w in widths]),
        verify_samples=tuple(tuple(samples["verify", n]) for n in sizes),
        meta={
            "target": target.name,
            "draft": draft.name,
            "repeats": len(samples["verify", 1]),
            "passes_by": getattr(target, "forward_by", "unknown"),
        },
    )


class _PassTimer:
    """Times a forward over n tokens on top of a filled cache, the mean of `PASSES` in a row after an untimed one.

    Once cancelled it makes no more passes, and its times mean nothing.
    """

    def __init__(self, model: LanguageModel, n: int, context: int, room: int, cancel: threading.Event) -> None:

        self.context, self.cancel = context, cancel
        generator = torch.Generator().manual_seed(n)
        self.session = model.open(context + room)
        fill = torch.randint(model.vocab_size, (context,), generator=generator)
        prefill(self.session, fill, cancel=cancel)
        self.tokens = torch.randint(model.vocab_size, (n,), generator=generator)
        self.positions = torch.full((n,), context)
        self.tail = torch.full((n, n), -torch.inf).fill_diagonal_(0.0)

    def run(self) -> float:
        self._pass()
        self.session.wait()
        started = time.perf_counter()
        for _ in range(PASSES):
            self._pass()
        self.session.wait()
        return (time.perf_counter() - started) / PASSES

    def _pass(self) -> None:
        if self.cancel.is_set():
            return
        self.session.commit(self.context, [])
        self.session.append(self.tokens, self.positions, self.tail, keep=len(self.tokens))
