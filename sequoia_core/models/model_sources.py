"""Model sources: the files behind a model's name, inspected before weights are read. Does not import torch.

Optional packages provide functions with the arguments of `claim` as "model_sources". A name that none of them claims is
a folder or a hub id (see `folders`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..files.dtypes import DefaultDtype
from ..files.extras import provided
from .pair_spec import PairSpec

if TYPE_CHECKING:
    import torch

    from .protocol import LanguageModel, Tokenizer


class LoadRequest(NamedTuple):
    """How to load a model.

    Attributes:
        spec: the pair that the model belongs to.
        target: the loaded target of a draft; None for a target.
        draft_bytes: memory that the target's draft will need.
        progress: called with the fraction of the target that has been read, and a message.
    """

    spec: PairSpec
    device: torch.device
    dtype: torch.dtype
    target: LanguageModel | None = None
    draft_bytes: int = 0
    progress: Callable[[float, str], None] | None = None


class ModelFiles(ABC):
    """The files of one model before its weights are read.

    Attributes:
        name: the model's name as given by the user.
    """

    def __init__(self, name: str | os.PathLike) -> None:
        self.name = name

    def inspect(self) -> None:  # noqa: B027
        """Read settings and headers; raise ValueError for a model that cannot be loaded."""

    def fixed_dtype(self) -> DefaultDtype | None:
        """Return the dtype if the file format dictates it, otherwise None.

        A format that dictates the dtype also comes with a converted copy of the tokenizer.
        """
        return None

    @property
    @abstractmethod
    def context(self) -> int:
        """The maximum number of positions."""

    @property
    @abstractmethod
    def size(self) -> str:
        """The size of the weights, for display."""

    @property
    def rows(self) -> int | None:
        """The number of logits; None if only the tokenizer determines it."""
        return None

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer; None for a draft that reads its target's tokens."""
        return None

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Return the size of the weights in bytes, once loaded in a dtype; 0 if unknown."""
        return 0

    def resident_bytes(self, dtype: torch.dtype) -> int:
        """Return the memory that the loaded weights take, in bytes; 0 for memory-mapped weights."""
        return 0

    @abstractmethod
    def load(self, request: LoadRequest) -> LanguageModel:
        """Read the weights and return the model."""


def claim(
    name: str | os.PathLike,
    spec: PairSpec | None = None,
    device: torch.device | None = None,
    target: ModelFiles | None = None,
) -> ModelFiles | None:
    """Return the files that an optional package claims for a name; None for a folder or a hub id.

    Args:
        spec, device: the pair's specification and device; passed only for a target.
        target: the target's files; passed only for a draft.
    """
    claims = (source(name, spec, device, target) for source in provided("model_sources"))
    return next((files for files in claims if files is not None), None)
