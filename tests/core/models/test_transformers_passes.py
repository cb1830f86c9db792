import pytest
import torch

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.tree_cache import TreeCache
from tests.conftest import tiny_llama


def test_cache_refuses_more_than_its_capacity_and_uneven_layers():
    cache = TreeCache(layer_count=1, capacity=2)
    with pytest.raises(ValueError, match="at most 2"):
        cache.begin(torch.arange(3))
    cache.begin(torch.arange(1))
    cache.write(0, torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
    with pytest.raises(ValueError, match="alike"):
        cache.write(0, torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))


def test_state_space_layers_are_refused_by_name():
    model = tiny_llama(3).model
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        HuggingFaceModel(model, "hybrid")
