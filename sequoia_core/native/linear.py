"""Linear layers of any model in bfloat16 by `linear.c`, on x86 processors. Weights stay where PyTorch holds them."""

from typing import Any

import torch
from transformers import PreTrainedModel

from .instruction_sets import InstructionSet, chosen
from .llama_x86 import load
from .sampling_ops import address

LEAST_WEIGHTS = 2**16  # of a layer; a smaller one takes as long as the call
COLUMNS, STEP = 16, 32  # a matrix has at least so many rows, and a multiple of so many columns


class CompiledLinear(torch.nn.Linear):
    """A linear layer whose products are compiled; PyTorch's where gradients, another dtype or device are asked for.

    Attributes:
        instructions: those of its products.
        single: whether results stay in float32 instead of bfloat16, as those of an output layer do.
    """

    instructions: InstructionSet
    single: bool

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if (
            input.dtype != torch.bfloat16
            or not input.is_cpu
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
            or not _reads(weight)  # it may have been replaced since
            or input.shape[-1:] != weight.shape[1:]
        ):
            return super().forward(input)
        rows = input.contiguous()
        (n, k), count = weight.shape, rows.numel() // weight.shape[1]
        bias = None if self.bias is None else self.bias.detach().float()
        out = torch.empty(*input.shape[:-1], n, dtype=torch.float32 if self.single else torch.bfloat16)
        done = load(self.instructions)[0].sequoia_linear(
            weight.data_ptr(), address(bias, torch.float32, n), rows.data_ptr(), count, n, k,
            torch.get_num_threads(), self.single, out.data_ptr(),
        )  # fmt: skip
        if not done:
            raise MemoryError(f"found no memory for {count} rows of {k}")
        return out


def compile_layers(model: torch.nn.Module) -> None:
    """Let compiled products serve a model's large linear layers in bfloat16 on a CPU, where there are any here."""
    instructions, _ = chosen()
    if instructions is None or load(instructions)[0] is None:
        return
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for layer in model.modules():
        if type(layer) is torch.nn.Linear and "forward" not in vars(layer) and _pays(layer.weight):
            own: Any = layer
            own.__class__ = CompiledLinear
            own.instructions, own.single = instructions, layer is head


def _reads(weight: torch.Tensor) -> bool:
    """Whether compiled products can read a matrix where it lies."""
    return (
        weight.dtype == torch.bfloat16
        and weight.is_cpu
        and weight.ndim == 2
        and weight.is_contiguous()
        and weight.shape[0] >= COLUMNS
        and weight.shape[1] % STEP == 0
        and weight.shape[1] > 0
    )


def _pays(weight: torch.Tensor) -> bool:
    return weight.numel() >= LEAST_WEIGHTS and _reads(weight)


def description(model: torch.nn.Module) -> str:
    """Return how a model's linear layers are compiled, in words; empty where they are not."""
    names = {layer.instructions.description for layer in model.modules() if isinstance(layer, CompiledLinear)}
    return f"linear layers compiled for {', '.join(sorted(names))}" if names else ""


def logits_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the dtype of a model's logits."""
    head = model.get_output_embeddings()
    return torch.float32 if isinstance(head, CompiledLinear) and head.single else model.dtype
