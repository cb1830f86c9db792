"""Bad input to the server commands: exit code 2, one line on stderr, no file left behind."""

import pytest

from tests.commands import check_no_torch

PLAN, DOCTOR = ["server-plan", "--after", "AFTER"], ["doctor", "--after", "AFTER"]
NOBODY = "http://127.0.0.1:1"  # no server listens there
AUDIT = ["audit", "--server", NOBODY, "--against", NOBODY]


@pytest.mark.sample(10, cover=False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLAN, "--timed", "0=70,2=190,4=118"], "ms per step at K = 2 and 14.3 ms at K = 0"),
        ([*PLAN, "--timed", "2=nan,3=1"], "--timed: found '2=nan'"),
        ([*PLAN, "--model", "other"], "model"),
        ([*PLAN, "--timed", "0=9@1:5,2=9@1:5,4=9"], "only some speeds in"),
        ([*PLAN, "--timed", "0=9@1:5,2=9@1:5,4=9@1:5", "--context", "7"], "--context: found 7, expected"),
        ([*PLAN, "--timed", "0=9@1:5,2=9@1:5,0=8@1:6,4=9@1:6"], "different K > 0 at the same batch size"),
        ([*DOCTOR, "--timed", "0=60@1:500,4=50@1:9000"], "expected a single context"),
        ([*AUDIT, "--against", "http://10.0.0.1"], "found 10.0.0.1, expected an address"),
        ([*AUDIT, "--against", f"{NOBODY}/model-a"], "found '/model-a' after the host and port"),
        ([*AUDIT, "--temperature", "nan"], "--temperature nan, --top-p 1: expected 0 to 10"),
        (AUDIT, f"{NOBODY}/v1/completions: the server did not answer"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, message, refusal, files, tmp_path):
    before = set(tmp_path.iterdir())
    assert message in refusal(*(files("after") if each == "AFTER" else each for each in arguments))
    assert set(tmp_path.iterdir()) == before


def test_server_commands_do_not_load_torch(files):
    readings = ["--after", files("after"), "--timed", "0=4,2=6,4=6", "--json"]
    check_no_torch((0, ["doctor", *readings]), (0, ["server-plan", *readings]))
