"""Where `gpu.py` measures, or rehearses: the device, the sizes, and models of known shapes with random weights."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import sequoia_core  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
import transformers

from sequoia_core.models.device import describe_device
from sequoia_core.models.language_model import HuggingFaceModel

SHAPES = {  # hidden, inner, layers, heads; Llama 2 and the drafts of the Sequoia paper
    "Llama-2-7B": (4096, 11008, 32, 32),
    "Llama-2-13B": (5120, 13824, 40, 40),
    "Llama-160M": (768, 3072, 12, 12),
    "Llama-68M": (768, 3072, 2, 12),
}


class Machine:
    """Where everything runs, and how large it is."""

    def __init__(self, rehearse: bool) -> None:
        self.rehearse = rehearse
        if not rehearse and not torch.cuda.is_available():
            raise SystemExit("gpu.py: found no CUDA device, expected one, or --rehearse")
        self.device = torch.device("cpu" if rehearse else "cuda")
        self.dtype = torch.float32 if rehearse else torch.bfloat16
        self.vocab, self.context, self.size, self.repeats = (256, 24, 8, 1) if rehearse else (32_000, 128, 128, 5)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], repeats: int = 5) -> float:
        """Return the least seconds of a call, after one to warm up."""
        taken = []
        for _ in range(repeats + 1):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - began)
        return min(taken[1:])

    def model(self, name: str, seed: int = 0, dtype: torch.dtype | None = None) -> HuggingFaceModel:
        """Return a model of a shape with random weights, made on the device."""
        hidden, inner, layers, heads = (64, 96, 2, 4) if self.rehearse else SHAPES[name]
        config = transformers.LlamaConfig(
            vocab_size=self.vocab, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=2048, eos_token_id=None,
            bos_token_id=None,
        )  # fmt: skip
        torch.manual_seed(seed)
        with self.device:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or self.dtype)
        return HuggingFaceModel(model.eval(), name)

    def prompt(self, length: int) -> list[int]:
        return torch.randint(self.vocab, (length,), generator=torch.Generator().manual_seed(1)).tolist()

    def facts(self) -> dict[str, Any]:
        return {
            "device": describe_device(self.device), "rehearsal": self.rehearse, "torch": torch.__version__,
            "cuda": torch.version.cuda, "transformers": transformers.__version__, "python": platform.python_version(),
        }  # fmt: skip
