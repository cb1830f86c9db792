"""A worker measures what the plan says, and only the models that were read with it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core.acceptance.calibration import Calibration
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.measuring.measure_acceptance import HEAD_DEPTHS, measure_acceptance
from sequoia_core.models.loading import load
from sequoia_core.models.prompting import encode_prompt
from sequoia_extras.sweeps import worker
from sequoia_extras.sweeps.content import content_hash
from sequoia_extras.sweeps.jobs import all_jobs
from sequoia_extras.sweeps.plan import read_plan
from sequoia_extras.sweeps.results import Results, build_vector, extract_races, read_rows
from sequoia_extras.sweeps.worker import run_job
from tests.sweep_plans import DEMO, write_plan


@pytest.fixture(autouse=True)
def no_loaded_pair():
    threads = torch.get_num_threads()
    worker._loaded_pair.clear()
    yield
    worker._loaded_pair.clear()
    torch.set_num_threads(threads)


def small_plan(tmp_path, paths=None, **options):
    """Return a small plan of the demo pair, or of a pair with other files."""
    lines = [f'{part} = "{path}"' for part, path in (paths or {}).items()]
    named = 'name = "demo"'
    changes = (named, "\n".join([named, *lines]))
    return read_plan(write_plan(tmp_path, changes, **{"count": 2, "tokens": 4} | options))


def first(plan, kind, **common):
    jobs = (job for job in all_jobs(plan) if job.kind == kind)
    return next(job for job in jobs if common.items() <= job.common.items())


@pytest.mark.slow
def test_rows_agree_with_measuring_each_prompt(serial, tmp_path):
    plan = read_plan(write_plan(tmp_path, count=2))
    job = first(plan, "model", temperature=0.6)
    done = run_job(job)
    pair = load(plan.settings.pairs[0].spec)
    vector = measure_acceptance(
        [encode_prompt(pair, job.prompts[0])],
        pair,
        width=16,
        sampling=SamplingConfig(0.6),
        max_new_tokens=24,
        seed=worker._seed(job, job.prompts[0]),
    )
    np.testing.assert_array_equal(done.rows[0]["sums"], vector.prompt_sums[0])
    np.testing.assert_array_equal(done.rows[0]["ranks"], vector.prompt_ranks[0])
    assert job.keys[0] in serial["key"].to_pylist()


@pytest.mark.slow
def test_races_are_timed_jobs_whose_speedups_are_read_back(tmp_path):
    plan = read_plan(write_plan(tmp_path, count=2, tokens=8, more="race = true\nprofile = false"))
    timed = [job for job in all_jobs(plan) if job.timed]
    assert [job.kind for job in timed] == ["race", "race"]
    done = run_job(timed[1])
    assert not done.faults
    Results(tmp_path / "out").add(done.rows)
    (found,) = extract_races(read_rows(tmp_path / "out")).to_dict("records")
    record = json.loads(done.rows[0]["result"])
    assert (found["pair"], found["domain"], found["temperature"], found["prompts"]) == ("demo", "code", 0.6, 1)
    assert found["device"] == record["settings"]["device"] and found["predicted"] == record["predicted_speedup"]
    for name in ("chain", "sequoia", "specinfer", "adaptive", "hf_assisted"):
        rates = record[name]["tokens_per_sec"], record["autoregressive"]["tokens_per_sec"]
        assert found[name] == pytest.approx(rates[0] / rates[1]) and found[name] > 0


def test_a_failed_prompt_does_not_affect_the_others(tmp_path, monkeypatch):
    real = worker._measure_vector

    def fails_once(pair, text, *rest):
        if "class" in text:
            raise ValueError("found a class \ud800")
        return real(pair, text, *rest)

    job = first(small_plan(tmp_path), "model")
    job = replace(job, keys=("a", "b", "c"), prompts=("def f(x):", "class A:", "import os"))
    monkeypatch.setattr(worker, "_measure_vector", fails_once)
    done = run_job(job)
    assert [row["key"] for row in done.rows] == ["a", "b", "c"] and done.faults == {"b": "found a class ?"}
    Results(tmp_path / "out").add(done.rows)
    assert read_rows(tmp_path / "out")["key"].to_list() == ["a", "c"]


@pytest.mark.slow
def test_a_worker_has_one_pair_in_memory(tmp_path, monkeypatch):
    large = f'[[pairs]]\nname = "large"\ntarget = "{DEMO / "target"}"\ndraft = "{DEMO / "draft-large"}"\n'
    plan = read_plan(write_plan(tmp_path, ("[[prompts]]", f"{large}[[prompts]]"), count=2, tokens=4))
    events = []

    def watched(spec):
        pair = load(spec)
        events.append(("loaded", pair.draft.name))
        monkeypatch.setattr(pair.draft, "close", lambda: events.append(("closed", pair.draft.name)), raising=False)
        return pair

    monkeypatch.setattr("sequoia_core.models.loading.load", watched)
    jobs = [job for job in all_jobs(plan) if job.kind == "model"]
    assert len(jobs) == 8 and not any(run_job(job).faults for job in jobs)
    assert events == [("loaded", "demo draft"), ("closed", "demo draft"), ("loaded", "demo draft-large")]


def test_acceptance_of_a_head_is_stored_by_depth(tmp_path):
    plan = small_plan(tmp_path, {"target": DEMO / "target", "draft": DEMO / "head"})
    results = Results(tmp_path / "out")
    for job in all_jobs(plan):
        if job.kind == "model" and job.common["temperature"] == 0.0:
            results.add(run_job(job).rows)
    rows = read_rows(tmp_path / "out")
    vector, (sums, *_) = build_vector(rows), rows["sums"]
    assert vector.by_depth.probs.shape == (HEAD_DEPTHS, int(rows["width"].iloc[0])) and len(sums) == vector.levels.size
    np.testing.assert_allclose(vector.levels[0], vector.probs)


@pytest.mark.slow
def test_both_is_never_calibrated_on_the_prompt_being_decoded(tmp_path, monkeypatch):
    job = first(read_plan(write_plan(tmp_path, ("job = 1", "job = 6"), count=6, tokens=4)), "both")
    seen = []
    measured = {}
    vector = worker._measure_vector
    joins = Calibration.joined

    def remember(pair, text, *rest):
        found = vector(pair, text, *rest)
        measured[id(found.calibration)] = text
        return found

    def joined(parts):
        seen.append([measured.get(id(part)) for part in parts])
        return joins(parts)

    monkeypatch.setattr(worker, "_measure_vector", remember)
    monkeypatch.setattr(Calibration, "joined", staticmethod(joined))
    done = run_job(job)
    used = [texts for texts in seen if len(texts) > 1]
    texts = list(job.prompts)
    assert len(done.rows) == len(used) == 6 and job.calibrating == tuple(texts[:5])
    assert used == [[other for other in texts[:5] if other != text][:4] for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("part, other", [("draft", "draft-large"), ("tokenizer", "target")])
def test_files_changed_since_the_plan_was_read_are_refused(tmp_path, part, other):
    shutil.copytree(DEMO / "draft", tmp_path / part)
    given = {"target": DEMO / "target", "draft": DEMO / "draft"} | {part: tmp_path / part}
    job = first(small_plan(tmp_path, given), "model")
    assert job.common["tokenizer_hash"] == (content_hash(tmp_path / part) if part == "tokenizer" else "")
    before = run_job(job)
    shutil.rmtree(tmp_path / part)
    shutil.copytree(DEMO / other, tmp_path / part)
    after = run_job(first(small_plan(tmp_path, given), "model"))  # not with the pair in memory
    assert not before.faults and not after.faults
    assert part == "tokenizer" or before.rows[0]["sums"] != after.rows[0]["sums"]
    done = run_job(job)
    assert [*done.faults] == [row["key"] for row in done.rows] == [*job.keys]
    words = f"{part}: found files at {tmp_path / part} that differ from the plan's"
    assert words in done.faults[job.keys[0]]


def test_a_damaged_draft_fails_only_the_jobs_that_need_it(tmp_path):
    shutil.copytree(DEMO / "draft", tmp_path / "draft")
    plan = small_plan(tmp_path, {"target": DEMO / "target", "draft": tmp_path / "draft"})
    for file in (tmp_path / "draft").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1000])  # damaged after the plan was checked
    (fault,) = run_job(first(plan, "both")).faults.values()
    assert "draft" in fault
    done = run_job(first(plan, "lookup"))
    assert not done.faults and done.rows[0]["draft"] == "none"


def test_a_target_without_a_draft_can_be_profiled(tmp_path):
    drafters = 'drafters = ["model", "lookup", "both"]'
    changes = ('name = "demo"', 'name = "demo"\ndraft = "none"'), (drafters, 'drafters = ["lookup"]')
    plan = read_plan(write_plan(tmp_path, *changes, more="profile = true"))
    assert first(plan, "profile").common["draft"] == "none"


@pytest.mark.slow
def test_trees_respect_the_size_of_their_job(tmp_path):
    plan = read_plan(write_plan(tmp_path, ("max_size = 16", "max_size = [2, 8]"), count=2))
    for kind in ("lookup", "both"):
        small, large = (run_job(first(plan, kind, max_size=size)).rows[0] for size in (2, 8))
        assert max(small["nodes"]) <= 2 < max(large["nodes"]) <= 8 and (small["max_size"], large["max_size"]) == (2, 8)


def test_a_job_uses_the_threads_of_its_plan(tmp_path):
    job = first(small_plan(tmp_path, more="threads = 2"), "lookup")
    torch.set_num_threads(1)
    done = run_job(job)
    assert torch.get_num_threads() == 2 and done.rows[0]["threads"] == 2
