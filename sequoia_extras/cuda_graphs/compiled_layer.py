"""Layers compiled by `torch.compile` for static passes on a CUDA device, if SEQUOIA_COMPILE_LAYERS=1."""

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sequoia_core.files.notices import notify_once

VARIABLE = "SEQUOIA_COMPILE_LAYERS"
DEVICE_TYPE = "cuda"
MAX_COMPILATIONS = 256  # PyTorch stops after 8, but each pass size of each model needs one


def compile_layer(run_layer: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor] | None:
    """Return a function that runs compiled layers in static passes; None to run them as they are."""
    wanted = device.type == DEVICE_TYPE and os.environ.get(VARIABLE) == "1"
    return CompiledLayer(run_layer) if wanted else None


class CompiledLayer:
    """A layer compiled at its first call with new shapes; if that fails, it issues a notice and runs uncompiled.

    Args:
        run_layer: a function of tensors that depends only on its arguments, such as `llama_torch.run_layer`.
    """

    def __init__(self, run_layer: Callable[..., Tensor]) -> None:
        self._run_layer = run_layer
        self.failed = False

    @cached_property
    def _compiled(self) -> Callable[..., Tensor]:
        notify_once("compiling layers for the GPU, which takes up to a minute for each new number of tokens in a pass")
        # This mode includes coordinate descent. "reduce-overhead" would not capture layers that write to the cache.
        return torch.compile(self._run_layer, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")

    def __call__(self, *arguments: Any) -> Tensor:
        if not self.failed:
            try:
                with torch._dynamo.config.patch(recompile_limit=MAX_COMPILATIONS):
                    return self._compiled(*arguments)
            except RuntimeError as error:
                self.failed = True
                reason = str(error).strip().partition("\n")[0]
                notify_once(f"layers run uncompiled, which is slower: {reason}")
        return self._run_layer(*arguments)
