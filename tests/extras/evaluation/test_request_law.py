"""transformers' methods ignore the settings shipped with a model and write no padding ids."""

import pytest
import torch
from transformers import GenerationConfig

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.measuring.race import race, transformers_method, tree_method
from sequoia_core.models.generation_settings import ignored_settings
from sequoia_core.models.language_model import HuggingFaceModel, ModelPair
from tests.conftest import tiny_llama

LENGTH = 12
LANES = {"plain": {}, "assisted": {"assisted": True, "length_hint": 3}, "lookup": {"prompt_lookup": 2}}
SHIPPED = {
    "a penalty": {"repetition_penalty": 1.8},
    "a forced end": {"forced_eos_token_id": 7},
    "beams": {"num_beams": 3},
    "top-k": {"top_k": 1},
}


def pair_shipping(**fields) -> ModelPair:
    """A pair whose models ship settings and treat any token as EOS."""
    pair = ModelPair(tiny_llama(1, scale=0.2), tiny_llama(2, layers=1, scale=0.2), tokenizer=None)
    for model in pair.models:
        model.model.generation_config = GenerationConfig(eos_token_id=list(range(64)), **fields)
    return pair


def texts_of(pair: ModelPair, sampling: SamplingConfig, prompt=(3, 1, 4)) -> dict[str, list[int]]:
    def written(method) -> list[int]:
        return method(prompt, LENGTH, 5, lambda share: None).output

    lanes = {name: written(transformers_method(pair, sampling, **options)) for name, options in LANES.items()}
    return lanes | {"ours": written(tree_method(pair, ROOT_ONLY, sampling))}


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("shipped", SHIPPED)
def test_shipped_settings_change_no_text(shipped):
    pair = pair_shipping(**SHIPPED[shipped])
    shipped_config = pair.target.model.generation_config
    greedy = texts_of(pair, SamplingConfig())
    sampled = texts_of(pair, SamplingConfig(1.5, top_p=0.95))
    assert all(text == greedy["ours"] for text in greedy.values())
    assert sampled == texts_of(pair_shipping(), SamplingConfig(1.5, top_p=0.95))
    assert pair.target.model.generation_config is shipped_config and pair.target.model.config.vocab_size == 64
    assert ignored_settings(pair.target) == SHIPPED[shipped]


@pytest.mark.parametrize("rows", [(64, 64), (80, 72), (72, 80)], ids=str)
@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(3.0, top_p=0.9)], ids=["greedy", "sampled"])
def test_no_padding_id_is_written(rows, sampling):
    """Padding rows would be the most likely by far if they were not cut before top-p."""
    padded = []
    for seed, count in enumerate(rows, start=1):
        model = tiny_llama(seed, vocab=count).model
        with torch.no_grad():
            model.lm_head.weight[60:] *= 5
        padded.append(HuggingFaceModel(model, "padded", vocab_size=60))
    found = texts_of(ModelPair(*padded, tokenizer=None), sampling)
    assert all(len(text) == LENGTH and max(text) < 60 for text in found.values())
    assert sampling.temperature or all(text == found["ours"] for text in found.values())


def test_prompt_tokens_equal_to_padding_are_read():
    found = texts_of(pair_shipping(), SamplingConfig(), prompt=(0, 9, 0, 7, 0))
    assert all(text == found["ours"] for text in found.values())


@pytest.mark.slow
def test_a_method_that_fails_is_left_out_of_the_race():
    pair = pair_shipping(repetition_penalty=1.8)
    pair.target.model._is_stateful = True  # transformers refuses to assist a model whose cache cannot roll back
    results = race(pair, [[1, 2], [3]], trees={}, sampling=SamplingConfig(), max_new_tokens=8)
    assert results["hf_generate"].tokens == results["autoregressive"].tokens == [8, 8]
    assert "stateful" in results["hf_assisted"].left_out and results["hf_assisted"].tokens == []
