"""Sweeps on this machine: plans are checked whole, runs go on after anything, results merge, failures are recorded."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from sequoia_core.command_line.main import main
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.calibration import Calibration
from sequoia_core.models.loading import load, load_pair
from sequoia_core.models.prompting import encode_prompt
from sequoia_core.studies.measure_acceptance import measure_acceptance
from sequoia_core.studies.sweep import doing
from sequoia_core.studies.sweep import jobs as sweep_jobs
from sequoia_core.studies.sweep.content import content_hash
from sequoia_core.studies.sweep.doing import run_job
from sequoia_core.studies.sweep.jobs import all_jobs
from sequoia_core.studies.sweep.plan import read_plan
from sequoia_core.studies.sweep.results import Results, read_rows, untimed_rows, vector_of
from sequoia_core.studies.sweep.run import run_sweep
from sequoia_core.studies.sweep.workers import LocalWorkers
from tests.sweep_plans import Here, write_plan

from .hand_made import row

DEMO = Path(__file__).parents[4] / "assets" / "demo"


def test_rows_are_what_measuring_each_prompt_gives(serial, tmp_path):
    plan = read_plan(write_plan(tmp_path, count=2))
    job = next(job for job in all_jobs(plan) if job.kind == "model" and job.common["temperature"] == 0.6)
    done = run_job(job)
    pair = load_pair(dtype=plan.settings.pairs[0].dtype)
    vector = measure_acceptance(
        [encode_prompt(pair, job.prompts[0])], pair, width=16,
        sampling=SamplingConfig(0.6), max_new_tokens=24, seed=doing._seed(job, job.prompts[0]),
    )  # fmt: skip
    np.testing.assert_array_equal(done.rows[0]["sums"], vector.prompt_sums[0])
    np.testing.assert_array_equal(done.rows[0]["ranks"], vector.prompt_ranks[0])
    assert serial["key"].isin([job.keys[0]]).any()


def test_rows_of_a_setting_are_a_vector(serial, tmp_path):
    results = Results(tmp_path / "out")
    run_sweep(read_plan(write_plan(tmp_path)), results, Here())
    rows = read_rows(tmp_path / "out")
    assert untimed_rows(tmp_path / "out").equals(serial)
    model = rows[(rows["kind"] == "model") & (rows["temperature"] == 0.6)]
    vector = vector_of(model)
    assert vector.trials == 4 * 24 and len(vector) == 16 and vector.calibration.temperature == 0.6
    np.testing.assert_allclose(vector.probs, np.stack(list(model["sums"])).sum(axis=0) / 96)
    again = AcceptanceVector.loads(vector.to_bytes(), "v.json")
    assert again == vector and vector.holds_for.temperature == 0.6
    with pytest.raises(ValueError, match="temperature: found"):
        vector_of(rows[rows["kind"] == "model"])


def test_what_is_there_is_not_measured_again(tmp_path):
    here, results = Here(), Results(tmp_path / "out")
    run_sweep(read_plan(write_plan(tmp_path, count=2)), results, here)
    first = len(here.done)
    state = run_sweep(read_plan(write_plan(tmp_path, count=3)), results, here)
    # both is calibrated by the domain's first five prompts, so another set of those is another measurement
    new = [job for job in here.done[first:] if job.kind != "both"]
    assert first == 12 and state.skipped == 8 and len(new) == 4 and len(here.done) == 12 + 4 + 6
    assert run_sweep(read_plan(write_plan(tmp_path, count=3)), results, here).jobs == 0


def test_two_folders_merge_by_copying(serial, tmp_path):
    plan = read_plan(write_plan(tmp_path))
    wanted = list(all_jobs(plan))
    for number in range(2):
        results = Results(tmp_path / f"part{number}")
        for job in wanted[number * 8 : number * 8 + 16]:  # eight are in both
            results.add(run_job(job).rows)
    shutil.copytree(tmp_path / "part0", tmp_path / "part1", dirs_exist_ok=True)
    assert untimed_rows(tmp_path / "part1").equals(serial)
    Results(tmp_path / "part1").join()
    assert untimed_rows(tmp_path / "part1").equals(serial) and len(list(tmp_path.glob("part1/rows/*"))) == 1


def test_a_part_of_a_job_does_not_replace_the_whole_by_merging(tmp_path):
    rows = [row("model", prompt) for prompt in "ab"]
    whole, part = Results(tmp_path / "whole"), Results(tmp_path / "part")
    whole.add(rows)
    part.add(rows[:1])  # the other prompt failed there
    shutil.copytree(part.folder, whole.folder, dirs_exist_ok=True)
    assert whole.keys() == {each["key"] for each in rows}


def test_a_run_that_is_killed_goes_on_and_leaves_no_process(serial, tmp_path):
    out, plan = tmp_path / "out", write_plan(tmp_path)
    command = [sys.executable, "-m", "sequoia_core", "sweep", str(plan), "--out", str(out), "--workers", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        while not list(out.glob("rows/*.parquet")):
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(children, timeout=10)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    before = len(list(out.glob("rows/*.parquet")))
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(found.stdout)
    assert 0 < before < 24 and report["skipped"] == before and report["done"] == report["jobs"] == 24 - before
    assert report["failed"] == report["failed_before"] == 0  # one JSON object on stdout; progress is on stderr
    assert found.stderr.splitlines()[-1].startswith(f"{report['jobs']} of {report['jobs']} jobs, ")
    assert untimed_rows(out).equals(serial)


def test_a_local_worker_that_is_killed_costs_nothing(serial, tmp_path):
    workers, killed = LocalWorkers(2), []

    def progress(state) -> None:
        if state.done >= 3 and not killed:
            killed.append(next(iter(workers._executor._processes)))
            os.kill(killed[0], signal.SIGKILL)

    try:
        state = run_sweep(read_plan(write_plan(tmp_path)), Results(tmp_path / "out"), workers, progress=progress)
    finally:
        workers.close()
    assert killed and state.done == 24 and not state.faults
    assert untimed_rows(tmp_path / "out").equals(serial)


def test_a_job_that_kills_its_worker_is_given_up_and_retried_on_request(tmp_path):
    plan, results = read_plan(write_plan(tmp_path, count=2)), Results(tmp_path / "out")
    bad = next(iter(all_jobs(plan)))
    here = Here(bad.keys)
    state = run_sweep(plan, results, here)
    assert state.failed == 1 and state.done == 11 and here.restarts >= 3
    assert results.failures() == dict.fromkeys(
        bad.keys, "the worker process died with this job, several times (out of memory?)"
    )
    assert run_sweep(plan, results, Here()).jobs == 0
    results.forget_failures(set(results.failures()))
    assert run_sweep(plan, results, Here()).done == 1
    assert not results.failures() and len(results.keys()) == 12


def test_a_prompt_that_fails_leaves_the_others(tmp_path, monkeypatch):
    real = doing._vector

    def fails_once(pair, text, *rest):
        if "class" in text:
            raise ValueError("found a class")
        return real(pair, text, *rest)

    plan = read_plan(write_plan(tmp_path, count=4))
    job = next(job for job in sweep_jobs.all_jobs(plan) if job.kind == "model")
    both = next(sweep_jobs.parts_of(job, [("a", "def f(x):"), ("b", "class A:"), ("c", "import os")], 3))
    monkeypatch.setattr(doing, "_vector", fails_once)
    done = run_job(both)
    assert [row["key"] for row in done.rows] == ["a", "c"] and done.faults == {"b": "found a class"}


def test_a_pair_that_does_not_load_fails_its_jobs_alone(tmp_path):
    draft = tmp_path / "draft"
    shutil.copytree(DEMO / "draft-large", draft)
    path = write_plan(tmp_path, count=2)
    path.write_text(
        path.read_text()
        + f'[[pairs]]\nname = "broken"\ntarget = "{DEMO / "target"}"\ndraft = "{draft}"\ndrafters = ["model"]\n'
    )
    plan = read_plan(path)
    for file in draft.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1000])  # between the check and the run
    doing._held.clear()
    results = Results(tmp_path / "out")
    state = run_sweep(plan, results, Here())
    assert state.failed == 4 and state.done == 12
    assert all("draft" in words for words in results.failures().values())


def test_pairs_share_rows_that_do_not_depend_on_the_draft(tmp_path):
    path = write_plan(tmp_path, count=2)
    large = f'[[pairs]]\nname = "large"\ntarget = "{DEMO / "target"}"\ndraft = "{DEMO / "draft-large"}"\n'
    path.write_text(path.read_text() + large + 'drafters = ["model", "lookup"]\n')
    kinds = [job.kind for job in all_jobs(read_plan(path))]
    assert (kinds.count("model"), kinds.count("lookup"), kinds.count("both")) == (8, 4, 4)


def test_content_tells_models_apart(tmp_path):
    shutil.copytree(DEMO / "draft", tmp_path / "draft")
    assert content_hash(tmp_path / "draft") == content_hash(DEMO / "draft") != content_hash(DEMO / "target")
    weights = next((tmp_path / "draft").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    assert content_hash(tmp_path / "draft") != content_hash(DEMO / "draft")


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    assert main(["sweep", str(write_plan(tmp_path)), "--out", str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == 24 and found["prompts"] == {"code": 4} and not (tmp_path / "out").exists()


def test_a_worker_has_one_pair_in_memory(tmp_path, monkeypatch):
    path = write_plan(tmp_path, count=1, tokens=4)
    large = f'[[pairs]]\nname = "large"\ntarget = "{DEMO / "target"}"\ndraft = "{DEMO / "draft-large"}"\n'
    path.write_text(path.read_text().replace('drafters = ["model", "lookup", "both"]', "") + large)
    doing._held.clear()
    events = []

    def watched(spec):
        pair = load(spec)
        events.append(("loaded", pair.draft.name))
        monkeypatch.setattr(pair.draft, "close", lambda: events.append(("closed", pair.draft.name)), raising=False)
        return pair

    monkeypatch.setattr("sequoia_core.models.loading.load", watched)
    assert run_sweep(read_plan(path), Results(tmp_path / "out"), Here()).done == 4
    assert events == [("loaded", "demo draft"), ("closed", "demo draft"), ("loaded", "demo draft-large")]


def test_both_is_never_calibrated_by_the_prompt_that_it_decodes(tmp_path, monkeypatch):
    path = write_plan(tmp_path, count=6, tokens=4)
    path.write_text(path.read_text().replace("prompts_per_job = 1", "prompts_per_job = 6"))
    plan = read_plan(path)
    job = next(job for job in all_jobs(plan) if job.kind == "both")
    seen, measured = [], {}
    vector, joins = doing._vector, Calibration.joined

    def remember(pair, text, *rest):
        found = vector(pair, text, *rest)
        measured[id(found.calibration)] = text
        return found

    def joined(parts):
        seen.append([measured.get(id(part)) for part in parts])
        return joins(parts)

    doing._held.clear()
    monkeypatch.setattr(doing, "_vector", remember)
    monkeypatch.setattr(Calibration, "joined", staticmethod(joined))
    done = run_job(job)
    used = [texts for texts in seen if len(texts) > 1]
    texts = list(job.prompts)
    assert len(done.rows) == len(used) == 6 and job.calibrating == tuple(texts[:5])
    assert used == [[other for other in texts[:5] if other != text][:4] for text in texts]


def test_a_row_that_is_there_twice_counts_once(tmp_path):
    plan, results = read_plan(write_plan(tmp_path, count=2, tokens=4)), Results(tmp_path / "out")
    first, second = [run_job(job).rows for job in list(all_jobs(plan))[:2]]
    results.add(first + second)
    results.add(second)
    assert len(read_rows(tmp_path / "out")) == 2
