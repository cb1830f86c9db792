"""Acceptance vectors: rules, files of every kind, intervals, the power law."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_safetensors

from sequoia_core.design import acceptance_files
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.acceptance_matrix import AcceptanceMatrix
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
    above = AcceptanceVector(np.array([0.75, 0.25]) * (1 + 5e-4))  # a sum just above 1 is rounding
    assert above.reject == pytest.approx(0.0, abs=1e-12) and above.probs == pytest.approx([0.75, 0.25])
    with pytest.raises(ValueError):
        vector.probs[0] = 1


@pytest.mark.parametrize(("probs", "message"), [([0.5, -0.01], "rank 2: found -0.01"), ([True, False], "bool")])
def test_broken_rules_are_named(probs, message):
    with pytest.raises(ValueError, match=f"{message}.*expected"):
        AcceptanceVector(np.array(probs))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("sums", "trials"),
    [([[1.0, 1.0]], None), ([[1.0]], [3]), ([[1.0, np.nan]], [3]), ([[3.0, 1.0]], [3]), ([[0.0, 0.0]], [0])],
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
    assert (low < vector.probs).all() and (vector.probs < high).all()
    residual = vector.prompt_sums - vector.prompt_trials[:, None] * vector.probs
    sd = np.sqrt((residual**2).sum(0)) / vector.prompt_trials.sum()
    # 1,000 resamples estimate a 2.5% quantile to about 7% of its distance from the mean.
    np.testing.assert_allclose(high - low, 2 * 1.96 * sd, rtol=0.15)
    assert vector.more_prompts((high - low).max() * 1.001) == 0
    assert vector.more_prompts((high - low).max() / 2) == pytest.approx(3 * 40, abs=1)
    low, high = AcceptanceVector(np.array([0.5, 0.0, 0.5]), trials=100).interval()
    np.testing.assert_allclose([low[0], high[0]], [0.4038, 0.5962], atol=1e-4)  # Wilson's textbook value for 50 of 100


def test_without_two_prompts_there_is_no_interval_however_many_positions():
    assert AcceptanceVector(np.array([0.5]), trials=1).trials == 1
    one = AcceptanceVector(np.array([0.97]), prompt_sums=[[97.0]], prompt_trials=[100])
    assert one.of_one_prompt
    for vector in (one, AcceptanceVector(np.array(PROBS))):
        assert vector.interval() is None and vector.resamples(3) is None and vector.more_prompts(0.02) is None
    two = AcceptanceVector(np.array([0.97]), prompt_sums=[[48.0], [49.0]], prompt_trials=[50, 50])
    assert not two.of_one_prompt and two.interval() is not None


def test_what_was_never_seen_is_bounded_and_not_impossible():
    """None of 256 allows a chance of 1.2 %, all of 256 allow 98.8 %; what varies keeps its bootstrap."""
    sums = np.array([[0.0, 30, 0], [0, 20, 0], [0, 31, 0], [0, 9, 0]])
    vector = AcceptanceVector(sums.sum(axis=0) / 512, prompt_sums=sums, prompt_trials=[128] * 4)
    low, high = vector.interval()
    assert low[0] == low[2] == 0 and high[[0, 2]] == pytest.approx(1 - 0.05 ** (1 / 512)) and high[1] < 0.25
    always = AcceptanceVector([1.0], prompt_sums=[[64.0]] * 4, prompt_trials=[64] * 4)
    assert always.interval()[0] == pytest.approx(0.05 ** (1 / 256)) and always.interval()[1] == 1
    depths = np.array([[128.0, 0], [64, 0]])
    matrix = AcceptanceMatrix([[1.0, 0], [0.5, 0]], prompt_sums=[depths] * 2, prompt_trials=[[128, 128]] * 2)
    assert matrix.interval()[1][:, 1] == pytest.approx(1 - 0.05 ** (1 / 256)) and matrix.interval()[0][0, 0] < 1


def test_power_law():
    rejection = 0.4 * np.arange(1, 33) ** -0.7
    fit = AcceptanceVector(-np.diff(np.concatenate([[1.0], rejection]))).fit_power_law()
    assert fit.b == pytest.approx(0.7) and fit.scale == pytest.approx(0.4) and fit.r_squared == pytest.approx(1)
    assert AcceptanceVector(np.zeros(5)).fit_power_law() == (0.0, 1.0, 1.0)
    to_one = AcceptanceVector(np.array([0.6, 0.3, 0.1]))  # rejection reaches 0 at rank 3: that point is left out
    assert to_one.fit_power_law().b == pytest.approx(2)
    with pytest.raises(ValueError, match="expected at least 2"):
        AcceptanceVector(np.array([1.0, 0.0])).fit_power_law()


def test_native_json_round_trip(tmp_path):
    vector, path = measured(), tmp_path / "vector.json"
    ranks = [np.arange(count) % 4 for count in vector.prompt_trials]
    vector = replace(vector, prompt_ranks=ranks, prompt_matched=[rank % 2 for rank in ranks], note="hello")
    vector.save(path)
    assert AcceptanceVector.load(path) == vector != measured()
    native = json.loads(path.read_text())
    assert (native["format"], native["version"]) == ("sequoia-acceptance", 2)
    text = b'\xef\xbb\xbf{"format": "sequoia-acceptance", "version": 1, "probs": [0.5, 0], "trials": null, "meta": {}}'
    assert AcceptanceVector.loads(text, "v.json").probs.tolist() == [0.5, 0]


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("text", "probs"),
    [
        ("\ufeff0.6\r\n\r\n0.2\r\n0.05\r\n\r\n", PROBS),
        ("# measured today\n6e-1\n2e-1\n5e-2", PROBS),
        ("rank;prob\n3;0,05\n1;0,6\n2;0,2\n", PROBS),
        ("rank\tprob\n1\t0.6\n2\t0.2\n3\t0.05", PROBS),
        ("0.6,0.2,0.05", PROBS),
        ("0,6;0,2;0,05", PROBS),
        ("rank,prob\n0,0\n1,0.6\n2,0.2\n3,0.05", PROBS),
        ("0,77", [0.77]),
        ("1,1\n2,0", [1, 0]),
    ],
)
def test_csv(text, probs):
    for encoding in ("utf-8", "utf-16"):
        np.testing.assert_allclose(AcceptanceVector.loads(text.encode(encoding), "v.csv").probs, probs)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("entries", "probs", "words"),
    [
        ([0, 0.6, 0.2, 0.05], PROBS, "leading 0 as padding"),
        ([0, 0.6, 0.2, 0.05, 0.15], PROBS, "rejection probability"),
        ([0, 1.0, 0.0], [1.0], "rejection probability"),
        (PROBS, PROBS, ""),
        ([0, 0, 0], [0, 0, 0], ""),
    ],
)
def test_reference_layout(entries, probs, words):
    tensor = torch.tensor(entries, dtype=torch.bfloat16, requires_grad=True)
    vector = AcceptanceVector.loads(torch_bytes(tensor), "acceptance.pt")
    np.testing.assert_allclose(vector.probs, probs, atol=2e-3)
    assert words in vector.note and bool(words) == bool(vector.note)


BARE = {  # one list of numbers in every layout without a word on what they are
    "v.csv": lambda entries: "\n".join(map(str, entries)).encode(),
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
        frame["probability"].rename(None).to_csv(),
    ):
        np.testing.assert_allclose(AcceptanceVector.loads(text.encode(), "v.csv").probs, PROBS)


def test_a_vector_saved_on_a_cuda_device_loads_without_one():
    data = torch_bytes(torch.tensor([0, *PROBS]))
    cuda = rewritten_archive(data, lambda name, content: content.replace(b"\x03\0\0\0cpu", b"\x06\0\0\0cuda:0"))
    assert cuda != data
    np.testing.assert_allclose(AcceptanceVector.loads(cuda, "v.pt").probs, PROBS, rtol=1e-6)


def test_arrays_of_any_dtype():
    for dtype in (np.float64, np.float16, ">f8"):
        vector = AcceptanceVector.loads(npy_bytes(np.array(PROBS, dtype=dtype)), "v.npy")
        np.testing.assert_allclose(vector.probs, PROBS, rtol=1e-3)
    tensor = torch.tensor(PROBS, dtype=torch.bfloat16)
    for named in ({"anything": tensor}, {"probs": tensor, "other": torch.zeros(2, 2)}):
        vector = AcceptanceVector.loads(save_safetensors(named), "v.safetensors")
        np.testing.assert_allclose(vector.probs, PROBS, rtol=1e-2)


def test_a_file_too_large_is_refused_unread_and_a_failed_save_leaves_the_old_file(tmp_path):
    large, path = tmp_path / "large.csv", tmp_path / "v.json"
    with large.open("wb") as stream:
        stream.truncate(10**9)
    with pytest.raises(ValueError, match="1,000,000,000 bytes"):
        AcceptanceVector.load(large)
    AcceptanceVector(np.array(PROBS)).save(path)
    for bad in (float("nan"), object()):
        with pytest.raises(ValueError, match="JSON"):
            AcceptanceVector(np.array([0.1]), meta={"bad": bad}).save(path)
    assert AcceptanceVector.load(path).probs.tolist() == PROBS


def test_resamples_have_the_spread_of_the_sample():
    vector = AcceptanceVector(np.array([0.6, 0.1]), trials=1000)
    found = np.array([v.probs[0] for v in vector.resamples(400)])
    assert found.mean() == pytest.approx(0.6, abs=0.01)
    assert found.std() == pytest.approx(np.sqrt(0.24 / 1000), rel=0.35)


def test_text_and_json_have_limits_of_their_own():
    text, whole = b"0.5\n".ljust(2**20, b"\n"), AcceptanceVector(np.array([0.5])).to_bytes().ljust(2**20 + 1)
    assert acceptance_files.read_vector(text) and acceptance_files.read_vector(whole)
    with pytest.raises(ValueError, match="found 1,048,577 bytes, expected at most 1,048,576"):
        acceptance_files.read_vector(text + b"\n")
    with pytest.raises(ValueError, match="found 8,388,609 bytes, expected at most 8,388,608"):
        acceptance_files.read_vector(whole.ljust(2**23 + 1))
