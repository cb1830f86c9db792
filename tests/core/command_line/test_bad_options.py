"""Bad input to every command: exit code 2, one line on stderr, no file left behind."""

import subprocess
import sys

import pytest

from tests.core.command_line.test_main import ASSETS, PROFILE, VECTOR
from tests.core.command_line.test_shape_profiles import LLAMA

READ = ["--after", "AFTER"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tree", "--acceptance", "absent.json", "--size", "5"], "absent.json"),
        (["tree", "--acceptance", VECTOR, "--size", "0"], "size: found 0"),
        (["tree", "--acceptance", VECTOR, "--size", "many"], "--size"),
        (["tree", "--acceptance", VECTOR, "--size", "5", "--format", "excel", "--out", "OUT"], "excel"),
        (["tree", "--acceptance", VECTOR, "--size", "5", "--out", "/nowhere/at/all.json"], "/nowhere/at"),
        (["tree", "--acceptance", VECTOR, "--size", "5", "--format", "excel"], "excel"),
        (["tree", "--acceptance", VECTOR, "--size", "5", "--out", "/dev/full"], "/dev/full: found a device"),
        (["tree", "--acceptance", VECTOR, "--size", "5", "--out", "/dev"], "/dev: found a folder"),
        (["bench", "--out", "/dev/null"], "/dev/null: found a device"),
        (["tree", "--acceptance", VECTOR], "--size"),
        (["table", "--acceptance", VECTOR, "--max-size", "100000", "--max-depth", "100000"], "74.5 GiB"),
        (["plan", "--acceptance", VECTOR, "--profile", PROFILE, "--max-depth", "100000"], "max_depth 100000"),
        (["table", "--acceptance", VECTOR, "--max-size", "5", "--max-depth", "-1"], "max_depth: found -1"),
        (["score", "--acceptance", VECTOR, "--tree", VECTOR], "llama3-70b-8b-cnn.json"),
        (["plan", "--acceptance", VECTOR, "--profile", VECTOR], "sequoia-profile"),
        (["plan", "--acceptance", VECTOR, "--profile", PROFILE, "--max-size", "100000"], "100000"),
        (["generate", "--prompt", "x", "--top-p", "0"], "top_p: found 0"),
        (["generate", "--prompt", "x", "--verifier", "magic"], "magic"),
        (["generate", "--prompt", ""], "prompt"),
        (["generate", "--prompt", "x", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["generate", "--prompt", "x", "--dtype", "fp8"], "fp8"),
        (["generate", "--prompt", "x", "--target", "only-one"], "target and draft"),
        (["measure", "--prompts", "absent.txt"], "absent.txt"),
        (["measure", "--temperature", "-1"], "temperature: found -1"),
        (["measure", "--max-new-tokens", "100000"], "the target's context of 512 less --max-new-tokens 100000"),
        (["measure", "--width", "100000"], "width: found 100000"),
        (["profile", "--context", "100000"], "context: found 100000"),
        (["measure", "--column", "words"], "keys: text, source"),
        (["measure", "--resume", "absent.json"], "absent.json"),
        (["measure", "--seed", "-1"], "--seed"),
        (["generate", "--prompt", "caf\udce9"], "prompt: found half of a surrogate pair"),
        (["profile", "--sizes", "1,two"], "--sizes: found '1,two'"),
        (["generate", "--prompt", "x", "--offload", "tape"], "offload: found 'tape', expected disk or host"),
        (["generate", "--prompt", "x", "--device", "cpu", "--offload", "host"], "expected a CUDA device"),
        (["profile", "--sizes", "1,100000"], "sizes: found 100,000, expected at most 4,096"),
        (["profile", "--sizes", "1," + "9" * 5000], "sizes: found"),
        (["bench", "--prompt-count", "0"], "--prompt-count"),
        (["dance"], "dance"),
        ([], "command"),
        (["profile", "--target-shape", "llama-2-7b"], "--target-shape, --draft-shape: found"),
        (["profile", "--device-model", "a100-80g"], "--target-shape, --draft-shape: found"),
        (["profile", *LLAMA, "--device-model", "tpu"], "device: found 'tpu', expected one of a100-80g"),
        (["profile", *LLAMA, "--device-model", "a100-80g", "--dtype", "int8"], "dtype: found 'int8'"),
        (["profile", *LLAMA, "--device-model", "a100-80g", "--target", "x"], "expected one or the other"),
        (["profile", *LLAMA, "--offload", "host"], "--offload: found 'host' for shapes without files"),
        (
            ["profile", *LLAMA, "--device-model", "m3-max", "--offload", "host"],
            "offload: found 'host', expected another place",
        ),
        (["profile", "--target-shape", "llama-2-70b", "--draft-shape", "llama-2-7b"], "GB free in memory"),
        (["profile", "--target-shape", "llama-9", "--draft-shape", "llama-2-7b"], "llama-9: found no such shape"),
        (["doctor", *READ, "--timed", "0=0,3=5"], "--timed: found '0=0'"),
        (["doctor", *READ, "--timed", "x"], "--timed: found 'x'"),
        (["doctor", *READ, "--engine", "triton"], "engine: found 'triton'"),
        (["doctor", *READ, "--model", "other"], "model"),
        (["server-plan", *READ, "--timed", "0=400"], "expected two with different K > 0"),
        (["server-plan", *READ, "--timed", "x"], "--timed: found 'x'"),
        (["server-plan", *READ, "--timed", "2=nan,3=1"], "--timed: found '2=nan'"),
        (["server-plan", *READ, "--timed", "9=5,3=1"], "--timed: found '9=5'"),
        (["server-plan", *READ, "--timed", "0=70,2=190,4=118"], "K = 2 against 14.3 ms for one of K = 0"),
        (["server-plan", *READ, "--acceptance", VECTOR], "expected both"),
        (["server-plan", *READ, "--batch", "0"], "--batch: found '0'"),
        (["server-plan", *READ, "--batch", "1,,2"], "--batch: found ''"),
        (["server-plan", *READ, "--method", "eagle"], "--method: found 'eagle'"),
        (["server-plan", *READ, "--engine", "triton"], "engine: found 'triton'"),
        (["server-plan", *READ, "--model", "other"], "model"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, message, refusal, files, tmp_path):
    before = set(tmp_path.iterdir())
    places = {"OUT": str(tmp_path / "out.json"), "AFTER": files("after")}
    assert message in refusal(*(places.get(each, each) for each in arguments))
    assert set(tmp_path.iterdir()) == before


def test_what_needs_no_model_loads_no_torch(files, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"prompt_ids": [1, 2], "token_ids": [1, 2, 1, 2]}')
    commands = [
        (2, ["bench", "--draft", "none"]),
        (2, ["measure", "--draft", "none"]),
        (2, ["profile", "--draft", "none"]),
        (0, ["doctor", "--after", files("after"), "--timed", "0=4,2=6,4=6", "--json"]),
        (0, ["server-plan", "--after", files("after"), "--timed", "0=4,2=6,4=6", "--json"]),
        (0, ["lookup", "--responses", str(tmp_path / "log.jsonl"), "--json"]),
    ]
    code = (
        "import sys\nfrom sequoia_core.command_line.main import main\n"
        f"for code, command in {commands!r}:\n"
        "    assert main(command) == code and not {'torch', 'transformers'} & set(sys.modules), command"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ASSETS.parent)
    assert run.returncode == 0, run.stderr
