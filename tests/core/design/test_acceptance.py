"""Acceptance vectors: rules, files of every kind, intervals, the power law."""

import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_safetensors

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.acceptance_matrix import MAX_RANKS, AcceptanceMatrix
from tests import hostile_files
from tests.hostile_files import npy_bytes, rewritten_archive, torch_bytes

PROBS = [0.6, 0.2, 0.05]
refusal = partial(hostile_files.refusal, AcceptanceVector.loads)


def test_probs_are_a_read_only_copy():
    source = np.array(PROBS, dtype=np.float32)
    vector = AcceptanceVector(source)
    source[0] = 0
    assert vector.probs.dtype == np.float64 and len(vector) == 3
    np.testing.assert_allclose(vector.probs, PROBS, rtol=1e-6)
    assert vector.reject == pytest.approx(0.15)
    with pytest.raises(ValueError):
        vector.probs[0] = 1


@pytest.mark.parametrize("probs", [[1.0], [0.0], [0.0] * 10, [0.5] + [0.0] * (MAX_RANKS - 1), [1, 0]])
def test_extreme_but_legal_vectors(probs):
    vector = AcceptanceVector(np.array(probs))
    assert vector.reject == pytest.approx(1 - sum(probs))


@pytest.mark.parametrize("total", [1 + 5e-4, 1 + 1e-7])
def test_a_sum_just_above_one_is_rounding(total):
    vector = AcceptanceVector(np.array([0.75, 0.25]) * total)
    np.testing.assert_allclose(vector.probs, [0.75, 0.25])
    assert vector.reject == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([], "0 entries"),
        ([0.1, np.nan], "rank 2: found nan"),
        ([np.inf], "rank 1: found inf"),
        ([0.5, -np.inf], "rank 2: found -inf"),
        ([0.5, -0.01], "rank 2: found -0.01"),
        ([1.2], "rank 1: found 1.2"),
        ([0.7, 0.4], "sum of 1.1"),
        ([1.0, 1.0, 1.0], "sum of 3"),
        ([0.0] * 10_000, "10,000 entries"),
        ([[0.5], [0.2]], "shape (2, 1)"),
        (0.5, "shape ()"),
        ([True, False], "bool"),
        ([0.5j], "complex128"),
        (["0.5"], "expected a 1-D real vector"),
    ],
)
def test_broken_rules_are_named(probs, message):
    with pytest.raises(ValueError) as caught:
        AcceptanceVector(np.array(probs))
    assert message in str(caught.value) and "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("sums", "trials"),
    [
        ([[1.0, 1.0]], None),
        (None, [3]),
        ([[1.0]], [3]),
        ([[1.0, 1.0]], [3, 3]),
        ([[1.0, np.nan]], [3]),
        ([[-1.0, 1.0]], [3]),
        ([[3.0, 1.0]], [3]),
        ([[0.0, 0.0]], [0]),
    ],
)
def test_prompt_sums_must_fit(sums, trials):
    with pytest.raises(ValueError, match="prompt_sums|prompt_trials"):
        AcceptanceVector(np.array([0.5, 0.1]), prompt_sums=sums, prompt_trials=trials)


def measured(prompts: int = 40, seed: int = 3) -> AcceptanceVector:
    generator = np.random.default_rng(seed)
    counts = generator.integers(50, 100, prompts)
    sums = generator.dirichlet([12, 4, 1, 3], prompts)[:, :3] * counts[:, None]
    return AcceptanceVector(sums.sum(0) / counts.sum(), prompt_sums=sums, prompt_trials=counts, meta={"pair": "a <- b"})


def test_bootstrap_interval_matches_the_normal_approximation():
    vector = measured()
    low, high = vector.interval()
    assert vector.trials == vector.prompt_trials.sum()
    assert (low < vector.probs).all() and (vector.probs < high).all()
    residual = vector.prompt_sums - vector.prompt_trials[:, None] * vector.probs
    sd = np.sqrt((residual**2).sum(0)) / vector.prompt_trials.sum()
    # 1,000 resamples estimate a 2.5% quantile to about 7% of its distance from the mean.
    np.testing.assert_allclose(high - low, 2 * 1.96 * sd, rtol=0.15)
    again = vector.interval()
    np.testing.assert_array_equal(low, again[0])
    wider = vector.interval(0.99)
    assert (wider[0] < low).all() and (high < wider[1]).all()


def test_wilson_interval_when_only_trials_are_known():
    low, high = AcceptanceVector(np.array([0.5, 0.0, 0.5]), trials=100).interval()
    np.testing.assert_allclose([low[0], high[0]], [0.4038, 0.5962], atol=1e-4)  # textbook value for 50 of 100
    assert low[1] == 0 and 0.03 < high[1] < 0.04


def test_one_prompt_has_no_interval_however_many_positions_it_has():
    one = AcceptanceVector(np.array([0.97]), prompt_sums=[[97.0]], prompt_trials=[100])
    assert one.of_one_prompt and one.interval() is None and one.resamples(3) is None and one.more_prompts(0.02) is None
    two = AcceptanceVector(np.array([0.97]), prompt_sums=[[48.0], [49.0]], prompt_trials=[50, 50])
    assert not two.of_one_prompt and two.interval() is not None
    assert not AcceptanceVector(np.array([0.97]), trials=100).of_one_prompt


def test_no_interval_without_a_sample():
    assert AcceptanceVector(np.array(PROBS)).interval() is None
    assert AcceptanceVector(np.array(PROBS)).more_prompts(0.01) is None
    with pytest.raises(ValueError, match="level: found 95"):
        AcceptanceVector(np.array(PROBS), trials=9).interval(95)


def test_more_prompts_follows_the_square_root():
    vector = measured()
    low, high = vector.interval()
    widest = (high - low).max()
    assert vector.more_prompts(widest * 1.001) == 0
    assert vector.more_prompts(widest / 2) == pytest.approx(3 * 40, abs=1)
    with pytest.raises(ValueError, match="width"):
        vector.more_prompts(0)


def test_power_law_is_recovered():
    rejection = 0.4 * np.arange(1, 33) ** -0.7
    vector = AcceptanceVector(-np.diff(np.concatenate([[1.0], rejection])))
    fit = vector.fit_power_law()
    assert fit.b == pytest.approx(0.7) and fit.scale == pytest.approx(0.4) and fit.r_squared == pytest.approx(1)


def test_power_law_limits():
    assert AcceptanceVector(np.zeros(5)).fit_power_law() == (0.0, 1.0, 1.0)
    to_one = AcceptanceVector(np.array([0.6, 0.3, 0.1]))  # rejection reaches 0 at rank 3: that point is left out
    assert to_one.fit_power_law().b == pytest.approx(2)
    for probs in ([0.7], [1.0, 0.0]):
        with pytest.raises(ValueError, match="expected at least 2"):
            AcceptanceVector(np.array(probs)).fit_power_law()


def test_native_json_round_trip(tmp_path):
    vector = measured()
    path = tmp_path / "vector.json"
    vector.save(path)
    assert AcceptanceVector.load(path) == vector
    native = json.loads(path.read_text())
    assert (native["format"], native["version"]) == ("sequoia-acceptance", 2)
    assert os.listdir(tmp_path) == ["vector.json"]
    noted = AcceptanceVector(np.array(PROBS), trials=7, note="hello")
    noted.save(path)
    assert AcceptanceVector.load(path) == noted and AcceptanceVector.load(path) != vector
    ranks = [np.arange(count) % 4 for count in vector.prompt_trials]
    ranked = replace(vector, prompt_ranks=ranks, prompt_matched=[rank % 2 for rank in ranks])
    assert AcceptanceVector.loads(ranked.to_bytes(), "v.json") == ranked


def test_minimal_native_json():
    text = b'\xef\xbb\xbf{"format": "sequoia-acceptance", "version": 1, "probs": [0.5, 0], "trials": null, "meta": {}}'
    assert AcceptanceVector.loads(text, "v.json").probs.tolist() == [0.5, 0]


@pytest.mark.parametrize(
    "text",
    [
        "0.6\n0.2\n0.05\n",
        "prob\n0.6\n0.2\n0.05",
        "\ufeff0.6\r\n\r\n0.2\r\n0.05\r\n\r\n",
        "# measured today\n6e-1\n2e-1\n5e-2",
        "rank,prob\n1,0.6\n2,0.2\n3,0.05",
        "rank;prob\n3;0,05\n1;0,6\n2;0,2\n",
        "rank\tprob\n1\t0.6\n2\t0.2\n3\t0.05",
        "1,0.6\n2,0.2\n3,0.05",
        "0,6\n0,2\n0,05",
        "prob\n0,6\n0,2\n0,05",
        "0.6,0.2,0.05",
        "0,6;0,2;0,05",
        "0.6 0.2 0.05",
        '"rank","prob"\n"1","0.6"\n"2","0.2"\n"3","0.05"',
        "rank,prob\n0,0.6\n1,0.2\n2,0.05",
        "rank,prob\n0,0\n1,0.6\n2,0.2\n3,0.05",
        "0\n0.6\n0.2\n0.05",
        "0\n0.6\n0.2\n0.05\n0.15",
    ],
)
def test_csv(text):
    vector = AcceptanceVector.loads(text.encode(), "v.csv")
    np.testing.assert_allclose(vector.probs, PROBS)
    np.testing.assert_array_equal(AcceptanceVector.loads(text.encode("utf-16"), "v.csv").probs, vector.probs)


@pytest.mark.parametrize(("text", "probs"), [("0.6", [0.6]), ("0,77", [0.77]), ("1,0.5", [0.5]), ("1,1\n2,0", [1, 0])])
def test_csv_of_few_numbers(text, probs):
    assert AcceptanceVector.loads(text.encode(), "v.csv").probs.tolist() == probs


@pytest.mark.parametrize(
    ("entries", "probs", "words"),
    [
        ([0, 0.6, 0.2, 0.05], PROBS, "leading 0 as padding"),
        ([0, 0.6, 0.2, 0.05, 0.15], PROBS, "rejection probability"),
        ([0, 1.0, 0.0], [1.0], "rejection probability"),
        ([0, 1.0], [1.0], "leading 0"),
        (PROBS, PROBS, ""),
        ([0, 0, 0], [0, 0, 0], ""),
    ],
)
def test_reference_layout(entries, probs, words):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for tensor in (torch.tensor(entries, dtype=dtype), torch.tensor(entries, dtype=dtype, requires_grad=True)):
            vector = AcceptanceVector.loads(torch_bytes(tensor), "acceptance.pt")
            np.testing.assert_allclose(vector.probs, probs, atol=2e-3)
            assert words in vector.note and bool(words) == bool(vector.note)


BARE = {  # one list of numbers in every layout without a word on what they are
    "v.csv": lambda entries: "\n".join(map(str, entries)).encode(),
    "v.json": lambda entries: json.dumps(entries).encode(),
    "v.npy": lambda entries: npy_bytes(np.array(entries)),
    "old.json": lambda entries: json.dumps(
        {"format": "sequoia-acceptance", "version": 1, "probs": entries, "meta": {}}
    ).encode(),
}


@pytest.mark.parametrize("name", BARE)
def test_entries_that_may_mean_two_things_are_asked_about(name):
    first, last = ([*rest, *PROBS, *end] for rest, end in (([0.15], []), ([], [0.15])))
    for entries in (first, last):
        said = refusal(BARE[name](entries), name)
        assert "sum to 1" in said and "--entries rest-first, rest-last or ranks" in said and "Schema" not in said
    for entries, meaning in ((first, "rest-first"), (last, "rest-last"), ([0, *PROBS], "padded")):
        vector = AcceptanceVector.loads(BARE[name](entries), name, meaning)
        np.testing.assert_allclose(vector.probs, PROBS)
        assert "as declared" in vector.note
    assert len(AcceptanceVector.loads(BARE[name](first), name, "ranks")) == 4
    padded = AcceptanceVector.loads(BARE[name]([0, *PROBS]), name)
    assert padded.probs.tolist() == PROBS and "leading 0 as padding" in padded.note
    for meaning, said in (("rest-first", "a sum of 1"), ("padded", "a leading 0"), ("upside-down", "one of ranks")):
        with pytest.raises(ValueError, match=said):
            AcceptanceVector.loads(BARE[name](PROBS), name, meaning)


def test_what_was_measured_here_or_has_its_ranks_is_not_asked_about():
    for vector in (AcceptanceVector(np.array([0.0, 1.0])), AcceptanceVector(np.array([0.75, 0.25]), trials=4)):
        assert AcceptanceVector.loads(vector.to_bytes(), "v.json") == vector
    assert AcceptanceVector.loads(b"rank,prob\n1,0.75\n2,0.25", "v.csv").probs.tolist() == [0.75, 0.25]


def test_tables_of_pandas_are_read_by_the_names_of_their_columns():
    frame = AcceptanceVector(np.array(PROBS), trials=90).to_frame()
    for text in (
        frame.to_csv(),
        frame.to_csv(index=False),
        frame[["rank", "probability"]].to_csv(),
        frame["probability"].to_csv(),
        frame["probability"].rename(None).to_csv(),
        "a,b,c\n0,1,0.6\n1,2,0.2\n2,3,0.05\n",
    ):
        np.testing.assert_allclose(AcceptanceVector.loads(text.encode(), "v.csv").probs, PROBS)
    assert "columns a, b, c" in refusal(b"a,b,c\n0.6,0.2,0.05\n0.1,0.1,0.1", "v.csv")


def test_survival_by_position_is_named_and_not_called_a_wrong_sum():
    assert "survival by position" in refusal(b"0.8\n0.5\n0.3\n", "v.csv")
    assert "survival" not in refusal(b"0.5\n0.8\n0.3\n", "v.csv")
    assert "rates by position" in refusal(b"position,rate\n1,0.5\n2,0.3\n", "v.csv")


def test_a_vector_saved_on_a_cuda_device_loads_without_one():
    data = torch_bytes(torch.tensor([0, *PROBS]))
    cuda = rewritten_archive(data, lambda name, content: content.replace(b"\x03\0\0\0cpu", b"\x06\0\0\0cuda:0"))
    assert cuda != data
    np.testing.assert_allclose(AcceptanceVector.loads(cuda, "v.pt").probs, PROBS, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f8"])
def test_npy(dtype):
    vector = AcceptanceVector.loads(npy_bytes(np.array(PROBS, dtype=dtype)), "v.npy")
    np.testing.assert_allclose(vector.probs, PROBS, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_safetensors(dtype):
    tensor = torch.tensor(PROBS, dtype=dtype)
    for named in ({"anything": tensor}, {"probs": tensor, "other": torch.zeros(2, 2)}):
        vector = AcceptanceVector.loads(save_safetensors(named), "v.safetensors")
        np.testing.assert_allclose(vector.probs, PROBS, rtol=1e-2)


def test_files_that_cannot_be_read_or_written(tmp_path):
    for path in (tmp_path / "missing.json", tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match="found .* expected"):
            AcceptanceVector.load(path)
    large = tmp_path / "large.csv"
    with large.open("wb") as stream:
        stream.truncate(10**9)
    with pytest.raises(ValueError, match="1,000,000,000 bytes"):
        AcceptanceVector.load(large)
    with pytest.raises(ValueError, match="cannot be written"):
        AcceptanceVector(np.array(PROBS)).save(tmp_path / "no" / "folder.json")


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "v.json"
    AcceptanceVector(np.array(PROBS)).save(path)
    with pytest.raises(ValueError, match="JSON"):
        AcceptanceVector(np.array([0.1]), meta={"bad": float("nan")}).save(path)
    with pytest.raises(ValueError, match="JSON"):
        AcceptanceVector(np.array([0.1]), meta={"bad": object()}).save(path)
    assert AcceptanceVector.load(path).probs.tolist() == PROBS
    assert os.listdir(tmp_path) == ["v.json"]


def test_matrix_rows_obey_the_rules_of_vectors():
    matrix = AcceptanceMatrix(np.array([[0.5, 0.2], [0.4, 0.1]]), trials=np.array([[9, 9], [4, 0]]))
    assert matrix.at_level(1).tolist() == [0.5, 0.2]
    assert matrix.at_level(2).tolist() == matrix.at_level(7).tolist() == [0.4, 0.1]  # deeper: as the last level
    assert len(matrix) == 2 and not matrix.probs.flags.writeable
    for probs, message in (
        ([0.5, 0.2], "shape"),
        ([[0.5], [1.5]], "level 2: rank 1: found 1.5"),
        ([[0.5, 0.2], [0.7, 0.7]], "level 2: found a sum"),
    ):
        with pytest.raises(ValueError, match=message):
            AcceptanceMatrix(np.array(probs))
    with pytest.raises(ValueError, match="trials"):
        AcceptanceMatrix(np.array([[0.5]]), trials=np.array([1]))


def test_resamples_have_the_spread_of_the_sample():
    generator = np.random.default_rng(3)
    counts = np.full(40, 25)
    sums = generator.binomial(25, 0.6, size=(40, 1)).astype(float)
    by_prompt = AcceptanceVector(sums.sum(0) / counts.sum(), prompt_sums=sums, prompt_trials=counts)
    by_count = AcceptanceVector(np.array([0.6, 0.1]), trials=1000)
    for vector in (by_prompt, by_count):
        found = np.array([v.probs[0] for v in vector.resamples(400)])
        assert found.mean() == pytest.approx(vector.probs[0], abs=0.01)
        assert found.std() == pytest.approx(np.sqrt(0.24 / 1000), rel=0.35)
    assert AcceptanceVector(np.array([0.6])).resamples(3) is None
    with pytest.raises(ValueError, match="resamples: found 0"):
        by_count.resamples(0)
