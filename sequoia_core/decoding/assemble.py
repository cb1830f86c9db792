"""Choose a run's drafter and judge, open their sessions, and cache runs for reuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch

from ..files.extras import provided
from ..models.language_model import ModelPair
from ..models.protocol import LanguageModel, Session
from .drafting import Drafter, DraftRun, LevelDrafter, Reach, RootDrafter, generator_on
from .judging import RowJudge
from .plan import padded
from .sampling import SamplingConfig
from .tree_policy import TreePolicy
from .verifiers import Verifier, draft_sampling_config

# The first class that supports a run is used. Classes from optional packages ("drafters", "judges") are tried first.
DRAFTERS: tuple[Any, ...] = (LevelDrafter,)
JUDGES: tuple[Any, ...] = (RowJudge,)
MAX_CACHED_RUNS = 2  # per target
SPARE_SLOTS = 512  # a cached run with more unneeded slots than this is not reused


class RunParts(NamedTuple):
    """The components of one run. The caller prefills the sessions with the prompt, except for its last token.

    Attributes:
        sessions: the target's session, followed by the draft's if there is one.
        cache_location: where `store_run` caches the finished run; None if it is not reusable.
    """

    drafter: Drafter
    judge: RowJudge
    sessions: Sequence[Session]
    cache_location: CacheLocation | None = None


class CacheLocation(NamedTuple):
    """Where a run is cached: its key and the number of slots in its target's session."""

    cache: RunCache
    key: tuple
    slots: int


class RunCache:
    """One target's finished runs and their CUDA graphs, keyed by draft, tree, verifier and sampling."""

    def __init__(self) -> None:
        self._runs: dict[tuple, RunParts] = {}  # oldest first

    def take(self, key: tuple, slots: int, generator: torch.Generator) -> RunParts | None:
        """Remove and reset the cached run with this key; return None if there is none of suitable capacity."""
        parts: Any = self._runs.pop(key, None)
        if parts is None or not slots <= parts.cache_location.slots <= slots + SPARE_SLOTS:
            return None
        for session in parts.sessions:
            session.commit(0, [])
        parts.drafter.restart(generator)
        parts.judge.generator = generator_on(torch.device("cpu"), generator)
        return parts

    def store(self, key: tuple, parts: RunParts) -> None:
        """Store a finished run, and evict the oldest if there are too many."""
        self._runs[key] = parts
        while len(self._runs) > MAX_CACHED_RUNS:
            self._runs.pop(next(iter(self._runs)), None)


_caches: WeakKeyDictionary[LanguageModel, RunCache] = WeakKeyDictionary()


def assemble(
    pair: ModelPair,
    policy: TreePolicy,
    *,
    verifier: Verifier,
    sampling: SamplingConfig,
    capacity: int,
    generator: torch.Generator,
) -> RunParts:
    """Choose a drafter and a judge, and open their sessions with room for `capacity` committed tokens."""
    target = pair.target
    slots = capacity + padded(policy.max_size)
    cache = _caches.setdefault(target, RunCache())
    key = pair.draft and ref(pair.draft), policy.fixed, verifier.name, sampling
    if (cached := cache.take(key, slots, generator)) is not None:
        return cached
    draft_sampling = draft_sampling_config(sampling, verifier)
    policy = policy.for_run(target, sampling.temperature)
    draft = pair.draft if policy.needs_draft else None
    sessions = [target.open(slots, () if draft is None else draft.state_indices)]
    drafter: Drafter
    if draft is None and policy.fixed is not None:
        drafter = RootDrafter()
    else:
        draft_session = None
        if draft is not None:
            draft_session = draft.open(min(capacity, draft.max_context) + policy.max_inner + 1)
            sessions.append(draft_session)
        run = DraftRun(
            draft_session,
            policy,
            verifier.draft_sampling,
            draft_sampling,
            Reach(target.max_context, 0 if draft is None else draft.max_context),
            generator if draft is None else generator_on(draft.device, generator),
        )
        supporting = (cls for cls in (*provided("drafters"), *DRAFTERS) if cls.supports(run))
        chosen = next(supporting, None)
        if chosen is None:
            raise ValueError(f"tree: found a {type(policy).__name__}, expected one that a drafter supports")
        drafter = chosen(run)
    on_cpu = all(torch.device(model.device).type == "cpu" for model in pair.models)
    judge_class = next(
        cls
        for cls in (*provided("judges"), *JUDGES)
        if cls.supports(sessions[0], verifier=verifier, sampling=sampling, on_cpu=on_cpu)
    )
    judge = judge_class(
        sessions[0],
        verifier=verifier,
        sampling=sampling,
        generator=generator_on(torch.device("cpu"), generator),  # verification draws its random numbers on the CPU
        explained_by=draft_sampling if sampling.greedy else sampling,
    )
    location = CacheLocation(cache, key, slots) if judge.reusable and drafter.reusable else None
    return RunParts(drafter, judge, sessions, location)


def store_run(parts: RunParts) -> None:
    """Cache a finished run if it is reusable."""
    if parts.cache_location is not None:
        parts.cache_location.cache.store(parts.cache_location.key, parts)
