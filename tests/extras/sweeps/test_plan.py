"""Plans are checked completely before anything runs, and each fault is named with its location."""

import json

import pytest

from sequoia_core.command_line.main import main
from sequoia_core.files.dtypes import DefaultDtype
from sequoia_core.models.default_dtype import default_dtype
from sequoia_core.models.loading import pair_facts
from sequoia_core.models.pair_spec import PairSpec
from sequoia_extras.sweeps.jobs import all_jobs
from sequoia_extras.sweeps.plan import read_plan
from sequoia_extras.sweeps.worker import run_job
from tests.sweep_plans import PROMPTS, write_plan

DRAFTERS = 'drafters = ["model", "lookup", "both"]'
SIZE = "max_size = 16"
NAME = 'name = "demo"'
FAULTS = "\n".join(f"unknown{number} = 1" for number in range(12))  # as many as one message names


@pytest.mark.sample(17, cover=False)
@pytest.mark.parametrize(
    "old, new, message",
    [
        ("new_tokens = 24", "new_tokenz = 24", "new_tokenz: found '24'"),
        ("new_tokens = 24", "new_tokens = 4000", "pairs.0: code prompt"),
        ("temperatures = [0.0, 0.6]", "temperatures = [0.0, -1.0]", "temperatures.1: temperature: found -1.0"),
        (DRAFTERS, 'draft = "none"', "pairs.0: draft: found none"),
        (NAME, f'{NAME}\ntarget = "./nowhere"\ndraft = "./none"', "pairs.0: ./nowhere: found no such folder"),
        (NAME, f"{NAME}\n{DRAFTERS}\n[[pairs]]\n{NAME}", "pairs: found the name 'demo' twice"),
        ("count = 4", "count = 1", "pairs.0: found one prompt in 'code', expected at least two"),
        ("[[pairs]]", "[[pairs]", "found no readable TOML (Expected ']]' at the end of an array"),
        (SIZE, "a." * 50_000 + "a = 1", "line 4: found 50,000 dots, expected at most 200"),
        (SIZE, f"max_size = {list(range(2, 25002))}", "temperatures: found 100,002 settings"),
        (SIZE, FAULTS, "unknown11: found '1', expected: Extra inputs are not permitted\n"),
        (SIZE, f"{FAULTS}\nlast = 1\nreally = 1", "not permitted; and 2 more\n"),
    ],
)
def test_faults_of_a_plan_are_named_with_their_location(old, new, message, tmp_path, capsys):
    path = write_plan(tmp_path, (old, new))
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"{path}: " in error and message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_lookup_without_its_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sequoia_extras.sweeps.plan.has", lambda package: False)
    with pytest.raises(ValueError, match="pairs.0: drafters: the optional package dynamic_trees is not installed"):
        read_plan(write_plan(tmp_path))


ENCODINGS = [("cp1252", "found text that is not UTF-8"), ("utf-16", "found no readable TOML .*line 1, column 8")]


@pytest.mark.parametrize(("encoding", "message"), ENCODINGS)
def test_a_plan_in_another_encoding_is_refused(encoding, message, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes("name = caf\xe9".encode(encoding))
    with pytest.raises(ValueError, match=f"^{path}: {message}"):
        read_plan(path)


def test_a_folder_of_other_files_is_refused(tmp_path, capsys):
    assert main(["sweep", str(write_plan(tmp_path)), "--out", str(tmp_path)]) == 2
    assert f"--out: {str(tmp_path)!r}: found other files in it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 20])
def test_the_longest_accepted_prompt_decodes_completely(tmp_path, tokens):
    facts = pair_facts(PairSpec())
    limit = min(facts.contexts) - max(tokens, 17)  # a tree has 17 levels
    texts = [" x" * limit, " x" * (limit - 1) + " y"]
    assert [len(facts.tokenizer.encode(text)) for text in texts] == [limit, limit]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    path = write_plan(tmp_path, (str(PROMPTS), "prompts.jsonl"), tokens=tokens)
    jobs = [job for job in all_jobs(read_plan(path)) if job.common["temperature"] == 0.0]
    for kind in ("lookup", "both"):
        done = run_job(next(job for job in jobs if job.kind == kind))
        assert not done.faults and done.rows[0]["tokens"] == tokens
    file.write_text(file.read_text().replace(" y", " x x"))
    with pytest.raises(ValueError, match=f"pairs.0: code prompt .*found {limit + 1} tokens, expected 1 to {limit}"):
        read_plan(path)


def test_a_race_reserves_context_for_its_deeper_trees(tmp_path):
    limit = min(pair_facts(PairSpec()).contexts) - 33
    path = write_plan(tmp_path, (str(PROMPTS), "long.txt"), (DRAFTERS, ""), more="race = true")
    prompts = tmp_path / "long.txt"
    prompts.write_text(" x" * limit)
    assert read_plan(path).settings.race
    prompts.write_text(" x" * (limit + 1))
    with pytest.raises(
        ValueError, match=f"found {limit + 1} tokens, expected 1 to {limit} .* minus 33 levels of trees"
    ):
        read_plan(path)


def test_a_device_of_the_workers_need_not_exist_here(tmp_path, capsys):
    path = write_plan(tmp_path, (NAME, f'{NAME}\ndevice = "cuda:77"\noffload = "host"'))
    command = ["sweep", str(path), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(command) == 2 and "device: found 'cuda:77'" in capsys.readouterr().err
    assert main([*command, "--scheduler", "tcp://127.0.0.1:9"]) == 0 and not (tmp_path / "out").exists()
    (pair,) = read_plan(path, elsewhere=True).settings.pairs
    assert (pair.device, pair.offload, pair.dtype) == ("cuda:77", "host", default_dtype(gpu=True).dtype)


@pytest.mark.parametrize("other", ["float32", "bfloat16"])
def test_workers_load_in_the_dtype_chosen_when_the_plan_was_read(tmp_path, monkeypatch, other):
    path = write_plan(tmp_path, count=2, tokens=2)
    with monkeypatch.context() as here:
        here.setattr("sequoia_core.models.loading.default_dtype", lambda *_, **__: DefaultDtype(other, "for a test"))
        job = next(iter(all_jobs(read_plan(path))))
    assert [row["dtype_used"] for row in run_job(job).rows] == [other]
