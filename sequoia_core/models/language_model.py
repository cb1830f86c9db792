"""Hugging Face models that implement the engine's interface, and the choice of their backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..files.extras import provided
from ..files.json_models import prefix_errors
from .linear_layers import linear_layers
from .llama_torch import TorchLlama
from .protocol import Backend, LanguageModel, Session, Tokenizer, dtype_name
from .transformers_passes import TransformersBackend, is_spread

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def choose_backend(model: PreTrainedModel) -> Backend:
    """Return the fastest available backend for a model."""
    backend = TransformersBackend(model)
    if is_spread(model):
        return backend
    for cls in provided("backends"):
        if cls.supports(model):
            return cls(model)
    linear_layers().compile_layers(model)
    return TorchLlama(model) if TorchLlama.supports(model) else backend


class HuggingFaceModel(LanguageModel):
    """Any `AutoModelForCausalLM` (see `protocol.LanguageModel` for the attributes).

    Args:
        vocab_size: V, the number of leading logits that stand for real tokens; None for all. The rest are padding and
            are dropped before any softmax, which conditions the model's distribution on tokens below V.
        backend: the backend that runs the passes; None for the fastest.
        device: device of the passes; None for the weights' device.
    """

    dtype: torch.dtype

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        eos_ids: frozenset[int] | None = None,
        vocab_size: int | None = None,
        *,
        backend: Backend | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.model = model.eval()
        self.name = name
        config = model.config.get_text_config()
        rows = int(config.vocab_size)
        self.vocab_size = rows if vocab_size is None else vocab_size
        if not 1 <= self.vocab_size <= rows:
            raise ValueError(
                f"{name}: found a vocabulary of {self.vocab_size}, expected 1 to {rows}, the number of logits"
            )
        self.max_context = usable_context(config)
        self.eos_ids = _eos_ids(model, name) if eos_ids is None else eos_ids
        self.device = device or model.device
        self.dtype = model.dtype
        self.parameters = sum(p.numel() for p in model.parameters())
        with prefix_errors(name):
            self._backend = backend or choose_backend(model)

    @property
    def backend(self) -> str:
        return self._backend.description

    @property
    def architecture(self) -> str:
        return type(self.model).__name__

    @property
    def is_exact(self) -> bool:
        return self.dtype == torch.float32 and getattr(self.model, "hf_quantizer", None) is None

    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits for token ids [tokens] from the model's `forward`, without our cache and mask."""
        return self.model(input_ids=ids[None].to(self.device), use_cache=False).logits[0, :, : self.vocab_size]

    def load_embeddings(self) -> None:
        """Load the embedding and the head as ordinary parameters, to be kept until `release_buffers`."""

    def open(self, capacity: int, state_indices: Sequence[int] = ()) -> Session:
        return self._backend.open(capacity, self.vocab_size, state_indices)


def usable_context(config: PretrainedConfig) -> int:
    """Return the number of positions for which the rotation of cached keys remains valid.

    Two types of rotary embedding depend on the text's length (transformers' `dynamic_rope_update`): "longrope" changes
    frequencies beyond the original training length, "dynamic" beyond the maximum positions. Keys cached earlier would
    keep the old rotation, so the usable context ends there.
    """
    context = getattr(config, "max_position_embeddings", None) or 2048
    rope = getattr(config, "rope_parameters", None) or {}
    settings = [rope, *(value for value in rope.values() if isinstance(value, dict))]  # for all layers or by layer type
    lengths = [one.get("original_max_position_embeddings") for one in settings if one.get("rope_type") == "longrope"]
    return int(min([context, *filter(None, lengths)]))


def _eos_ids(model: PreTrainedModel, name: str) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = model.config.get_text_config().eos_token_id
    if ids is None:
        return frozenset()
    listed = ids if isinstance(ids, list | tuple) else [ids]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in listed):
        raise ValueError(f"{name}: eos_token_id: found {str(ids)[:60]!r}, expected a token id or a list of them")
    return frozenset(listed)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ModelPair:
    """A target model, its draft model (or None), and their shared tokenizer.

    Attributes:
        remarks: notes about the files to show to the user.
    """

    target: LanguageModel
    draft: LanguageModel | None
    tokenizer: Tokenizer
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        models = [f"{model.name} ({dtype_name(model)}, {model.backend})" for model in self.models]
        return f"ModelPair({' ← '.join(models)}, {self.target.vocab_size:,} tokens)"

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """The target, and the draft if there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    def ignore_eos(self) -> ModelPair:
        """Return a pair that shares these weights but has no EOS tokens."""
        endless = self.draft and self.draft.ignore_eos()
        return ModelPair(self.target.ignore_eos(), endless, self.tokenizer, self.remarks)

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens that the models read and sample."""
        return self.target.vocab_size

    def text(self, tokens: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of decoded tokens, without a final EOS token."""
        ended = bool(tokens) and tokens[-1] in self.target.eos_ids
        return self.tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=skip_special_tokens)

    @property
    def in_transformers(self) -> bool:
        """Whether all models are transformers models."""
        return all(isinstance(model, HuggingFaceModel) for model in self.models)

    @property
    def max_context(self) -> int:
        """The smallest of the models' maximum context lengths."""
        return min(model.max_context for model in self.models)
