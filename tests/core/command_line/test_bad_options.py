"""Bad input ends commands with exit code 2 and one line on stderr."""

import pytest

from tests.core.command_line.test_main import PROFILE, VECTOR


@pytest.mark.sample(10, cover=False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tree", "--acceptance", "absent.json", "--size", "5"], "absent.json"),
        (["tree", "--acceptance", VECTOR, "--size", "5", "--out", "/dev/full"], "/dev/full: found a folder or device"),
        (
            ["table", "--acceptance", VECTOR, "--max-size", "100000", "--max-depth", "100000"],
            "10,000,200,001 table",
        ),
        (["plan", "--acceptance", VECTOR, "--profile", PROFILE, "--max-depth", "100000"], "max_depth 100000"),
        (["generate", "--prompt", ""], "prompt"),
        (
            ["generate", "--prompt", "x", "--acceptance", VECTOR, "--draft", "none"],
            "draft: found none, expected a draft",
        ),
        (["generate", "--prompt", "x", "--target", "only-one"], "target and draft"),
        (["measure", "--max-new-tokens", "100000"], "the target's context of 512 minus --max-new-tokens 100000"),
        (["profile", "--context", "100000"], "context: found 100000"),
        (["measure", "--column", "words"], "keys: text, source"),
        (["generate", "--prompt", "caf\udce9"], "prompt: found half of a surrogate pair"),
        (["profile", "--sizes", "1,100000"], "sizes: found 100,000, expected at most 4,096"),
        (["dance"], "dance"),
    ],
)
def test_bad_input_prints_one_line_and_exits_with_two(arguments, message, refusal):
    assert message in refusal(*arguments)
