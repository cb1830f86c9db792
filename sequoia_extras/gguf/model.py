"""GGUF models, loaded and run by llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sequoia_core.models.model_files import explain_load_errors
from sequoia_core.models.protocol import LanguageModel, causal_mask
from sequoia_core.planning.profile import LLAMA_CPP

from .bindings import CACHE_TYPES, NO_TOKEN, Weights, load_llama_cpp
from .header import read_gguf_header
from .session import LlamaCppSession


@dataclass(frozen=True, slots=True)
class LlamaCppOptions:
    """llama.cpp options, set by environment variables with llama.cpp's names.

    These are LLAMA_ARG_N_GPU_LAYERS, LLAMA_ARG_THREADS, LLAMA_ARG_CACHE_TYPE_K and LLAMA_ARG_CACHE_TYPE_V.

    Attributes:
        n_gpu_layers: number of layers on the GPU; None for all layers, if the library supports a GPU.
        threads: number of threads; None for as many as torch uses.
        cache_type_k, cache_type_v: keys of `CACHE_TYPES`.
    """

    n_gpu_layers: int | None = None
    threads: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"

    @classmethod
    def from_environment(cls) -> LlamaCppOptions:
        """Return the options set by environment variables."""
        options: dict[str, Any] = {}
        for field in fields(cls):
            variable = f"LLAMA_ARG_{field.name.upper()}"
            value = os.environ.get(variable)
            if not value:
                continue
            if field.name.startswith("cache_type"):
                is_valid = value in CACHE_TYPES
                expected = f"one of {', '.join(CACHE_TYPES)}"
                options[field.name] = value
            else:
                is_threads = field.name == "threads"
                is_valid = value.lstrip("-").isdecimal() and (not is_threads or 1 <= int(value) <= 1024)
                expected = "a whole number" + is_threads * " from 1 to 1024"
                options[field.name] = int(value) if is_valid else None
            if not is_valid:
                raise ValueError(f"{variable}: found {value[:40]!r}, expected {expected}")
        return cls(**options)


class GGUFModel(LanguageModel):
    """A model in a GGUF file (see `protocol.LanguageModel` for the attributes).

    Logits are float32 but not exact, since keys and values have 16 bits by default. They also depend slightly on the
    number of tokens in a pass, so near-ties may resolve differently in greedy text.

    Args:
        path: the file, or the first part of a split file.
        device: "cpu" to run all layers on the CPU; otherwise the options decide.
    """

    takes_any_positions = False
    # Logits are returned on the CPU.
    device: torch.device = torch.device("cpu")

    def __init__(self, path: Path, name: str, *, device: str | None = None) -> None:
        self.name = name
        self.options = LlamaCppOptions.from_environment()
        with explain_load_errors(name, "a GGUF file that can be read"):
            self.header = read_gguf_header(path)
        self._library = library = load_llama_cpp()
        layers = -1 if self.options.n_gpu_layers is None else self.options.n_gpu_layers
        self.weights = Weights(library, path, name, n_gpu_layers=0 if device == "cpu" else layers)
        address = self.weights.address
        self._check_memory()
        vocab = library.c.llama_model_get_vocab(address)
        self.vocab_size = int(library.c.llama_vocab_n_tokens(vocab))
        self._logits_per_row = self.vocab_size
        self.max_context = int(library.c.llama_model_n_ctx_train(address))
        eos_ids = {token for token in range(self.vocab_size) if library.c.llama_vocab_is_eog(vocab, token)}
        if library.defined_token(vocab, self.header.fields, "eos") == NO_TOKEN:
            eos_ids.discard(library.c.llama_vocab_eos(vocab))
        self.eos_ids = frozenset(eos_ids)
        self.parameters = int(library.c.llama_model_n_params(address))
        self.dtype: str = self.header.dtype

    def _check_memory(self) -> None:
        c = self._library.c
        checks = {
            "recurrent": c.llama_model_is_recurrent,
            "hybrid": c.llama_model_is_hybrid,
            "diffusion": c.llama_model_is_diffusion,
            "encoder": c.llama_model_has_encoder,
        }
        unsupported = [name for name, check in checks.items() if check(self.weights.address)]
        if unsupported:
            raise ValueError(
                f"{self.name}: found {self.header.architecture} ({' and '.join(unsupported)}), expected a model that "
                "uses only attention: other kinds of memory cannot branch into a tree"
            )

    @property
    def backend(self) -> str:
        return LLAMA_CPP

    @property
    def architecture(self) -> str:
        return self.header.architecture

    def open(self, capacity: int, state_indices: Sequence[int] = ()) -> LlamaCppSession:
        assert not state_indices, "loading rejects draft heads for a GGUF file"
        return LlamaCppSession(
            self._library,
            partial(self._make_context, capacity),
            capacity,
            logits_per_row=self._logits_per_row,
            vocab_size=self.vocab_size,
            weights=self.weights,
            threads=self.options.threads,
        )

    def _make_context(self, capacity: int, sequences: int) -> int:
        c = self._library.c
        params = c.llama_context_default_params()
        # One pass may fill the context, and llama.cpp aborts on a batch that is longer than n_batch.
        params.n_ctx = params.n_batch = capacity
        params.n_seq_max = min(sequences, capacity)
        params.type_k = CACHE_TYPES[self.options.cache_type_k]
        params.type_v = CACHE_TYPES[self.options.cache_type_v]
        # This lets sequences share common tokens.
        params.kv_unified = True
        # This retains tokens outside a sliding window, to which a commit may return.
        params.swa_full = True
        context = c.llama_init_from_model(self.weights.address, params)
        if not context:
            raise ValueError(
                f"{self.name}: found too little memory for a context of {capacity:,} tokens "
                f"({self._library.pop_error()}), expected enough for its keys and values"
            )
        return context

    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        count = len(ids)
        # The logits are in the session's buffer, so they are cloned before it is freed.
        session = self.open(count)
        return session.forward(ids, torch.arange(count), causal_mask(count), keep=count).clone()
