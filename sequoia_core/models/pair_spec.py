"""The specification of a pair: its models and how to load them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..files.model_names import DEMO_PAIR, MTP, NO_DRAFT, model_name

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PairSpec:
    """The models of a pair and how to load them.

    Attributes:
        target, draft: local folders, hub ids or GGUF files; None and None for the demo pair. The draft `NO_DRAFT` means
            no draft, and a target of None is then the demo target; write "./none" for a folder named "none". `~` is the
            home folder. The draft of a target that is not a GGUF file may be a draft head, or `MTP` for the target's
            MTP layers.
        device: a device such as "cpu" or "cuda"; None uses CUDA if available; "auto" lets accelerate spread the target
            over several GPUs, then memory and disk. A GGUF file uses the device that llama.cpp was built for, or the
            CPU for "cpu".
        dtype: "float32", "bfloat16" or "float16"; None for `default_dtype`. The dtype of GGUF files is fixed.
        offload: "disk" or "host" streams the target's decoder layers from there in every pass, for targets larger than
            memory; None loads them into memory.
        tokenizer: folder or hub id of the tokenizer; None for the target's, or for a draft folder's if the target is a
            GGUF file, whose converted tokenizer may split text differently.
    """

    target: str | os.PathLike | None = None
    draft: str | os.PathLike | None = None
    device: str | None = None
    dtype: str | torch.dtype | None = None
    offload: str | None = None
    tokenizer: str | os.PathLike | None = None

    @property
    def is_alone(self) -> bool:
        """Whether the target has no draft."""
        return self.draft == NO_DRAFT

    @property
    def sources(self) -> tuple[str | os.PathLike, ...]:
        """The target, and the draft if there is one, with defaults filled in from the demo pair."""
        target = DEMO_PAIR / "target" if self.target is None else self.target
        draft = DEMO_PAIR / "draft" if self.draft is None else self.draft
        return (target,) if self.is_alone else (target, draft)

    @property
    def names(self) -> tuple[str, str]:
        """The names of the target and the draft in records; `NO_DRAFT` without a draft."""
        target, *draft = map(model_name, self.sources)
        return target, draft[0] if draft else NO_DRAFT

    @property
    def is_demo(self) -> bool:
        """Whether all models of the pair are demo models."""
        return all(name.startswith("demo ") for name in map(model_name, self.sources))

    @property
    def named(self) -> list[str | os.PathLike]:
        """The models that are specified explicitly."""
        return [name for name in (self.target, self.draft) if name not in (None, NO_DRAFT, MTP)]
