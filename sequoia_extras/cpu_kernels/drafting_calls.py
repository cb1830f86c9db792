"""Calls into `llama_x86.c` that draft a whole tree in a compiled draft's session."""

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import sampling_ops, tree_expansion
from .c_declarations import structure_fields
from .compile_c import FOLDER
from .kernel_session import CompiledSession
from .sampling_ops import array_address, inverse_temperature, tensor_address
from .tree_expansion import TreeBuilder

C_SOURCE = FOLDER / "llama_x86.c"


class _Level(ctypes.Structure):
    _fields_ = structure_fields(C_SOURCE, "Level")


class _Draft(ctypes.Structure):
    _fields_ = structure_fields(C_SOURCE, "Draft")


class _Growth(ctypes.Structure):
    _fields_ = structure_fields(C_SOURCE, "Growth")


def works() -> bool:
    """Return whether the compiled code for growing trees can be built here."""
    return sampling_ops.sampling_kernels() is not None and tree_expansion.expansion_kernels() is not None


class DraftCall:
    """Drafts a planned tree in one call, which runs the passes and draws the tokens of all levels in reused buffers.

    Args:
        session: the draft's session; tokens are drawn from the first `session.vocab_size` logits.
        drawn: whether children are drawn; otherwise they are the most likely tokens.
        with_replacement: whether they are drawn with replacement.
        top_p, top_k: filters for the distributions from which first children are drawn.

    Attributes:
        first_rows: float32 [forwarded, V], the filtered distributions for first children; None without filters.
    """

    def __init__(
        self,
        session: CompiledSession,
        levels: Sequence[Any],
        *,
        drawn: bool,
        with_replacement: bool,
        top_p: float,
        top_k: int,
    ) -> None:
        self.session = session
        self.forwarded = sum(len(level.nodes) for level in levels)
        self.draws = sum(len(level.nodes) * level.most_children for level in levels) if drawn else 0
        self.nodes = levels[-1].children.stop
        # C reads the plan's arrays in place.
        self._plan_levels = levels
        self._levels = (_Level * len(levels))(*_checked_levels(levels, session))
        self.tokens = torch.empty(self.nodes, dtype=torch.int64)
        self.probabilities = torch.ones(self.nodes, dtype=torch.float32)
        self.rows = torch.empty(self.forwarded, session.vocab_size, dtype=torch.float32)
        self.first_rows = None if top_p == 1.0 and not top_k else torch.empty_like(self.rows)
        self._root = self.tokens.numpy()[:1]  # shares memory with `tokens`, but is faster to assign to
        # Usually large enough: only the root and at most one accepted leaf before it are unread.
        self._unseen = (ctypes.c_int64 * 2)()
        self._call = _Draft(
            levels=len(levels),
            with_replacement=with_replacement,
            level=ctypes.addressof(self._levels),
            vocab=session.vocab_size,
            rows=self.rows.data_ptr(),
            tokens=self.tokens.data_ptr(),
            probabilities=self.probabilities.data_ptr(),
            seconds=ctypes.addressof(session.drafting_sec),
            top_p=top_p,
            top_k=top_k,
            first_rows=None if self.first_rows is None else self.first_rows.data_ptr(),
        )

    def grow(
        self, unseen: Sequence[int], *, root_position: int, temperature: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Draft one tree and leave its keys and values in the session.

        Args:
            unseen: the committed tokens that the session has not read, ending with the root.

        Returns:
            The tokens, int64 [n], their probabilities, float32 [n], and the distributions they were drawn from,
            float32 [forwarded, V], all overwritten by the next call; None if logits are not finite.
        """
        session = self.session
        call = self._call
        count = len(unseen) + self.forwarded - 1
        _check_unseen(unseen)
        session.check_capacity(count)
        if len(unseen) > len(self._unseen):
            self._unseen = (ctypes.c_int64 * len(unseen))()
        self._unseen[: len(unseen)] = list(unseen)
        self._root[0] = unseen[-1]
        uniforms = None
        if self.draws:
            uniforms = torch.rand(self.draws, dtype=torch.float64, generator=generator)
        call.threads = torch.get_num_threads()
        call.length = session.length
        call.unseen = len(unseen)
        call.ids = ctypes.addressof(self._unseen)
        call.root_position = root_position
        call.inverse_temperature = inverse_temperature(temperature)
        call.uniforms = None if uniforms is None else uniforms.data_ptr()
        status = session.model.functions.sequoia_draft(session.address, ctypes.byref(call))
        is_finite = _is_finite(status)
        session.length += count
        return (self.tokens, self.probabilities, self.rows) if is_finite else None


class GrowCall:
    """Grows a dynamic tree in one call, which runs the passes over all frontiers and chooses nodes in reused buffers.

    Args:
        session: the draft's session; tokens are drawn from the first `session.vocab_size` logits.
        builder: decides which nodes are read and retained.
        max_frontiers: maximum number of passes per tree.
    """

    def __init__(self, session: CompiledSession, builder: TreeBuilder, *, max_frontiers: int) -> None:
        self.session = session
        self.builder = builder
        builder.allocate_rows(session.vocab_size)
        builder.check_frontiers(max_frontiers)
        _check_session(session)
        self._widths = (ctypes.c_int64 * max_frontiers)()
        self._call = _Growth(
            max_frontiers=max_frontiers,
            builder=builder.address,
            widths=ctypes.addressof(self._widths),
            seconds=ctypes.addressof(session.drafting_sec),
        )

    def grow(self, unseen: Sequence[int], generator: torch.Generator | None) -> list[int] | None:
        """Grow the builder's tree from its root, and leave the keys and values of the tree in the session.

        Args:
            unseen: the committed tokens that the session has not read, ending with the root.
            generator: a CPU generator for drawing tokens; None if no tokens are drawn.

        Returns:
            The number of nodes read in each pass; None if logits are not finite.
        """
        session = self.session
        call = self._call
        _check_unseen(unseen)
        session.check_capacity(len(unseen) - 1 + self.builder.most_read)
        self.builder.check_reading()
        ids = (ctypes.c_int64 * len(unseen))(*unseen)
        call.threads = torch.get_num_threads()
        call.length = session.length
        call.unseen = len(unseen)
        call.ids = ctypes.addressof(ids)
        call.uniforms = None
        if generator is not None:
            state = generator.get_state()
            uniforms = torch.rand(self.builder.most_draws, dtype=torch.float64, generator=generator)
            call.uniforms = uniforms.data_ptr()
        status = session.model.functions.sequoia_grow(session.address, ctypes.byref(call))
        is_finite = _is_finite(status)
        # Rewind the generator and advance it only by the numbers used.
        if generator is not None:
            generator.set_state(state)
            torch.rand(call.draws, dtype=torch.float64, generator=generator)
        widths = self._widths[: call.frontiers]
        if widths:
            session.length += len(unseen) - 1 + sum(widths)
        return widths if is_finite else None


def _checked_levels(levels: Sequence[Any], session: CompiledSession) -> list[_Level]:
    """Return a plan's levels as C structures; ValueError if a level does not continue the previous one."""
    _check_session(session)
    checked: list[_Level] = []
    forwarded = 0
    stop = 1
    for level in levels:
        width = len(level.nodes)
        children = level.children
        forwarded += width
        rising = [-1, *level.nodes.tolist(), children.start]
        if (
            any(a >= b for a, b in pairwise(rising))
            or (children.start, children.stop - children.start) != (stop, level.counts.sum())
            or not 0 <= level.counts.min() <= level.counts.max() <= level.most_children <= session.vocab_size
            or (not checked and width != 1)
        ):
            raise ValueError(
                f"tree: found level {len(checked)} with nodes {rising[1:-1][:8]}, expected nodes numbered breadth-first"
            )
        stop = children.stop
        checked.append(
            _Level(
                forwarded=width,
                most_children=level.most_children,
                first_child=children.start,
                nodes=array_address(level.nodes, np.int64, width),
                counts=array_address(level.counts, np.int64, width),
                mask=tensor_address(level.tree_mask, torch.float32, width, forwarded),
            )
        )
    return checked


def _check_session(session: CompiledSession) -> None:
    if session.state_count:
        raise ValueError(f"found a draft session that records {session.state_count} hidden states, expected none")


def _check_unseen(unseen: Sequence[int]) -> None:
    if not unseen:
        raise ValueError("the draft has already read all tokens, expected at least the root to be unread")


def _is_finite(status: int) -> bool:
    """Return whether a call's logits were finite, given its status; raise an error for any other failure."""
    if status == -2:
        raise ValueError("found a token or position outside the draft's range, expected it to cover the target's")
    if not status:
        raise MemoryError("not enough memory to draft a tree")
    return status > 0
