"""A Hugging Face model as the engine sees it, and the choice of what runs its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..files.json_models import naming
from ..native import linear
from ..native.llama_x86 import CompiledLlama
from .llama_torch import TorchLlama
from .protocol import Backend, LanguageModel, Session, Tokenizer, dtype_name
from .transformers_passes import TransformersBackend, is_spread

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def choose_backend(model: PreTrainedModel) -> Backend:
    """Return the fastest way of running a model that there is here."""
    backend = TransformersBackend(model)
    if is_spread(model):
        return backend
    if CompiledLlama.supports(model):
        return CompiledLlama(model)
    linear.compile_layers(model)
    return TorchLlama(model) if TorchLlama.supports(model) else backend


class HuggingFaceModel(LanguageModel):
    """Any `AutoModelForCausalLM` (see `protocol.LanguageModel` for the attributes).

    Args:
        vocab_size: V, how many of the model's first logits stand for real tokens; None takes all. Those after them are
            padding: they are cut off before any softmax, so the model's distribution is its own given that the token
            is below V.
        backend: what runs it; None chooses the fastest there is.
        device: where it runs; None is where its weights are.
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
                f"{name}: found a vocabulary of {self.vocab_size}, expected 1 to its {rows} rows of logits"
            )
        self.max_context = context_of(config)
        self.eos_ids = _eos_ids(model, name) if eos_ids is None else eos_ids
        self.device, self.dtype = device or model.device, model.dtype
        self.parameters = sum(p.numel() for p in model.parameters())
        with naming(name):
            self._backend = backend or choose_backend(model)

    @property
    def backend(self) -> str:
        return self._backend.description

    @property
    def kind(self) -> str:
        return type(self.model).__name__

    @property
    def is_exact(self) -> bool:
        return self.dtype == torch.float32 and getattr(self.model, "hf_quantizer", None) is None

    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of a text [tokens] read by the model's own forward, without cache or mask of ours."""
        return self.model(input_ids=ids[None].to(self.device), use_cache=False).logits[0, :, : self.vocab_size]

    def wake(self) -> None:
        """Have the weights of embedding and output layer be there as the model's own, until it rests."""

    def open(self, capacity: int, states: Sequence[int] = ()) -> Session:
        return self._backend.open(capacity, self.vocab_size, states)


def context_of(config: PretrainedConfig) -> int:
    """Return how many positions a model has for which the rotation of its cached keys stays what it was.

    Two kinds of rotary embedding depend on the length of the text (transformers' `dynamic_rope_update`): "longrope"
    turns to other frequencies beyond the length it was first trained for, "dynamic" beyond its positions. Keys cached
    before that would be rotated by the old ones, so such a context ends there.
    """
    context = getattr(config, "max_position_embeddings", None) or 2048
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one for all layers, or per kind
    short = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    return int(min([context, *(length for length in short if length)]))


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
    """A target model, the draft model that proposes its tokens (None: the target is alone), and their tokenizer.

    Attributes:
        remarks: sentences on what a reader should know of these files.
    """

    target: LanguageModel
    draft: LanguageModel | None
    tokenizer: Tokenizer
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        told = [f"{model.name} ({dtype_name(model)}, {model.backend})" for model in self.models]
        return f"ModelPair({' ← '.join(told)}, {self.target.vocab_size:,} tokens)"

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """The target, and the draft where there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    def ignore_eos(self) -> ModelPair:
        """Return this pair, weights shared, with no end of text."""
        endless = self.draft and self.draft.ignore_eos()
        return ModelPair(self.target.ignore_eos(), endless, self.tokenizer, self.remarks)

    @property
    def vocab_size(self) -> int:
        """V, tokens that its models read and draw."""
        return self.target.vocab_size

    def text(self, tokens: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of what was decoded, without the token that ended it."""
        ended = bool(tokens) and tokens[-1] in self.target.eos_ids
        return self.tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=skip_special_tokens)

    @property
    def in_transformers(self) -> bool:
        """Whether all of its models are transformers' own."""
        return all(isinstance(model, HuggingFaceModel) for model in self.models)

    @property
    def max_context(self) -> int:
        """Positions that all of its models have."""
        return min(model.max_context for model in self.models)
