"""doctor: a verdict in words and as JSON, from readings, two periods, logs and costs; bad input in one line."""

from functools import partial

import pytest

from sequoia_core.command_line.main import main
from sequoia_core.files.model_names import ASSETS
from sequoia_extras.servers.flags import METHODS
from tests.extras.servers.samples import LLAMA_AFTER, llama_text, step_records, vllm_text


@pytest.fixture
def found(call):
    return partial(call, "doctor")


LLAMA = (
    "prompt eval time = 20.00 ms / 40 tokens\n       eval time = 120100.00 ms / 1201 tokens\n"
    "draft acceptance rate = 0.61017 (  720 accepted /  1180 generated)\n"
    "statistics draft-simple: #calls(b,g,a) = 1 480 250, #gen drafts = 320, #acc drafts = 250, #gen tokens = 1180, "
    "#acc tokens = 720, dur(b,g,a) = 0.001, 30025.000, 0.200 ms\n"
)


def test_both_commands_report_the_same_tokens_per_step(found, call, tmp_path):
    log = tmp_path / "log"
    log.write_text(LLAMA)
    assert found("--after", str(log))["tokens_per_step"] == 2.5
    assert call("server-plan", "--after", str(log))["mean_tokens_per_step"] == 2.5
    counters = tmp_path / "after.prom"  # 3 % of the steps may have had no draft: first tokens are not told apart
    counters.write_text(llama_text(*LLAMA_AFTER))
    replayed = tmp_path / "answers.json"
    replayed.write_bytes(step_records())
    for path in (counters, replayed):
        assert (
            found("--after", str(path))["tokens_per_step"]
            == call("server-plan", "--after", str(path))["tokens_per_step"][-1]
        )


def test_counters_at_zero_predict_no_gain(found, tmp_path):
    """A server with the option set and K = 0; what it would yield at the timed K is not known."""
    text = vllm_text(0, 0, 0, (), 5000, 10)
    (tmp_path / "idle").write_text(text)
    idle = found("--after", str(tmp_path / "idle"), "--timed", "0=65,2=90,4=95")
    assert idle["verdict"] == "never drafted" and idle["mended"] == dict.fromkeys(idle["mended"])


def test_settings_match_the_requested_method_or_the_named_head(files, call, capsys):
    timed = ("--timed", "0=60,2=70,4=80")
    for method, part in (("mtp", '{"method": "mtp", "num'), ("dflash", '"dflash", "model"'), ("ngram", '"ngram"')):
        plan = call("server-plan", "--after", files("after"), "--method", method, *timed)
        assert any(part in text for text in plan["flags"].values())
    named = call("server-plan", "--after", str(ASSETS / "servers" / "gemma-4-31b-dflash.json"), *timed)
    assert any('"method": "dflash"' in text for text in named["flags"].values())
    assumed = call("server-plan", "--after", files("after"), *timed)
    assert any("--method draft" in line for line in assumed["warnings"])
    main(["server-plan", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert all(method in words for method in METHODS) and "without the speculative option" in words
