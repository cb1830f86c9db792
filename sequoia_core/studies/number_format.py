"""Which number format decodes faster here: a pair's passes timed in each.

bfloat16 halves what is read; float32 spares conversions where a processor has no bfloat16 arithmetic. Which wins
depends on the processor, the compiled code there is for it and the shape of the models, so it is measured: a pass over
1 and over 16 tokens in each format, and from them the tokens per second of the tree that would be planned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..design.acceptance import AcceptanceVector
from ..design.planning import best_shape, speedup_surface
from ..models.language_model import ModelPair
from ..models.number_formats import FormatTimes
from .measure_profile import measure_profile

FORMATS = ("float32", "bfloat16")
SIZES, CONTEXT, REPEATS, MAX_DEPTH = (1, 16), 128, 3, 8
TYPICAL = AcceptanceVector([0.7732, 0.1039, 0.0402, 0.0206, 0.0128, 0.0081])  # Llama3-70B <- 8B (paper's repository)


def time_format(
    pair: ModelPair, dtype: str, acceptance: AcceptanceVector = TYPICAL, cancel: threading.Event | None = None
) -> FormatTimes:
    """Time a pair that is loaded in a number format; takes a second or two for small models.

    Raises:
        Cancelled: before enough was timed.
    """
    context = min(CONTEXT, min(pair.target.max_context, pair.draft.max_context) - 1)
    profile = measure_profile(
        target=pair.target, draft=pair.draft, sizes=SIZES, context=context, repeats=REPEATS, cancel=cancel
    )
    best = best_shape(speedup_surface(acceptance, profile, max_size=SIZES[-1], max_depth=MAX_DEPTH))
    one, sixteen = map(float, profile.verify_sec)
    return FormatTimes(dtype, one, sixteen, profile.draft_sec, best.predicted_speedup / one, pair.target.forward_by)


def choose_number_format(
    load: Callable[[str], ModelPair], *, cancel: threading.Event | None = None, formats: Sequence[str] = FORMATS
) -> tuple[ModelPair, tuple[FormatTimes, ...]]:
    """Load a pair in each number format, time it, and keep the faster.

    Args:
        load: loads the pair in a number format; no two of them are in memory at once.
        formats: tried in this order.

    Returns:
        The pair in the faster format, and the times of all, the fastest first.

    Raises:
        Cancelled: before all formats were timed.
    """
    pair, found = None, []
    for dtype in formats:
        pair = None  # frees the one before
        pair = load(dtype)
        found.append(time_format(pair, dtype, cancel=cancel))
    found.sort(key=lambda times: -times.tokens_per_sec)
    if found[0].dtype != formats[-1]:
        pair = None
        pair = load(found[0].dtype)
    assert pair is not None, "at least one format is tried"
    return pair, tuple(found)
