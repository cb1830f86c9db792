"""Fixtures shared by all tests: the demo pair, and tiny random models that need no weights."""

from __future__ import annotations

import pytest
import torch

from sequoia_core.models import HuggingFaceModel, load_pair

torch.set_num_threads(1)  # tiny models lose more to waiting threads than they gain


def tiny_llama(
    seed: int, *, vocab: int = 64, layers: int = 2, context: int = 256, scale: float = 4.0
) -> HuggingFaceModel:
    """Return a random Llama; `scale` sharpens its logits so that argmax is far from a tie."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=context, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale * 10)
    return HuggingFaceModel(model, name=f"tiny-{seed}")


@pytest.fixture(scope="session")
def tiny_target() -> HuggingFaceModel:
    return tiny_llama(1)


@pytest.fixture(scope="session")
def tiny_draft() -> HuggingFaceModel:
    return tiny_llama(2, layers=1)


@pytest.fixture(scope="session")
def demo_pair():
    return load_pair(device="cpu")
