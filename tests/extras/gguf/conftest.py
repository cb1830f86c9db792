"""Fixtures that need llama.cpp: the demo pair and two tiny models as GGUF files."""

from pathlib import Path

import pytest

from tests.gguf_files import need_llama_cpp, write_demo, write_random


@pytest.fixture(scope="package")
def needed() -> None:
    need_llama_cpp()


@pytest.fixture(scope="package")
def demo_files(tmp_path_factory) -> dict[str, Path]:
    """The demo pair with float16 weights."""
    folder = tmp_path_factory.mktemp("gguf")
    return {name: write_demo(name, folder / f"{name}.gguf", "float16") for name in ("target", "draft")}


@pytest.fixture(scope="package")
def tiny_files(tmp_path_factory) -> dict[str, Path]:
    """Two random models with 8 tokens, so that all continuations of two tokens can be enumerated."""
    folder = tmp_path_factory.mktemp("tiny")
    return {
        name: write_random("llama", folder / f"{name}.gguf", seed=seed, vocab=8)
        for seed, name in enumerate(("target", "draft"))
    }
