"""Greedy tree decoding equals `generate` for every family of models that people pair, on tiny random ones."""

import pytest
import torch
import transformers

from sequoia_core.construction import k_ary_tree
from sequoia_core.engine import decode
from sequoia_core.models import HuggingFaceModel

LLAMA_LIKE = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
SHORT_WINDOW = {"sliding_window": 12}  # shorter than the run: old tokens must drop out of sight
FAMILIES = {
    "Llama": LLAMA_LIKE,
    "Qwen2": LLAMA_LIKE,
    "Qwen3": LLAMA_LIKE | {"head_dim": 8},
    "Mistral": LLAMA_LIKE | SHORT_WINDOW,
    "Gemma2": LLAMA_LIKE | SHORT_WINDOW | {"head_dim": 8},
    "Gemma3": LLAMA_LIKE | SHORT_WINDOW | {"head_dim": 8, "num_hidden_layers": 6},
    "Phi3": LLAMA_LIKE,
    "GPT2": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "GPTNeoX": {k: v for k, v in LLAMA_LIKE.items() if k != "num_key_value_heads"},
    "OPT": {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
        "max_position_embeddings": 128, "word_embed_proj_dim": 32,
    },
}  # fmt: skip


def build(family: str) -> transformers.PreTrainedModel:
    config_name = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    model_name = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**FAMILIES[family], eos_token_id=None, bos_token_id=None)
    model = getattr(transformers, model_name)(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.mul_(6)  # as initialised, attention hardly matters and a wrong mask would go unseen
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_identical_to_generate(family):
    model = build(family)
    both = HuggingFaceModel(model, family, eos_ids=frozenset())
    prompt = list(range(2, 22))
    ids = torch.tensor([prompt])
    wanted = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, pad_token_id=0
    )[0, 20:].tolist()
    steps = list(decode(prompt, target=both, draft=both, tree=k_ary_tree(2, 3), max_new_tokens=40))
    assert [token for step in steps for token in step.new_tokens] == wanted
    assert len(steps) == 10  # the draft is the target: four tokens a step, or a mask or position is wrong
