"""Which two models make a pair and how they are loaded: what app, sweeps, commands and loading hand on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..files.model_names import DEMO_PAIR, MTP, NO_DRAFT, model_name

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PairSpec:
    """What `load_pair` loads.

    Attributes:
        target, draft: local folders, hub ids or GGUF files; None and None for the demo pair. The draft `NO_DRAFT` is
            none, and the target then the demo's for None; a folder of that name is "./none". `~` is the home folder. A
            draft may be an EAGLE-3 head for a target that is no GGUF file, or `MTP`: the layers in the target's own.
        device: such as "cpu" or "cuda"; None takes CUDA where there is one; "auto" has accelerate spread the target
            over several GPUs, then memory and disk. A GGUF file goes to whatever llama.cpp was built for, or with "cpu"
            to the CPU.
        dtype: "float32", "bfloat16" or "float16"; None for the rule of `default_dtype`. GGUF files have their own.
        offload: "disk" or "host" streams the target's decoder layers from there in every pass, for targets larger than
            memory; None keeps them in memory.
        tokenizer: folder or hub id whose tokenizer is used; None for the target's, or that of a draft folder beside a
            GGUF target. llama.cpp's files hold a copy that may split text otherwise than the original does.
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
        """Where its models are: the target, and the draft unless it is alone; those of the demo pair for None."""
        target = DEMO_PAIR / "target" if self.target is None else self.target
        draft = DEMO_PAIR / "draft" if self.draft is None else self.draft
        return (target,) if self.is_alone else (target, draft)

    @property
    def names(self) -> tuple[str, str]:
        """The names of its models in records; `NO_DRAFT` where it has no draft."""
        target, *draft = map(model_name, self.sources)
        return target, draft[0] if draft else NO_DRAFT

    @property
    def is_demo(self) -> bool:
        """Whether all of its models are among those that ship."""
        return all(name.startswith("demo ") for name in map(model_name, self.sources))

    @property
    def named(self) -> list[str | os.PathLike]:
        """The models that it names, which are not the default ones."""
        return [name for name in (self.target, self.draft) if name not in (None, NO_DRAFT, MTP)]
