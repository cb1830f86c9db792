"""A Hugging Face model whose decoder layers' matrices stream, through its own unmodified modules.

A hook before each layer points its parameters into the buffer that holds its matrices; of those stored in 4 bits it
computes the weights, and another hook after the layer frees them.
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

from ..architectures import mtp_tensors
from ..finite_weights import not_finite
from ..transformers_passes import TransformersBackend, TransformersSession, decoder_layers
from .four_bits import FourBits, joined_parts, read_weights, weights_of
from .layer_ring import LayerRing
from .layer_sources import HostSource, Place, TensorSource, places_of
from .tensor_files import PIECE, StoredTensor, TensorFiles

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

SLOTS = 2  # buffers of this path: computing needs more memory than the buffers


def without_numbers(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model whose parameters have shapes and no memory, and whose buffers are computed as always."""
    with _empty_parameters():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False, attn_implementation=None)
    return model.requires_grad_(False).eval()


@contextmanager
def _empty_parameters() -> Iterator[None]:
    register = torch.nn.Module.register_parameter

    def register_empty(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def match_names(
    model: PreTrainedModel, files: TensorFiles, zero_points: bool | None = None
) -> dict[str, StoredTensor | FourBits]:
    """Return how every parameter is stored, by its name in the model; tied parameters under their first name.

    Files may leave out the name of the base model, have it in addition, or use names of earlier versions, as
    transformers' own loader allows.

    Args:
        zero_points: whether matrices in 4 bits have some; None where nothing is in 4 bits.
    """
    wanted = dict(model.named_parameters())
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    names |= {name for name, _ in model.named_buffers()}
    prefix = f"{model.base_model_prefix}."
    stored: dict[str, StoredTensor | FourBits] = {}
    surplus = []
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    renamings = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]
    held = files.tensors if zero_points is None else joined_parts(files.tensors, zero_points)
    for key, tensor in held.items():
        renamed = key
        for rule in renamings:
            renamed, _ = rule.rename_source_key(renamed)
        spellings = (key, prefix + key, key.removeprefix(prefix), renamed, prefix + renamed)
        name = next((spelling for spelling in spellings if spelling in names), None)
        if name in wanted:
            stored[name] = tensor
        elif name is None and not key.endswith(".masked_bias") and not any(rule.search(key) for rule in ignored):
            surplus.append(key)
    further = mtp_tensors(model.config, surplus)
    faults = [f"no {name}" for name in wanted if name not in stored]
    faults += [
        f"{name} of shape {list(stored[name].shape)} where it takes {list(parameter.shape)}"
        for name, parameter in wanted.items()
        if name in stored and stored[name].shape != tuple(parameter.shape)
    ]
    faults += [
        f"{name} stored as {tensor.dtype}"
        for name, tensor in stored.items()
        if isinstance(tensor, StoredTensor) and not tensor.dtype.is_floating_point
    ]
    faults += [f"no place for {key}" for key in surplus if key not in further]
    if faults:
        more = f" and {len(faults) - 2} more" if len(faults) > 2 else ""
        raise ValueError(
            f"found weights that cannot be streamed: {'; '.join(faults[:2])}{more}; expected every tensor of a "
            f"{type(model).__name__} under the name of its parameter"
        )
    return stored


def _put(parameters: Iterable[tuple[torch.nn.Module, str, torch.nn.Parameter | None]]) -> None:
    for owner, leaf, parameter in parameters:
        owner._parameters[leaf] = parameter


def _stored_in(matrix: StoredTensor | FourBits) -> tuple[StoredTensor, ...]:
    return matrix.parts if isinstance(matrix, FourBits) else (matrix,)


def _placed(matrix: StoredTensor | FourBits, dtype: torch.dtype) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Return the dtypes and shapes in which a matrix lies in a buffer of this dtype."""
    if isinstance(matrix, FourBits):
        return [(part.dtype, part.shape) for part in matrix.parts]
    return [(dtype, matrix.shape)]


class StreamedModules:
    """What a model from `without_numbers` needs so that its own forward runs, layer by layer.

    Norms and biases are loaded at once; `load` and the first forward load the rest that stays, `rest` frees it.

    Args:
        host: whether layers are read once, into pinned memory of the host, and not in each pass.
    Attributes:
        stored: how every parameter is stored, by its name in the model.
        resident_bytes: of embedding, head, and what else stays while it runs.
        layer_bytes: of one buffer.
        weights_bytes: of one layer's weights that are computed from 4 bits; 0 without any.
        ring: the layers; None after `rest`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        files: TensorFiles,
        device: torch.device,
        *,
        host: bool = False,
        zero_points: bool | None = None,
    ) -> None:
        self.files, self.device, self.host = files, device, host
        self.stored = match_names(model, files, zero_points)
        prefix, layers = decoder_layers(model)
        self._dtype = model.dtype
        streamed = [{name: matrix for name, matrix in layer.named_parameters() if matrix.ndim > 1} for layer in layers]
        self._matrices = [[self.stored[f"{prefix}.{i}.{name}"] for name in layer] for i, layer in enumerate(streamed)]
        self._layout = [
            places_of([place for matrix in layer for place in _placed(matrix, model.dtype)]) for layer in self._matrices
        ]
        in_layers = {f"{prefix}.{i}.{name}" for i, layer in enumerate(streamed) for name in layer}
        self._kept = [
            name for name, parameter in model.named_parameters() if name not in in_layers and parameter.ndim > 1
        ]
        self.resident_bytes = sum(model.get_parameter(n).numel() * model.dtype.itemsize for n in self._kept)
        self.layer_bytes = max(places[-1].end for places in self._layout)
        self.weights_bytes = max(
            sum(math.prod(matrix.shape) * model.dtype.itemsize for matrix in layer if isinstance(matrix, FourBits))
            for layer in self._matrices
        )
        small = [name for name, parameter in model.named_parameters() if parameter.ndim <= 1]
        self._fill(model, small)
        for buffer_owner in model.modules():
            for name, buffer in buffer_owner._buffers.items():
                if buffer is not None:
                    buffer_owner._buffers[name] = buffer.to(device)
        self.ring: LayerRing | None = None
        self._pass: Generator[torch.Tensor, None, None] | None = None
        self._views: dict[tuple[int, tuple[Place, ...]], list[torch.nn.Parameter]] = {}
        self._matrices_at_rest: list[tuple[torch.nn.Module, str, torch.nn.Parameter | None]] = []
        self._computed: list[tuple[torch.nn.Module, str, torch.nn.Parameter | None]] = []  # those that are in 4 bits
        model.register_forward_pre_hook(self._begin)
        for index, layer in enumerate(layers):
            names = [name.rpartition(".") for name in streamed[index]]
            owners = [(layer.get_submodule(owner), leaf) for owner, _, leaf in names]
            at_rest = [(owner, leaf, owner._parameters[leaf]) for owner, leaf in owners]
            computed = [
                place
                for place, matrix in zip(at_rest, self._matrices[index], strict=True)
                if isinstance(matrix, FourBits)
            ]
            self._matrices_at_rest += at_rest
            self._computed += computed
            layer.register_forward_pre_hook(self._pointing(index, owners))
            if computed:
                layer.register_forward_hook(lambda *_, places=computed: _put(places))
        layers[-1].register_forward_hook(self._finish)

    def load(self, model: PreTrainedModel) -> None:
        """Load what must be in memory while the model's own forward runs."""
        if self.ring is None:
            self._empty = {name: model.get_parameter(name) for name in self._kept}
            self._fill(model, self._kept)
            stored = [[part for matrix in layer for part in _stored_in(matrix)] for layer in self._matrices]
            source = TensorSource(self.files, stored, self._layout, self.device)
            self.ring = LayerRing(HostSource(source) if self.host else source, slots=SLOTS)

    def rest(self, model: PreTrainedModel) -> None:
        if self.ring is not None:
            self.ring.close()
            self.ring, self._pass, self._views = None, None, {}
            self._replace(model, self._empty)
            _put(self._matrices_at_rest)  # else the last layers would keep their buffers

    def check_weights(self, model: PreTrainedModel) -> None:
        """Read every weight once, also those that stream, and refuse one that is not finite in the model's dtype."""
        for name in self.stored:
            self._read(model, name)

    def _fill(self, model: PreTrainedModel, names: list[str]) -> None:
        filled = {}
        for name in names:
            weights = self._read(model, name).to(self.device)
            filled[name] = torch.nn.Parameter(weights, requires_grad=False)
        self._replace(model, filled)

    def _read(self, model: PreTrainedModel, name: str) -> torch.Tensor:
        held = self.stored[name]
        weights = read_weights(self.files, held, model.get_parameter(name).dtype)
        if not all(part.isfinite().all() for part in weights.view(-1).split(PIECE)):  # in parts, to save memory
            stored = None if isinstance(held, FourBits) else read_weights(self.files, held, held.dtype)
            raise ValueError(not_finite(name, stored, weights.dtype))
        return weights

    @staticmethod
    def _replace(model: PreTrainedModel, fresh: dict[str, torch.nn.Parameter]) -> None:
        by_old = {id(model.get_parameter(name)): parameter for name, parameter in fresh.items()}
        for module in model.modules():
            for leaf, parameter in module._parameters.items():
                if parameter is not None and id(parameter) in by_old:
                    module._parameters[leaf] = by_old[id(parameter)]

    def _begin(self, model: PreTrainedModel, inputs: tuple) -> None:
        self.load(model)
        if self._pass is not None:  # a pass that ended early
            self._pass.close()
            _put(self._computed)
        assert self.ring is not None, "loaded above"
        self._pass = self.ring.layers()

    def _pointing(self, index: int, owners: list[tuple[torch.nn.Module, str]]) -> Callable:
        places, matrices = self._layout[index], self._matrices[index]

        def point(layer: torch.nn.Module, inputs: tuple) -> None:
            assert self._pass is not None, "the model begins before its layers"
            buffer = next(self._pass)
            key = (buffer.data_ptr(), places)
            if key not in self._views:
                self._views[key] = [torch.nn.Parameter(place.of(buffer), requires_grad=False) for place in places]
            views = iter(self._views[key])
            for (owner, leaf), matrix in zip(owners, matrices, strict=True):
                parts = [next(views) for _ in _stored_in(matrix)]
                if isinstance(matrix, FourBits):
                    weights = weights_of(parts, self._dtype)
                    owner._parameters[leaf] = torch.nn.Parameter(weights, requires_grad=False)
                else:
                    owner._parameters[leaf] = parts[0]

        return point

    def _finish(self, layer: torch.nn.Module, inputs: tuple, output: object) -> None:
        assert self._pass is not None, "the model begins before its layers"
        next(self._pass, None)  # the last buffer may be filled for the next pass
        self._pass = None


class StreamedBackend(TransformersBackend):
    """Runs any causal model of transformers whose layers stream (`protocol.Backend`)."""

    def __init__(self, model: PreTrainedModel, streamed: StreamedModules, tier: str) -> None:
        super().__init__(model)
        self.streamed, self._tier = streamed, tier

    @property
    def description(self) -> str:
        return f"transformers, layers streamed from {self._tier}"

    @property
    def ring(self) -> LayerRing | None:
        return self.streamed.ring

    def open(self, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> StreamedSession:
        self.streamed.load(self.model)
        return StreamedSession(self, capacity, vocab_size, states)


class StreamedSession(TransformersSession):
    def __init__(self, passes: StreamedBackend, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> None:
        super().__init__(passes, capacity, vocab_size, states)
        assert passes.ring is not None, "`open` loads it"
        self._ring, self.any_slot = passes.ring, False  # what streams in cannot be replayed

    @property
    def read_wait_sec(self) -> float:  # type: ignore[override]
        return self._ring.wait_sec
