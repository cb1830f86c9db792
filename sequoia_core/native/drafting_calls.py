"""Whole trees drafted by `llama_x86.c` in one call, on a session of a compiled draft."""

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from .llama_x86 import CompiledSession
from .sampling_ops import address, array_address, inverse
from .tree_expansion import Shaping

_POINTER = ctypes.c_void_p


class _Level(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "forwarded most_children first_child padding".split()),
        *((name, _POINTER) for name in "nodes counts mask".split()),
    ]


class _Draft(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "threads length unseen levels with_replacement padding".split()),
        ("ids", _POINTER),
        ("root_position", ctypes.c_int64),
        ("level", ctypes.POINTER(_Level)),
        ("vocab", ctypes.c_int64),
        ("inverse_temperature", ctypes.c_float),
        ("top_p", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        *((name, _POINTER) for name in "uniforms rows first_rows tokens probabilities seconds".split()),
    ]


class _Growth(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "threads length unseen most_frontiers".split()),
        *((name, _POINTER) for name in "ids shaping uniforms widths".split()),
        *((name, ctypes.c_int64) for name in "frontiers draws".split()),
        ("seconds", _POINTER),
    ]


class DraftCall:
    """A call that drafts a whole planned tree: all levels' forwards, rows and draws; its buffers are kept.

    Args:
        session: of the draft; tokens are drawn from its `vocab_size`.
        drawn, with_replacement: whether children are drawn, and how; else they are the most likely tokens.
        top_p, top_k: what cuts the rows of first children.

    Attributes:
        first_rows: float32 [forwarded, V], what first children were drawn from; None where nothing cuts it.
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
        self.session, self.levels = session, levels
        self.forwarded = sum(len(level.nodes) for level in levels)
        self.draws = sum(len(level.nodes) * level.most_children for level in levels) if drawn else 0
        self.nodes = levels[-1].children.stop
        self._levels = (_Level * len(levels))(*_checked_levels(levels, session))
        self.tokens = torch.empty(self.nodes, dtype=torch.int64)
        self.probabilities = torch.ones(self.nodes, dtype=torch.float32)
        self.rows = torch.empty(self.forwarded, session.vocab_size, dtype=torch.float32)
        self.first_rows = None if top_p == 1.0 and not top_k else torch.empty_like(self.rows)
        self._root = self.tokens.numpy()[:1]  # the same memory
        self._unseen = (ctypes.c_int64 * 2)()  # the root and at most one accepted leaf before it
        self._call = _Draft(
            levels=len(levels), with_replacement=with_replacement, level=self._levels,
            vocab=session.vocab_size, rows=self.rows.data_ptr(), tokens=self.tokens.data_ptr(),
            probabilities=self.probabilities.data_ptr(), seconds=ctypes.addressof(session.drafting_sec), top_p=top_p,
            top_k=top_k, first_rows=None if self.first_rows is None else self.first_rows.data_ptr(),
        )  # fmt: skip

    def grow(
        self, unseen: Sequence[int], *, root_position: int, temperature: float, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:  # fmt: skip
        """Draft one tree and leave its keys and values in the session.

        Args:
            unseen: the committed tokens that the session does not hold yet, the root last.

        Returns:
            Tokens int64 [n], their probabilities float32 [n], and the rows they were drawn from, float32 [forwarded,
            V], all of them overwritten by the next call; None when logits are not finite.
        """
        session, call = self.session, self._call
        count = len(unseen) + self.forwarded - 1
        _check_unseen(unseen)
        session.check_room(count)
        if len(unseen) > len(self._unseen):
            self._unseen = (ctypes.c_int64 * len(unseen))()
        self._unseen[: len(unseen)] = list(unseen)
        self._root[0] = unseen[-1]
        uniforms = None
        if self.draws:
            uniforms = torch.rand(self.draws, dtype=torch.float64, generator=generator)
        call.threads, call.length, call.unseen = torch.get_num_threads(), session.length, len(unseen)
        call.ids, call.root_position = ctypes.addressof(self._unseen), root_position
        call.inverse_temperature = inverse(temperature)
        call.uniforms = None if uniforms is None else uniforms.data_ptr()
        done = session.model.functions.sequoia_draft(session.address, ctypes.byref(call))
        _check_range(done)
        if not done:
            raise MemoryError(f"found no memory to draft {self.nodes} tokens")
        session.length += count
        return None if done < 0 else (self.tokens, self.probabilities, self.rows)


class GrowCall:
    """A call that grows a whole tree: all frontiers' forwards and rows, and the choice of the next nodes; buffers
    are kept.

    Args:
        session: of the draft; tokens are drawn from its `vocab_size`.
        shaping: decides which nodes are read and kept.
        most_frontiers: passes of one tree at most.
    """

    def __init__(self, session: CompiledSession, shaping: Shaping, *, most_frontiers: int) -> None:
        self.session, self.shaping = session, shaping
        shaping.make_rows(session.vocab_size)
        shaping.check_frontiers(most_frontiers)
        _check_session(session)
        self._widths = (ctypes.c_int64 * most_frontiers)()
        self._call = _Growth(
            most_frontiers=most_frontiers, shaping=shaping.address, widths=ctypes.addressof(self._widths),
            seconds=ctypes.addressof(session.drafting_sec),
        )  # fmt: skip

    def grow(self, unseen: Sequence[int], generator: torch.Generator | None) -> list[int] | None:
        """Grow a tree that holds its root alone, and leave its keys and values in the session.

        Args:
            unseen: the committed tokens that the session does not hold yet, the root last.
            generator: on CPU, of the numbers that tokens are drawn by; None where none are drawn.

        Returns:
            How many nodes each pass read; None when logits are not finite.
        """
        session, call = self.session, self._call
        _check_unseen(unseen)
        session.check_room(len(unseen) - 1 + self.shaping.most_read)
        self.shaping.check_reading()
        ids = (ctypes.c_int64 * len(unseen))(*unseen)
        call.threads, call.length, call.unseen = torch.get_num_threads(), session.length, len(unseen)
        call.ids, call.uniforms = ctypes.addressof(ids), None
        if generator is not None:
            before = generator.get_state()
            uniforms = torch.rand(self.shaping.most_draws, dtype=torch.float64, generator=generator)
            call.uniforms = uniforms.data_ptr()
        done = session.model.functions.sequoia_grow(session.address, ctypes.byref(call))
        _check_range(done)
        if not done:
            raise MemoryError("found no memory to draft a tree")
        if generator is not None:  # rewind the generator, so that it has advanced only by the numbers used
            generator.set_state(before)
            torch.rand(call.draws, dtype=torch.float64, generator=generator)
        widths = self._widths[: call.frontiers]
        if widths:
            session.length += len(unseen) - 1 + sum(widths)
        return None if done < 0 else widths


def _checked_levels(levels: Sequence[Any], session: CompiledSession) -> list[_Level]:
    """Return a plan's levels as C reads them; ValueError where one does not follow from the one before."""
    _check_session(session)
    checked: list[_Level] = []
    forwarded, stop = 0, 1
    for level in levels:
        width, children = len(level.nodes), level.children
        forwarded += width
        rising = [-1, *level.nodes.tolist(), children.start]
        if (
            any(a >= b for a, b in pairwise(rising))
            or (children.start, children.stop - children.start) != (stop, level.counts.sum())
            or not 0 <= level.counts.min() <= level.counts.max() <= level.most_children <= session.vocab_size
            or (not checked and width != 1)
        ):
            raise ValueError(
                f"tree: found level {len(checked)} with nodes {rising[1:-1][:8]}, expected nodes breadth-first"
            )
        stop = children.stop
        addresses = (
            array_address(level.nodes, np.int64, width), array_address(level.counts, np.int64, width),
            address(level.tree_mask, torch.float32, width, forwarded),
        )  # fmt: skip
        checked.append(_Level(width, level.most_children, children.start, 0, *addresses))
    return checked


def _check_session(session: CompiledSession) -> None:
    if session.states_read:
        raise ValueError(f"found {session.states_read} states to write down, expected none while drafting")


def _check_unseen(unseen: Sequence[int]) -> None:
    if not unseen:
        raise ValueError("found no token that the draft has not read, expected at least the root")


def _check_range(done: int) -> None:
    if done == -2:
        raise ValueError("found a token or a position that the draft does not have, expected one tokenizer and context")
