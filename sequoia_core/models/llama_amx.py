"""A plain Llama in bfloat16 by `llama_amx.c`: one call per pass or per drafted tree, on processors with AMX.

Knows the C functions and the models they fit. Everything here is optional: without a C compiler, on another processor
or for another architecture the forward is PyTorch's. SEQUOIA_EMULATE_AMX=1 in the environment, and nothing else, has
the matrix unit emulated (`amx_emulation.h`): for tests and work on the C code where the processor has none. q = tokens
in one forward, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from transformers import LlamaForCausalLM

from . import compile_c as native
from . import vocabulary_rows as rows
from .device import processor_flags
from .plain_llama import is_plain_llama

SOURCES = ["llama_amx.c", "vocabulary_rows.c"]
FLAGS = [*rows.FLAGS, *"-mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq".split()]
UNIT_FLAGS = "-mavx512bf16 -mamx-tile -mamx-bf16".split()
MAX_PACKED_BYTES = 2 * 2**30  # packed weights are a copy: not for models that fill the memory
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "hidden inner layers heads key_heads head_size vocab context".split()),
        ("eps", ctypes.c_float),
    ]


class _Level(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "forwarded widest first_child reserved".split()),
        *((name, _POINTER) for name in "nodes counts tail".split()),
    ]


_FUNCTIONS = {
    "sequoia_supported": (_NUMBER,),
    "sequoia_model": (_POINTER, ctypes.POINTER(_Shape), *[_POINTER] * 5),
    "sequoia_model_free": (None, _POINTER),
    "sequoia_cache": (_POINTER, _POINTER, _NUMBER),
    "sequoia_cache_free": (None, _POINTER),
    "sequoia_forward": (
        _NUMBER, _POINTER, *[_NUMBER] * 3, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER,
    ),
    "sequoia_draft": (
        _NUMBER, _POINTER, *[_NUMBER] * 3, _POINTER, ctypes.c_int64, ctypes.c_int64, _NUMBER, _POINTER, ctypes.c_int64,
        ctypes.c_float, _NUMBER, *[_POINTER] * 5,
    ),
    "sequoia_keep": (None, _POINTER, _NUMBER, _POINTER, _NUMBER),
}  # fmt: skip


def emulated() -> bool:
    """Whether SEQUOIA_EMULATE_AMX=1 asks for the emulated matrix unit, which then is used even beside a real one."""
    return os.environ.get("SEQUOIA_EMULATE_AMX") == "1"


def compiled() -> tuple[ctypes.CDLL | None, str]:
    """Return the functions of `llama_amx.c`, or None and the reason why there are none."""
    return _load(emulated())


@lru_cache(maxsize=2)
def _load(emulate: bool) -> tuple[ctypes.CDLL | None, str]:
    if emulate:
        if not _has_vectors():
            return None, "the processor has no AVX-512 (F, BW, VL, DQ), which the emulation of AMX needs"
        return native.load([*SOURCES, "amx_emulation.h"], FLAGS, _FUNCTIONS)
    if not _has_matrix_unit():
        return None, "the processor has no matrix unit for bfloat16 (AMX)"
    found, reason = native.load(SOURCES, [*FLAGS, *UNIT_FLAGS], _FUNCTIONS)
    if found is not None and not found.sequoia_supported():
        return None, "the system does not grant the matrix unit"
    return found, reason


def missing() -> str:
    """Return why there is no compiled code although the processor could run it, or nothing."""
    return compiled()[1] if _has_matrix_unit() or emulated() else ""


@lru_cache(maxsize=1)
def _has_matrix_unit() -> bool:
    return _has_vectors() and {"amx_tile", "amx_bf16", "avx512_bf16"} <= set(processor_flags().split())


def _has_vectors() -> bool:
    return {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= set(processor_flags().split())


class AmxLlama:
    """A Llama's weights, copied into the tiles of the matrix unit.

    Args:
        model: one that `supports` accepts.

    Attributes:
        unit: what multiplies, in words: the processor's AMX or its emulation.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.functions, reason = compiled()
        if self.functions is None:
            raise OSError(reason)
        self.unit = "AMX, emulated" if emulated() else "AMX"
        config, base = model.config, model.model
        self.size = base.layers[0].self_attn.head_dim
        self.vocab, self.context = config.vocab_size, config.max_position_embeddings
        shape = _Shape(
            config.hidden_size, config.intermediate_size, len(base.layers), config.num_attention_heads,
            config.num_key_value_heads, self.size, config.vocab_size, self.context, config.rms_norm_eps,
        )  # fmt: skip
        every = torch.arange(self.context)[None]
        cos, sin = base.rotary_emb(torch.zeros(1, dtype=torch.float32), position_ids=every)
        half = self.size // 2
        norms = [norm for layer in base.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        embedding = base.embed_tokens.weight.detach().contiguous()
        self.tables = (
            cos[0, :, :half].contiguous(),
            sin[0, :, :half].contiguous(),
            torch.stack([norm.weight.detach().float() for norm in [*norms, base.norm]]),
        )
        weights = []
        for layer in base.layers:
            attention, mlp = layer.self_attn, layer.mlp
            weights.append(torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]))
            weights += [attention.o_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight]
        weights = [weight.detach().contiguous() for weight in [*weights, model.lm_head.weight]]
        pointers = (ctypes.c_void_p * len(weights))(*(weight.data_ptr() for weight in weights))
        self.address = self.functions.sequoia_model(
            ctypes.byref(shape), embedding.data_ptr(), *(table.data_ptr() for table in self.tables), pointers
        )
        if not self.address:
            raise MemoryError("found no memory for packed weights")
        # not at exit: another thread may still be inside a pass then, and the system takes the memory anyway
        weakref.finalize(self, self.functions.sequoia_model_free, self.address).atexit = False

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Whether this path can run a model here: kind, number format, sizes that fill tiles, memory, processor."""
        if not is_plain_llama(model):
            return False
        config, size = model.config, sum(p.numel() * p.element_size() for p in model.parameters())
        width = model.model.layers[0].self_attn.head_dim
        sizes = (config.hidden_size, config.intermediate_size, width)
        return (
            all(p.dtype == torch.bfloat16 for p in model.parameters())
            and all(size % 32 == 0 for size in sizes)
            and width <= 256
            and size <= MAX_PACKED_BYTES
            and compiled()[0] is not None
        )

    @property
    def described(self) -> str:
        return f"compiled code for {self.unit}"

    def open(self, capacity: int, vocab_size: int) -> AmxSession:
        return AmxSession(self, capacity, vocab_size)


class AmxSession:
    """One sequence in an `AmxLlama`: its KV cache is allocated once, slots are kept selectively."""

    logits_dtype = torch.float32

    def __init__(self, model: AmxLlama, capacity: int, vocab_size: int) -> None:
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
    """One level of a tree as `CompiledDraft` needs it (see `decoding.plan`)."""

    nodes: np.ndarray  # int64 [m], the level's nodes that have children
    counts: np.ndarray  # int64 [m], how many
    tail: torch.Tensor  # float32 [m, slots from the root on]
    most_children: int
    children: slice


class CompiledDraft:
    """Drafts trees of one shape in one call each: all levels' forwards, rows and draws.

    Args:
        session: of the draft; tokens are drawn from its `vocab_size`.
        fill: "without replacement", "with replacement", or "most likely", how children are drawn.
    """

    def __init__(self, session: AmxSession, levels: Sequence[DraftLevel], *, fill: str) -> None:
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
        self.chances = torch.ones(self.nodes, dtype=torch.float32)
        self.probs = torch.empty(self.forwarded, session.vocab_size, dtype=torch.float32)
        self._root = self.tokens.numpy()[:1]  # the same memory
        self._results = self.probs.data_ptr(), self.tokens.data_ptr(), self.chances.data_ptr()
        self._unseen = (ctypes.c_int64 * 2)()  # the root and at most one accepted leaf before it

    def grow(
        self, unseen: Sequence[int], *, place: int, limit: int, temperature: float, generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:  # fmt: skip
        """Draft one tree and leave its keys and values in the session.

        Args:
            unseen: the committed tokens that the session does not hold yet, the root last.
            place: the root's position; positions from `limit` on are cut to the one before it.

        Returns:
            Tokens int64 [n], their probabilities float32 [n], and the rows they were drawn from, float32 [forwarded,
            V], all of them overwritten by the next call; None when logits are not finite.

        Raises:
            ValueError: when the cache has no room.
            MemoryError: when scratch memory cannot be had.
        """
        session = self.session
        count = len(unseen) + self.forwarded - 1
        session.check_room(count)
        if len(unseen) > len(self._unseen):
            self._unseen = (ctypes.c_int64 * len(unseen))()
        self._unseen[: len(unseen)] = unseen
        self._root[0] = unseen[-1]
        uniforms = None
        if self.fill != "most likely":
            uniforms = torch.rand(self.draws, dtype=torch.float64, generator=generator)
        done = session.model.functions.sequoia_draft(
            session.address, torch.get_num_threads(), session.length, len(unseen), self._unseen, place, limit,
            len(self.levels), self._levels, session.vocab_size, rows.inverse(temperature),
            self.fill == "with replacement", None if uniforms is None else uniforms.data_ptr(), *self._results,
            ctypes.byref(session.drafting_sec),
        )  # fmt: skip
        if not done:
            raise MemoryError(f"found no memory to draft {self.nodes} tokens")
        session.length += count
        return None if done < 0 else (self.tokens, self.chances, self.probs)
