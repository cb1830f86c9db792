"""What a worker does with a job: it measures only what the plan was read with, as the plan says."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sequoia_core.sweeps import worker
from sequoia_core.sweeps.content import content_hash
from sequoia_core.sweeps.executors import LocalWorkers
from sequoia_core.sweeps.jobs import all_jobs
from sequoia_core.sweeps.plan import read_plan
from sequoia_core.sweeps.worker import run_job
from tests.gguf_files import need_llama_cpp, write_demo
from tests.sweep_plans import write_plan

DEMO = Path(__file__).parents[3] / "assets" / "demo"


@pytest.fixture(autouse=True)
def nothing_loaded():
    threads = torch.get_num_threads()
    worker._held.clear()
    yield
    worker._held.clear()
    torch.set_num_threads(threads)


def plan_of(tmp_path, pair: str, **options):
    """Return a small plan of a pair that is given by its lines."""
    path = write_plan(tmp_path, **{"count": 2, "tokens": 4} | options)
    path.write_text(path.read_text().replace('name = "demo"', f'name = "demo"\n{pair}'))
    return read_plan(path)


def first(plan, kind, **common):
    jobs = (job for job in all_jobs(plan) if job.kind == kind)
    return next(job for job in jobs if common.items() <= job.common.items())


@pytest.mark.parametrize("part, other", [("draft", "draft-large"), ("tokenizer", None)])
def test_files_that_are_others_than_when_the_plan_was_read_are_not_measured(tmp_path, part, other):
    shutil.copytree(DEMO / "draft", tmp_path / part)
    given = {"target": DEMO / "target", "draft": DEMO / "draft"} | {part: tmp_path / part}
    plan = plan_of(tmp_path, "\n".join(f'{key} = "{path}"' for key, path in given.items()))
    job = first(plan, "model")
    assert job.common["tokenizer_hash"] == (content_hash(tmp_path / part) if part == "tokenizer" else "")
    assert not run_job(job).faults
    shutil.rmtree(tmp_path / part)
    shutil.copytree(DEMO / (other or "draft"), tmp_path / part)
    if other is None:
        (tmp_path / part / "more.json").write_text("{}")
    worker._held.clear()
    done = run_job(job)
    assert not done.rows and set(done.faults) == set(job.keys)
    words = f"{part}: found other files at {tmp_path / part} than when the plan was read"
    assert words in done.faults[job.keys[0]]
    again = plan_of(tmp_path, "\n".join(f'{key} = "{path}"' for key, path in given.items()))
    assert not run_job(first(again, "model")).faults  # what the plan is read with now


def test_a_pair_in_memory_is_not_that_of_a_plan_read_since(tmp_path):
    shutil.copytree(DEMO / "draft", tmp_path / "draft")
    pair = f'target = "{DEMO / "target"}"\ndraft = "{tmp_path / "draft"}"'
    small = run_job(first(plan_of(tmp_path, pair), "model"))
    shutil.rmtree(tmp_path / "draft")
    shutil.copytree(DEMO / "draft-large", tmp_path / "draft")
    large = run_job(first(plan_of(tmp_path, pair), "model"))
    assert not small.faults and not large.faults and small.rows[0]["sums"] != large.rows[0]["sums"]


def test_another_version_of_the_measurement_is_not_run(tmp_path, monkeypatch):
    job = first(plan_of(tmp_path, ""), "model")
    monkeypatch.setattr("sequoia_core.sweeps.jobs.MEASURE_VERSION", 2)
    assert run_job(job).faults == dict.fromkeys(
        job.keys,
        "found version 2 of the measurement on this worker, expected 1: install the same version everywhere",
    )


def test_lookup_needs_no_draft(tmp_path):
    shutil.copytree(DEMO / "draft", tmp_path / "draft")
    plan = plan_of(tmp_path, f'target = "{DEMO / "target"}"\ndraft = "{tmp_path / "draft"}"')
    for file in (tmp_path / "draft").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1000])
    assert run_job(first(plan, "both")).faults
    done = run_job(first(plan, "lookup"))
    assert not done.faults and done.rows[0]["draft"] == "none"


def test_trees_have_at_most_the_size_of_their_job(tmp_path):
    path = write_plan(tmp_path, count=2, tokens=24)
    path.write_text(path.read_text().replace("max_size = 16", "max_size = [2, 8]"))
    plan = read_plan(path)
    for kind in ("lookup", "both"):
        small, large = (run_job(first(plan, kind, max_size=size)).rows[0] for size in (2, 8))
        assert max(small["nodes"]) <= 2 < max(large["nodes"]) <= 8 and (small["max_size"], large["max_size"]) == (2, 8)


def test_a_job_has_the_threads_of_its_plan(tmp_path):
    job = first(plan_of(tmp_path, "", more="threads = 2"), "lookup")
    torch.set_num_threads(1)
    done = run_job(job)
    assert torch.get_num_threads() == 2 and done.rows[0]["threads"] == 2
    run_job(replace(job, common=job.common | {"threads": 1}))
    assert torch.get_num_threads() == 1


def test_threads_beyond_the_cores_are_refused_or_said(monkeypatch):
    monkeypatch.setattr("sequoia_core.sweeps.executors._cores", lambda: [0, 1])
    for threads in (3, 10**9):
        with pytest.raises(ValueError, match=f"threads: found {threads}, expected at most the 2 cores"):
            LocalWorkers(1, threads=threads)
    noted = {}
    for count, threads in ((1, 2), (2, 1), (2, 2), (None, 2)):
        workers = LocalWorkers(count, threads=threads)
        noted[count, threads] = workers.note
        workers.close()
    assert [key for key, note in noted.items() if note] == [(2, 2)]
    assert noted[2, 2] == "4 threads share 2 cores: each takes longer"


def test_a_pair_of_gguf_files_is_measured(tmp_path):
    need_llama_cpp()
    files = {part: write_demo(part, tmp_path / f"{part}.gguf", "float32") for part in ("target", "draft")}
    plan = plan_of(tmp_path, "\n".join(f'{part} = "{file}"' for part, file in files.items()), tokens=8)
    for kind in ("lookup", "model", "both"):
        job = first(plan, kind)
        done = run_job(job)
        assert not done.faults and done.rows[0]["target_hash"] == content_hash(files["target"])
        assert done.rows[0]["passes_by"] == "llama.cpp" and done.rows[0]["dtype"] == ""
