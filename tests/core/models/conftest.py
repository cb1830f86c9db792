"""Fixtures of tests that stream models from disk."""

from pathlib import Path

import pytest

from sequoia_core.models.offload import packed_layers


@pytest.fixture()
def copies(tmp_path_factory, monkeypatch) -> Path:
    """Keep packed copies of tests apart from the user's; return their folder."""
    folder = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr(packed_layers, "cache_folder", lambda: folder)
    return folder / "packed-layers"
