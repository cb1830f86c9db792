import pytest
import torch

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.tree_cache import TreeCache
from tests.conftest import tiny_llama


def test_cache_keeps_chosen_slots_in_place():
    cache = TreeCache(layer_count=2, capacity=10)
    states = torch.arange(6.0).reshape(1, 1, 6, 1)
    cache.begin(torch.arange(6))
    for layer in range(2):
        keys, values = cache.write(layer, states + 10 * layer, -states)
        assert keys.shape == (1, 1, 6, 1)
    cache.end()
    (buffer,) = cache._buffers.values()
    address = buffer.data_ptr()
    cache.commit(2, [0, 2, 3])
    assert cache.length == 5 and cache.positions[:5].tolist() == [0, 1, 2, 4, 5]
    written = buffer._version
    cache.commit(2, [0, 1, 2])
    assert cache.length == 5 and buffer._version == written  # what stays where it is costs no copy
    cache.begin(torch.tensor([5]))
    keys, values = cache.write(1, torch.full((1, 1, 1, 1), 99.0), torch.zeros(1, 1, 1, 1))
    assert keys.flatten().tolist() == [10, 11, 12, 14, 15, 99]
    assert buffer.data_ptr() == address


def test_cache_refuses_more_than_its_capacity_and_uneven_layers():
    cache = TreeCache(layer_count=1, capacity=2)
    with pytest.raises(ValueError, match="at most 2"):
        cache.begin(torch.arange(3))
    cache.begin(torch.arange(1))
    cache.write(0, torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
    with pytest.raises(ValueError, match="alike"):
        cache.write(0, torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))


def test_forward_in_pieces_equals_one_forward(tiny_target):
    ids = torch.randint(64, (12,), generator=torch.Generator().manual_seed(0))
    cache = tiny_target.open(12)
    rows = []
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        tree_mask = torch.full((stop - start, stop - start), -torch.inf).triu(1)
        rows.append(cache.forward(ids[start:stop], torch.arange(start, stop), tree_mask, keep=stop - start))
    with torch.inference_mode():
        whole = tiny_target.model(ids[None]).logits[0]
    torch.testing.assert_close(torch.cat(rows), whole, atol=1e-2, rtol=1e-4)


def test_sliding_window_masks_old_tokens():
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, sliding_window=6,
    )  # fmt: skip
    model = HuggingFaceModel(MistralForCausalLM(config), "mistral")
    ids = torch.randint(64, (20,))
    cache = model.open(20)
    cache.forward(ids[:19], torch.arange(19), torch.full((19, 19), -torch.inf).triu(1), keep=1)
    last = cache.forward(ids[19:], torch.tensor([19]), torch.zeros(1, 1), keep=1)
    with torch.inference_mode():
        whole = model.model(ids[None]).logits[0, -1:]
    torch.testing.assert_close(last, whole, atol=1e-4, rtol=1e-4)


def test_state_space_layers_are_refused_by_name(tiny_target):
    model = tiny_llama(3).model
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        HuggingFaceModel(model, "hybrid")


@pytest.mark.parametrize("size", [0, 65])
def test_a_vocabulary_beyond_the_rows_is_refused(size, tiny_target):
    with pytest.raises(ValueError, match=f"found a vocabulary of {size}, expected 1 to its 64 rows"):
        HuggingFaceModel(tiny_target.model, "cut", vocab_size=size)
