"""What files say of a model's context, without loading anything."""

import json

import pytest

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.written_context import written_context
from tests.gguf_files import need_llama_cpp, write_random


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"max_position_embeddings": 96}, 96),
        ({"n_positions": 48}, 48),
        ({"text_config": {"max_position_embeddings": 96}}, 96),
        ({"max_position_embeddings": "many"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_a_folder_says_it_in_its_config(config, found, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert written_context(str(tmp_path)) == found


def test_a_file_says_it_in_its_head_and_what_is_not_there_says_nothing(tmp_path, demo_pair):
    assert written_context(str(DEMO_PAIR / "draft")) == demo_pair.draft.max_context
    assert written_context(str(tmp_path / "none")) is None and written_context("owner/nowhere") is None
    need_llama_cpp()
    assert written_context(str(write_random("llama", tmp_path / "model.gguf", context=40))) == 40
