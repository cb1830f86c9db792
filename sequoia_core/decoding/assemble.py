"""Where everything that can be had in more than one way is chosen, once per run: who drafts and who judges.

A new drafter or judge is one new file and one line here; the loop does not change. Every run has one tree for all its
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..design.tree import TokenTree
from ..models.protocol import LanguageModel, Session
from .compiled_drafting import CompiledDrafter
from .drafting import Drafter, LevelDrafter, NoDrafter
from .judging import CompiledJudge, Judge, RowJudge
from .plan import plan_of
from .sampling import SamplingConfig
from .verifiers import Verifier


class Parts(NamedTuple):
    """What one run works with; its sessions are still empty.

    Attributes:
        sessions: all that are to read the prompt but for its last token.
    """

    drafter: Drafter
    judge: Judge
    sessions: Sequence[Session]


def assemble(
    target: LanguageModel,
    draft: LanguageModel | None,
    tree: TokenTree,
    *,
    verifier: Verifier,
    sampling: SamplingConfig,
    capacity: int,
    context: int,
    generator: torch.Generator,
) -> Parts:
    """Choose a drafter and a judge, and open their sessions.

    Args:
        draft: None only for a tree of one node.
        capacity: tokens of the committed sequence at its longest.
        context: positions that both models have.
        generator: the only source of randomness.
    """
    plan = plan_of(tree)
    # At temperature 0 the most likely children do not depend on the temperature; 1 keeps the shown numbers useful.
    draft_sampling = SamplingConfig(temperature=1.0 if sampling.greedy else sampling.temperature)
    session = target.open(capacity + tree.size)
    sessions, drafter = [session], NoDrafter(plan.tree)
    if draft is not None and plan.levels:
        options = {
            "fill": verifier.fill, "sampling": draft_sampling, "context": context,
            "generator": _generator_on(draft.device, generator),
        }  # fmt: skip
        own = draft.open(capacity + len(plan.inner) + 1)
        chosen = CompiledDrafter if CompiledDrafter.supports(own, verifier.fill) else LevelDrafter
        sessions, drafter = [session, own], chosen(own, plan, **options)
    on_cpu = all(torch.device(model.device).type == "cpu" for model in (target, draft) if model is not None)
    compiled = on_cpu and CompiledJudge.supports(session, verifier=verifier, sampling=sampling)
    judge = (CompiledJudge if compiled else RowJudge)(
        session, plan, verifier=verifier, sampling=sampling, context=context, generator=generator,
        explained_by=draft_sampling if sampling.greedy else sampling,
    )  # fmt: skip
    return Parts(drafter, judge, sessions)


def _generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """Return the generator itself where it can draw on that device, else one there that is seeded from it."""
    if torch.device(device).type == generator.device.type:
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)
