"""A plain decoder in bfloat16 by `llama_x86.c`: one call per pass or per drafted tree, on x86 processors.

Knows the C functions and the models they fit. Everything here is optional: without a C compiler, on another processor
or for another architecture the forward is PyTorch's. q = tokens in one forward, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from . import compile_c, instruction_sets, tree_expansion
from . import sampling_ops as rows
from .instruction_sets import InstructionSet
from .plain_decoder import has_biases, has_head_norms, head_size, is_plain_decoder

SOURCES = ("llama_x86.c", *tree_expansion.SOURCES)
FLAGS = ("-mtune=native", *rows.ARITHMETIC_FLAGS)  # no -march=native: `InstructionSet.flags` names the instructions
EMULATION = "amx_emulation.h"
MAX_PACKED_BYTES = 2 * 2**30  # packed weights are a copy: not for models that draft sampling the memory
LARGEST_HEAD = 256
DRAFT_SAMPLINGS = (
    "without replacement",
    "with replacement",
    "most likely",
)  # the ways of drawing that `sequoia_draft` has
MATRICES = (  # of a layer, by their names in it
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int


class Shape(ctypes.Structure):
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


class _Growth(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "threads length unseen most_waves".split()),
        *((name, _POINTER) for name in "ids shaping uniforms widths".split()),
        *((name, ctypes.c_int64) for name in "frontiers draws".split()),
        ("seconds", _POINTER),
    ]


_FUNCTIONS = {
    "sequoia_supported": (_NUMBER,),
    "sequoia_model": (_POINTER, ctypes.POINTER(Shape), *[_POINTER] * 7),
    "sequoia_streamed_model": (_POINTER, ctypes.POINTER(Shape), *[_POINTER] * 7),
    "sequoia_layer_bytes": (ctypes.c_int64, ctypes.POINTER(Shape)),
    "sequoia_head_bytes": (ctypes.c_int64, ctypes.POINTER(Shape)),
    "sequoia_pack_layer": (None, ctypes.POINTER(Shape), _POINTER, _POINTER),
    "sequoia_pack_rows": (None, _POINTER, _NUMBER, _NUMBER, _POINTER),
    "sequoia_model_free": (None, _POINTER),
    "sequoia_cache": (_POINTER, _POINTER, _NUMBER),
    "sequoia_cache_free": (None, _POINTER),
    "sequoia_forward": (
        _NUMBER, _POINTER, *[_NUMBER] * 3, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER,
    ),
    "sequoia_enter": (_NUMBER, _POINTER, *[_NUMBER] * 3, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER),
    "sequoia_layer": (None, _POINTER, _NUMBER, _NUMBER, _POINTER),
    "sequoia_leave": (None, _POINTER, _NUMBER, _POINTER),
    "sequoia_draft": (_NUMBER, _POINTER, ctypes.POINTER(_Draft)),
    "sequoia_grow": (_NUMBER, _POINTER, ctypes.POINTER(_Growth)),
    "sequoia_keep": (None, _POINTER, _NUMBER, _POINTER, _NUMBER),
}  # fmt: skip


def compiled() -> tuple[Any, str]:
    """Return the functions of `llama_x86.c` for the chosen instruction set, or None and why there are none."""
    found, reason = instruction_sets.chosen()
    return (None, reason) if found is None else load(found)


@lru_cache(maxsize=8)
def load(instructions: InstructionSet) -> tuple[Any, str]:
    """Build and load the functions for an instruction set that this processor can run, or return why not."""
    headers: tuple[str, ...] = ("lanes.h", "products_vectors.h", instructions.products, *tree_expansion.HEADERS)
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
        instructions: those that its passes use, in words.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.functions, reason = compiled()
        if self.functions is None:
            raise OSError(reason)
        self.instructions = instruction_sets.instructions_in_use()
        base = model.model
        shape = shape_of(model)
        self.vocab, self.context = shape.vocab, shape.context
        embedding = base.embed_tokens.weight.detach().contiguous()
        self.tables = tables_of(model)
        weights = [matrix for layer in base.layers for matrix in joined([layer.get_parameter(n) for n in MATRICES])]
        weights = [weight.detach().contiguous() for weight in [*weights, model.lm_head.weight]]
        self.address = self.functions.sequoia_model(
            ctypes.byref(shape), embedding.data_ptr(), *addresses(self.tables), addresses(weights)
        )
        if not self.address:
            raise MemoryError("found no memory for packed weights")
        # not at exit: another thread may still be inside a pass then, and the system takes the memory anyway
        weakref.finalize(self, self.functions.sequoia_model_free, self.address).atexit = False

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Whether this path can run a model here: kind, dtype, sizes that draft sampling tiles, memory, processor."""
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        return fits(model) and size <= MAX_PACKED_BYTES

    @property
    def description(self) -> str:
        return f"compiled code for {self.instructions}"

    def open(self, capacity: int, vocab_size: int) -> CompiledSession:
        return CompiledSession(self, capacity, vocab_size)


def fits(model: Any) -> bool:
    """Whether compiled passes can run a model here, be it as large as it may; its weights need not be there."""
    if not is_plain_decoder(model):
        return False
    sizes = (model.config.hidden_size, model.config.intermediate_size, head_size(model))
    return (
        all(p.dtype == torch.bfloat16 for p in model.parameters())
        and all(size % 32 == 0 for size in sizes)
        and head_size(model) <= LARGEST_HEAD
        and compiled()[0] is not None
    )


def shape_of(model: PreTrainedModel) -> Shape:
    config = model.config
    return Shape(
        config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, head_size(model), config.vocab_size, config.max_position_embeddings,
        config.rms_norm_eps,
    )  # fmt: skip


def tables_of(model: PreTrainedModel) -> list[torch.Tensor | None]:
    """Return what passes need besides matrices: cosines, sines, norms, biases, norms of heads (see `Model` in C)."""
    base, half = model.model, head_size(model) // 2
    every = torch.arange(model.config.max_position_embeddings)[None]
    cos, sin = base.rotary_emb(torch.zeros(1, dtype=torch.float32), position_ids=every)
    attentions = [layer.self_attn for layer in base.layers]
    norms = [norm for layer in base.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    return [
        cos[0, :, :half].contiguous(),
        sin[0, :, :half].contiguous(),
        torch.stack([norm.weight.detach().float() for norm in [*norms, base.norm]]),
        torch.stack([_biases(own) for own in attentions]) if has_biases(model) else None,
        _head_norms(attentions) if has_head_norms(model) else None,
    ]


def joined(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a layer's MATRICES as `sequoia_pack_layer` takes them: query, key and value in one."""
    return [torch.cat([matrix.detach() for matrix in matrices[:3]]), *matrices[3:]]


def addresses(tensors: Sequence[torch.Tensor | None]) -> ctypes.Array:
    """Return where tensors begin, NULL for None."""
    return (_POINTER * len(tensors))(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))


def _biases(attention: Any) -> torch.Tensor:
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat(
        [torch.zeros(part.out_features) if part.bias is None else part.bias.detach().float() for part in parts]
    )


def _head_norms(attentions: Sequence[Any]) -> torch.Tensor:
    return torch.stack([torch.stack([own.q_norm.weight, own.k_norm.weight]).detach().float() for own in attentions])


class SlotSession:
    """One sequence in a model of the compiled passes. Its KV cache is allocated once; `commit` keeps some slots of it.

    Args:
        model: has `functions`, the `address` of a model in C, and `vocab` and `context`.
    """

    logits_dtype = torch.float32
    unseen_sec = read_wait_sec = 0.0
    bytes_read = 0

    def __init__(self, model: Any, capacity: int, vocab_size: int) -> None:
        self.capacity, self.length, self.vocab_size = capacity, 0, vocab_size
        self.model = model  # its memory must outlive this one's
        self.address = model.functions.sequoia_cache(model.address, capacity)
        if not self.address:
            raise MemoryError(f"cache: found no memory for {capacity} tokens")
        weakref.finalize(self, model.functions.sequoia_cache_free, self.address).atexit = False

    def check_room(self, count: int) -> None:
        """Raise ValueError unless so many more tokens fit."""
        if self.length + count > self.capacity:
            raise ValueError(f"cache: found {self.length} + {count} tokens, expected at most {self.capacity} slots")

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, *, keep: int
    ) -> torch.Tensor:
        """Run a pass, see `protocol.Session`.

        Raises:
            ValueError: when the cache has no room, or for an id or position that there is not.
            MemoryError: when the scratch memory cannot be had.
        """
        count = len(ids)
        self.check_room(count)
        logits = self._room(keep)
        ids, positions = ids.to(torch.int64).contiguous(), positions.to(torch.int64).contiguous()
        tree_mask = tree_mask.to(torch.float32).contiguous()
        done = self._pass(
            (
                self.address, torch.get_num_threads(), self.length, count, ids.data_ptr(), positions.data_ptr(),
                tree_mask.shape[1], tree_mask.data_ptr(), keep,
            ),
            logits,
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

    def _room(self, keep: int) -> torch.Tensor:
        """Return memory for logits, float32 [keep, vocab]."""
        return torch.empty(keep, self.model.vocab, dtype=torch.float32)

    def _pass(self, request: tuple, logits: torch.Tensor) -> int:
        """Run one pass; arguments and result as for `sequoia_forward` in C, logits float32 [keep, vocab]."""
        raise NotImplementedError

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Keep some of the tokens from `start` on, see `protocol.Session`."""
        moved = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        if moved < len(slots):
            array = (ctypes.c_int64 * len(slots))(*slots)
            self.model.functions.sequoia_keep(self.address, start, array, len(slots))
        self.length = start + len(slots)

    def wait(self) -> None:
        pass  # compiled code is done when it returns


class CompiledSession(SlotSession):
    """One sequence in a `CompiledLlama`."""

    def __init__(self, model: CompiledLlama, capacity: int, vocab_size: int) -> None:
        super().__init__(model, capacity, vocab_size)
        self.drafting_sec = ctypes.c_double(0.0)  # compiled drafting adds the time of its passes

    @property
    def unseen_sec(self) -> float:  # type: ignore[override]
        return self.drafting_sec.value

    def _pass(self, request: tuple, logits: torch.Tensor) -> int:
        return self.model.functions.sequoia_forward(*request, logits.data_ptr())


class DraftLevel(Protocol):
    """One level of a tree as `DraftCall` needs it (see `decoding.plan`)."""

    nodes: np.ndarray  # int64 [m], the level's nodes that have children
    counts: np.ndarray  # int64 [m], how many
    tree_mask: torch.Tensor  # float32 [m, slots from the root on]
    most_children: int
    children: slice


class DraftCall:
    """A call that drafts a whole tree of one shape: all levels' forwards, rows and draws; its buffers are kept.

    Args:
        session: of the draft; tokens are drawn from its `vocab_size`.
        draft_sampling: one of FILLS, how children are drawn.

    Raises:
        ValueError: for another fill.
    """

    def __init__(self, session: CompiledSession, levels: Sequence[DraftLevel], *, draft_sampling: str) -> None:
        if draft_sampling not in DRAFT_SAMPLINGS:
            raise ValueError(f"fill: found {draft_sampling!r}, expected one of {', '.join(DRAFT_SAMPLINGS)}")
        self.session, self.levels, self.draft_sampling = session, levels, draft_sampling
        self.forwarded = sum(len(level.nodes) for level in levels)
        self.draws = sum(len(level.nodes) * level.most_children for level in levels)
        self.nodes = levels[-1].children.stop
        self._levels = (_Level * len(levels))(
            *(
                _Level(
                    len(level.nodes), level.most_children, level.children.start, 0, level.nodes.ctypes.data,
                    level.counts.ctypes.data, level.tree_mask.data_ptr(),
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
            levels=len(levels), with_replacement=draft_sampling == "with replacement", level=self._levels,
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
        self._unseen[: len(unseen)] = list(unseen)
        self._root[0] = unseen[-1]
        uniforms = None
        if self.draft_sampling != "most likely":
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


class GrowCall:
    """A call that grows a whole tree: all frontiers' forwards and rows, and what comes next after each; buffers are
    kept.

    Args:
        session: of the draft; tokens are drawn from its `vocab_size`.
        shaping: which decides.
        most_waves: passes of one tree at most.
    """

    def __init__(self, session: CompiledSession, shaping: tree_expansion.Shaping, *, most_waves: int) -> None:
        self.session, self.shaping = session, shaping
        shaping.make_rows(session.vocab_size)
        self._widths = (ctypes.c_int64 * most_waves)()
        self._call = _Growth(
            most_waves=most_waves, shaping=shaping.address, widths=ctypes.addressof(self._widths),
            seconds=ctypes.addressof(session.drafting_sec),
        )  # fmt: skip

    def grow(self, unseen: Sequence[int], generator: torch.Generator | None) -> list[int] | None:
        """Grow a tree that holds its root alone, and leave its keys and values in the session.

        Args:
            unseen: the committed tokens that the session does not hold yet, the root last.
            generator: on CPU, of the numbers that tokens are drawn by; None where none are drawn.

        Returns:
            How many nodes each pass read; None when logits are not finite.

        Raises:
            ValueError: when the cache has no room.
            MemoryError: when scratch memory cannot be had.
        """
        session, call = self.session, self._call
        session.check_room(len(unseen) - 1 + self.shaping.most_read)
        ids = (ctypes.c_int64 * len(unseen))(*unseen)
        call.threads, call.length, call.unseen = torch.get_num_threads(), session.length, len(unseen)
        call.ids, call.uniforms = ctypes.addressof(ids), None
        if generator is not None:
            before = generator.get_state()
            uniforms = torch.rand(self.shaping.most_draws, dtype=torch.float64, generator=generator)
            call.uniforms = uniforms.data_ptr()
        done = session.model.functions.sequoia_grow(session.address, ctypes.byref(call))
        if not done:
            raise MemoryError("found no memory to draft a tree")
        if generator is not None:  # leave it as if only those that were used had been taken
            generator.set_state(before)
            torch.rand(call.draws, dtype=torch.float64, generator=generator)
        widths = self._widths[: call.frontiers]
        if widths:
            session.length += len(unseen) - 1 + sum(widths)
        return None if done < 0 else widths
