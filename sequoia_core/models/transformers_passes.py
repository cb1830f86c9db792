"""Passes through a Hugging Face model's own forward, with explicit positions and a 4-D mask: any causal model.

Shapes: q = tokens in one pass, V = vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .tree_cache import CacheSession

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TransformersBackend:
    """Runs any causal model of transformers.

    Raises:
        ValueError: for layers that cannot attend along a tree; the message lacks the model's name.
    """

    description = "transformers"

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.layers = int(config.num_hidden_layers)
        kinds = set(getattr(config, "layer_types", None) or [])
        unknown = kinds - {"full_attention", "sliding_attention"}
        if unknown:
            raise ValueError(
                f"found layers of kind {', '.join(sorted(unknown))}, expected full or sliding-window attention "
                "(a tree needs a mask over cached tokens)"
            )
        self.window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        self.mixed = self.window is not None and len(kinds) == 2  # such models take one mask per kind of layer
        self.windowed = self.window is not None and "full_attention" not in kinds

    def open(self, capacity: int, vocab_size: int) -> TransformersSession:
        return TransformersSession(self, capacity, vocab_size)


class TransformersSession(CacheSession):
    """One sequence in a model of transformers."""

    def __init__(self, passes: TransformersBackend, capacity: int, vocab_size: int) -> None:
        model = passes.model
        super().__init__(passes.layers, capacity, device=model.device, dtype=model.dtype, vocab_size=vocab_size)
        self.passes, self.any_slot = passes, passes.window is None

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, keep: int) -> torch.Tensor:
        passes = self.passes
        mask: torch.Tensor | dict[str, torch.Tensor]
        if passes.mixed:
            mask = {"full_attention": self.mask(tree_mask), "sliding_attention": self.mask(tree_mask, passes.window)}
        else:
            mask = self.mask(tree_mask, passes.window if passes.windowed else None)
        logits = passes.model(
            input_ids=ids[None].to(self.device), position_ids=positions[None].to(self.device), attention_mask=mask,
            past_key_values=self.cache, use_cache=True, logits_to_keep=keep,
        ).logits  # fmt: skip
        return logits[0, -keep:]
