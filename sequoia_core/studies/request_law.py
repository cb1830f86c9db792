"""Has transformers' `generate` follow a request and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..decoding.sampling import SamplingConfig


def request_config(sampling: SamplingConfig, **options: Any) -> GenerationConfig:
    """Return the settings of a request to `generate`, with no end of text; `options` are further fields."""
    config = GenerationConfig(do_sample=not sampling.greedy, pad_token_id=0, **options)
    if config.do_sample:
        temperature = max(sampling.temperature, 1e-15)  # the draft is divided by it twice, and its square must not be 0
        config.temperature, config.top_p, config.top_k = temperature, sampling.top_p, sampling.top_k
    return config


@contextmanager
def only_the_request(model: PreTrainedModel, vocab_size: int, own: GenerationConfig | None = None) -> Iterator[None]:
    """Put aside meanwhile what a model brings itself: its settings for generation, and its padded rows of logits.

    `generate` fills what a request leaves open, an end of text too, from the model's own settings. It takes two models
    for ones of different tokenizers where their rows differ in number.

    Args:
        vocab_size: V, how many of the first logits stand for real tokens.
        own: settings to give it instead, such as an assistant's.
    """

    def cut(module, arguments, output):
        output.logits = output.logits[..., :vocab_size]
        return output

    config, shipped = model.config.get_text_config(), model.generation_config
    with ExitStack() as undo:
        undo.callback(setattr, config, "vocab_size", config.vocab_size)
        undo.callback(setattr, model, "generation_config", shipped)
        config.vocab_size = vocab_size
        model.generation_config = own or GenerationConfig()
        undo.callback(model.register_forward_hook(cut).remove)
        yield
