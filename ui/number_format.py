"""The number format that a pair of models runs in here: the one asked for, or the faster one, found by timing.

On a CPU the faster of float32 and bfloat16 is found when a pair is first loaded, and kept for this machine. Until then
the app goes by what is likely.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_core.files.model_names import DEMO_PAIR, model_folder
from sequoia_core.models import instruction_sets
from sequoia_core.models.compile_c import can_compile
from sequoia_core.models.device import has_gpu
from sequoia_core.models.number_formats import keep_times, kept_times
from ui.literal import plain

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

FASTEST = "fastest"
LARGEST_TIMED_BYTES = 2 * 2**30  # of both models' files: larger ones are limited by reading, and half is faster
_LOG = logging.getLogger(__name__)


def likely(target: str | None, draft: str | None) -> str:
    """Return the format in which a pair will probably be faster on this CPU, or is known to be."""
    known = kept_times(target, draft)
    return known[0].dtype if known else usually_faster(target, draft)


def usually_faster(target: str | None, draft: str | None) -> str:
    """Return the format that is probably the faster one: all there is to go by where nothing was measured.

    A target whose layers stream is not timed in both: it would be packed twice, and half the bytes are read faster.
    """
    compiled = can_compile() and instruction_sets.chosen()[0] is not None
    return "bfloat16" if compiled or _stored_bytes(target, draft) > LARGEST_TIMED_BYTES else "float32"


def load_fastest(target: str | None, draft: str | None, load: Callable[[str | None], ModelPair]) -> ModelPair:
    """Load a pair in the faster format, timing both where that was not done before.

    Args:
        load: loads the pair in a format; None leaves the format to it.
    """
    if has_gpu():
        return load(None)
    known = kept_times(target, draft)
    if known:
        return load(known[0].dtype)
    if _stored_bytes(target, draft) > LARGEST_TIMED_BYTES:
        return load(usually_faster(target, draft))
    from sequoia_core.studies.number_format import choose_number_format

    pair, found = choose_number_format(load)
    try:
        keep_times(target, draft, found)
    except (OSError, ValueError) as error:  # then it is measured again next time
        _LOG.warning("the faster number format could not be kept: %s", error)
    return pair


def explanation(target: str | None, draft: str | None) -> str:
    """Say how the format in use was found, in a sentence or two."""
    known = kept_times(target, draft)
    if len(known) < 2:
        return "The faster of float32 and bfloat16 is found by timing both when the pair is first loaded."
    best, other = known[:2]
    return (
        f"Measured here: {best.tokens_per_sec / other.tokens_per_sec:.1f} times as fast as {other.dtype}. A target "
        f"pass takes {1e3 * best.one_sec:.2f} ms for 1 token and {1e3 * best.sixteen_sec:.2f} ms for 16, in "
        f"{other.dtype} {1e3 * other.one_sec:.2f} and {1e3 * other.sixteen_sec:.2f} ms. Passes run by "
        f"{plain(best.passes_by[:120])}, in {other.dtype} by {plain(other.passes_by[:120])}."
    )


def _stored_bytes(target: str | None, draft: str | None) -> int:
    """Return how large two models' weight files are, so far as they are local folders or in the hub's cache."""
    total = 0
    for name, shipped in ((target, "target"), (draft, "draft")):
        folder = model_folder(name or DEMO_PAIR / shipped)
        total += 0 if folder is None else sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
    return total
