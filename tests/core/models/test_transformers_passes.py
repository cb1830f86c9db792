import pytest

from sequoia_core.models.language_model import HuggingFaceModel
from tests.conftest import tiny_llama


def test_state_space_layers_are_refused_by_name():
    model = tiny_llama(3).model
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        HuggingFaceModel(model, "hybrid")
