"""Plans are checked whole before anything runs, and each mistake is named with its line."""

import json
import time

import pytest

from sequoia_core.command_line.main import main
from sequoia_core.models.default_dtype import DefaultDtype, default_dtype
from sequoia_core.models.loading import pair_facts
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.studies.sweep.doing import run_job
from sequoia_core.studies.sweep.jobs import all_jobs
from sequoia_core.studies.sweep.plan import read_plan
from tests.sweep_plans import PROMPTS, write_plan

DRAFTERS = 'drafters = ["model", "lookup", "both"]'


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("new_tokens = 24", "new_tokens = 0", "line 3: new_tokens: found '0'"),
        ("new_tokens = 24", "new_tokenz = 24", "line 3: new_tokenz: found '24'"),
        ("new_tokens = 24", "new_tokens = 4000", "line 8: code prompt"),
        ("temperatures = [0.0, 0.6]", "temperatures = [0.0, -1.0]", "line 2: temperature: found -1.0"),
        ("temperatures = [0.0, 0.6]", "", "line 1: temperatures: found nothing"),
        (DRAFTERS, 'drafters = ["model", "tree"]', "line 10: pairs.0.drafters.1"),
        (DRAFTERS, 'draft = "none"', "line 8: draft: found none"),
        (
            'name = "demo"',
            'name = "demo"\ntarget = "./nowhere"\ndraft = "./none"',
            "line 8: ./nowhere: found no such folder",
        ),
        ("not-looping.jsonl", "nothing.jsonl", "line 14: "),
        ("count = 4", 'count = 4\n[[prompts]]\ndomain = "code"\nfile = "{file}"', "line 17: found 'code' twice"),
        ("[[pairs]]", "[[pairs]", "found no readable TOML"),
        ("max_size = 16", "max_size = [4, 1]", "line 4: max_size.1: found '1'"),
        ("max_size = 16", "max_size = [4, 1000001]", "line 4: max_size.1: found '1000001'"),
        ("max_size = 16", "max_size = []", "line 4: max_size: found"),
        ("max_size = 16", "threads = 1025", "line 4: threads: found '1025'"),
        (DRAFTERS, 'drafters = [["model"]]', "line 10: pairs.0.drafters.0: found 'list'"),
        (DRAFTERS, "drafters = [{a = 1}]", "line 10: pairs.0.drafters.0: found 'dict'"),
        ("count = 4", "count = 1", "line 15: found one prompt in 'code', expected at least two"),
        ("max_size = 16", "seed = " + "9" * 6000, "line 4: found a number of 6,000 digits"),
        ("max_size = 16", "seed = 0x" + "f" * 6000, "line 4: found a number of 6,000 digits"),
        ("max_size = 16", "more = " + "[" * 6000, "nested too deep"),
        ("max_size = 16", "a." * 50_000 + "a = 1", "line 4: found 50,000 dots, expected at most 200"),
        ("max_size = 16", "#" * 300_000, "bytes, expected at most 262,144"),
        ("max_size = 16", "#\n" * 20_000, "lines, expected at most 10,000"),
        ("[[pairs]]", '[[pairs]]\nname = "a"\n' * 200 + "[[pairs]]", "line 8: pairs: found 'list', expected: List"),
    ],
)
def test_mistakes_of_a_plan_are_named_by_line(old, new, said, tmp_path, capsys):
    path = write_plan(tmp_path)
    text = path.read_text()
    assert old in text
    file = text.split('file = "')[1].split('"')[0]
    path.write_text(text.replace(old, new.replace("{file}", file)))
    started = time.perf_counter()
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and time.perf_counter() - started < 10
    assert not (tmp_path / "out").exists()


def test_all_mistakes_are_named_at_once(tmp_path):
    path = write_plan(tmp_path)
    path.write_text(
        path.read_text().replace("not-looping", "nothing").replace('name = "demo"', 'name = "demo"\ndtype = "int3"')
    )
    with pytest.raises(ValueError, match=r"line 8: .*int3.*; line 15: "):
        read_plan(path)


def test_a_plan_may_begin_with_a_byte_order_mark(tmp_path):
    path = write_plan(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_plan(path).domains) == 1


@pytest.mark.parametrize("tokens", [2, 20])
def test_the_longest_prompt_that_is_accepted_is_decoded_whole(tmp_path, tokens):
    facts, path = pair_facts(PairSpec()), write_plan(tmp_path, tokens=tokens)
    room = min(facts.contexts) - max(tokens, 17)  # a tree has 17 levels
    texts = [" x" * room, " x" * (room - 1) + " y"]
    assert [len(facts.tokenizer.encode(text)) for text in texts] == [room, room]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    path.write_text(path.read_text().replace(str(PROMPTS), str(file)))
    jobs = [job for job in all_jobs(read_plan(path)) if job.common["temperature"] == 0.0]
    for kind in ("lookup", "both"):
        done = run_job(next(job for job in jobs if job.kind == kind))
        assert not done.faults and done.rows[0]["tokens"] == tokens
    file.write_text(file.read_text().replace(" y", " x x"))
    with pytest.raises(ValueError, match=f"line 8: code prompt .*found {room + 1} tokens, expected 1 to {room}"):
        read_plan(path)


def test_a_device_that_only_the_workers_have_is_left_to_them(tmp_path, capsys):
    path = write_plan(tmp_path)
    path.write_text(path.read_text().replace('name = "demo"', 'name = "demo"\ndevice = "cuda:77"\noffload = "host"'))
    command = ["sweep", str(path), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(command) == 2 and "device: found 'cuda:77'" in capsys.readouterr().err
    assert main([*command, "--scheduler", "tcp://127.0.0.1:9"]) == 0
    (pair,) = read_plan(path, elsewhere=True).settings.pairs
    assert (pair.device, pair.offload, pair.dtype) == ("cuda:77", "host", default_dtype(gpu=True).dtype)


@pytest.mark.parametrize("other", ["float32", "bfloat16"])
def test_workers_load_in_the_dtype_that_the_reader_of_the_plan_found(tmp_path, monkeypatch, other):
    path = write_plan(tmp_path, count=2, tokens=2)
    with monkeypatch.context() as here:
        here.setattr("sequoia_core.models.loading.default_dtype", lambda *_, **__: DefaultDtype(other, "for a test"))
        job = next(iter(all_jobs(read_plan(path))))
    assert [row["dtype_used"] for row in run_job(job).rows] == [other]
