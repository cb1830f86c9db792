"""Bad input to every command: exit code 2, one line on stderr, no file left behind."""

import subprocess
import sys

import pytest

from tests.core.command_line.test_main import ASSETS, PROFILE, VECTOR
from tests.core.command_line.test_shape_profiles import LLAMA

PLAN, DOCTOR = ["server-plan", "--after", "AFTER"], ["doctor", "--after", "AFTER"]
NOBODY = "http://127.0.0.1:1"  # answers there
PROMPTS = str(ASSETS / "prompts" / "prompts.jsonl")
AUDIT = ["audit", "--server", NOBODY]
CHECK = ["server-check", "--engine", "vllm", "--target", "big", "--draft", "small"]
SAMPLED = str(ASSETS / "acceptance" / "demo-t0.6.json")


@pytest.mark.sample(10, cover=False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tree", "--acceptance", "absent.json", "--size", "5"], "absent.json"),
        (["tree", "--acceptance", VECTOR, "--size", "5", "--out", "/dev/full"], "/dev/full: found a folder or device"),
        (["table", "--acceptance", VECTOR, "--max-size", "100000", "--max-depth", "100000"], "74.5 GiB"),
        (["plan", "--acceptance", VECTOR, "--profile", PROFILE, "--max-depth", "100000"], "max_depth 100000"),
        (["generate", "--prompt", ""], "prompt"),
        (
            ["generate", "--prompt", "x", "--acceptance", VECTOR, "--draft", "none"],
            "draft: found none, expected a draft",
        ),
        (["generate", "--prompt", "x", "--target", "only-one"], "target and draft"),
        (["measure", "--max-new-tokens", "100000"], "the target's context of 512 less --max-new-tokens 100000"),
        (["profile", "--context", "100000"], "context: found 100000"),
        (["measure", "--column", "words"], "keys: text, source"),
        (["generate", "--prompt", "caf\udce9"], "prompt: found half of a surrogate pair"),
        (["generate", "--prompt", "x", "--device", "cpu", "--offload", "host"], "expected a CUDA device"),
        (["profile", "--sizes", "1,100000"], "sizes: found 100,000, expected at most 4,096"),
        (["lookup", "--responses", "LOG", "--tokenizer", PROMPTS], "prompts.jsonl: found no tokenizer"),
        (["dance"], "dance"),
        (["profile", "--target-shape", "llama-2-7b"], "--target-shape, --draft-shape: found"),
        (["profile", *LLAMA, "--device-model", "a100-80g", "--target", "x"], "expected one or the other"),
        (["profile", *LLAMA, "--offload", "host"], "--offload: found 'host' for shapes without files"),
        (["profile", *LLAMA, "--device-model", "m3-max", "--offload", "host"], "expected another place"),
        (["profile", "--target-shape", "llama-2-70b", "--draft-shape", "llama-2-7b"], "GB free in memory"),
        ([*PLAN, "--timed", "0=70,2=190,4=118"], "K = 2 against 14.3 ms for one of K = 0"),
        ([*PLAN, "--timed", "2=nan,3=1"], "--timed: found '2=nan'"),
        ([*PLAN, "--acceptance", VECTOR], "expected both"),
        ([*PLAN, "--model", "other"], "model"),
        ([*PLAN, "--timed", "0=9@1:5,2=9@1:5,4=9"], "some speeds without a context"),
        ([*PLAN, "--timed", "0=9@1:5,2=9@1:5,4=9@1:5", "--context", "7"], "--context: found 7, expected"),
        ([*PLAN, "--timed", "0=9@1:5,2=9@1:5,0=8@1:6,4=9@1:6"], "two with different K > 0 at one batch size"),
        ([*DOCTOR, "--timed", "0=60@1:500,4=50@1:9000"], "expected one context: of these counts"),
        ([*AUDIT, "--against", "http://10.0.0.1"], "found 10.0.0.1, expected an address"),
        ([*AUDIT, "--against", f"{NOBODY}/model-a"], "found '/model-a' after the host and port"),
        ([*AUDIT, "--against", NOBODY, "--off", "{}"], "--off: found '{}' beside --against, expected one of them"),
        ([*AUDIT, "--off", '{"a": 0, "a": 1}'], "expected a JSON object such as"),
        ([*CHECK, *(f"--server={k}={NOBODY}/v1" for k in (0, 2, 4))], "found '/v1' after the host and port"),
        (AUDIT, f"{NOBODY}/v1/completions: found no answer"),
        (["server-check", "--engine", "sglang"], "--engine: found 'sglang', expected one of vllm, llama.cpp"),
        (["server-check", "--engine", "vllm", "--target", "big"], "expected --target and --draft, or --server"),
        ([*CHECK, "--method", "eagle"], "method: found 'eagle', expected one of draft, eagle3"),
        ([*CHECK, "--settings", "1,2,4"], "--settings: found '1,2,4', expected 0 and two"),
        ([*CHECK, "--planned-from", "0,2,4"], "expected 0, 8 (the longest draft) and one of"),
        ([*CHECK, "--server", NOBODY], f"--server: found '{NOBODY}', expected K="),
        ([*CHECK, *(f"--server={k}={NOBODY}" for k in (0, 2, 4))], f"{NOBODY}/v1/completions: found no answer"),
        ([*CHECK, "--program", "'"], '--program: found "\'", expected a command with'),
        ([*CHECK, "--tokenizer", __file__], "expected a tokenizer.json"),
        ([*CHECK, "--temperature", "nan"], "--temperature nan, --top-p 1: expected 0 to 10"),
        ([*CHECK, "--rule", "match"], "--rule: found 'match' without --acceptance"),
        ([*CHECK, "--acceptance", SAMPLED], "expected one at --temperature 0 --top-p 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, message, refusal, files, tmp_path):
    before = set(tmp_path.iterdir())
    assert message in refusal(*(files(each.lower()) if each in ("AFTER", "LOG") else each for each in arguments))
    assert set(tmp_path.iterdir()) == before


def test_what_needs_no_model_loads_no_torch(files, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"prompt_ids": [1, 2], "token_ids": [1, 2, 1, 2]}')
    commands = [
        (2, ["generate", "--prompt", "x", "--acceptance", VECTOR, "--draft", "none"]),
        (2, ["bench", "--draft", "none"]),
        (2, ["measure", "--draft", "none"]),
        (2, ["profile", "--draft", "none", "--guess", "0.5"]),
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
