"""What server-check refuses, in one line each; a real server is checked in tests/core/servers/test_llama_cpp.py."""

import pytest

from sequoia_core.command_line.main import main
from sequoia_core.files.model_names import ASSETS

VECTOR = ASSETS / "acceptance" / "demo-t0.6.json"
MODELS = ["--target", "big.gguf", "--draft", "small.gguf"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--engine", "sglang"], "--engine: found 'sglang', expected one of vllm, llama.cpp"),
        (["--engine", "vllm"], "expected --target and --draft, or --server"),
        (["--engine", "vllm", "--target", "big"], "expected --target and --draft, or --server"),
        (
            ["--engine", "vllm", "--method", "eagle", *MODELS],
            "method: found 'eagle', expected one of draft, eagle3",
        ),
        (["--engine", "llama.cpp", "--settings", "1,2,4", *MODELS], "--settings: found '1,2,4', expected 0 and two"),
        (["--engine", "llama.cpp", "--settings", "0,x", *MODELS], "--settings: found '0,x', expected whole numbers"),
        (["--engine", "llama.cpp", "--planned-from", "0,2,4", *MODELS], "expected 0, 8 (the longest draft) and one of"),
        (
            ["--engine", "llama.cpp", "--server", "http://127.0.0.1:1"],
            "--server: found 'http://127.0.0.1:1', expected K=",
        ),
        (["--engine", "llama.cpp", "--server", "0=http://127.0.0.1:1"], "expected 0, 0 (the longest draft) and one of"),
        (
            ["--engine", "vllm", *(f"--server={k}=http://10.0.0.{k + 1}:80" for k in (0, 2, 4))],
            "server: found 10.0.0.1, expected an address of this machine (--remote allows others)",
        ),
        (
            ["--engine", "vllm", *(f"--server={k}=http://127.0.0.1:1" for k in (0, 2, 4))],
            "http://127.0.0.1:1/v1/completions: found no answer",
        ),
        (
            ["--engine", "llama.cpp", *MODELS, "--program", "/no/such/llama-server"],
            "/no/such/llama-server: cannot be started (No such file or directory), expected a program",
        ),
        (["--engine", "llama.cpp", *MODELS, "--program", "'"], '--program: found "\'", expected a command with'),
        (["--engine", "llama.cpp", *MODELS, "--tokenizer", __file__], "expected a tokenizer.json"),
        (["--engine", "vllm", *MODELS, "--temperature", "nan"], "--temperature nan, --top-p 1: expected 0 to 10"),
        (["--engine", "vllm", *MODELS, "--rule", "match"], "--rule: found 'match' without --acceptance"),
        (["--engine", "vllm", *MODELS, "--acceptance", str(VECTOR)], "expected one at --temperature 0 --top-p 1"),
    ],
)
def test_bad_options_are_one_line(options, fault, capsys):
    assert main(["server-check", *options]) == 2
    error = capsys.readouterr().err
    assert fault in error and error.count("\n") == 1
