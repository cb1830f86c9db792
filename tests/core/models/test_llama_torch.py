"""The fused Llama pass against the model's `forward`, and the models that it supports."""

import copy

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import TorchLlama
from sequoia_core.models.protocol import prefill
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.trees.plain import k_ary_tree

PROMPT = [2 + place % 60 for place in range(20)]
TREE = k_ary_tree(2, 3)
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def llama(family: str = "Llama", **changes) -> PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, weight in model.named_parameters():  # the initial ones are all 0 or all 1
        if name.endswith(("proj.bias", "q_norm.weight", "k_norm.weight")):
            torch.nn.init.normal_(weight, mean=0.5, std=0.5)
    return model


def logits(model, tree=TREE) -> torch.Tensor:
    """Return the logits of a tree after a prompt, of another child of its root, and of a token after a path."""
    session = model.open(len(PROMPT) + tree.size + 8)
    prefill(session, PROMPT)
    start = len(PROMPT)
    ids = torch.arange(tree.size) % 60
    tree_mask = torch.zeros(tree.size, tree.size).masked_fill_(~torch.from_numpy(tree.ancestor_mask), -torch.inf)
    found = [session.forward(ids, start + torch.from_numpy(tree.depths).long(), tree_mask, keep=tree.size).clone()]
    alone = torch.full((1, tree.size + 1), -torch.inf)
    alone[0, [0, -1]] = 0.0
    found.append(session.forward(ids[:1], torch.tensor([start + 1]), alone, keep=1).clone())
    path = [0, int(tree.children(0)[-1])]
    session.commit(start, path)
    found.append(session.forward(ids[:1], torch.tensor([session.length]), torch.zeros(1, 1), keep=1).clone())
    return torch.cat(found)


def both(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of the model's `forward` and of the fused pass."""
    twin = copy.deepcopy(model)
    own = HuggingFaceModel(twin, "own", backend=TransformersBackend(twin))
    fused = HuggingFaceModel(model, "fused")
    assert isinstance(fused._backend, TorchLlama)
    return logits(own), logits(fused)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": 16},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": LLAMA3},
        {"family": "Mistral", "sliding_window": None},
        {"family": "Qwen2"},
        {"family": "Qwen3", "head_dim": 16},
    ],
)
@pytest.mark.sample(7)
def test_fused_logits_match_the_model(changes):
    own, fused = both(llama(**changes))
    torch.testing.assert_close(fused, own, atol=2e-6, rtol=1e-5)


class Adapted(torch.nn.Linear):
    """A stand-in for an adapted layer."""


def test_adapted_layers_are_not_supported():
    model = llama()
    assert TorchLlama.supports(model)
    model.model.layers[1].self_attn.o_proj = Adapted(32, 32, bias=False)
    assert not TorchLlama.supports(model)


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"hidden_act": "gelu"}])
def test_other_models_are_not_supported(changes):
    assert not TorchLlama.supports(llama(**changes))
