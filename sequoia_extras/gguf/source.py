"""GGUF files as a source of models: names that end in .gguf. torch is imported only when a model is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sequoia_core.files.dtypes import DefaultDtype
from sequoia_core.files.model_names import model_name
from sequoia_core.models.model_sources import LoadRequest, ModelFiles
from sequoia_core.models.pair_spec import PairSpec

from .header import GGUFHeader, gguf_path, is_gguf, read_gguf_header

if TYPE_CHECKING:
    import torch

    from .model import GGUFModel
    from .tokenizer import GGUFTokenizer

ENCODERS = {"t5": "an encoder-decoder", "t5encoder": "an encoder", "bert": "an encoder"}


class GGUFFile(ModelFiles):
    """A GGUF file, or the first part of a split file."""

    _model: GGUFModel | None = None

    @property
    def header(self) -> GGUFHeader:
        return read_gguf_header(gguf_path(self.name))

    def inspect(self) -> None:
        from sequoia_core.models.architectures import CAUSAL_MODEL, check_head
        from sequoia_core.models.model_files import explain_load_errors

        name = str(self.name)
        with explain_load_errors(name, "a GGUF file that can be read"):
            architecture = self.header.architecture
        check_head(name, {"model_type": architecture}, ())
        for part in architecture.split("-"):
            if part in ENCODERS:
                raise ValueError(f"{name}: found {ENCODERS[part]} ({architecture[:60]}), expected {CAUSAL_MODEL}")

    def fixed_dtype(self) -> DefaultDtype:
        try:
            return DefaultDtype(self.header.dtype, "as stored in the file, by llama.cpp")
        # The error is reported when the model is loaded.
        except (OSError, ValueError):
            return DefaultDtype("GGUF", "the file cannot be read")

    @property
    def context(self) -> int:
        return int(self.header.architecture_field("context_length"))

    @property
    def size(self) -> str:
        return f"{self.header.file_bytes / 1e6:,.0f} MB"

    def weight_bytes(self, dtype: torch.dtype) -> int:
        return self.header.file_bytes

    def tokenizer(self) -> GGUFTokenizer:
        """Return llama.cpp's tokenizer, which shares the vocabulary of the loaded model if there is one."""
        from .tokenizer import GGUFTokenizer

        weights = None if self._model is None else self._model.weights
        return GGUFTokenizer(gguf_path(self.name), str(self.name), weights)

    def load(self, request: LoadRequest) -> GGUFModel:
        from .model import GGUFModel

        self._model = GGUFModel(gguf_path(self.name), model_name(self.name), device=request.spec.device)
        return self._model


def claim_gguf_file(
    name: str | os.PathLike, spec: PairSpec | None, _device: torch.device | None, _target: ModelFiles | None
) -> GGUFFile | None:
    """Claim a GGUF file (see `claim` for the arguments)."""
    if not is_gguf(name):
        return None
    if spec is not None and spec.offload is not None:
        raise ValueError(
            f"offload: found {spec.offload!r} for a GGUF file, expected none: llama.cpp maps files into memory itself"
        )
    return GGUFFile(name)
