"""What files say of a model's context, without loading anything."""

import json

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.written_context import written_context
from tests.gguf_files import need_llama_cpp, write_random


def test_a_models_files_say_its_context_or_nothing(tmp_path, demo_pair):
    assert written_context(str(DEMO_PAIR / "draft")) == demo_pair.draft.max_context
    config = tmp_path / "config.json"
    for content, found in (
        ({"n_positions": 48}, 48),
        ({"text_config": {"max_position_embeddings": 96}}, 96),
        ({"max_position_embeddings": "many"}, None),
        ([], None),
    ):
        config.write_text(json.dumps(content))
        assert written_context(str(tmp_path)) == found
    assert written_context(str(tmp_path / "none")) is None and written_context("owner/nowhere") is None
    need_llama_cpp()
    assert written_context(str(write_random("llama", tmp_path / "model.gguf", context=40))) == 40
