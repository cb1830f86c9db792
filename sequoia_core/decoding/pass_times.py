"""Times of a target's passes over a few tokens, measured in about a second if there is no profile.

The times are stored in the cache folder, so each model is timed once per machine.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ..files.notices import notify_once
from ..files.safe_files import cache_folder
from ..models.device import describe_device
from ..models.processor import instructions_in_use
from ..models.protocol import LanguageModel, causal_mask, dtype_name, prefill
from ..models.threads import use_free_cores
from ..planning.profile import HardwareProfile
from .sampling import most_likely

PASS_SIZES = (1, 2, 4, 8, 16)
BUDGET_SEC = 1.0  # time budget for rounds over all sizes; at least two rounds are run
CONTEXT = 128
CHECKED_SIZES = [PASS_SIZES[0], PASS_SIZES[-1]]  # these sizes are timed again once per process, in about `CHECK_SEC`
CHECK_SEC = 0.05
MAX_SLOWDOWN = 2.0  # stored times that exceed the current ones by more than this factor are discarded
_checked: WeakKeyDictionary[LanguageModel, HardwareProfile] = WeakKeyDictionary()


def pass_times(target: LanguageModel) -> HardwareProfile:
    """Return the times of passes over up to 16 tokens, either stored or newly measured.

    Stored times are compared with a few new passes. If these take less than half as long, the stored times were
    measured on a busy machine, and all sizes are measured again. If they take longer, the machine is busy now, and the
    stored times are kept. The profile has no draft: its draft time equals the target's. Its `meta` records when the
    times were measured (`timed`) and which file stores them (`kept_in`).
    """
    device = describe_device(target.device)
    instructions = instructions_in_use() if torch.device(target.device).type == "cpu" else None
    named = {"target": target.name, "draft": "", "dtype": dtype_name(target), "device": device}
    identity = [*named.values(), getattr(target, "parameters", None), torch.get_num_threads(), instructions]
    path = cache_folder() / "pass-times" / f"{hashlib.sha256(repr(identity).encode()).hexdigest()[:24]}.json"
    try:
        stored = _loaded(path, path.stat().st_mtime_ns)
        differ = stored.differences(**named, offload=target.offload, instructions=instructions)
        if not differ and (_checked.get(target) is stored or not _measured_under_load(stored, target)):
            _checked[target] = stored
            return stored
    except (OSError, ValueError):  # the file is missing or was written by a different version
        pass
    context, seconds = _time_passes(target)
    profile = HardwareProfile(
        sizes=np.array(PASS_SIZES),
        verify_sec=seconds,
        draft_sec=float(seconds[0]),
        device=device,
        dtype=named["dtype"],
        context=context,
        meta={"target": target.name, "draft": "", "instructions": instructions} | _origin(path, time.time()),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.save(path)
    except (OSError, ValueError) as error:
        notify_once(f"cannot store pass times in {path.parent} ({error}), so each run measures them again")
    return profile


def _origin(path: Path, timed_at: float) -> dict[str, str]:
    return {"timed": datetime.fromtimestamp(timed_at).isoformat(" ", "minutes"), "kept_in": str(path)}


@lru_cache(maxsize=8)
def _loaded(path: Path, modified: int) -> HardwareProfile:
    profile = HardwareProfile.load(path)
    return replace(profile, meta=_origin(path, modified / 1e9) | profile.meta)


def _measured_under_load(stored: HardwareProfile, target: LanguageModel) -> bool:
    now = _time_passes(target, CHECKED_SIZES, CHECK_SEC)[1]
    return bool((stored.verify_at(np.array(CHECKED_SIZES)) > MAX_SLOWDOWN * now).any())


def _time_passes(
    target: LanguageModel, sizes: Sequence[int] = PASS_SIZES, budget_sec: float = BUDGET_SEC
) -> tuple[int, np.ndarray]:
    """Return the context length and, for each size, the minimum time of a pass plus argmax, in seconds."""
    context = max(1, min(CONTEXT, target.max_context - PASS_SIZES[-1]))
    began = time.perf_counter()
    rounds = time_rounds(target, sizes, context, lambda done: done < 2 or time.perf_counter() - began < budget_sec)
    return context, np.min(rounds, axis=0)


@torch.inference_mode()
def time_rounds(target: LanguageModel, sizes: Sequence[int], context: int, more: Callable[[int], bool]) -> np.ndarray:
    """Time a pass plus argmax for each size, after `context` cached tokens, in repeated rounds.

    Args:
        more: called with the number of rounds so far; returns whether to run another. One warm-up round comes first.

    Returns:
        float64 [rounds, sizes], in seconds.
    """
    session = target.open(context + max(sizes))
    prefill(session, torch.zeros(context, dtype=torch.int64))
    rounds: list[list[float]] = []
    while not rounds or more(len(rounds) - 1):
        rounds.append([])
        for size in sizes:
            started = time.perf_counter()
            ids = torch.zeros(size, dtype=torch.int64)
            positions = torch.arange(context, context + size)
            with use_free_cores():
                most_likely(session.forward(ids, positions, causal_mask(size), keep=size), "target")
            session.commit(context, [])
            rounds[-1].append(time.perf_counter() - started)
    return np.array(rounds[1:])
