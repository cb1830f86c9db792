"""doctor: a verdict in words and as JSON, from readings, two periods, logs and costs; bad input in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sequoia_core.command_line.main import main
from tests.core.servers.samples import AFTER, BEFORE, LLAMA_PMIN, llama_text, vllm_text

ROOT = Path(__file__).parents[3]
WIRED = (8000, 24_000, 295, (290, 5, 0), 8305, 10)


@pytest.fixture
def files(tmp_path):
    for name, text in (
        ("after", vllm_text(*AFTER)), ("before", vllm_text(*BEFORE)), ("wired", vllm_text(*WIRED)),
        ("pmin", llama_text(*LLAMA_PMIN)), ("empty", "# HELP vllm:x y\nvllm:x 1\n"),
        ("off", "# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total 900\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    return lambda name: str(tmp_path / name)


@pytest.fixture
def found(capsys):
    def run(*arguments: str) -> dict:
        assert main(["doctor", *arguments, "--json"]) == 0
        output = capsys.readouterr().out
        assert output.count("\n") == 1
        return json.loads(output)

    return run


def test_the_verdict_with_evidence_and_what_mending_brings(found, files):
    wrong = found("--after", files("wired"), "--timed", "0=60,3=45")
    assert wrong["verdict"] == "wired wrong" and wrong["evidence"][0]["of"] == 8000
    assert wrong["mended"]["supposed"] == "70% at every position" and wrong["mended"]["speedup"] > 1.5
    assert [each["verdict"] for each in wrong["also"]] == ["fine but costs too much"]
    sound = found("--after", files("after"), "--before", files("before"))
    assert sound["verdict"] == "healthy" and sound["mended"]["tokens_per_step"] is None and sound["drafts"] == 689
    assert found("--after", files("after"), "--before", files("empty"))["verdict"] == "healthy"


def test_another_period_is_compared_with(found, files, tmp_path):
    assert found("--after", files("wired"), "--earlier", files("after"))["verdict"] == "worse than before"
    # the first of two readings is a period, too
    later = vllm_text(*(a + w for a, w in zip(AFTER[:3], WIRED[:3], strict=True)), (759, 363, 295), 9000, 30)
    (tmp_path / "first").write_text(vllm_text(693, 2079, 1122, (469, 358, 295), 2056, 17))
    (tmp_path / "last").write_text(later.replace("1673.0", "1417.0"))
    assert found("--after", files("last"), "--before", files("first"))["verdict"] == "worse than before"


def test_what_cannot_be_planned_has_a_verdict(found, files):
    assert found("--after", files("pmin"), "--timed", "0=60,2=70,4=80")["verdict"] == "drafts rarely"
    assert found("--after", files("off"), "--timed", "0=60,2=70,4=80")["verdict"] == "never drafted"


def test_server_plan_says_what_the_doctor_does(files, capsys):
    limited = vllm_text(1000, 2000, 1960, (990, 970), 3000, 10)
    Path(files("limited")).write_text(limited)
    for name, said in (("wired", "Wired wrong: "), ("limited", "K is the limit: "), ("pmin", "Drafts rarely: ")):
        assert main(["server-plan", "--after", files(name), "--json"]) == 0
        assert any(line.startswith(said) for line in json.loads(capsys.readouterr().out)["warnings"])
    assert main(["server-plan", "--after", files("after"), "--json"]) == 0
    assert "sequoia doctor" not in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["60", "80"])
def test_people_read_sentences(files, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["doctor", "--after", files("wired"), "--timed", "0=60,2=50,3=45"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= int(columns) for line in shown.splitlines())
    words = " ".join(shown.split())
    assert "Wired wrong. A weak draft does better" in words and "Check next: the head's layer ids" in words
    assert "first position accepted: 3.6% (3.2% to 4.1%) of 8,000" in words
    assert "If mended (supposed: 70% at every position): 2.53 tokens per step instead of 1.04" in words


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--timed", "0=0,3=5"], "--timed: found '0=0'"),
        (["--timed", "x"], "--timed: found 'x'"),
        (["--engine", "triton"], "engine: found 'triton'"),
        (["--model", "other"], "model"),
    ],
)
def test_bad_options_are_named(options, said, files, capsys):
    assert main(["doctor", "--after", files("after"), *options]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_it_loads_no_torch(files):
    code = (
        "import sys; from sequoia_core.command_line.main import main; "
        f"main(['doctor', '--after', {files('after')!r}, '--timed', '0=4,2=6,4=6', '--json']); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
