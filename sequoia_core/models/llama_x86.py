"""A plain decoder in bfloat16 by `llama_x86.c`: one call per pass or per drafted tree, on x86 processors.

Knows the C functions and the models they fit. Everything here is optional: without a C compiler, on another processor
or for another architecture the forward is PyTorch's. q = tokens in one forward, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from . import compile_c, instruction_sets
from . import vocabulary_rows as rows
from .instruction_sets import InstructionSet
from .plain_decoder import has_biases, has_head_norms, head_size, is_plain_decoder

SOURCES = ("llama_x86.c", "vocabulary_rows.c")
FLAGS = ("-mtune=native", *rows.ARITHMETIC_FLAGS)  # no -march=native: `InstructionSet.flags` names the instructions
EMULATION = "amx_emulation.h"
MAX_PACKED_BYTES = 2 * 2**30  # packed weights are a copy: not for models that fill the memory
LARGEST_HEAD = 256
FILLS = ("without replacement", "with replacement", "most likely")  # the ways of drawing that `sequoia_draft` has
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "hidden inner layers heads key_heads head_size vocab context".split()),
        ("eps", ctypes.c_float),
    ]


class _Level(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "forwarded most_children first_child padding".split()),
        *((name, _POINTER) for name in "nodes counts tail".split()),
    ]


class _Draft(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "threads length unseen levels with_replacement padding".split()),
        ("ids", _POINTER),
        ("root_position", ctypes.c_int64),
        ("positions", ctypes.c_int64),
        ("level", ctypes.POINTER(_Level)),
        ("vocab", ctypes.c_int64),
        ("inverse_temperature", ctypes.c_float),
        *((name, _POINTER) for name in "uniforms rows tokens probabilities seconds".split()),
    ]


_FUNCTIONS = {
    "sequoia_supported": (_NUMBER,),
    "sequoia_model": (_POINTER, ctypes.POINTER(_Shape), *[_POINTER] * 7),
    "sequoia_model_free": (None, _POINTER),
    "sequoia_cache": (_POINTER, _POINTER, _NUMBER),
    "sequoia_cache_free": (None, _POINTER),
    "sequoia_forward": (
        _NUMBER, _POINTER, *[_NUMBER] * 3, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER,
    ),
    "sequoia_draft": (_NUMBER, _POINTER, ctypes.POINTER(_Draft)),
    "sequoia_keep": (None, _POINTER, _NUMBER, _POINTER, _NUMBER),
}  # fmt: skip


def compiled() -> tuple[ctypes.CDLL | None, str]:
    """Return the functions of `llama_x86.c` for the chosen instruction set, or None and why there are none."""
    found, reason = instruction_sets.chosen()
    return (None, reason) if found is None else load(found)


@lru_cache(maxsize=8)
def load(instructions: InstructionSet) -> tuple[ctypes.CDLL | None, str]:
    """Build and load the functions for an instruction set that this processor can run, or return why not."""
    headers = ("lanes.h", "products_vectors.h", instructions.products)
    flags = [*FLAGS, *instructions.flags, f'-DPRODUCTS="{instructions.products}"']
    if instructions.emulated:
        headers += (EMULATION,)
        flags += ["-include", str(compile_c.FOLDER / EMULATION)]
    found, reason = compile_c.load(SOURCES, flags, _FUNCTIONS, reads=headers)
    if found is not None and not found.sequoia_supported():
        return None, "the system does not grant the matrix unit"
    return found, reason


class CompiledLlama:
    """A plain decoder's weights, copied into tiles for compiled passes.

    Args:
        model: one that `supports` accepts.

    Attributes:
        instructions: those that its passes use.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.functions, reason = compiled()
        if self.functions is None:
            raise OSError(reason)
        self.instructions = instruction_sets.chosen()[0]
        config, base = model.config, model.model
        self.size = head_size(model)
        self.vocab, self.context = config.vocab_size, config.max_position_embeddings
        shape = _Shape(
            config.hidden_size, config.intermediate_size, len(base.layers), config.num_attention_heads,
            config.num_key_value_heads, self.size, config.vocab_size, self.context, config.rms_norm_eps,
        )  # fmt: skip
        every = torch.arange(self.context)[None]
        cos, sin = base.rotary_emb(torch.zeros(1, dtype=torch.float32), position_ids=every)
        half = self.size // 2
        attentions = [layer.self_attn for layer in base.layers]
        norms = [norm for layer in base.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        embedding = base.embed_tokens.weight.detach().contiguous()
        self.tables = [
            cos[0, :, :half].contiguous(),
            sin[0, :, :half].contiguous(),
            torch.stack([norm.weight.detach().float() for norm in [*norms, base.norm]]),
            torch.stack([_biases(own) for own in attentions]) if has_biases(model) else None,
            _head_norms(attentions) if has_head_norms(model) else None,
        ]
        weights = []
        for attention, layer in zip(attentions, base.layers, strict=True):
            weights.append(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]))
            weights += [attention.o_proj.weight, layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]
            weights.append(layer.mlp.down_proj.weight)
        weights = [weight.detach().contiguous() for weight in [*weights, model.lm_head.weight]]
        pointers = (ctypes.c_void_p * len(weights))(*(weight.data_ptr() for weight in weights))
        tables = [None if table is None else table.data_ptr() for table in self.tables]
        self.address = self.functions.sequoia_model(ctypes.byref(shape), embedding.data_ptr(), *tables, pointers)
        if not self.address:
            raise MemoryError("found no memory for packed weights")
        # not at exit: another thread may still be inside a pass then, and the system takes the memory anyway
        weakref.finalize(self, self.functions.sequoia_model_free, self.address).atexit = False

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Whether this path can run a model here: kind, number format, sizes that fill tiles, memory, processor."""
        if not is_plain_decoder(model):
            return False
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        sizes = (model.config.hidden_size, model.config.intermediate_size, head_size(model))
        return (
            all(p.dtype == torch.bfloat16 for p in model.parameters())
            and all(size % 32 == 0 for size in sizes)
            and head_size(model) <= LARGEST_HEAD
            and size <= MAX_PACKED_BYTES
            and compiled()[0] is not None
        )

    @property
    def described(self) -> str:
        return f"compiled code for {self.instructions.described}"

    def open(self, capacity: int, vocab_size: int) -> CompiledSession:
        return CompiledSession(self, capacity, vocab_size)


def _biases(attention: torch.nn.Module) -> torch.Tensor:
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat(
        [torch.zeros(part.out_features) if part.bias is None else part.bias.detach().float() for part in parts]
    )


def _head_norms(attentions: Sequence[torch.nn.Module]) -> torch.Tensor:
    return torch.stack([torch.stack([own.q_norm.weight, own.k_norm.weight]).detach().float() for own in attentions])


class CompiledSession:
    """One sequence in a `CompiledLlama`. Its KV cache is allocated once; `commit` keeps some slots of it."""

    logits_dtype = torch.float32

    def __init__(self, model: CompiledLlama, capacity: int, vocab_size: int) -> None:
        self.capacity, self.length, self.vocab_size = capacity, 0, vocab_size
        self.model = model  # its memory must outlive this one's
        self.drafting_sec = ctypes.c_double(0.0)  # compiled drafting adds the time of its passes
        self.address = model.functions.sequoia_cache(model.address, capacity)
        if not self.address:
            raise MemoryError(f"cache: found no memory for {capacity} tokens")
        weakref.finalize(self, model.functions.sequoia_cache_free, self.address).atexit = False

    @property
    def unseen_sec(self) -> float:
        return self.drafting_sec.value

    def check_room(self, count: int) -> None:
        """Raise ValueError unless so many more tokens fit."""
        if self.length + count > self.capacity:
            raise ValueError(f"cache: found {self.length} + {count} tokens, expected at most {self.capacity} slots")

    def append(self, ids: torch.Tensor, positions: torch.Tensor, tail: torch.Tensor, *, keep: int) -> torch.Tensor:
        """Run a pass, see `protocol.Session`.

        Raises:
            ValueError: when the cache has no room, or for an id or position that there is not.
            MemoryError: when the scratch memory cannot be had.
        """
        count = len(ids)
        self.check_room(count)
        logits = torch.empty(keep, self.model.vocab, dtype=torch.float32)
        ids, positions = ids.to(torch.int64).contiguous(), positions.to(torch.int64).contiguous()
        tail = tail.to(torch.float32).contiguous()
        done = self.model.functions.sequoia_forward(
            self.address, torch.get_num_threads(), self.length, count, ids.data_ptr(), positions.data_ptr(),
            tail.shape[1], tail.data_ptr(), keep, logits.data_ptr(),
        )  # fmt: skip
        if done < 0:
            raise ValueError(
                f"found ids {int(ids.min())} to {int(ids.max())} at positions {int(positions.min())} to "
                f"{int(positions.max())}, expected ids below {self.model.vocab} and positions below "
                f"{self.model.context}"
            )
        if not done:
            raise MemoryError(f"found no memory for a pass over {count} tokens")
        self.length += count
        return logits[:, : self.vocab_size]

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Keep some of the tokens from `start` on, see `protocol.Session`."""
        moved = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        if moved < len(slots):
            array = (ctypes.c_int64 * len(slots))(*slots)
            self.model.functions.sequoia_keep(self.address, start, array, len(slots))
        self.length = start + len(slots)

    def wait(self) -> None:
        pass  # compiled code is done when it returns


class DraftLevel(Protocol):
    """One level of a tree as `DraftCall` needs it (see `decoding.plan`)."""

    nodes: np.ndarray  # int64 [m], the level's nodes that have children
    counts: np.ndarray  # int64 [m], how many
    tail: torch.Tensor  # float32 [m, slots from the root on]
    most_children: int
    children: slice


class DraftCall:
    """A call that drafts a whole tree of one shape: all levels' forwards, rows and draws; its buffers are kept.

    Args:
        session: of the draft; tokens are drawn from its `vocab_size`.
        fill: one of FILLS, how children are drawn.

    Raises:
        ValueError: for another fill.
    """

    def __init__(self, session: CompiledSession, levels: Sequence[DraftLevel], *, fill: str) -> None:
        if fill not in FILLS:
            raise ValueError(f"fill: found {fill!r}, expected one of {', '.join(FILLS)}")
        self.session, self.levels, self.fill = session, levels, fill
        self.forwarded = sum(len(level.nodes) for level in levels)
        self.draws = sum(len(level.nodes) * level.most_children for level in levels)
        self.nodes = levels[-1].children.stop
        self._levels = (_Level * len(levels))(
            *(
                _Level(
                    len(level.nodes), level.most_children, level.children.start, 0, level.nodes.ctypes.data,
                    level.counts.ctypes.data, level.tail.data_ptr(),
                )
                for level in levels
            )
        )  # fmt: skip
        self.tokens = torch.empty(self.nodes, dtype=torch.int64)
        self.probabilities = torch.ones(self.nodes, dtype=torch.float32)
        self.rows = torch.empty(self.forwarded, session.vocab_size, dtype=torch.float32)
        self._root = self.tokens.numpy()[:1]  # the same memory
        self._unseen = (ctypes.c_int64 * 2)()  # the root and at most one accepted leaf before it
        self._call = _Draft(
            levels=len(levels), with_replacement=fill == "with replacement", level=self._levels,
            vocab=session.vocab_size, rows=self.rows.data_ptr(), tokens=self.tokens.data_ptr(),
            probabilities=self.probabilities.data_ptr(), seconds=ctypes.addressof(session.drafting_sec),
        )  # fmt: skip

    def grow(
        self, unseen: Sequence[int], *, root_position: int, positions: int, temperature: float,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:  # fmt: skip
        """Draft one tree and leave its keys and values in the session.

        Args:
            unseen: the committed tokens that the session does not hold yet, the root last.
            positions: how many the draft has; what lies beyond is cut to the last one.

        Returns:
            Tokens int64 [n], their probabilities float32 [n], and the rows they were drawn from, float32 [forwarded,
            V], all of them overwritten by the next call; None when logits are not finite.

        Raises:
            ValueError: when the cache has no room.
            MemoryError: when scratch memory cannot be had.
        """
        session, call = self.session, self._call
        count = len(unseen) + self.forwarded - 1
        session.check_room(count)
        if len(unseen) > len(self._unseen):
            self._unseen = (ctypes.c_int64 * len(unseen))()
        self._unseen[: len(unseen)] = unseen
        self._root[0] = unseen[-1]
        uniforms = None
        if self.fill != "most likely":
            uniforms = torch.rand(self.draws, dtype=torch.float64, generator=generator)
        call.threads, call.length, call.unseen = torch.get_num_threads(), session.length, len(unseen)
        call.ids, call.root_position, call.positions = ctypes.addressof(self._unseen), root_position, positions
        call.inverse_temperature = rows.inverse(temperature)
        call.uniforms = None if uniforms is None else uniforms.data_ptr()
        done = session.model.functions.sequoia_draft(session.address, ctypes.byref(call))
        if not done:
            raise MemoryError(f"found no memory to draft {self.nodes} tokens")
        session.length += count
        return None if done < 0 else (self.tokens, self.probabilities, self.rows)
