"""What a sweep raced: a real race as a job of a plan, and records of races that are none."""

import json
from itertools import groupby

import pytest

from sequoia_core.sweeps.jobs import all_jobs
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.results import Results, races_of, read_rows
from sequoia_core.sweeps.worker import run_job
from tests.sweep_plans import write_plan

from .hand_made import decoded, row, table


def test_a_race_is_a_timed_job_for_each_way_of_sampling_and_its_speeds_are_read_back(tmp_path):
    plan = read_plan(write_plan(tmp_path, count=2, tokens=8, more="race = true\nprofile = false"))
    parts = {timed: list(jobs) for timed, jobs in groupby(all_jobs(plan), key=lambda job: job.timed)}
    assert list(parts) == [False, True] and [job.kind for job in parts[True]] == ["race", "race"]
    done = run_job(parts[True][1])
    assert not done.faults
    Results(tmp_path / "out").add(done.rows)
    (found,) = races_of(read_rows(tmp_path / "out")).to_dict("records")
    record = json.loads(done.rows[0]["result"])
    assert (found["pair"], found["domain"], found["temperature"], found["prompts"]) == ("demo", "code", 0.6, 1)
    assert found["device"] == record["settings"]["device"] and found["predicted"] == record["predicted_speedup"]
    for name in ("chain", "sequoia", "specinfer", "adaptive", "hf_assisted"):
        rates = record[name]["tokens_per_sec"], record["autoregressive"]["tokens_per_sec"]
        assert found[name] == pytest.approx(rates[0] / rates[1]) and found[name] > 0
    assert "autoregressive" not in found


def test_no_race_is_an_empty_table():
    assert races_of(table(decoded("a", [1]))).empty


GOOD = {
    "settings": {"device": "x", "prompts": 1}, "autoregressive": {"tokens_per_sec": 2.0}, "predicted_speedup": 1.5,
    "sequoia": {"tokens_per_sec": 4.0},
}  # fmt: skip


@pytest.mark.parametrize(
    "result",
    ["", "3", "{", "[" * 10**5, *(json.dumps(GOOD | change) for change in (
        {"settings": 3}, {"settings": {"device": "x"}}, {"settings": {"device": "x", "prompts": "many"}},
        {"autoregressive": {"tokens_per_sec": 0}}, {"autoregressive": {}}, {"predicted_speedup": None},
        {"sequoia": {"tokens_per_sec": [1]}},
    ))],
)  # fmt: skip
def test_records_that_are_no_race_are_refused(result):
    with pytest.raises(ValueError, match="race of small: found none"):
        races_of(table(row("race", "", result=result)))
    assert races_of(table(row("race", "", result=json.dumps(GOOD)))).loc[0, "sequoia"] == 2.0
