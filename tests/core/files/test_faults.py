"""Real panics of a tokenizer and real out-of-memory errors are recognised."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sequoia_core.command_line.main import main
from sequoia_core.files.faults import is_out_of_memory, is_panic
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.prompting import encode_prompt
from tests.chat_pair import Reader

ROOT = Path(__file__).resolve().parents[3]
NO_LENGTH = {"type": "FixedLength", "length": 0}  # accepted at load, but crashes the library in use


def test_a_tokenizer_panic_at_load_is_reported_in_one_line(tmp_path: Path, capfd) -> None:
    folder = tmp_path / "pair"
    shutil.copytree(DEMO_PAIR, folder)
    for file in folder.glob("*/tokenizer.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": NO_LENGTH}))
    pair = ["--target", str(folder / "target"), "--draft", str(folder / "draft")]
    assert main(["generate", "--prompt", "x", *pair, "--json"]) == 2
    said = capfd.readouterr()  # including what native code writes
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"error: {folder / 'target'}: found a tokenizer that does not work")


def test_a_tokenizer_panic_names_the_prompt(demo_pair, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    content = json.loads((DEMO_PAIR / "target" / "tokenizer.json").read_text()) | {"pre_tokenizer": NO_LENGTH}
    broken = Tokenizer.from_str(json.dumps(content))
    with pytest.raises(ValueError, match="^prompt 'def f': found content that crashes") as caught:
        encode_prompt(Reader(broken), "def f")
    assert is_panic(caught.value.__cause__)


def test_out_of_memory_errors_are_recognised() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**47)
    wrapped = ValueError("a folder that does not load")
    wrapped.__cause__ = refused.value
    assert is_out_of_memory(refused.value) and is_out_of_memory(wrapped) and is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as other:
        torch.zeros(2) @ torch.zeros(3)
    assert not is_out_of_memory(other.value) and not is_out_of_memory(ValueError("prompt: out of memory, a novel"))


LIMITED = """
import contextlib, io, resource
from sequoia_core.command_line.main import main
command = ["generate", "--prompt", "def f():", "--max-new-tokens", "4", "--json"]
def run():
    said, failed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(failed):
        code = main(command)
    return code, len(said.getvalue().splitlines()), failed.getvalue()
print(run())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for more in (0, 8 * 2**20):
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
    print(run())
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(run())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits a process's memory as Linux does")
def test_commands_survive_out_of_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], cwd=ROOT, capture_output=True, text=True)
    told = (2, 0, "error: out of memory. Try a smaller tree or a shorter prompt.\n")
    assert done.stdout.splitlines() == [str(row) for row in [(0, 1, ""), told, told, (0, 1, "")]], done.stderr
