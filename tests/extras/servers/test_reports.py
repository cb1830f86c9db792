"""Whole reports of the doctor and the planner on typical sources: every number, note and setting.

The expected output is in reports.txt. Counts, shares and tokens per step were calculated by hand; bounds of shares are
where the binomial tails have 1 %. Bounds of speeds come from resamples and are only pinned.
"""

import json
from math import nan
from pathlib import Path

import numpy as np
import pytest

from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.command_line.main import main
from sequoia_extras.servers.evidence import Evidence
from tests.extras.servers.samples import AFTER, BEFORE, NGRAM, SGLANG_TEXT, step_record, vllm_text
from tests.extras.servers.test_doctor import answers, vllm
from tests.extras.servers.test_records import VLLM_LOG


def lines(value, name: str = ""):
    """Yield a line for each value of a report that is known, numbers with four digits."""
    if isinstance(value, dict) and not {"what", "value"} & value.keys():
        for key, each in value.items():
            yield from lines(each, f"{name} {key}".strip())
    elif isinstance(value, list) and value and isinstance(value[0], str | dict) and "low" not in value[0]:
        for each in value:
            yield from lines(each, name)
    elif value not in (None, [], "", {}):
        yield f"{name}: {short(value)}"


def short(value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    if isinstance(value, dict) and "what" in value:
        return str(Evidence(**value | {key: nan for key in ("value", "low", "high") if value[key] is None}))
    if isinstance(value, dict):
        return "..".join(short(each) for each in value.values() if each is not None)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def vector() -> bytes:
    """Two texts: accepted by match 2, 3, 1 and 0, 2 tokens of a draft; by rejection 4, 3 and 3."""
    texts = ((1, 1, 1, 1, 0, 1, 1, 1), (1, 1, 1)), ((1, 1, 0, 1, 1, 1, 0, 1), (0, 1, 1))
    ranks, matched = (tuple(np.array(row) for row in rows) for rows in texts)
    return AcceptanceVector(
        np.array([10 / 11]), prompt_sums=np.array([[7.0], [3.0]]), prompt_trials=np.array([8, 3]), prompt_ranks=ranks,
        prompt_matched=matched, holds_for=Conditions("big", "small", 0.8),
    ).to_bytes()  # fmt: skip


def llama_request(tokens: int, accepted: int, drafted: int, mean: float, prompt: int = 50) -> str:
    return (
        f"slot print_timing: prompt eval time = 40.00 ms / {prompt} tokens\n"
        f"slot print_timing:        eval time = 2000.00 ms / {tokens} tokens\n"
        f"slot print_timing: draft acceptance = {accepted / drafted:.5f} ( {accepted} accepted / {drafted} generated), "
        f"mean len = {mean}\n"
    )


def histogram(*bins: int, prompt: int, **fields) -> dict:
    steps = "".join(str(taken) * count for taken, count in enumerate(bins))
    counts = step_record(steps, len(bins) - 1)
    del counts["per_step_accepted"], counts["per_step_drafted"]
    usage = {"completion_tokens": counts["num_spec_steps"] + counts["num_accepted_draft_tokens"] + 1}
    return {"metrics": {"speculative_decoding": counts}, "usage": usage | {"prompt_tokens": prompt}, **fields}


RUNNING = (
    "statistics draft-mtp: #calls(b,g,a) = 2 160 160, #gen drafts = 120, #acc drafts = 90, #gen tokens = 360, "
    "#acc tokens = 174, #acc rate/pos = (0.750, 0.450, 0.250), dur(b,g,a) = 0.003, 1000.000, 1.234 ms\n"
)
FALLEN = VLLM_LOG.replace("169", "3").replace("0.919, 0.788", "0.030, 0.000")
PROMPTS = range(1000, 1006)
TIMED = ["--timed", "0=60,1=80,2=90"]
SOURCES = {  # name -> files (the last one is read), options of both commands, and of the planner
    "counters": (
        {"before": vllm_text(*BEFORE), "after": vllm_text(*AFTER)},
        ["--timed", "0=60,2=90,4=96,0=200@4,2=180@4,4=150@4"],
        ["--batch", "1,4"],
    ),
    "a log with lines that are cut": ({"after": VLLM_LOG * 3 + 5 * VLLM_LOG.replace("169 tok", "many tok")}, TIMED, []),
    "a log that collapses": ({"after": VLLM_LOG * 2 + FALLEN}, [], []),
    "answers": (
        {"after": answers(*[(n, 261, 200, 160) for n in PROMPTS], *[(8000 + n, 145, 200, 44) for n in PROMPTS])},
        [], [],
    ),
    "histograms": (
        {"after": [histogram(10, 20, 40, prompt=9), histogram(30, 20, 10, prompt=7), {"metrics": {}}]}, TIMED, [],
    ),
    "a log of llama.cpp": (
        {"after": llama_request(201, 100, 200, 2.5) + llama_request(136, 74, 160, 2.35) + RUNNING}, TIMED, [],
    ),
    "averages": ({"after": SGLANG_TEXT + SGLANG_TEXT.replace('"0"', '"1"').replace("2.65", "3.05")}, TIMED, []),
    "n-grams": ({"after": vllm_text(*NGRAM)}, [], TIMED),
    "rates": ({"after": "0.8\n0.75\n0.5\n"}, ["--rates", "conditional"], TIMED),
    "a vector": ({"after": vector()}, [], ["--rule", "match"]),
    "wired wrong": (
        {"after": vllm((290, 4, 1), 8000)}, ["--timed", "0=60,2=50,3=48"], [],
    ),
    "records by step": (
        {
            "after": [
                step_record("21012", 2) | {"completion_tokens": 12},
                step_record("2202", 2) | {"completion_tokens": 11},
            ]
        },
        TIMED, [],
    ),
    "worse than a part of it before": (
        {"earlier": vllm((800, 500), 1000), "after": vllm((600, 300), 1000)},
        [], [],
    ),
}  # fmt: skip


WRITTEN = (Path(__file__).parent / "reports.txt").read_text(encoding="utf-8")
REPORTS = dict(section.rstrip().split("\n", 1) for section in WRITTEN.removeprefix("# ").split("\n# "))


@pytest.mark.sample(len(SOURCES))
@pytest.mark.parametrize("name", SOURCES)
def test_reports_match_the_recorded_ones(name, tmp_path, capsys):
    files, options, planned = SOURCES[name]
    for file, content in files.items():
        path = tmp_path / f"{file}.json"
        data = content if isinstance(content, bytes | str) else json.dumps(content)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        options = [*options, f"--{file}", str(path)]
    found = []
    for command, more in (("doctor", []), ("server-plan", planned)):
        if command == "server-plan":
            options = [each for each in options if "earlier" not in each]
        assert main([command, *options, *more, "--json"]) == 0
        found += [f"{command}:", *lines(json.loads(capsys.readouterr().out))]
    assert "\n".join(found) == REPORTS[name]
