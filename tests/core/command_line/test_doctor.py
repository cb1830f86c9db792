"""doctor: a verdict in words and as JSON, from readings, two periods, logs and costs; bad input in one line."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.core.servers.samples import vllm_text


@pytest.fixture
def found(call):
    return partial(call, "doctor")


def test_the_verdict_with_evidence_and_what_mending_brings(found, files):
    wrong = found("--after", files("wired"), "--timed", "0=60,3=45")
    assert wrong["verdict"] == "wired wrong" and wrong["evidence"][0]["of"] == 8000
    assert wrong["mended"]["speedup"] == pytest.approx(45 / 60 * 2.533 / (1 + 295 / 8000))
    assert [each["verdict"] for each in wrong["also"]] == ["fine but costs too much"]
    sound = found("--after", files("after"), "--before", files("before"))
    assert sound["verdict"] == "healthy" and sound["mended"]["tokens_per_step"] is None and sound["drafts"] == 689
    assert found("--after", files("after"), "--before", files("empty"))["verdict"] == "healthy"


def test_another_period_is_compared_with(found, files):
    assert found("--after", files("wired"), "--earlier", files("after"))["verdict"] == "worse than before"


def test_what_cannot_be_planned_has_a_verdict(found, files):
    assert found("--after", files("pmin"), "--timed", "0=60,2=70,4=80")["verdict"] == "drafts rarely"
    assert found("--after", files("off"), "--timed", "0=60,2=70,4=80")["verdict"] == "never drafted"


def test_server_plan_says_what_the_doctor_does(files, call):
    limited = vllm_text(1000, 2000, 1960, (990, 970), 3000, 10)
    Path(files("limited")).write_text(limited)
    for name, said in (("wired", "Wired wrong: "), ("limited", "K is the limit: "), ("pmin", "Drafts rarely: ")):
        assert any(line.startswith(said) for line in call("server-plan", "--after", files(name))["warnings"])
    assert "sequoia doctor" not in json.dumps(call("server-plan", "--after", files("after")))
