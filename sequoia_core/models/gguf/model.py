"""A model in a GGUF file as the engine sees it, loaded and run by llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...files.gguf_header import LLAMA_CPP, GGUFHeader, read_gguf_header
from ...files.model_names import model_source
from ..model_files import explained
from ..protocol import LanguageModel, causal_mask
from .bindings import CACHE_TYPES, NO_TOKEN, Weights, load
from .session import LlamaCppSession


@dataclass(frozen=True, slots=True)
class LlamaCppOptions:
    """How llama.cpp runs a model, by the names of its own environment variables.

    Attributes:
        n_gpu_layers: kept on the GPU; None for all where the library has a GPU (LLAMA_ARG_N_GPU_LAYERS).
        threads: None for as many as torch uses (LLAMA_ARG_THREADS).
        cache_type_k, cache_type_v: of `CACHE_TYPES` (LLAMA_ARG_CACHE_TYPE_K, LLAMA_ARG_CACHE_TYPE_V).
    """

    n_gpu_layers: int | None = None
    threads: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"

    @classmethod
    def from_environment(cls) -> LlamaCppOptions:
        """Return the options that these variables ask for."""
        options: dict[str, Any] = {}
        for field in fields(cls):
            variable = f"LLAMA_ARG_{field.name.upper()}"
            value: Any = os.environ.get(variable)
            if not value:
                continue
            if field.name.startswith("cache_type"):
                good, expected = value in CACHE_TYPES, f"one of {', '.join(CACHE_TYPES)}"
            else:
                good, expected = value.lstrip("-").isdecimal(), "a whole number"
                value = int(value) if good else value
                if good and field.name == "threads":
                    good, expected = 1 <= value <= 1024, "1 to 1024"
            if not good:
                raise ValueError(f"{variable}: found {str(value)[:40]!r}, expected {expected}")
            options[field.name] = value
        return cls(**options)


class GGUFModel(LanguageModel):
    """A model in a GGUF file (see `protocol.LanguageModel` for the attributes).

    Logits come in float32, but depend a little on how many tokens a pass has, so greedy text may take the other one of
    two nearly equal tokens. Never exact: keys and values have 16 bits or fewer.

    Args:
        path: of the file; of its first part where it is split.
        device: "cpu" keeps all layers there.
    """

    takes_any_positions = False
    device: torch.device = torch.device("cpu")  # where logits arrive

    def __init__(self, path: Path, name: str, *, device: str | None = None) -> None:
        self.name, self.options = name, LlamaCppOptions.from_environment()
        with explained(name, "a GGUF file that can be read"):
            self.header: GGUFHeader = read_gguf_header(path)
        self._library = library = load()
        layers = -1 if self.options.n_gpu_layers is None else self.options.n_gpu_layers
        layers = 0 if device == "cpu" else layers
        self.weights = Weights(library, path, name, n_gpu_layers=layers)
        address = self.weights.address
        self._check_memory()
        vocab = library.c.llama_model_get_vocab(address)
        self._rows = self.vocab_size = int(library.c.llama_vocab_n_tokens(vocab))
        self.max_context = int(library.c.llama_model_n_ctx_train(address))
        ends = {t for t in range(self._rows) if library.c.llama_vocab_is_eog(vocab, t)}
        if library.defined_token(vocab, self.header.fields, "eos") == NO_TOKEN:
            ends.discard(library.c.llama_vocab_eos(vocab))
        self.eos_ids = frozenset(ends)
        self.parameters = int(library.c.llama_model_n_params(address))
        self.dtype: str = self.header.dtype

    def _check_memory(self) -> None:
        c, address = self._library.c, self.weights.address
        kinds = {"recurrent": c.llama_model_is_recurrent, "hybrid": c.llama_model_is_hybrid}
        kinds |= {"diffusion": c.llama_model_is_diffusion, "encoder": c.llama_model_has_encoder}
        unsupported = [kind for kind, is_kind in kinds.items() if is_kind(address)]
        if unsupported:
            raise ValueError(
                f"{self.name}: found {self.header.architecture}, {' and '.join(unsupported)}, expected a model with "
                "attention alone: what it keeps of a text cannot branch into a tree"
            )

    @property
    def backend(self) -> str:
        return LLAMA_CPP

    @property
    def kind(self) -> str:
        return self.header.architecture

    def open(self, capacity: int, states: Sequence[int] = ()) -> LlamaCppSession:
        assert not states, "loading refuses a head for a GGUF file"
        make_context = partial(self._context, capacity)
        return LlamaCppSession(
            self._library,
            make_context,
            capacity,
            rows=self._rows,
            vocab_size=self.vocab_size,
            owner=self.weights,
            threads=self.options.threads,
        )

    def _context(self, capacity: int, sequences: int) -> int:
        c, options = self._library.c, self.options
        params = c.llama_context_default_params()
        params.n_ctx = params.n_batch = capacity  # one pass may fill it: llama.cpp ends the process over a longer one
        params.n_seq_max = min(sequences, capacity)
        params.type_k, params.type_v = CACHE_TYPES[options.cache_type_k], CACHE_TYPES[options.cache_type_v]
        params.kv_unified = True  # all sequences in one buffer, so that they can share what they have in common
        params.swa_full = True  # keeps what a sliding window left behind: a tree may go back to it
        context = c.llama_init_from_model(self.weights.address, params)
        if not context:
            raise ValueError(
                f"{self.name}: found no room for a context of {capacity:,} tokens ({self._library.error()}), expected "
                "memory for its keys and values"
            )
        return context

    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        count, session = len(ids), self.open(len(ids))  # held: the logits lie in its buffer
        return session.forward(ids, torch.arange(count), causal_mask(count), keep=count).clone()


def gguf_path(name: str | os.PathLike) -> Path:
    path = Path(model_source(name))
    if not path.is_file():
        raise ValueError(f"{str(name)[:200]}: found no such file, expected a GGUF file on this machine")
    return path
