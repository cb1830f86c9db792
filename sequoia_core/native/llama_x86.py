"""A plain decoder in bfloat16 by `llama_x86.c`: one call per pass, on x86 processors.

Knows the C functions and the models they fit. Everything here is optional: without a C compiler, on another processor
or for another architecture the forward is PyTorch's. q = tokens in one forward, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedModel

from . import compile_c, instruction_sets, tree_expansion
from . import sampling_ops as rows
from .instruction_sets import InstructionSet
from .plain_decoder import has_biases, has_head_norms, head_size, is_plain_decoder

SOURCES = ("llama_x86.c", "linear.c", *tree_expansion.SOURCES)
FLAGS = ("-mtune=native", *rows.ARITHMETIC_FLAGS)  # no -march=native: `InstructionSet.flags` names the instructions
EMULATION = "amx_emulation.h"
MOST_STATES = 16  # that one pass writes down
MAX_PACKED_BYTES = 2 * 2**30  # packed weights are a second copy, too large for large models
LARGEST_HEAD = 256
MATRICES = (  # of a layer, by their names in it
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int


class Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in "hidden inner layers heads key_heads head_size vocab context".split()),
        ("four_bits", ctypes.c_int32),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("outputs", "draft_head")),
    ]


_FUNCTIONS = {
    "sequoia_supported": (_NUMBER,),
    "sequoia_model": (_POINTER, ctypes.POINTER(Shape), *[_POINTER] * 9),
    "sequoia_streamed_model": (_POINTER, ctypes.POINTER(Shape), *[_POINTER] * 7),
    "sequoia_layer_bytes": (ctypes.c_int64, ctypes.POINTER(Shape)),
    "sequoia_head_bytes": (ctypes.c_int64, ctypes.POINTER(Shape)),
    "sequoia_pack_layer": (None, ctypes.POINTER(Shape), _POINTER, _POINTER),
    "sequoia_pack_rows": (None, _POINTER, _NUMBER, _NUMBER, _POINTER),
    "sequoia_model_free": (None, _POINTER),
    "sequoia_cache": (_POINTER, _POINTER, _NUMBER),
    "sequoia_cache_free": (None, _POINTER),
    "sequoia_keep_states": (None, _POINTER, _NUMBER, _POINTER, _POINTER),
    "sequoia_features": (None, *[_POINTER] * 4),
    "sequoia_forward": (
        _NUMBER, _POINTER, *[_NUMBER] * 3, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER,
    ),
    "sequoia_enter": (_NUMBER, _POINTER, *[_NUMBER] * 3, _POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER),
    "sequoia_layer": (None, _POINTER, _NUMBER, _NUMBER, _POINTER),
    "sequoia_leave": (None, _POINTER, _NUMBER, _POINTER),
    "sequoia_draft": (_NUMBER, _POINTER, _POINTER),
    "sequoia_grow": (_NUMBER, _POINTER, _POINTER),
    "sequoia_keep": (None, _POINTER, _NUMBER, _POINTER, _NUMBER),
    "sequoia_linear": (_NUMBER, _POINTER, _POINTER, _POINTER, *[_NUMBER] * 5, _POINTER),
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
        self._copy(shape_of(model), base.embed_tokens.weight, tables_of(model), base.layers, model.lm_head.weight)

    def _copy(
        self, shape: Shape, embedding: torch.Tensor, tables: list[torch.Tensor | None], layers: Iterable[Any],
        output: torch.Tensor, *features: torch.Tensor | None,
    ) -> None:  # fmt: skip
        self.hidden, self.vocab, self.context = shape.hidden, shape.vocab, shape.context
        weights = [matrix for layer in layers for matrix in joined([layer.get_parameter(n) for n in MATRICES])]
        weights = [weight.detach().contiguous() for weight in [*weights, output]]
        sizes = [size for index in range(shape.layers) for size in matrix_shapes(shape, first=index == 0)]
        sizes.append((shape.outputs, shape.hidden))
        self.tables, embedding = [*tables, *features], embedding.detach().contiguous()
        begin = rows.address(embedding, torch.bfloat16, shape.vocab, shape.hidden)
        extra: tuple[int | None, int | None] = None, None
        if features:
            norm, tokens = features
            extra = rows.address(norm, torch.float32, shape.hidden), rows.address(tokens, torch.int32, shape.outputs)
        self.address = self.functions.sequoia_model(
            ctypes.byref(shape),
            begin,
            *table_addresses(tables, shape),
            addresses(weights, torch.bfloat16, sizes),
            *extra,
        )
        if not self.address:
            raise MemoryError("found no memory for packed weights")
        # not at exit: another thread may still be inside a pass, and the system frees the memory anyway
        weakref.finalize(self, self.functions.sequoia_model_free, self.address).atexit = False

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Whether this path can run a model here: kind, dtype, sizes that fill whole tiles, memory, processor."""
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        return fits(model) and size <= MAX_PACKED_BYTES

    @property
    def description(self) -> str:
        return f"compiled code for {self.instructions}"

    def open(self, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> CompiledSession:
        return CompiledSession(self, capacity, vocab_size, states)


def fits(model: Any) -> bool:
    """Whether compiled passes can run a model here, of any size, even if its weights are not loaded."""
    if model.device.type not in ("cpu", "meta") or not is_plain_decoder(model):
        return False
    sizes = (model.config.hidden_size, model.config.intermediate_size, head_size(model))
    return (
        all(p.dtype == torch.bfloat16 for p in model.parameters())
        and all(size % 32 == 0 for size in sizes)
        and head_size(model) <= LARGEST_HEAD
        and compiled()[0] is not None
    )


def shape_of(model: PreTrainedModel, *, four_bits: int = 0) -> Shape:
    """Return the sizes that C asks for; `four_bits` as in the structure there."""
    config = model.config
    return Shape(
        config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, head_size(model), config.vocab_size, config.max_position_embeddings,
        four_bits, config.rms_norm_eps, config.vocab_size,
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
        torch.stack([projection_biases(own) for own in attentions]) if has_biases(model) else None,
        norms_of_heads(attentions) if has_head_norms(model) else None,
    ]


def joined(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a layer's MATRICES as `sequoia_pack_layer` takes them: query, key and value in one."""
    return [torch.cat([matrix.detach() for matrix in matrices[:3]]), *matrices[3:]]


def matrix_shapes(shape: Shape, *, first: bool = False) -> list[tuple[int, int]]:
    """Return the shapes of what `joined` returns; the first layer of a draft head reads two rows side by side."""
    hidden, inner, queries = shape.hidden, shape.inner, shape.heads * shape.head_size
    read = 2 * hidden if first and shape.draft_head else hidden
    joint = queries + 2 * shape.key_heads * shape.head_size
    return [(joint, read), (hidden, queries), (inner, hidden), (inner, hidden), (hidden, inner)]


def addresses(
    tensors: Sequence[torch.Tensor | None], dtype: torch.dtype, shapes: Sequence[tuple[int, ...]]
) -> ctypes.Array:
    """Return where tensors begin, NULL for None; ValueError unless they are of these shapes."""
    found = [rows.address(tensor, dtype, *shape) for tensor, shape in zip(tensors, shapes, strict=True)]
    return (_POINTER * len(found))(*found)


def table_addresses(tables: Sequence[torch.Tensor | None], shape: Shape) -> ctypes.Array:
    """Return where the `tables_of` a model begin."""
    size, layers = shape.head_size, shape.layers
    angles = shape.context, size // 2
    sizes = [
        angles, angles, (2 * layers + 1, shape.hidden), (layers, (shape.heads + 2 * shape.key_heads) * size),
        (layers, 2, size),
    ]  # fmt: skip
    return addresses(tables, torch.float32, sizes)


def projection_biases(attention: Any) -> torch.Tensor:
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat(
        [torch.zeros(part.out_features) if part.bias is None else part.bias.detach().float() for part in parts]
    )


def norms_of_heads(attentions: Sequence[Any]) -> torch.Tensor:
    return torch.stack([torch.stack([own.q_norm.weight, own.k_norm.weight]).detach().float() for own in attentions])


class SlotSession:
    """One sequence in a model of the compiled passes. Its KV cache is allocated once; `commit` keeps some slots of it.

    Args:
        model: has `functions`, the `address` of a model in C, `hidden`, `vocab` and `context`.
    """

    logits_dtype = torch.float32
    read_wait_sec = 0.0
    states: torch.Tensor | None = None

    def __init__(self, model: Any, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> None:
        if not 1 <= capacity < 2**31 or vocab_size > model.vocab or len(states) > MOST_STATES:
            raise ValueError(
                f"cache: found {capacity} tokens, {vocab_size} logits, {len(states)} states, expected at least 1, at "
                f"most {model.vocab} and at most {MOST_STATES}"
            )
        self._reads = (ctypes.c_int32 * len(states))(*states)
        self.capacity, self.length, self.vocab_size = capacity, 0, vocab_size
        self.model = model  # the session needs the model's memory
        self.address = model.functions.sequoia_cache(model.address, capacity)
        if not self.address:
            raise MemoryError(f"cache: found no memory for {capacity} tokens")
        weakref.finalize(self, model.functions.sequoia_cache_free, self.address).atexit = False

    @property
    def states_read(self) -> int:
        """How many layers' states each pass writes down."""
        return len(self._reads)

    def check_room(self, count: int) -> None:
        """Raise ValueError unless so many more tokens fit."""
        if self.length + count > self.capacity:
            raise ValueError(f"cache: found {self.length} + {count} tokens, expected at most {self.capacity} slots")

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, *, keep: int
    ) -> torch.Tensor:
        """Run a pass, see `protocol.Session`."""
        count, covered = tree_mask.shape
        self.check_room(count)
        if not 0 <= keep <= count <= covered <= self.length + count:
            raise ValueError(
                f"found {keep} rows of logits of {count} tokens after {self.length}, and a mask over {covered}, "
                f"expected at most {count} rows and a mask over {count} to {self.length + count} tokens"
            )
        logits = self._room(keep)
        if len(self._reads):
            self.states = torch.empty(count, len(self._reads), self.model.hidden, dtype=torch.float32)
            self.model.functions.sequoia_keep_states(
                self.address, len(self._reads), self._reads, self.states.data_ptr()
            )
        ids, positions = ids.to(torch.int64).contiguous(), positions.to(torch.int64).contiguous()
        tree_mask = tree_mask.to(torch.float32).contiguous()
        done = self._pass(
            (
                self.address, torch.get_num_threads(), self.length, count, rows.address(ids, torch.int64, count),
                rows.address(positions, torch.int64, count), covered,
                rows.address(tree_mask, torch.float32, count, covered), keep,
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
        rising = all(a < b for a, b in pairwise([-1, *slots, self.length - start]))
        if start < 0 or not rising:
            raise ValueError(
                f"cache: found slots {list(slots)[:8]} from {start}, expected rising ones of {self.length}"
            )
        if moved < len(slots):
            array = (ctypes.c_int64 * len(slots))(*slots)
            self.model.functions.sequoia_keep(self.address, start, array, len(slots))
        self.length = start + len(slots)

    def see(self, start: int, states: torch.Tensor) -> None:
        pass

    def wait(self) -> None:
        pass  # compiled code is done when it returns


class CompiledSession(SlotSession):
    """One sequence in a `CompiledLlama`."""

    def __init__(self, model: CompiledLlama, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> None:
        super().__init__(model, capacity, vocab_size, states)
        self.drafting_sec = ctypes.c_double(0.0)  # compiled drafting adds the time of its passes

    def _pass(self, request: tuple, logits: torch.Tensor) -> int:
        return self.model.functions.sequoia_forward(*request, logits.data_ptr())
