"""What files say of a model's context, without loading anything."""

import json

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.configured_context import configured_context


def test_the_configured_context_is_read_or_none(tmp_path, demo_pair):
    assert configured_context(str(DEMO_PAIR / "draft")) == demo_pair.draft.max_context
    config = tmp_path / "config.json"
    for content, found in (
        ({"n_positions": 48}, 48),
        ({"text_config": {"max_position_embeddings": 96}}, 96),
        ({"max_position_embeddings": "many"}, None),
        ([], None),
    ):
        config.write_text(json.dumps(content))
        assert configured_context(str(tmp_path)) == found
    assert configured_context(str(tmp_path / "none")) is None and configured_context("owner/nowhere") is None
