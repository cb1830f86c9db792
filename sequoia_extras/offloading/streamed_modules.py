"""A Hugging Face model whose decoder weights are streamed, run by its own unmodified modules.

A hook before each layer points the layer's parameters at the buffer that contains its matrices and dequantizes 4-bit
matrices; a hook after the layer frees the dequantized weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from sequoia_core.models.architectures import mtp_tensors
from sequoia_core.models.finite_weights import non_finite_message
from sequoia_core.models.transformers_passes import TransformersBackend, TransformersSession, decoder_layers

from .four_bits import FourBitMatrix, collect_matrices, dequantize, read_weights
from .layer_ring import LayerRing
from .layer_sources import HostSource, TensorSource, layout_matrices
from .tensor_files import PIECE_BYTES, StoredTensor, TensorFiles

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MODULE_SLOTS = 2  # number of layer buffers; small because the modules' own passes need much memory


def empty_model(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model whose parameters have shapes but no storage; its buffers are computed as usual."""
    with _empty_parameters():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False, attn_implementation=None)
    return model.requires_grad_(False).eval()


@contextmanager
def _empty_parameters() -> Iterator[None]:
    register = torch.nn.Module.register_parameter

    def register_empty(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = _frozen(parameter.to("meta"))
        register(module, name, parameter)

    torch.nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _frozen(weights: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(weights, requires_grad=False)


def match_tensors(
    model: PreTrainedModel, files: TensorFiles, *, quantized: bool = False
) -> dict[str, StoredTensor | FourBitMatrix]:
    """Return each parameter's stored tensor by parameter name; tied parameters appear under their first name.

    As in transformers' own loader, names in files may omit or add the base model's prefix, or be those of earlier
    versions.
    """
    wanted = dict(model.named_parameters())
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    names |= {name for name, _ in model.named_buffers()}
    prefix = f"{model.base_model_prefix}."
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    renamings = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]
    stored: dict[str, StoredTensor | FourBitMatrix] = {}
    surplus = []
    for key, tensor in collect_matrices(files.tensors).items() if quantized else files.tensors.items():
        renamed = key
        for rule in renamings:
            renamed, _ = rule.rename_source_key(renamed)
        spellings = (key, prefix + key, key.removeprefix(prefix), renamed, prefix + renamed)
        name = next((spelling for spelling in spellings if spelling in names), None)
        if name in wanted:
            stored[name] = tensor
        elif name is None and not key.endswith(".masked_bias") and not any(rule.search(key) for rule in ignored):
            surplus.append(key)
    mtp = mtp_tensors(model.config, surplus)
    unused = [key for key in surplus if key not in mtp]
    problems = [*_mismatches(wanted, stored), *(f"no parameter for {key}" for key in unused)]
    if problems:
        more = f" and {len(problems) - 2} more" if len(problems) > 2 else ""
        raise ValueError(
            f"found weights that cannot be streamed: {'; '.join(problems[:2])}{more}; expected one tensor for each "
            f"parameter of {type(model).__name__}, under the parameter's name"
        )
    return stored


def _mismatches(
    wanted: dict[str, torch.nn.Parameter], stored: dict[str, StoredTensor | FourBitMatrix]
) -> Iterator[str]:
    for name, parameter in wanted.items():
        tensor = stored.get(name)
        if tensor is None:
            yield f"no {name}"
        elif tensor.shape != tuple(parameter.shape):
            yield f"{name} of shape {list(tensor.shape)} instead of {list(parameter.shape)}"
        elif isinstance(tensor, StoredTensor) and not tensor.dtype.is_floating_point:
            yield f"{name} stored as {tensor.dtype}"


# A module, the name of one of its parameters, and the empty parameter.
ParameterSlot = tuple[torch.nn.Module, str, torch.nn.Parameter | None]


def _restore(slots: Iterable[ParameterSlot]) -> None:
    for module, name, parameter in slots:
        module._parameters[name] = parameter


class _StreamedLayer:
    """One decoder layer's matrices: stored tensors, layout in a buffer, and parameters."""

    def __init__(
        self, module: torch.nn.Module, prefix: str, stored: dict[str, StoredTensor | FourBitMatrix], dtype: torch.dtype
    ) -> None:
        names = [name for name, parameter in module.named_parameters() if parameter.ndim > 1]
        self.names = [f"{prefix}.{name}" for name in names]
        self.matrices = [stored[name] for name in self.names]
        self.parts = [part for matrix in self.matrices for part in _parts(matrix)]
        self.layout = layout_matrices(
            [
                (part.dtype if isinstance(matrix, FourBitMatrix) else dtype, part.shape)
                for matrix in self.matrices
                for part in _parts(matrix)
            ]
        )
        self.slots: list[ParameterSlot] = []
        for name in names:
            owner_name, _, leaf = name.rpartition(".")
            owner = module.get_submodule(owner_name)
            self.slots.append((owner, leaf, owner._parameters[leaf]))
        self.dequantized_slots = [
            slot for slot, matrix in zip(self.slots, self.matrices, strict=True) if isinstance(matrix, FourBitMatrix)
        ]
        self._dtype = dtype
        self._views: dict[int, list[torch.nn.Parameter]] = {}  # keyed by buffer address

    @property
    def dequantized_bytes(self) -> int:
        quantized = [matrix for matrix in self.matrices if isinstance(matrix, FourBitMatrix)]
        return sum(math.prod(matrix.shape) for matrix in quantized) * self._dtype.itemsize

    def point_into(self, buffer: torch.Tensor) -> None:
        """Point the layer's parameters at its matrices in a buffer, dequantizing 4-bit ones."""
        if buffer.data_ptr() not in self._views:
            self._views[buffer.data_ptr()] = [
                _frozen(layout.flat_view(buffer).view(layout.shape)) for layout in self.layout
            ]
        views = iter(self._views[buffer.data_ptr()])
        for (module, name, _), matrix in zip(self.slots, self.matrices, strict=True):
            parts = [next(views) for _ in _parts(matrix)]
            quantized = isinstance(matrix, FourBitMatrix)
            module._parameters[name] = _frozen(dequantize(parts, self._dtype)) if quantized else parts[0]

    def release(self) -> None:
        """Drop the views of the buffers, which would otherwise keep them allocated."""
        self._views = {}
        _restore(self.slots)


def _parts(matrix: StoredTensor | FourBitMatrix) -> tuple[StoredTensor, ...]:
    return matrix.parts if isinstance(matrix, FourBitMatrix) else (matrix,)


class StreamedModules:
    """Runs the forward pass of a model from `empty_model` layer by layer.

    Norms and biases are loaded immediately; `load` or the first forward pass loads the other resident weights, and
    `release_buffers` frees them.

    Args:
        host: whether layers are read once into pinned host memory instead of from disk in every pass.
        quantized: whether the files contain 4-bit matrices.

    Attributes:
        stored: each parameter's stored tensor, by parameter name.
        resident_bytes: size of the embedding, the head, and other matrices outside the layers.
        layer_bytes: size of one layer buffer.
        dequantized_bytes: size of the largest layer's dequantized weights; 0 without 4-bit matrices.
        ring: the layer buffers; None before `load` and after `release_buffers`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        files: TensorFiles,
        device: torch.device,
        *,
        host: bool = False,
        quantized: bool = False,
    ) -> None:
        self.files = files
        self.device = device
        self.host = host
        self.stored = match_tensors(model, files, quantized=quantized)
        prefix, modules = decoder_layers(model)
        self._layers = [
            _StreamedLayer(module, f"{prefix}.{index}", self.stored, model.dtype)
            for index, module in enumerate(modules)
        ]
        streamed = {name for layer in self._layers for name in layer.names}
        parameters = dict(model.named_parameters())
        self._resident = [name for name, value in parameters.items() if name not in streamed and value.ndim > 1]
        self.resident_bytes = sum(parameters[name].numel() for name in self._resident) * model.dtype.itemsize
        self.layer_bytes = max(layer.layout[-1].end for layer in self._layers)
        self.dequantized_bytes = max(layer.dequantized_bytes for layer in self._layers)
        self.ring: LayerRing | None = None
        self._pass: Generator[torch.Tensor, None, None] | None = None
        self._fill(model, [name for name, value in parameters.items() if value.ndim <= 1])
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)
        model.register_forward_pre_hook(self._begin_pass)
        for module, layer in zip(modules, self._layers, strict=True):
            module.register_forward_pre_hook(self._layer_hook(layer))
            if layer.dequantized_slots:
                module.register_forward_hook(lambda *_, slots=layer.dequantized_slots: _restore(slots))
        modules[-1].register_forward_hook(self._end_pass)

    def load(self, model: PreTrainedModel) -> None:
        """Load the resident weights for the model's own forward pass, and allocate the ring."""
        if self.ring is None:
            self._empty = {name: model.get_parameter(name) for name in self._resident}
            self._fill(model, self._resident)
            stored = [layer.parts for layer in self._layers]
            source = TensorSource(self.files, stored, [layer.layout for layer in self._layers], self.device)
            self.ring = LayerRing(HostSource(source) if self.host else source, slots=MODULE_SLOTS)

    def release_buffers(self, model: PreTrainedModel) -> None:
        if self.ring is not None:
            self.ring.close()
            self.ring = None
            self._pass = None
            self._replace(model, self._empty)
            for layer in self._layers:
                layer.release()

    def check_weights(self, model: PreTrainedModel) -> None:
        """Read every weight once; raise ValueError if one is not finite in the model's dtype."""
        for name in self.stored:
            self._read(model, name)

    def _fill(self, model: PreTrainedModel, names: list[str]) -> None:
        self._replace(model, {name: _frozen(self._read(model, name).to(self.device)) for name in names})

    def _read(self, model: PreTrainedModel, name: str) -> torch.Tensor:
        stored = self.stored[name]
        weights = read_weights(self.files, stored, model.get_parameter(name).dtype)
        # Check the weights in parts, to save memory.
        if not all(part.isfinite().all() for part in weights.view(-1).split(PIECE_BYTES)):
            original = None if isinstance(stored, FourBitMatrix) else self.files.read(stored, stored.dtype)
            raise ValueError(non_finite_message(name, original, weights.dtype))
        return weights

    @staticmethod
    def _replace(model: PreTrainedModel, parameters: dict[str, torch.nn.Parameter]) -> None:
        """Replace parameters by name, including all parameters tied to them."""
        by_old = {id(model.get_parameter(name)): parameter for name, parameter in parameters.items()}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) in by_old:
                    module._parameters[name] = by_old[id(parameter)]

    def _begin_pass(self, model: PreTrainedModel, inputs: tuple) -> None:
        self.load(model)
        # A pass that is still open has ended early.
        if self._pass is not None:
            self._pass.close()
            for layer in self._layers:
                _restore(layer.dequantized_slots)
        assert self.ring is not None, "loaded above"
        self._pass = self.ring.layers()

    def _layer_hook(self, layer: _StreamedLayer) -> Callable:
        def point(module: torch.nn.Module, inputs: tuple) -> None:
            assert self._pass is not None, "the model's hook runs before its layers' hooks"
            layer.point_into(next(self._pass))

        return point

    def _end_pass(self, module: torch.nn.Module, inputs: tuple, output: object) -> None:
        assert self._pass is not None, "the model's hook runs before its layers' hooks"
        # Resume the generator, so that the last buffer is refilled for the next pass.
        next(self._pass, None)
        self._pass = None


class StreamedBackend(TransformersBackend):
    """Runs any causal transformers model with streamed layers (`protocol.Backend`)."""

    def __init__(self, model: PreTrainedModel, streamed: StreamedModules, tier: str) -> None:
        super().__init__(model)
        self.streamed = streamed
        self._tier = tier

    @property
    def description(self) -> str:
        return f"transformers, layers streamed from {self._tier}"

    @property
    def ring(self) -> LayerRing | None:
        return self.streamed.ring

    def open(self, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> StreamedSession:
        self.streamed.load(self.model)
        return StreamedSession(self, capacity, vocab_size, state_indices)


class StreamedSession(TransformersSession):
    def __init__(
        self, passes: StreamedBackend, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()
    ) -> None:
        super().__init__(passes, capacity, vocab_size, state_indices)
        assert passes.ring is not None, "allocated by `open`"
        self._ring = passes.ring
        self.any_slot = False  # CUDA graphs cannot replay reads from host memory or disk.

    @property
    def read_wait_sec(self) -> float:  # type: ignore[override]
        return self._ring.wait_sec
