"""Fixtures of tests that stream models from disk."""

from pathlib import Path

import pytest


@pytest.fixture()
def copies(tmp_path_factory, monkeypatch) -> Path:
    """Redirect packed copies to a temporary folder and return it."""
    from sequoia_extras.offloading import packed_layers

    folder = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr(packed_layers, "cache_folder", lambda: folder)
    return folder / "packed-layers"
