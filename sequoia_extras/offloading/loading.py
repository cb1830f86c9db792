"""Loads targets whose decoder layers stream from slower storage, after checking that there is enough memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers import GenerationConfig

from sequoia_core.files.json_models import prefix_errors
from sequoia_core.files.model_names import model_name
from sequoia_core.models.checkpoint import check_stored_once
from sequoia_core.models.folders import Folder
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import inspect_pair
from sequoia_core.models.model_files import explain_load_errors
from sequoia_core.models.model_sources import LoadRequest
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.protocol import Session
from sequoia_core.models.weight_files import weight_files

from .four_bits import check_quantization
from .needs import OffloadNeeds, predict_needs
from .streamed_llama import StreamedLlama
from .streamed_modules import StreamedBackend, StreamedModules, empty_model
from .tensor_files import TensorFiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TIERS = {"disk": "disk", "host": "pinned host memory"}


class OffloadedModel(HuggingFaceModel):
    """A Hugging Face model whose layers are streamed; `close` releases its memory, threads and files immediately."""

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
        self.offload = tier
        self.needs = needs
        self._streamed = streamed
        self._closed = False

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        """The number of weight bytes read so far, including layers read ahead."""
        return 0 if self._backend.ring is None else self._backend.ring.bytes_read

    @property
    def ring_slots(self) -> int:
        """The number of layer buffers; 0 before they are allocated."""
        return 0 if self._backend.ring is None else self._backend.ring.slots

    def load_embeddings(self) -> None:
        self._streamed.load(self.model)

    def release_buffers(self) -> None:
        # Here, decoding does not use the model's own forward pass.
        if isinstance(self._backend, StreamedLlama):
            self._streamed.release_buffers(self.model)

    def check_weights(self) -> None:
        with prefix_errors(self.name):
            self._streamed.check_weights(self.model)

    def open(self, capacity: int, state_indices: Sequence[int] = ()) -> Session:
        # The file descriptors of a closed model may have been reused for other files.
        if self._closed:
            raise ValueError(f"{self.name}: the model was closed; load it again")
        return super().open(capacity, state_indices)

    def close(self) -> None:
        self._closed = True
        if self._backend.ring is not None:
            self._backend.ring.close()
        self._streamed.release_buffers(self.model)
        self._streamed.files.close()


def check_tier(tier: str, device: torch.device) -> None:
    """Raise ValueError if the tier is unknown or does not work with this device."""
    if tier not in TIERS:
        raise ValueError(f"offload: found {str(tier)[:40]!r}, expected {' or '.join(TIERS)}")
    if tier == "host" and device.type != "cuda":
        raise ValueError(
            f"offload: found 'host' with the device {device}, expected a CUDA device; a CPU computes in host memory "
            "anyway (use 'disk' to stream to a CPU)"
        )


class _OpenedTarget(NamedTuple):
    """A model without its layers' weights, the source of these weights, and the model's predicted needs."""

    model: PreTrainedModel
    streamed: StreamedModules
    compiled: bool
    needs: OffloadNeeds


class StreamedFolder(Folder):
    """A target whose decoder layers stay in slower storage, the tier, and stream from it in every pass.

    The tier "disk" reads the model's own files, or a packed copy if compiled passes can run the model; "host" stores
    the layers in pinned memory for a CUDA device.
    """

    def load(self, request: LoadRequest) -> OffloadedModel:
        tier = request.spec.offload
        assert tier is not None, "checked by `streamed_target`"
        with ExitStack() as undo:
            model, streamed, compiled, needs = _open(self, request, undo)
            needs.check(self.source.name, request.device)
            backend: StreamedLlama | StreamedBackend
            with prefix_errors(self.source.name):
                if compiled:
                    backend = StreamedLlama(model, streamed.files, streamed.stored, progress=request.progress)
                    undo.callback(backend.ring.close)
                else:
                    backend = StreamedBackend(model, streamed, TIERS[tier])
            name = model_name(self.name)
            offloaded = OffloadedModel(model, name, backend, streamed=streamed, tier=tier, needs=needs)
            undo.pop_all()
        return offloaded


def streaming_needs(spec: PairSpec) -> OffloadNeeds:
    """Predict the needs of a streamed pair from its settings and file headers, without reading weights.

    Raises:
        ValueError: if `load` would refuse the settings or files, or there is not enough memory; the message includes
            the numbers.
    """
    pair = inspect_pair(spec)
    target = pair.models[0]
    assert isinstance(target, StreamedFolder), "the pair requests offloading"
    with ExitStack() as undo:
        needs = _open(target, pair.request, undo).needs
    needs.check(target.source.name, pair.request.device)
    return needs


def _open(files: StreamedFolder, request: LoadRequest, undo: ExitStack) -> _OpenedTarget:
    """Build the model and open its files; `undo` closes them."""
    source = files.source
    plan = files.plan
    device = request.device
    if plan.quantized:
        check_quantization(source.name, plan.config)
    with explain_load_errors(
        f"{source.name}/config.json", "settings from which transformers can build a language model"
    ):
        model = empty_model(plan.config, request.dtype)
        if source.find("generation_config.json") is not None:
            model.generation_config = GenerationConfig.from_pretrained(source.location)
    check_stored_once(source, model, plan.stored)
    with explain_load_errors(source.name, "safetensors files that can be streamed"):
        tensors = TensorFiles(list(weight_files(source)))
    undo.callback(tensors.close)
    with prefix_errors(source.name):
        host = request.spec.offload == "host"
        streamed = StreamedModules(model, tensors, device, host=host, quantized=bool(plan.quantized))
    compiled = device.type == "cpu" and StreamedLlama.supports(model, streamed.stored)
    needs = predict_needs(model, streamed, compiled=compiled, draft=request.draft_bytes)
    return _OpenedTarget(model, streamed, compiled, needs)
