"""The device on which `gpu.py` measures or rehearses: its peak rates, sizes, and models of known shapes.

The time of a pass is modelled as the larger of reading the weights and computing all tokens, as in
`sequoia_extras/hardware_models/roofline.py`, which cannot be used here because it requires pydantic.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
import transformers

from benchmarks.common import ROOT, unavailable
from sequoia_core.models.device import describe_device
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.planning.profile import HardwareProfile

EAGER_LAYER_SEC = 7e-4  # time of a layer launched kernel by kernel from Python, at any size
VOCAB = 32_000


class Shape(NamedTuple):
    """The sizes of a decoder that determine its times."""

    hidden: int
    inner: int
    layers: int
    heads: int

    @property
    def layer(self) -> int:
        """Number of parameters of one layer."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.inner

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + 2 * VOCAB * self.hidden

    @property
    def read(self) -> int:
        """Number of parameters that a pass reads; it reads only single rows of the embedding."""
        return self.parameters - VOCAB * self.hidden


# Shapes of Llama 2 and of the drafts in the Sequoia paper.
SHAPES = {
    "Llama-2-7B": Shape(4096, 11008, 32, 32),
    "Llama-2-13B": Shape(5120, 13824, 40, 40),
    "Llama-160M": Shape(768, 3072, 12, 12),
    "Llama-68M": Shape(768, 3072, 2, 12),
}
SMALL = Shape(64, 96, 2, 4)  # shape of every model in a rehearsal


class Peaks(NamedTuple):
    """Peak rates of a device: bytes per second from its memory and from the host, and operations per second."""

    memory: float
    host: float
    operations: float

    def pass_sec(self, shape: Shape, tokens: int = 1, context: int = 128) -> float:
        """Return a lower bound on the seconds of a pass in bfloat16."""
        # Size of the keys and values in bytes.
        seen = 2 * 2 * shape.layers * shape.hidden * (context + tokens)
        attending = 4 * shape.layers * shape.hidden * (context + tokens)
        computing = tokens * (2 * shape.read + attending)
        return max((2 * shape.read + seen) / self.memory, computing / self.operations)

    @classmethod
    def stated(cls, name: str = "h100") -> Peaks:
        """Return the peak rates that the manufacturer specifies for a device."""
        found = json.loads((ROOT / "assets" / "devices.json").read_text())["devices"][name]
        return cls(found["bytes_per_sec"], found["host_bytes_per_sec"], found["operations_per_sec"]["bfloat16"])


class Machine:
    """The device that all sections run on, and the sizes of a run."""

    def __init__(self, rehearse: bool, models: Path | None = None) -> None:
        self.rehearse, self.models = rehearse, models
        if not rehearse and not torch.cuda.is_available():
            unavailable("This benchmark needs a CUDA device, or --rehearse.")
        self.profiles: dict[tuple[str, str], HardwareProfile] = {}
        self.device = torch.device("cpu" if rehearse else "cuda")
        self.dtype = torch.float32 if rehearse else torch.bfloat16
        self.vocab, self.context, self.size, self.repeats = (256, 24, 8, 1) if rehearse else (VOCAB, 128, 128, 5)

    @contextmanager
    def pretending(self) -> Iterator[None]:
        """In a rehearsal, run on a pretend device backed by the CPU; code that mixes devices fails."""
        if not self.rehearse:
            yield
            return
        from tests.pretend_device import pretend_device

        with pretend_device() as self.device:
            try:
                yield
            finally:
                self.device = torch.device("cpu")

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], repeats: int = 5) -> float:
        """Return the minimum seconds of a call, after two calls to warm up and capture graphs."""
        taken = []
        for _ in range(repeats + 2):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - began)
        return min(taken[2:])

    @cached_property
    def peaks(self) -> Peaks:
        """The rates that copies and a matrix product reach on this device."""
        count, side = (2**16, 64) if self.rehearse else (2**30, 8192)
        here = torch.ones(count, dtype=torch.uint8, device=self.device)
        there = torch.empty_like(here)
        host = torch.ones(count, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        matrix = torch.randn(side, side, device=self.device).to(torch.bfloat16)
        return Peaks(
            2 * count / self.seconds(lambda: there.copy_(here)),
            count / self.seconds(lambda: there.copy_(host, non_blocking=True)),
            2 * side**3 / self.seconds(lambda: matrix @ matrix),
        )

    @cached_property
    def stated(self) -> Peaks | None:
        """The rates in this device's data sheet, if it is known; in a rehearsal, those of an H100."""
        if self.rehearse:
            return Peaks.stated()
        name = describe_device(self.device).lower()
        sheets = json.loads((ROOT / "assets" / "devices.json").read_text())["devices"]
        fitting = [key for key in sheets if all(part in name for part in key.split("-"))]
        # Cards for other slots have slower memory than the data sheet's.
        if not fitting or "pcie" in name or "nvl" in name:
            return None
        return Peaks.stated(max(fitting, key=len))

    def weight_bytes(self, name: str) -> int:
        """Return the size of the weights that a pass of a model reads, in bytes."""
        shape = self.shape(name)
        return self.dtype.itemsize * (shape.layers * shape.layer + self.vocab * shape.hidden)

    def shape(self, name: str) -> Shape:
        return SMALL if self.rehearse else SHAPES[name]

    def model(
        self, name: str, seed: int = 0, dtype: torch.dtype | None = None, vocab: int | None = None
    ) -> HuggingFaceModel:
        """Return a model with this shape and random weights, created on the device."""
        shape = self.shape(name)
        config = transformers.LlamaConfig(
            vocab_size=vocab or self.vocab, hidden_size=shape.hidden, intermediate_size=shape.inner,
            num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
            max_position_embeddings=2048, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        torch.manual_seed(seed)
        with torch.device("cpu" if self.rehearse else self.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or self.dtype)
        return HuggingFaceModel(model.to(self.device).eval(), name)

    def prompt(self, length: int) -> list[int]:
        return torch.randint(self.vocab, (length,), generator=torch.Generator().manual_seed(1)).tolist()

    def facts(self) -> dict[str, Any]:
        return {
            "device": describe_device(torch.device("cpu" if self.rehearse else "cuda")), "rehearsal": self.rehearse,
            "torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__,
            "python": platform.python_version(),
        }  # fmt: skip


class Row(NamedTuple):
    """One measurement: `goal` is text, `met` is None without a goal, and `more` is written only to the file."""

    what: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None
    more: dict[str, Any] = {}

    def __str__(self) -> str:
        verdict = {True: "met", False: "NOT MET", None: ""}[self.met]
        return f"  {self.what:52} {self.value:10.4g} {self.unit:20} {self.goal:18} {verdict}"
