"""Drafter for fixed trees on GPUs: all levels are one phase with fixed shapes, and tokens stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_core.decoding.drafting import DraftRun, DraftTree, LevelDrafter, generator_on
from sequoia_core.decoding.draws import exponential, invert, race, race_after_first
from sequoia_core.decoding.plan import Level
from sequoia_core.decoding.sampling import (
    draft_probabilities,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
)
from sequoia_core.decoding.verifiers import DraftSampling
from sequoia_core.models.protocol import causal_mask
from sequoia_core.models.tree_cache import CacheSession

from .phases import Phase, StaticPass, is_static, visible_slots


class StaticDrafter(LevelDrafter):
    """Drafts like `LevelDrafter`, but in phases; the judge checks that the draft's logits are finite.

    The first level's pass always reads the same number of tokens again: how many of them the draft has already read
    depends on the accepted path, but the shape of the pass must not.
    """

    reusable = True

    @torch.inference_mode()
    def __init__(self, run: DraftRun) -> None:
        super().__init__(run)
        session = self.session
        assert isinstance(session, CacheSession) and self.fixed_plan is not None, "checked by `supports`"
        self._cache = session.cache
        self._plan = plan = self.fixed_plan
        device = session.device
        inner = len(plan.inner)
        self._vocab = session.vocab_size
        self._first, self._before = torch.zeros(2, 1, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(plan.tree.size, dtype=torch.int64, device=device)
        self._probs = torch.ones(plan.tree.size, dtype=torch.float32, device=device)
        # These are also the rows that the base class reads and writes.
        self._rows = self._static_rows = torch.zeros(inner, self._vocab, dtype=torch.float32, device=device)
        noise_columns = self._vocab if run.draft_sampling is sample_without_replacement else 0
        self._noise = self._static_rows.new_ones(inner, noise_columns)
        self._first_rows = None if run.sampling.plain else torch.zeros_like(self._static_rows)
        # Children drawn with replacement need a number each; others only first children with rows of their own.
        uniform_columns = 0 if run.sampling.plain else 1
        if run.draft_sampling is sample_with_replacement:
            uniform_columns = int(plan.child_counts.max())
        self._uniforms = torch.zeros(inner, uniform_columns, dtype=torch.float64, device=device)
        self._path = torch.zeros(plan.tree.depth + 1, dtype=torch.int64, device=device)
        # A draft model has read all tokens but the last two; a head reads an accepted path again.
        self._rereads_paths = session.rereads_paths
        self._reread = plan.tree.depth + 2 if session.rereads_paths else 2
        # There is one pass per level.
        self.passes: list[StaticPass] = []
        self._levels: list[_LevelOnDevice] = []
        start = 0
        depths = torch.empty(0, dtype=torch.int64)
        for depth, level in enumerate(plan.levels):
            depths = torch.cat([depths, torch.full((len(level.nodes),), depth)])
            if depth:
                level_pass = StaticPass(session, level.tree_mask, depths, first=self._first)
            else:
                reread = torch.arange(self._reread)
                level_pass = StaticPass(session, causal_mask(self._reread), reread, first=self._before)
            self.passes.append(level_pass)
            self._levels.append(_LevelOnDevice.from_level(level, start, device))
            start += len(level.nodes)
        self._fill_levels = Phase(self._fill_all, device)
        self._commit_path = Phase(self._gather_path, device)

    @staticmethod
    def supports(run: DraftRun) -> bool:
        return run.policy.fixed is not None and run.draft_sampling in DRAWS and is_static(run.session)

    def restart(self, generator: torch.Generator) -> None:
        """Start another run with this generator."""
        self.run = self.run._replace(generator=generator_on(self.run.generator.device, generator))

    @torch.inference_mode()
    def grow(self, sequence: Sequence[int]) -> DraftTree:
        # The phases cannot be used if too few tokens precede the root or if the context is nearly full.
        if len(sequence) < self._reread or self.plan_below(sequence) is not self._plan:
            return super().grow(sequence)
        root_position = len(sequence) - 1
        self._first.fill_(root_position)
        self._before.fill_(len(sequence) - self._reread)
        self._tokens[:1] = sequence[-1]
        self.passes[0].ids.copy_(torch.tensor(sequence[-self._reread :]))
        self._noise.copy_(exponential(self._noise, self.run.generator))
        self._uniforms.uniform_(generator=self.run.generator)
        self._fill_levels(visible_slots(root_position + len(self._static_rows), self._cache.capacity))
        return DraftTree(
            self._plan,
            root_position,
            self._tokens,
            self._probs,
            self._static_rows,
            self._plan.cache_positions,
            first_rows=self._first_rows,
        )

    def _fill_all(self, visible: int) -> Tensor:
        """Run all levels' passes, each over the tokens drawn by the previous one, and return the tree's tokens."""
        for depth, (level_pass, level) in enumerate(zip(self.passes, self._levels, strict=True)):
            if depth:
                level_pass.ids.copy_(self._tokens[level.nodes])
            self._draw(level_pass.logits(visible)[-len(level.nodes) :], level)
        return self._tokens

    def _draw(self, logits: Tensor, level: _LevelOnDevice) -> None:
        """Draw one level's children, given the logits of its nodes."""
        probs, first = draft_probabilities(logits, self.run.sampling)
        if first is not None and self._first_rows is not None:
            self._first_rows[level.rows] = first
        numbers = self._noise[level.rows], self._uniforms[level.rows]
        drawn = DRAWS[self.run.draft_sampling](probs, level.most_children, numbers, first)
        drawn = drawn.take(level.draw_indices)
        self._tokens[level.children] = drawn
        self._probs[level.children] = probs.take(level.parents * self._vocab + drawn)
        self._static_rows[level.rows] = probs

    def _gather_path(self) -> Tensor:
        return self._cache.gather(self._first, self._path)

    @torch.inference_mode()
    def commit(self, draft: DraftTree, path: tuple[int, ...]) -> None:
        # The base class drafted this tree, or commits more than slots.
        if draft.probs is not self._probs or self._rereads_paths:
            return super().commit(draft, path)
        read = [position for position in draft.cache_positions[list(path)].tolist() if position >= 0]
        self._path[: len(read)] = torch.tensor(read)
        self._commit_path()
        self._cache.commit_until(draft.root_position + len(read))


def _draw_distinct(probs: Tensor, k: int, numbers: tuple[Tensor, Tensor], first: Tensor | None) -> Tensor:
    noise, uniforms = numbers
    return race(probs, noise, k) if first is None else race_after_first(probs, noise, k, first, uniforms)


def _draw_independent(probs: Tensor, k: int, numbers: tuple[Tensor, Tensor], first: Tensor | None) -> Tensor:
    _, uniforms = numbers
    drawn = invert(probs.cumsum(1, dtype=torch.float64), uniforms[:, :k])
    if first is not None:
        drawn[:, :1] = invert(first.cumsum(1, dtype=torch.float64), uniforms[:, :1])
    return drawn


# The same draws from numbers that were drawn before, (noise, uniforms), instead of a generator.
DRAWS: dict[DraftSampling, DraftSampling] = {
    sample_without_replacement: _draw_distinct,
    sample_with_replacement: _draw_independent,
    take_most_likely: take_most_likely,
}


class _LevelOnDevice(NamedTuple):
    """A level of a plan (see `plan.Level`) with its indices on the device; `rows` selects its rows among the tree's."""

    nodes: Tensor
    most_children: int
    children: slice
    parents: Tensor
    draw_indices: Tensor
    rows: slice

    @classmethod
    def from_level(cls, level: Level, start: int, device: torch.device) -> _LevelOnDevice:
        return cls(
            torch.from_numpy(level.nodes).to(device),
            level.most_children,
            level.children,
            level.rows.to(device),
            level.draw_indices.to(device),
            slice(start, start + len(level.nodes)),
        )
