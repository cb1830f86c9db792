"""Targets whose decoder layers stream from a slower tier: their needs, the check of memory and disk, and the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers import GenerationConfig

from ...files.json_models import naming
from ..checkpoint import Plan, check_stored_once
from ..language_model import HuggingFaceModel
from ..model_files import Source, explained
from ..protocol import Session
from ..weight_files import weight_files
from .four_bits import check_four_bits
from .needs import OffloadNeeds, needs_of
from .streamed_llama import StreamedLlama
from .streamed_modules import StreamedBackend, StreamedModules, without_numbers
from .tensor_files import TensorFiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TIERS = {"disk": "disk", "host": "pinned host memory"}


class OffloadedModel(HuggingFaceModel):
    """A Hugging Face model whose layers stream; `close` frees memory, threads and files at once."""

    _backend: StreamedLlama | StreamedBackend

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        backend: StreamedLlama | StreamedBackend,
        *,
        streamed: StreamedModules,
        tier: str,
        needs: OffloadNeeds,
    ) -> None:
        super().__init__(model, name, backend=backend, device=streamed.device)
        self.offload, self.needs, self._streamed, self._closed = tier, needs, streamed, False

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        """Bytes of weights read so far, those read ahead included."""
        return 0 if self._backend.ring is None else self._backend.ring.bytes_read

    @property
    def ring_slots(self) -> int:
        """How many layer buffers there are; 0 while it has none."""
        return 0 if self._backend.ring is None else self._backend.ring.slots

    def wake(self) -> None:
        self._streamed.load(self.model)

    def rest(self) -> None:
        if isinstance(self._backend, StreamedLlama):  # decoding does not use the model's own forward
            self._streamed.rest(self.model)

    def check_weights(self) -> None:
        with naming(self.name):
            self._streamed.check_weights(self.model)

    def open(self, capacity: int, states: Sequence[int] = ()) -> Session:
        if self._closed:  # its descriptors may belong to other files now
            raise ValueError(f"{self.name}: found a model that was closed, expected one that is loaded")
        return super().open(capacity, states)

    def close(self) -> None:
        self._closed = True
        if self._backend.ring is not None:
            self._backend.ring.close()
        self._streamed.rest(self.model)
        self._streamed.files.close()


def check_tier(tier: str, device: torch.device) -> None:
    """Refuse an unknown tier, or one that does not work with this device."""
    if tier not in TIERS:
        raise ValueError(f"offload: found {str(tier)[:40]!r}, expected {' or '.join(TIERS)}")
    if tier == "host" and device.type != "cuda":
        raise ValueError(
            f"offload: found 'host' with the device {device}, expected a CUDA device: layers in the host's memory are "
            "already where a CPU computes ('disk' streams to a CPU)"
        )


class _Opened(NamedTuple):
    """A model without its layers' numbers, the files that have them, and what it will need."""

    model: PreTrainedModel
    files: TensorFiles
    streamed: StreamedModules
    compiled: bool
    needs: OffloadNeeds


def predicted_needs(
    source: Source, plan: Plan, device: torch.device, dtype: torch.dtype, tier: str, *, beside: int = 0
) -> OffloadNeeds:
    """Return what an offloaded model will need, from the headers of its files."""
    with ExitStack() as undo:
        return _open(source, plan, device, dtype, tier, beside=beside, undo=undo).needs


def load_offloaded(
    source: Source,
    plan: Plan,
    device: torch.device,
    dtype: torch.dtype,
    tier: str,
    *,
    name: str,
    beside: int = 0,
    progress: Callable[[float, str], None] | None = None,
) -> OffloadedModel:
    """Return a model whose decoder layers stay in a slower tier and stream from it in every pass.

    Args:
        tier: one that `check_tier` accepts. "disk" reads the model's own files, or a packed copy of them where compiled
            passes run it; "host" keeps the layers in pinned memory beside a CUDA device.
        beside: bytes that the draft will need.
    """
    with ExitStack() as undo:
        model, files, streamed, compiled, needs = _open(source, plan, device, dtype, tier, beside=beside, undo=undo)
        needs.check(source.name, device)
        backend: StreamedLlama | StreamedBackend
        with naming(source.name):
            if compiled:
                backend = StreamedLlama(model, files, streamed.stored, progress=progress)
                undo.callback(backend.ring.close)
            else:
                backend = StreamedBackend(model, streamed, TIERS[tier])
        offloaded = OffloadedModel(model, name, backend, streamed=streamed, tier=tier, needs=needs)
        undo.pop_all()
    return offloaded


def _open(
    source: Source, plan: Plan, device: torch.device, dtype: torch.dtype, tier: str, *, beside: int, undo: ExitStack
) -> _Opened:
    """Build the model and open its files, which `undo` closes."""
    zero_points = check_four_bits(source.name, plan.config) if plan.quantised else None
    with explained(f"{source.name}/config.json", "settings from which transformers can build a language model"):
        model = without_numbers(plan.config, dtype)
        if source.find("generation_config.json") is not None:
            model.generation_config = GenerationConfig.from_pretrained(source.place)
    check_stored_once(source, model, plan.stored)
    with explained(source.name, "safetensors files that can be streamed"):
        files = TensorFiles(list(weight_files(source)))
    undo.callback(files.close)
    with naming(source.name):
        streamed = StreamedModules(model, files, device, host=tier == "host", zero_points=zero_points)
    compiled = device.type == "cpu" and StreamedLlama.supports(model, streamed.stored)
    return _Opened(model, files, streamed, compiled, needs_of(model, streamed, compiled=compiled, beside=beside))
