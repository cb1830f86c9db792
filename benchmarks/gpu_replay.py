"""ReplayGraph: real decoding steps of a pair, with accepted paths drawn from an acceptance vector.

Speed depends on shapes, for which random weights suffice, and on the number of accepted tokens, which follows from the
vector. Passes, masks, sampling, the walk and the commit are those of decoding; only the path is drawn.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch
from gpu_machine import Machine

from sequoia_core import AcceptanceVector, SamplingConfig
from sequoia_core.decoding.assemble import assemble, store_run
from sequoia_core.decoding.drafting import DraftTree
from sequoia_core.decoding.loop import End, take_step
from sequoia_core.decoding.tree_policy import as_policy
from sequoia_core.decoding.verifiers import choose_verifier
from sequoia_core.decoding.walk import Walk
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.protocol import prefill
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.cuda_graphs.drafting import StaticDrafter
from sequoia_extras.cuda_graphs.judging import StaticJudge
from sequoia_extras.cuda_graphs.phases import StaticPass, visible_slots

WARM_UP = 4  # number of untimed steps at the beginning of each text; those of the first text capture graphs
SAMPLING = SamplingConfig(0.6)


class Replayed:
    """A judge that does all the usual work, but draws the accepted path from an acceptance vector."""

    def __init__(self, judge, acceptance: AcceptanceVector, seed: int) -> None:
        self.judge, self.cumulative = judge, np.cumsum(acceptance.probs)
        self.generator = np.random.default_rng(seed)

    def __getattr__(self, name: str):
        return getattr(self.judge, name)

    def walk(self, draft: DraftTree) -> Walk:
        found, path, node = self.judge.walk(draft), [0], 0
        while children := draft.tree.children(node):
            rank = int(np.searchsorted(self.cumulative, self.generator.random(), side="right"))
            if rank >= len(children):
                break
            node = children[rank]
            path.append(node)
        return Walk(tuple(path), found.bonus_token, ())

    @torch.inference_mode()
    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        decided = getattr(self.judge, "_decided", None)
        # The commit phase reads the path from this buffer.
        if decided is not None:
            kept = decided.split_verdict(decided.verdict)[2]
            kept.copy_(torch.tensor([*path, *path[-1:] * (len(kept) - len(path))]))
        self.judge.commit(draft, path)


class Steps(NamedTuple):
    """Times and tokens of steps.

    Attributes:
        each: seconds of each step.
        tokens: number of tokens committed by all steps.
        context: mean number of slots that a step attends to: the tokens before it, rounded up if it runs in graphs.
        passes: passes of the last text's steps, if they have static shapes.
        first: seconds of each text's first steps; those of the first text capture the graphs.
    """

    each: list[float]
    tokens: int
    context: float
    passes: list[StaticPass]
    first: list[float]

    @property
    def seconds(self) -> float:
        return sum(self.each)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def replayed(
    machine: Machine,
    target,
    draft,
    tree: TokenTree,
    acceptance: AcceptanceVector,
    *,
    steps: int,
    texts: int = 1,
    sampling: SamplingConfig = SAMPLING,
    compiled: bool = False,
) -> Steps:
    """Take steps after a context in several texts, and return those after each text's warm-up.

    If `compiled`, the passes of each session are compiled separately, for steps without static shapes.
    """
    each, tokens, lengths, passes, first = [], 0, [], [], []
    for seed in range(texts):
        sequence = machine.prompt(machine.context)
        length = len(sequence) + (WARM_UP + steps) * (tree.depth + 1)
        drafter, judge, sessions, _ = parts = assemble(
            ModelPair(target, draft, None), as_policy(tree),
            verifier=choose_verifier("sequoia", greedy=sampling.greedy), sampling=sampling, capacity=length,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        for session in sessions:
            prefill(session, sequence[:-1])
            if compiled:
                session.forward = CompiledForward(session)
        judging, end = Replayed(judge, acceptance, seed), End(eos_ids=frozenset(), length=length + 1, reason="length")
        for step in range(WARM_UP + steps):
            before = len(sequence)
            found = take_step(drafter, judging, sequence, end, sessions=sessions, cancel=threading.Event())
            if step < WARM_UP:
                first.append(found.seconds)
            else:
                each.append(found.seconds)
                static = isinstance(judge, StaticJudge)
                lengths.append(visible_slots(before + tree.size, length) if static else before)
                tokens += len(found.new_tokens)
        if isinstance(drafter, StaticDrafter) and isinstance(judge, StaticJudge):
            passes = [*drafter.passes, judge.passes]
        if texts > 1:
            store_run(parts)
    return Steps(each, tokens, float(np.mean(lengths)), passes, first)


class CompiledForward:
    """A session's `forward`, compiled by `torch.compile(mode="reduce-overhead")`; full masks keep shapes static."""

    def __init__(self, session) -> None:
        self.session, cache = session, session.cache
        for buffer in cache._buffers.values():
            torch._dynamo.mark_static_address(buffer)
        self.passes = torch.compile(session.logits_at, mode="reduce-overhead", dynamic=False)

    @torch.inference_mode()
    def __call__(self, ids, positions, tree_mask, *, keep: int) -> torch.Tensor:
        cache, device, (count, covered) = self.session.cache, self.session.device, tree_mask.shape
        cache.begin(positions)
        slots = torch.arange(cache.length, cache.length + count)
        mask = torch.full((count, cache.capacity), -torch.inf)
        mask[:, : cache.length + count - covered] = 0.0
        mask[:, cache.length + count - covered : cache.length + count] = tree_mask
        mask = mask.to(device, self.session.dtype)[None, None]
        logits = self.passes(slots.to(device), ids.to(device), positions.to(device), {None: mask})
        cache.end()
        # Copy the logits, since the next call overwrites them.
        return logits[-keep:].clone()
