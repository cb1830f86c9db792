"""What a target's passes over few tokens cost here, timed in about a second where no profile tells it.

Kept in the cache folder, so that each model is timed once on a machine. Knows models and times, neither trees nor text.
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

from ..design.profile import HardwareProfile
from ..models.device import describe_device
from ..models.protocol import LanguageModel, causal_mask, dtype_name, prefill
from ..native.compile_c import cache_folder
from ..native.instruction_sets import instructions_in_use
from ..native.notices import say_once
from ..native.threads import use_free_cores
from .sampling import most_likely

SIZES = (1, 2, 4, 8, 16)
BUDGET_SEC = 1.0  # for rounds over all sizes, of which there are two at least
CONTEXT = 128
CHECKED = [SIZES[0], SIZES[-1]]  # are timed once more in each process, in `CHECK_SEC`
CHECK_SEC = 0.05
_compared: WeakKeyDictionary[LanguageModel, HardwareProfile] = WeakKeyDictionary()  # once in a process
MOST_TIMES_SLOWER = 2.0  # kept times that are further above what a pass takes now were taken on a busy machine


def pass_times(target: LanguageModel) -> HardwareProfile:
    """Return the times of passes over up to 16 tokens: those that were kept, or else new ones.

    Kept times are compared with a few passes now. Where these take less than half, all are measured again: the stored
    times were measured on a busy machine. Where they take longer, the machine is busy now, and the stored times stay.
    The profile is of no draft, and has the times of the target in the draft's place. Its `meta` says when they were
    taken (`timed`) and in which file they are kept (`kept_in`).
    """
    device = describe_device(target.device)
    instructions = instructions_in_use() if torch.device(target.device).type == "cpu" else None
    named = {"target": target.name, "draft": "", "dtype": dtype_name(target), "device": device}
    known = [*named.values(), getattr(target, "parameters", None), torch.get_num_threads(), instructions]
    path = cache_folder() / "pass-times" / f"{hashlib.sha256(repr(known).encode()).hexdigest()[:24]}.json"
    try:
        kept = _loaded(path, path.stat().st_mtime_ns)
        differ = kept.differences(**named, offload=target.offload, instructions=instructions)
        if not differ and (_compared.get(target) is kept or not _of_busy_machine(kept, target)):
            _compared[target] = kept
            return kept
    except (OSError, ValueError):  # none there, or another version's
        pass
    context, seconds = _timed(target)
    found = HardwareProfile(
        sizes=np.array(SIZES), verify_sec=seconds, draft_sec=float(seconds[0]), device=device, dtype=named["dtype"],
        context=context,
        meta={"target": target.name, "draft": "", "instructions": instructions} | _origin(path, time.time()),
    )  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
    except (OSError, ValueError) as error:  # timed again next time
        say_once(f"{path.parent}: times of passes cannot be kept there ({error}), so each run measures them again")
    return found


def _origin(path: Path, timed_at: float) -> dict[str, str]:
    return {"timed": datetime.fromtimestamp(timed_at).isoformat(" ", "minutes"), "kept_in": str(path)}


@lru_cache(maxsize=8)
def _loaded(path: Path, modified: int) -> HardwareProfile:
    profile = HardwareProfile.load(path)
    return replace(profile, meta=_origin(path, modified / 1e9) | profile.meta)


def _of_busy_machine(kept: HardwareProfile, target: LanguageModel) -> bool:
    now = _timed(target, CHECKED, CHECK_SEC)[1]
    return bool((kept.verify_at(np.array(CHECKED)) > MOST_TIMES_SLOWER * now).any())


def _timed(
    target: LanguageModel, sizes: Sequence[int] = SIZES, budget_sec: float = BUDGET_SEC
) -> tuple[int, np.ndarray]:
    """Return the tokens before a pass, and the least seconds of one over each of the sizes with a choice of tokens."""
    context, began = max(1, min(CONTEXT, target.max_context - SIZES[-1])), time.perf_counter()
    rounds = timed_rounds(target, sizes, context, lambda done: done < 2 or time.perf_counter() - began < budget_sec)
    return context, np.min(rounds, axis=0)


@torch.inference_mode()
def timed_rounds(target: LanguageModel, sizes: Sequence[int], context: int, more: Callable[[int], bool]) -> np.ndarray:
    """Return the seconds of a pass over each of the sizes after `context` tokens, with a choice of tokens, in rounds.

    Args:
        more: whether to go on after so many rounds; one before them warms up.

    Returns:
        float64 [rounds, sizes].
    """
    session = target.open(context + max(sizes))
    prefill(session, torch.zeros(context, dtype=torch.int64))
    rounds: list[list[float]] = []
    while not rounds or more(len(rounds) - 1):
        rounds.append([])
        for size in sizes:
            started = time.perf_counter()
            ids, places = torch.zeros(size, dtype=torch.int64), torch.arange(context, context + size)
            with use_free_cores():
                most_likely(session.forward(ids, places, causal_mask(size), keep=size), "target")
            session.commit(context, [])
            rounds[-1].append(time.perf_counter() - started)
    return np.array(rounds[1:])
