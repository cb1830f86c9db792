"""What a target's passes over few tokens cost here, timed in about a second where no profile tells it.

Kept in the cache folder, so that each model is timed once on a machine. Knows models and times, neither trees nor text.
"""

import hashlib
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from ..design.profile import HardwareProfile
from ..models.device import describe_device
from ..models.protocol import LanguageModel, causal_mask, dtype_name, prefill
from ..native.compile_c import cache_folder
from ..native.instruction_sets import instructions_in_use
from .sampling import most_likely

SIZES = (1, 2, 4, 8, 16)
BUDGET_SEC = 1.0  # for rounds over all sizes, of which there are two at least
CONTEXT = 128


def pass_times(target: LanguageModel) -> HardwareProfile:
    """Return the times of passes over up to 16 tokens: those that were kept, or else new ones.

    Their profile is of no draft, and has the times of the target in the draft's place.
    """
    device = describe_device(target.device)
    instructions = instructions_in_use() if torch.device(target.device).type == "cpu" else None
    named = {"target": target.name, "draft": "", "dtype": dtype_name(target), "device": device}
    known = [*named.values(), getattr(target, "parameters", None), torch.get_num_threads(), instructions]
    path = cache_folder() / "pass-times" / f"{hashlib.sha256(repr(known).encode()).hexdigest()[:24]}.json"
    try:
        kept = _loaded(path, path.stat().st_mtime_ns)
        if not kept.differences(**named, offload=target.offload, instructions=instructions):
            return kept
    except (OSError, ValueError):  # none there, or another version's
        pass
    context, seconds = _timed(target)
    found = HardwareProfile(
        sizes=np.array(SIZES), verify_sec=seconds, draft_sec=float(seconds[0]), device=device, dtype=named["dtype"],
        context=context, meta={"target": target.name, "draft": "", "instructions": instructions},
    )  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
    except (OSError, ValueError):  # a folder that cannot be written: timed again next time
        pass
    return found


@lru_cache(maxsize=8)
def _loaded(path: Path, modified: int) -> HardwareProfile:
    return HardwareProfile.load(path)


@torch.inference_mode()
def _timed(target: LanguageModel) -> tuple[int, np.ndarray]:
    """Return the tokens before a pass, and the least seconds of one over each of `SIZES` with a choice of tokens."""
    context = max(1, min(CONTEXT, target.max_context - SIZES[-1]))
    session = target.open(context + SIZES[-1])
    prefill(session, torch.zeros(context, dtype=torch.int64))
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while len(rounds) < 3 or time.perf_counter() - began < BUDGET_SEC:  # the first warms up
        rounds.append([])
        for size in SIZES:
            started = time.perf_counter()
            ids, places = torch.zeros(size, dtype=torch.int64), torch.arange(context, context + size)
            most_likely(session.forward(ids, places, causal_mask(size), keep=size), "target")
            session.commit(context, [])
            rounds[-1].append(time.perf_counter() - started)
    return context, np.min(rounds[1:], axis=0)
