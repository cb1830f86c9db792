"""The output of the server commands for people, and the options of llama.cpp's server in a plan."""

from dataclasses import replace

from sequoia_core.command_line import formatting
from sequoia_core.command_line.main import main
from sequoia_core.command_line.output import report
from sequoia_core.planning.profile import HardwareProfile
from tests.commands import PROFILE, VECTOR
from tests.extras.servers.samples import WIRED, vllm_text


def test_both_commands_print_reports_for_people(said, files):
    assert "about 2.5 tokens per step instead of 1.0" in said("doctor", "--after", files("wired"))
    shown = said("server-plan", "--after", files("after"), "--timed", "0=400,2=600,4=640")
    assert "Use K = 4 for one request at a time (1.60×" in shown and '"num_speculative_tokens": 4' in shown


def test_control_characters_never_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "metrics"
    path.write_text(vllm_text(*WIRED).replace('model_name="', 'model_name="\x1b]0;pwned\x07\x1b[2J\u202e'))
    for command in ("doctor", "server-plan"):
        assert main([command, "--after", str(path)]) == 0
        assert "pwned" in (said := capsys.readouterr().out) and said.replace("\n", "").isprintable()
    report({}, False, [formatting.table(("model",), [("\x1b[31mred",)])])
    assert "red" in (said := capsys.readouterr().out) and "\x1b" not in said
    assert main(["doctor", "--after", str(path), "--model", "other"]) == 2
    assert "pwned" in (said := capsys.readouterr().err) and said.strip().isprintable()


def test_a_plan_with_llama_cpp_times_lists_its_server_options(call, tmp_path):
    path = tmp_path / "profile.json"
    replace(HardwareProfile.load(PROFILE), meta={"passes_by": "llama.cpp"}).save(path)
    found = call("plan", "--acceptance", str(VECTOR), "--profile", str(path))
    assert found["llama_server"].startswith("llama-server: --spec-type draft-simple")
