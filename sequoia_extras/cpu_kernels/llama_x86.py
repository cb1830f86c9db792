"""Plain bfloat16 decoders run by `llama_x86.c`, one call per pass."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sequoia_core.models.plain_decoder import has_biases, has_head_norms, head_size, is_plain_decoder

from . import compile_c, instruction_sets, tree_expansion
from .c_declarations import structure_fields
from .instruction_sets import InstructionSet
from .kernel_session import CompiledSession
from .sampling_ops import ARITHMETIC_FLAGS, tensor_address

C_SOURCES = ("llama_x86.c", "linear.c", *tree_expansion.C_SOURCES)
# Do not add -march=native: `InstructionSet.flags` selects the instructions.
FLAGS = ("-mtune=native", *ARITHMETIC_FLAGS)
EMULATION = "amx_emulation.h"
# Packed weights are a second copy, which does not fit into memory for a large model.
MAX_PACKED_BYTES = 2 * 2**30
MAX_HEAD_SIZE = 256
# Names of a layer's weights within the layer.
MATRICES = (
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)


class LlamaShape(ctypes.Structure):
    """A model's sizes (see `LlamaShape` in C)."""

    _fields_ = structure_fields(compile_c.FOLDER / "llama_x86.c", "LlamaShape")


def llama_kernels() -> tuple[Any, str]:
    """Return the functions of `llama_x86.c` for the current instruction set, or None, and a reason if None."""
    instructions, reason = instruction_sets.choose_instruction_set()
    return (None, reason) if instructions is None else load_llama_kernels(instructions)


@lru_cache(maxsize=8)
def load_llama_kernels(instructions: InstructionSet) -> tuple[Any, str]:
    """Build and load the functions for an instruction set; return them, or None, and a reason if None."""
    headers = ["lanes.h", "products_vectors.h", instructions.products, *tree_expansion.C_HEADERS]
    flags = [*FLAGS, *instructions.flags, f'-DPRODUCTS="{instructions.products}"']
    if instructions.emulated:
        headers.append(EMULATION)
        flags += ["-include", str(compile_c.FOLDER / EMULATION)]
    functions, reason = compile_c.load_library(C_SOURCES, flags, headers=headers)
    if functions is not None and not functions.sequoia_supported():
        return None, "the operating system does not grant access to the matrix unit (AMX)"
    return functions, reason


class CompiledLlama:
    """A plain decoder's weights, copied into tiles for compiled passes.

    Args:
        model: a model that `supports` accepts.

    Attributes:
        instructions: description of the current instruction set.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._load_kernels()
        base = model.model
        self._copy_weights(
            llama_shape(model), base.embed_tokens.weight, float_tables(model), base.layers, model.lm_head.weight
        )

    def _load_kernels(self) -> None:
        self.functions, reason = llama_kernels()
        if self.functions is None:
            raise OSError(reason)
        self.instructions = instruction_sets.instructions_in_use()

    def _copy_weights(
        self,
        shape: LlamaShape,
        embedding: Tensor,
        tables: list[Tensor | None],
        layers: Iterable[Any],
        output: Tensor,
        *,
        feature_norm: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> None:
        """Copy weights into a new model in C; only draft heads have a `feature_norm` and `tokens`."""
        self.hidden = shape.hidden
        self.vocab = shape.vocab
        self.context = shape.context
        weights = [matrix for layer in layers for matrix in join_qkv([layer.get_parameter(n) for n in MATRICES])]
        weights = [weight.detach().contiguous() for weight in [*weights, output]]
        sizes = [size for index in range(shape.layers) for size in matrix_shapes(shape, first=index == 0)]
        sizes.append((shape.outputs, shape.hidden))
        embedding = embedding.detach().contiguous()
        # C reads these tables in place.
        self._tables = [*tables, feature_norm, tokens]
        self.address = self.functions.sequoia_model(
            ctypes.byref(shape),
            tensor_address(embedding, torch.bfloat16, shape.vocab, shape.hidden),
            *table_addresses(tables, shape),
            addresses(weights, torch.bfloat16, sizes),
            tensor_address(feature_norm, torch.float32, shape.hidden),
            tensor_address(tokens, torch.int32, shape.outputs),
        )
        if not self.address:
            raise MemoryError("not enough memory for packed weights")
        # Nothing is freed at exit: another thread may still be running a pass, and the system frees the memory anyway.
        weakref.finalize(self, self.functions.sequoia_model_free, self.address).atexit = False

    @staticmethod
    def supports(model: torch.nn.Module) -> bool:
        """Return whether compiled passes can run a model here and its packed weights are small enough."""
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        return can_run_compiled(model) and size <= MAX_PACKED_BYTES

    @staticmethod
    def why_not_here() -> str:
        """Return the reason why compiled code cannot run any model here; empty if it can."""
        return llama_kernels()[1]

    @property
    def description(self) -> str:
        return f"compiled code for {self.instructions}"

    def open(self, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> CompiledSession:
        return CompiledSession(self, capacity, vocab_size, state_indices)


def can_run_compiled(model: Any) -> bool:
    """Return whether compiled passes can run a model here, whatever its size; its weights need not be loaded."""
    if model.device.type not in ("cpu", "meta") or not is_plain_decoder(model):
        return False
    sizes = (model.config.hidden_size, model.config.intermediate_size, head_size(model))
    return (
        all(p.dtype == torch.bfloat16 for p in model.parameters())
        and all(size % 32 == 0 for size in sizes)
        and head_size(model) <= MAX_HEAD_SIZE
        and llama_kernels()[0] is not None
    )


def llama_shape(model: PreTrainedModel, *, four_bits: int = 0) -> LlamaShape:
    """Return a model's sizes as a C structure; for `four_bits`, see `LlamaShape` in C."""
    config = model.config
    return LlamaShape(
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_size=head_size(model),
        vocab=config.vocab_size,
        context=config.max_position_embeddings,
        four_bits=four_bits,
        eps=config.rms_norm_eps,
        outputs=config.vocab_size,
    )


def float_tables(model: PreTrainedModel) -> list[Tensor | None]:
    """Return the float32 tables that passes need: cosines, sines, norms, biases, head norms (see `Model` in C)."""
    base = model.model
    half = head_size(model) // 2
    positions = torch.arange(model.config.max_position_embeddings)[None]
    cos, sin = base.rotary_emb(torch.zeros(1, dtype=torch.float32), position_ids=positions)
    return [
        cos[0, :, :half].contiguous(),
        sin[0, :, :half].contiguous(),
        *norm_and_bias_tables(base.layers, base.norm, has_biases(model), has_head_norms(model)),
    ]


def norm_and_bias_tables(layers: Iterable[Any], last_norm: Any, biases: bool, head_norms: bool) -> list[Tensor | None]:
    """Return float32 tables: the norms of all layers and the final norm; query, key and value biases; head norms."""
    norms = [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    attentions = [layer.self_attn for layer in layers]
    return [
        _stack([norm.weight for norm in [*norms, last_norm]]),
        torch.stack([_joint_bias(attention) for attention in attentions]) if biases else None,
        torch.stack([_stack([a.q_norm.weight, a.k_norm.weight]) for a in attentions]) if head_norms else None,
    ]


def _stack(weights: Sequence[Tensor]) -> Tensor:
    return torch.stack([weight.detach().float() for weight in weights])


def _joint_bias(attention: Any) -> Tensor:
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat([torch.zeros(p.out_features) if p.bias is None else p.bias.detach().float() for p in projections])


def join_qkv(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Concatenate the query, key and value weights of a layer's MATRICES, as `sequoia_pack_layer` expects."""
    return [torch.cat([matrix.detach() for matrix in matrices[:3]]), *matrices[3:]]


def matrix_shapes(shape: LlamaShape, *, first: bool = False) -> list[tuple[int, int]]:
    """Return the shapes of `join_qkv`'s matrices; a draft head's first layer reads two concatenated rows."""
    hidden = shape.hidden
    queries = shape.heads * shape.head_size
    inputs = 2 * hidden if first and shape.draft_head else hidden
    joint = queries + 2 * shape.key_heads * shape.head_size
    return [(joint, inputs), (hidden, queries), (shape.inner, hidden), (shape.inner, hidden), (hidden, shape.inner)]


def addresses(tensors: Sequence[Tensor | None], dtype: torch.dtype, shapes: Sequence[tuple[int, ...]]) -> ctypes.Array:
    """Return an array of data pointers, NULL for None; ValueError unless the tensors have these shapes."""
    pointers = [tensor_address(tensor, dtype, *shape) for tensor, shape in zip(tensors, shapes, strict=True)]
    return (ctypes.c_void_p * len(pointers))(*pointers)


def table_addresses(tables: Sequence[Tensor | None], shape: LlamaShape) -> ctypes.Array:
    """Return the data pointers of `float_tables`."""
    size = shape.head_size
    angles = (shape.context, size // 2)
    joint = (shape.heads + 2 * shape.key_heads) * size
    norms = (2 * shape.layers + 1, shape.hidden)
    sizes = [angles, angles, norms, (shape.layers, joint), (shape.layers, 2, size)]
    return addresses(tables, torch.float32, sizes)
