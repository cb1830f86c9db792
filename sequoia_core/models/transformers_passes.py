"""Forward passes of any causal Hugging Face model, with explicit positions and a 4-D mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch

from .linear_layers import linear_layers
from .tree_cache import CacheSession

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TransformersBackend:
    """Runs any causal transformers model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.layers = int(config.num_hidden_layers)
        layer_types = set(getattr(config, "layer_types", None) or [])
        unknown = layer_types - {"full_attention", "sliding_attention"}
        if unknown:
            raise ValueError(
                f"found layers of type {', '.join(sorted(unknown))}, expected full or sliding-window attention "
                "(a tree needs a mask over cached tokens)"
            )
        window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        # The windows of layers with full attention and of those with sliding windows; each needs its own mask.
        self.windows: tuple[int | None, ...] = (None,)
        if window is not None and len(layer_types) == 2:
            self.windows = (None, window)
        elif "full_attention" not in layer_types:
            self.windows = (window,)
        self.shares = layers_by_device(model) if is_spread(model) else None

    @property
    def description(self) -> str:
        return ", ".join(filter(None, ["transformers", linear_layers().description(self.model)]))

    @property
    def device(self) -> torch.device:
        """The device of the inputs; weights of streamed or spread layers may be elsewhere."""
        hook = getattr(self.model, "_hf_hook", None)
        return torch.device(getattr(hook, "execution_device", None) or self.model.device)

    def open(self, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> TransformersSession:
        return TransformersSession(self, capacity, vocab_size, state_indices)


def decoder_layers(model: PreTrainedModel) -> tuple[str, torch.nn.ModuleList]:
    """Return the name and the `ModuleList` of a model's decoder layers."""
    count = int(model.config.get_text_config().num_hidden_layers)
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    if not lists:
        raise ValueError(f"found a {type(model).__name__} without a list of its {count} layers, expected a ModuleList")
    return max(lists, key=lambda named: sum(parameter.numel() for parameter in named[1].parameters()))


def is_spread(model: torch.nn.Module) -> bool:
    """Return whether accelerate runs a model's layers on several devices."""
    return len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1


def layers_by_device(model: PreTrainedModel) -> Counter[torch.device]:
    """Return the number of a spread model's decoder layers on each device."""
    counts: Counter[torch.device] = Counter()
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int):  # the attention module of a layer
            hooks = [hook for part in module.modules() if (hook := getattr(part, "_hf_hook", None)) is not None]
            devices = [device for hook in hooks if (device := getattr(hook, "execution_device", None)) is not None]
            weights = next(module.parameters()).device
            counts[torch.device(devices[0] if devices else weights)] += 1
    return counts


class TransformersSession(CacheSession):
    def __init__(
        self, passes: TransformersBackend, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()
    ) -> None:
        model = passes.model
        super().__init__(
            passes.layers,
            capacity,
            device=passes.device,
            dtype=model.dtype,
            logits_dtype=linear_layers().logits_dtype(model),
            vocab_size=vocab_size,
            shares=passes.shares,
            state_indices=state_indices,
        )
        self.passes = passes
        self.any_slot = passes.shares is None
        self.windows = passes.windows

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, keep: int) -> torch.Tensor:
        passes = self.passes
        mask, *others = (self.mask(tree_mask, window) for window in self.windows)
        with record_states(passes.model, self.state_indices) as recorded:
            logits = passes.model(
                input_ids=ids[None].to(self.device),
                position_ids=positions[None].to(self.device),
                attention_mask={"full_attention": mask, "sliding_attention": others[0]} if others else mask,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=keep,
            ).logits
        if self.state_indices:
            self.states = torch.stack([recorded[number][0].to(self.device) for number in self.state_indices], 1)
        return logits[0, -keep:]


@contextmanager
def record_states(model: PreTrainedModel, numbers: Collection[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Record hidden states during a model's forward pass, keyed by index, each [1, q, H]."""
    recorded: dict[int, torch.Tensor] = {}
    layers = decoder_layers(model)[1] if numbers else torch.nn.ModuleList()

    def recorder(number: int) -> Callable[..., None]:
        def record(layer: torch.nn.Module, inputs: tuple, keywords: dict, output: object = None) -> None:
            states = keywords.get("hidden_states", inputs[0] if inputs else None) if number == 0 else output
            recorded[number] = cast("torch.Tensor", states[0] if isinstance(states, tuple) else states)

        return record

    hooks = [
        layers[number - 1].register_forward_hook(recorder(number), with_kwargs=True)
        if number
        else layers[0].register_forward_pre_hook(recorder(0), with_kwargs=True)
        for number in set(numbers)
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
