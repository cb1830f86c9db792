"""Chooses the drafter and the judge of a run, and opens their sessions: one line in a table here for each of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch

from ..models.language_model import ModelPair
from ..models.protocol import LanguageModel, Session
from ..models.tree_cache import CacheSession
from .drafting import CompiledDrafter, Drafter, DraftRun, LevelDrafter, Reach, RootDrafter
from .gpu.drafting import StaticDrafter
from .gpu.judging import StaticJudge
from .gpu.phases import padded
from .growing.drafter import GrowingDrafter
from .judging import CompiledJudge, RowJudge
from .sampling import SamplingConfig
from .tree_policy import TreePolicy
from .verifiers import Verifier, sampling_of_draft

# fastest first: the first that supports the policy drafts
DRAFTERS: tuple[Any, ...] = (CompiledDrafter, StaticDrafter, LevelDrafter, GrowingDrafter)
CPU_JUDGES = (CompiledJudge, RowJudge)  # fastest first, where both models are on the CPU
JUDGES = (StaticJudge, RowJudge)  # fastest first, elsewhere

MOST_KEPT, SPARE = 2, 512  # runs of one target; slots that a kept run may have beyond what the next one needs
_kept: WeakKeyDictionary[LanguageModel, dict[tuple, Any]] = WeakKeyDictionary()  # `Parts` of runs that are over


class Parts(NamedTuple):
    """What one run works with: empty sessions, into which the caller reads all of the prompt but its last token."""

    drafter: Drafter
    judge: RowJudge
    sessions: Sequence[Session]


def assemble(
    pair: ModelPair,
    policy: TreePolicy,
    *,
    verifier: Verifier,
    sampling: SamplingConfig,
    capacity: int,
    generator: torch.Generator,
) -> Parts:
    """Choose a drafter and a judge, and open their sessions for `capacity` committed tokens."""
    target = pair.target
    runs, kind = _kept.setdefault(target, {}), (pair.draft and ref(pair.draft), policy.fixed, verifier.name, sampling)
    kept, needed = runs.pop(kind, None), capacity + padded(policy.max_size)
    if kept is not None and needed <= kept.sessions[0].cache.capacity <= needed + SPARE:
        return _begun_again(kept, generator)
    draft_sampling = sampling_of_draft(sampling, verifier)
    policy = policy.for_run(target, sampling.temperature)
    draft, own = pair.draft if policy.needs_draft else None, None
    session = target.open(needed, () if draft is None else draft.reads)
    if draft is not None:
        own = draft.open(min(capacity, draft.max_context) + policy.max_inner + 1)
        generator_of_draft, context = _generator_on(draft.device, generator), draft.max_context
    else:
        generator_of_draft, context = generator, 0
    drafter: Drafter
    if own is None and policy.fixed is not None:
        drafter = RootDrafter()
    else:
        reach = Reach(target.max_context, context)
        run = DraftRun(own, policy, verifier.draft_sampling, draft_sampling, reach, generator_of_draft)
        chosen = next((kind for kind in DRAFTERS if kind.supports(run)), None)
        if chosen is None:
            raise ValueError(f"tree: found a {type(policy).__name__}, expected a policy that some drafter supports")
        drafter = chosen(run)
    on_cpu = all(torch.device(model.device).type == "cpu" for model in pair.models)
    judges = CPU_JUDGES if on_cpu else JUDGES
    judging = next(kind for kind in judges if kind.supports(session, verifier=verifier, sampling=sampling))
    judge = judging(
        session, verifier=verifier, sampling=sampling,
        generator=_generator_on(torch.device("cpu"), generator),  # the CPU verifier draws from it too
        explained_by=draft_sampling if sampling.greedy else sampling,
    )  # fmt: skip
    if isinstance(judge, StaticJudge) and isinstance(drafter, StaticDrafter | RootDrafter):
        judge.place = runs, kind
    return Parts(drafter, judge, [session] if own is None else [session, own])


def keep(parts: Parts) -> None:
    """Keep a run that is over, with its CUDA graphs, for the next of the same models, tree and sampling."""
    if isinstance(parts.judge, StaticJudge) and parts.judge.place is not None:
        runs, kind = parts.judge.place
        runs[kind] = parts
        while len(runs) > MOST_KEPT:
            runs.pop(next(iter(runs)), None)


def _begun_again(parts: Parts, generator: torch.Generator) -> Parts:
    drafter, judge, sessions = parts
    for session in sessions:
        assert isinstance(session, CacheSession), "of static parts"
        session.cache.length = 0
    if isinstance(drafter, StaticDrafter):
        device = drafter.run.generator.device
        drafter.run = drafter.run._replace(generator=_generator_on(device, generator))
    judge.generator = _generator_on(torch.device("cpu"), generator)
    return parts


def _generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return the generator where it can draw on that device, else one there that is seeded from it."""
    if torch.device(device).type == generator.device.type:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device).manual_seed(seed)
