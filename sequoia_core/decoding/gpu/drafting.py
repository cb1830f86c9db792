"""The drafter of fixed trees for GPUs: each level is a phase of fixed shape, and tokens stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from ...models.protocol import causal_mask
from ...models.tree_cache import CacheSession
from ..drafting import DraftRun, DraftTree, LevelDrafter
from ..plan import Level
from ..sampling import (
    draft_probabilities,
    exponential,
    race,
    race_after,
    sample_without_replacement,
    take_most_likely,
    uniforms_for,
)
from .phases import Phase, StaticPass, is_static


class StaticDrafter(LevelDrafter):
    """Drafts as `LevelDrafter` does, by phases; a judge finds logits that are not finite.

    The first level's pass reads the token before the root once more: whether the draft has read it depends on the
    accepted path, and so would the shape.
    """

    @torch.inference_mode()
    def __init__(self, run: DraftRun) -> None:
        super().__init__(run)
        session = self.session
        assert isinstance(session, CacheSession) and self.fixed_plan is not None, "`supports` has seen to it"
        self._held, self._plan, device = session, self.fixed_plan, session.device
        size, inner, self._vocab = self._plan.tree.size, len(self._plan.inner), session.vocab_size
        self._first, self._before = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self._tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self._probs = torch.ones(size, dtype=torch.float32, device=device)
        self._rows = rows = torch.zeros(inner, self._vocab, dtype=torch.float32, device=device)
        self._noise = torch.ones_like(rows) if run.draft_sampling is sample_without_replacement else None
        self._first_rows = None if run.sampling.plain else torch.zeros_like(rows)
        self._uniforms = torch.zeros(inner, 1, dtype=torch.float64, device=device)  # of first children
        self._path = torch.zeros(self._plan.tree.depth + 1, dtype=torch.int64, device=device)
        made, start = partial(StaticPass, session), 0
        self.passes: list[StaticPass] = []  # one for each level
        self._levels: list[Phase] = []
        for depth, level in enumerate(self._plan.levels):
            if depth == 0:
                passes = made(causal_mask(2), torch.arange(2), first=self._before)
            else:
                passes = made(level.tree_mask, torch.full((len(level.nodes),), depth), first=self._first)
            own = _LevelOnDevice.of(level, start, device)
            start += len(level.nodes)
            self.passes.append(passes)
            self._levels.append(Phase(partial(self._fill, depth, passes, own, rows), device))
        self._keep = Phase(self._keep_path, device)

    @staticmethod
    def supports(run: DraftRun) -> bool:
        drawn = run.draft_sampling in (sample_without_replacement, take_most_likely)
        return run.policy.fixed is not None and drawn and is_static(run.session)

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        if len(sequence) == 1 or self.plan_below(sequence) is not self._plan:  # no token before the root, or a cut tree
            return super().grow(sequence)
        root_position = len(sequence) - 1
        self._first.fill_(root_position)
        self._before.fill_(root_position - 1)
        self._tokens[:1] = sequence[-1]
        self.passes[0].ids.copy_(torch.tensor(sequence[-2:]))
        if self._noise is not None:
            self._noise.copy_(exponential(self._noise, self.run.generator))
        if self._first_rows is not None:
            self._uniforms.copy_(uniforms_for(self._uniforms, self.run.generator))
        for fill in self._levels:
            fill()
        assert self._rows is not None
        return DraftTree(
            self._plan, root_position, self._tokens, self._probs, self._rows, self._plan.cache_positions,
            first_rows=self._first_rows,
        )  # fmt: skip

    def _fill(self, depth: int, passes: StaticPass, level: _LevelOnDevice, rows: torch.Tensor) -> torch.Tensor:
        if depth:
            passes.ids.copy_(self._tokens[level.nodes])
        block, first = draft_probabilities(passes.logits()[-len(level.nodes) :], self.run.sampling)
        if self._noise is None:
            drawn = take_most_likely(block, level.most_children)
        elif first is not None and self._first_rows is not None:
            self._first_rows[level.own] = first
            drawn = race_after(block, self._noise[level.own], level.most_children, first, self._uniforms[level.own])
        else:
            drawn = race(block, self._noise[level.own], level.most_children)
        drawn = drawn.take(level.draw_indices)
        self._tokens[level.children] = drawn
        self._probs[level.children] = block.take(level.parents * self._vocab + drawn)
        rows[level.own] = block
        return drawn

    def _keep_path(self) -> torch.Tensor:
        return self._held.cache.gather(self._first, self._path)

    @torch.inference_mode()
    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        if draft.probs is not self._probs:  # drafted without phases
            return super().commit(draft, path)
        read = [position for position in draft.cache_positions[list(path)].tolist() if position >= 0]
        self._path[: len(read)] = torch.tensor(read)
        self._keep()
        self._held.cache.length = draft.root_position + len(read)


class _LevelOnDevice(NamedTuple):
    """A level of a plan (see `plan.Level`), its indices on the device, and where its rows are among all."""

    nodes: torch.Tensor
    most_children: int
    children: slice
    parents: torch.Tensor
    draw_indices: torch.Tensor
    own: slice

    @classmethod
    def of(cls, level: Level, start: int, device: torch.device) -> _LevelOnDevice:
        indices = torch.from_numpy(level.nodes), level.rows, level.draw_indices
        nodes, parents, draws = (part.to(device) for part in indices)
        return cls(nodes, level.most_children, level.children, parents, draws, slice(start, start + len(nodes)))
