"""Transformers models in a folder or on the hub: the source for every name that no other source claims."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from ..files.extras import has
from ..files.model_names import MTP, model_name
from .checkpoint import COMPRESSED_TENSORS, SPREAD, CheckpointPlan, load_weights, read_plan
from .language_model import HuggingFaceModel, usable_context
from .model_files import Source, locate
from .model_sources import LoadRequest, ModelFiles, claim
from .pair_spec import PairSpec
from .pair_tokenizer import folder_tokenizer
from .protocol import LanguageModel, Tokenizer

if TYPE_CHECKING:
    import torch


class Folder(ModelFiles):
    """A transformers model in a folder or on the hub."""

    source: Source
    plan: CheckpointPlan

    def inspect(self) -> None:
        self.source = locate(self.name)
        self.plan = read_plan(self.source)

    @property
    def context(self) -> int:
        return usable_context(self.plan.config)

    @property
    def size(self) -> str:
        return f"{sum(math.prod(shape) for shape, _ in self.plan.stored.values()) / 1e6:,.0f} million parameters"

    @property
    def rows(self) -> int:
        return self.plan.config.get_text_config().vocab_size

    def tokenizer(self) -> Tokenizer:
        return folder_tokenizer(locate(self.name))

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the size of the dequantized weights in bytes."""
        packed = 8 if self.plan.quantized == COMPRESSED_TENSORS else 1
        stored = self.plan.stored.values()
        weights = sum(math.prod(shape) * (packed if stored_dtype == "I32" else 1) for shape, stored_dtype in stored)
        return weights * dtype.itemsize

    def resident_bytes(self, dtype: torch.dtype) -> int:
        """Return twice the size of the dequantized weights in bytes, since compiled passes also store them in tiles."""
        return 2 * self.weight_bytes(dtype)

    def load(self, request: LoadRequest) -> LanguageModel:
        spread = request.target is None and request.spec.device == SPREAD
        weights = load_weights(self.source, self.plan, request.device, request.dtype, spread=spread)
        return HuggingFaceModel(weights, model_name(self.name))


def find_files(
    name: str | os.PathLike,
    spec: PairSpec | None = None,
    device: torch.device | None = None,
    target: ModelFiles | None = None,
) -> ModelFiles:
    """Return the files that a name refers to, before inspection; takes the arguments of `claim`."""
    _check_packages(name, spec, target)
    return claim(name, spec, device, target) or Folder(name)


def _check_packages(name: str | os.PathLike, spec: PairSpec | None, target: ModelFiles | None) -> None:
    """Raise ValueError for a name that only a missing optional package could claim."""
    if os.fspath(name).lower().endswith(".gguf"):
        needing = f"{name}: a GGUF file"
        package = "gguf"
    elif name == MTP and target is not None:
        needing = f"{name}: a draft head"
        package = "draft_heads"
    elif spec is not None and spec.offload is not None:
        needing = f"offload: {str(spec.offload)[:40]!r}"
        package = "offloading"
    else:
        return
    if has(package):
        return
    raise ValueError(f"{needing} requires the optional package {package}, which is not installed")
