"""The implementation of linear layers: PyTorch's, or one provided by an optional package."""

from typing import Any

import torch

from ..files.extras import provided


class PlainLayers:
    """Linear layers in PyTorch."""

    @staticmethod
    def compile_layers(model: torch.nn.Module) -> None:
        """Replace a model's linear layers with compiled ones, if available."""

    @staticmethod
    def description(model: torch.nn.Module) -> str:
        """Describe a model's compiled linear layers; empty if there are none."""
        return ""

    @staticmethod
    def logits_dtype(model: Any) -> torch.dtype:
        """Return the dtype of a transformers model's logits."""
        return model.dtype


def linear_layers() -> Any:
    """Return the first implementation provided by an optional package, otherwise `PlainLayers`."""
    return next(iter(provided("linear_layers")), PlainLayers)
