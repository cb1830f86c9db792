"""Finds and loads draft heads: an EAGLE-3 head in its own folder, or the MTP layers in the target's files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sequoia_core.files.model_names import MTP, model_name
from sequoia_core.models.folders import Folder
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.model_files import locate
from sequoia_core.models.model_sources import LoadRequest, ModelFiles

from .head_files import HeadFiles, find_head, read_head
from .mtp import MtpFiles, find_mtp, read_mtp
from .session import HeadModel

if TYPE_CHECKING:
    import torch


class DraftHeadFiles(ModelFiles):
    """A draft head whose weights have not been read."""

    def __init__(self, name: str | os.PathLike, files: HeadFiles | MtpFiles) -> None:
        super().__init__(MTP if name == MTP else model_name(files.source.name))
        self._files = files

    @property
    def context(self) -> int:
        return self._files.settings.context

    @property
    def size(self) -> str:
        return f"{self._files.size / 1e6:,.0f} MB"

    def resident_bytes(self, dtype: torch.dtype) -> int:
        """Return twice the size of the weights and the target's embedding, since compiled passes copy them to tiles."""
        table = self._files.settings.vocab * self._files.settings.hidden
        return 2 * (self._files.size // 2 + table // 2) * dtype.itemsize

    def load(self, request: LoadRequest) -> HeadModel:
        files = self._files
        target = request.target
        assert isinstance(target, HuggingFaceModel), "`find_draft_head` rejects GGUF targets"
        target.load_embeddings()
        head = read_mtp(files, target.model) if isinstance(files, MtpFiles) else read_head(files, target.model)
        target.release_buffers()
        return HeadModel(head, str(self.name), target)


def find_draft_head(name: str | os.PathLike, target: ModelFiles) -> DraftHeadFiles | None:
    """Return the draft head that a name refers to; None for a standalone model."""
    files: HeadFiles | MtpFiles | None = None
    if name != MTP:
        files = find_head(locate(name))
        if files is None:
            return None
    if not isinstance(target, Folder):
        raise ValueError(
            f"{name}: found a draft head for a GGUF file, expected a folder as its target: llama.cpp does not return "
            "the hidden states that a head reads"
        )
    return DraftHeadFiles(name, files or find_mtp(target.source, target.plan))
