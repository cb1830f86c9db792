"""The fused Llama forward against the model's own, in both dtypes, and which models it takes."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import TorchLlama
from sequoia_core.models.plain_llama import is_plain_llama
from sequoia_core.models.transformers_passes import TransformersPasses


def llama(**changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    options = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 64,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**options, **changes})).eval()


def both(model: LlamaForCausalLM, masked: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a tree-shaped forward after a prefix, by the model's own modules and by the fused path."""
    own, fused = HuggingFaceModel(copy.deepcopy(model), "own"), HuggingFaceModel(model, "fused")
    assert isinstance(fused._passes, TorchLlama)
    own._passes = TransformersPasses(own.model)
    generator = torch.Generator().manual_seed(1)
    prefix, tree = torch.randint(64, (9,), generator=generator), torch.randint(64, (4,), generator=generator)
    tail = torch.full((4, 4), -torch.inf)
    for node, ancestors in enumerate(([0], [0, 1], [0, 2], [0, 2, 3])):
        tail[node, ancestors] = 0.0
    found = []
    for wrapped in (own, fused):
        cache = wrapped.open(16)
        causal = torch.full((9, 9), -torch.inf).triu(1)
        first = cache.append(prefix, torch.arange(9), causal, keep=9)
        second = cache.append(tree, torch.tensor([9, 10, 10, 11]), tail, keep=4)
        alone = torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf, 0.0]])  # one token that sees the root only
        third = cache.append(tree[:1], torch.tensor([10]), alone, keep=1)
        fourth = cache.append(tree[1:2], torch.tensor([12]), torch.zeros(1, 1), keep=1)
        found.append(torch.cat([first, second, third, fourth]).float())
    return found[0], found[1]


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}, {"head_dim": 16}, {"tie_word_embeddings": True}])
def test_it_computes_what_the_model_computes(changes):
    own, fused = both(llama(**changes))
    torch.testing.assert_close(fused, own, atol=2e-6, rtol=1e-5)


def test_bfloat16_stays_within_its_rounding():
    exact, _ = both(llama(head_dim=16))
    own, fused = both(llama(head_dim=16).to(torch.bfloat16))
    assert (fused - exact).abs().max() < 1.5 * (own - exact).abs().max() + 1e-3  # no worse than the model's own path


def test_float32_weights_are_shared_not_doubled():
    model = llama()
    HuggingFaceModel(model, "fused")
    attention = model.model.layers[0].self_attn
    joined = {p.weight.untyped_storage().data_ptr() for p in (attention.q_proj, attention.k_proj, attention.v_proj)}
    assert len(joined) == 1
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()  # and the model still runs by itself


class Adapted(torch.nn.Linear):
    """Stands for an adapter around a layer."""


def test_adapted_and_pruned_layers_keep_the_models_own_forward():
    for part, other in (("o_proj", Adapted(32, 32, bias=False)), ("v_proj", torch.nn.Linear(32, 8, bias=False))):
        model = llama()
        assert is_plain_llama(model)
        setattr(model.model.layers[1].self_attn, part, other)
        assert not is_plain_llama(model)


@pytest.mark.parametrize(
    "model",
    [
        lambda: llama(attention_bias=True),
        lambda: llama(hidden_act="gelu"),
        lambda: llama(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}),
        lambda: MistralForCausalLM(
            MistralConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=64)
        ),
    ],
    ids=["biases", "gelu", "scaled rotation", "mistral"],
)
def test_other_models_keep_their_own_forward(model):
    assert not is_plain_llama(model())
