"""The fused Llama forward against the model's own, in both dtypes, and which models it takes."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import TorchLlama
from sequoia_core.models.transformers_passes import TransformersBackend
from tests.core.models.offload.test_offloading import logits

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip


def llama(**changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})).eval()


def both(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of trees after a prompt, by the model's own modules and by the fused path."""
    twin = copy.deepcopy(model)
    own = HuggingFaceModel(twin, "own", backend=TransformersBackend(twin))
    fused = HuggingFaceModel(model, "fused")
    assert isinstance(fused._backend, TorchLlama)
    return logits(own), logits(fused)


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": 16},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": LLAMA3},
    ],
)
def test_it_computes_what_the_model_computes(changes):
    own, fused = both(llama(**changes))
    torch.testing.assert_close(fused, own, atol=2e-6, rtol=1e-5)


class Adapted(torch.nn.Linear):
    """Stands for an adapter around a layer."""


def test_adapted_layers_keep_the_models_own_forward():
    model = llama()
    assert TorchLlama.supports(model)
    model.model.layers[1].self_attn.o_proj = Adapted(32, 32, bias=False)
    assert not TorchLlama.supports(model)


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"hidden_act": "gelu"}])
def test_other_models_keep_their_own_forward(changes):
    assert not TorchLlama.supports(llama(**changes))
