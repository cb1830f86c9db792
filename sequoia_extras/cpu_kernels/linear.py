"""bfloat16 linear layers computed by `linear.c` on x86 processors; their weights stay in PyTorch's memory."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .instruction_sets import InstructionSet, choose_instruction_set
from .llama_x86 import load_llama_kernels
from .sampling_ops import tensor_address

# In a smaller layer, the overhead of the call outweighs the gain.
MIN_WEIGHTS = 2**16
MIN_ROWS = 16
COLUMN_MULTIPLE = 32


class CompiledLinear(torch.nn.Linear):
    """A compiled linear layer; falls back to PyTorch for gradients, other dtypes and other devices.

    Attributes:
        instructions: the instruction set that it uses.
        single: whether its results are float32 instead of bfloat16, as for an output layer.
    """

    instructions: InstructionSet
    single: bool

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        if (
            input.dtype != torch.bfloat16
            or not input.is_cpu
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            # The weight may have been replaced since the layer was compiled.
            or not _is_readable(weight)
            or input.shape[-1:] != weight.shape[1:]
        ):
            return super().forward(input)
        rows = input.contiguous()
        n, k = weight.shape
        count = rows.numel() // k
        bias = None if self.bias is None else self.bias.detach().float()
        out = torch.empty(*input.shape[:-1], n, dtype=torch.float32 if self.single else torch.bfloat16)
        done = load_llama_kernels(self.instructions)[0].sequoia_linear(
            weight.data_ptr(),
            tensor_address(bias, torch.float32, n),
            rows.data_ptr(),
            count,
            n,
            k,
            torch.get_num_threads(),
            self.single,
            out.data_ptr(),
        )
        if not done:
            raise MemoryError(f"not enough memory to multiply {count} rows of {k} entries")
        return out


def compile_layers(model: torch.nn.Module) -> None:
    """Switch a model's large bfloat16 linear layers on the CPU to compiled code, if it is available."""
    instructions, _ = choose_instruction_set()
    if instructions is None or load_llama_kernels(instructions)[0] is None:
        return
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for module in model.modules():
        layer: Any = module
        is_plain = type(layer) is torch.nn.Linear and "forward" not in vars(layer)
        if is_plain and layer.weight.numel() >= MIN_WEIGHTS and _is_readable(layer.weight):
            layer.__class__ = CompiledLinear
            layer.instructions = instructions
            layer.single = layer is head


def _is_readable(weight: Tensor) -> bool:
    """Return whether compiled products can read a matrix in PyTorch's memory."""
    return (
        weight.dtype == torch.bfloat16
        and weight.is_cpu
        and weight.ndim == 2
        and weight.is_contiguous()
        and weight.shape[0] >= MIN_ROWS
        and weight.shape[1] % COLUMN_MULTIPLE == 0
        and weight.shape[1] > 0
    )


def description(model: torch.nn.Module) -> str:
    """Describe how a model's linear layers are compiled; empty if none are."""
    names = {layer.instructions.description for layer in model.modules() if isinstance(layer, CompiledLinear)}
    return f"linear layers compiled for {', '.join(sorted(names))}" if names else ""


def logits_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the dtype of a model's logits."""
    head = model.get_output_embeddings()
    return torch.float32 if isinstance(head, CompiledLinear) and head.single else model.dtype
