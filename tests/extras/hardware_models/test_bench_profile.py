"""llama-bench's JSON output read as a profile; other content is refused in one line."""

import json
from dataclasses import replace

import pytest

from sequoia_core.planning.profile import HardwareProfile, profile_from_files
from sequoia_core.planning.profile_files import describe_odd_times
from sequoia_extras.hardware_models.bench_profile import profile_from_bench


def row(tokens, samples, *, model="target.gguf", parameters=19_000_000, generated=0, depth=64) -> dict:
    return {
        "cpu_info": "AMD EPYC", "gpu_info": "", "model_filename": model, "model_type": "llama ?B BF16",
        "model_n_params": parameters, "n_prompt": tokens, "n_gen": generated, "n_depth": depth,
        "avg_ns": sum(samples) / len(samples), "samples_ns": samples,
    }  # fmt: skip


ROWS = [
    row(1, [3_000_000, 1_600_000]), row(4, [3_100_000, 9_000_000]), row(0, [5_000_000], generated=16),
    row(1, [50_000, 90_000], model="draft.gguf", parameters=1_200_000),
    row(4, [70_000], model="draft.gguf", parameters=1_200_000),
]  # fmt: skip


def test_the_shortest_sample_counts_and_the_larger_model_is_the_target():
    for text in (json.dumps(ROWS), "\n".join(map(json.dumps, ROWS))):
        found = profile_from_bench([(text.encode(), "bench")])
        assert found.sizes.tolist() == [1, 4] and found.verify_sec.tolist() == pytest.approx([0.0016, 0.0031])
        assert found.draft_widths.tolist() == [1, 4] and found.draft_sec == pytest.approx(5e-5)
        assert found.context == 64 and found.device == "AMD EPYC"
        assert found.meta == {"source": "llama-bench", "target": "target.gguf", "draft": "draft.gguf"}


MARKDOWN = """| model | size | params | backend | threads | test | t/s |
| ------------------- | ---: | ---: | ------- | --: | ------: | -----------------: |
| llama ?B BF16 | 36 MiB | 19.28 M | CPU | 1 | pp1 @ d64 | 500.00 ± 9.00 |
| llama ?B BF16 | 36 MiB | 19.28 M | CPU | 1 | pp 4@d64 | 1000.00±9.00 |
| llama small | 2 MiB | 1.23 M | CPU | 1 | pp1 @ d64 | 20000.00 ± 9.00 |
| llama ?B BF16 | 36 MiB | 19.28 M | CPU | 1 | tg16 @ d64 | 500.00 ± 9.00 |

build: unknown (0)
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])  # PowerShell redirects output as UTF-16
def test_a_markdown_table_has_means(encoding):
    found = profile_from_bench([(MARKDOWN.encode(encoding), "bench.md")])
    assert found.verify_sec.tolist() == pytest.approx([1 / 500, 4 / 1000]) and found.draft_sec == pytest.approx(5e-5)
    assert found.context == 64 and found.device == "CPU" and found.meta["source"] == "llama-bench, means"


def test_a_mean_is_used_if_there_are_no_samples():
    rows = [{key: value for key, value in each.items() if key != "samples_ns"} for each in ROWS]
    found = profile_from_bench([(json.dumps(rows).encode(), "bench")])
    assert found.verify_sec[0] == pytest.approx(0.0023) and found.meta["source"] == "llama-bench, means"


def test_a_prompt_read_in_batches_gives_passes_of_the_batch_size():
    """Measurements from ik_llama.cpp#1630: pp256 with batches of 1 to 8 tokens."""
    rates = {1: 169.98, 2: 111.52, 3: 145.78, 4: 174.78, 6: 221.85, 8: 266.06}
    fields = [row(256, [256e9 / rate], depth=0) | {"n_ubatch": n} for n, rate in rates.items()]
    found = profile_from_bench([(json.dumps(fields).encode(), "bench")], needs_draft=False)
    assert found.sizes.tolist() == [*rates]
    assert found.verify_sec.tolist() == pytest.approx([n / rate for n, rate in rates.items()])
    assert "takes 3.05 times as long as one over 1" in describe_odd_times(found.sizes, found.verify_sec)


def test_two_files_make_a_pair_and_native_profiles_are_read_as_before():
    files = [(json.dumps(part).encode(), "bench") for part in (ROWS[:3], ROWS[3:])]
    assert profile_from_files(files).meta["draft"] == "draft.gguf"
    with pytest.raises(ValueError, match="found models target.gguf, expected a target and its draft"):
        profile_from_files(files[:1])
    assert profile_from_files(files[:1], needs_draft=False).meta["draft"] is None
    own = HardwareProfile([1, 2], [1.0, 1.5], 0.1, device="here")
    assert profile_from_files([(own.to_bytes(), "own.json")]).device == "here"
    alone = replace(own, meta={"draft": "none"}).to_bytes()
    assert profile_from_files([(alone, "own.json")], needs_draft=False).device == "here"
    with pytest.raises(ValueError, match="own.json: found only a target's times, expected those of a target and"):
        profile_from_files([(alone, "own.json")])
    again = HardwareProfile.loads(profile_from_files(files).to_bytes(), "saved.json")
    assert again.verify_sec.tolist() == pytest.approx([0.0016, 0.0031])


BATCHED = "|    PP |     TG |    B |   N_KV |\n|-------|--------|------|--------|\n|   128 |    128 |    1 |    256 |\n"


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found an empty file"),
        (BATCHED, "found llama-batched-bench output, expected a profile .* or llama-bench output"),
        ('{"n_kv_max": 2048, "is_pp_shared": 0, "pp": 128, "t_tg": 4.0}\n', "found llama-batched-bench output"),
        ("1,0.6,0.47,0.41\n", "found a bare list of numbers"),
        ("[1.0, 0.6]", "found a bare list of numbers"),
        ("build_commit,model_type,n_prompt,avg_ns\na,b,1,5\n", "found llama-bench output as CSV or SQL"),
        ("| test | t/s |\n", "found llama-bench output without prompt passes"),
        ("| test | t/s |\n|---|---|\n| pp1 | fast |\n", "found the row"),
        ("CREATE TABLE IF NOT EXISTS test (\n  avg_ns INTEGER\n);\n", "found llama-bench output as CSV or SQL"),
        (json.dumps(ROWS[2:3]), "found llama-bench output without prompt passes"),
        ("{}", "found '{}', expected a profile written by the profile command, or llama-bench output"),
        (json.dumps([row(1, [0])]), "found a pass over 1 tokens in 0 seconds"),
        (json.dumps([row("x", [5])]), "found invalid numbers"),
        (json.dumps([*ROWS, row(2, [5], depth=0)]), r"llama-bench: found depths \[0, 64\], expected one"),
        (json.dumps([*ROWS, row(1, [5], model="third", parameters=3)]), "found models target.gguf, draft.gguf, third"),
        (
            json.dumps([row(4, [5]), *ROWS[3:]]),
            r"passes of the target over \[4\] tokens, expected passes over 1 token as well",
        ),
    ],
)
def test_other_content_is_refused(text, said):
    with pytest.raises(ValueError, match=said) as error:
        profile_from_bench([(text.encode(), "bench")])
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
