"""Acceptance vectors: validation, file formats, intervals, power-law fit."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_safetensors

from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.acceptance.vector_files import PercentageError
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
def test_invalid_probabilities_are_refused(probs, message):
    with pytest.raises(ValueError, match=f"{message}.*expected"):
        AcceptanceVector(np.array(probs))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("sums", "trials"),
    [([[1.0, 1.0]], None), ([[1.0]], [3]), ([[1.0, np.nan]], [3]), ([[3.0, 1.0]], [3]), ([[0.0, 0.0]], [0])],
)
def test_invalid_prompt_sums_are_refused(sums, trials):
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


def test_a_single_prompt_has_no_interval():
    assert AcceptanceVector(np.array([0.5]), trials=1).trials == 1
    one = AcceptanceVector(np.array([0.97]), prompt_sums=[[97.0]], prompt_trials=[100])
    assert one.has_one_prompt
    for vector in (one, AcceptanceVector(np.array(PROBS))):
        assert vector.interval() is None and vector.resamples(3) is None
    two = AcceptanceVector(np.array([0.97]), prompt_sums=[[48.0], [49.0]], prompt_trials=[50, 50])
    assert not two.has_one_prompt and two.interval() is not None


def test_probabilities_measured_as_0_or_1_have_bounds():
    """0 of 256 allows up to 1.2 %, 256 of 256 at least 98.8 %; other ranks keep their bootstrap interval."""
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
    to_one = AcceptanceVector(np.array([0.6, 0.3, 0.1]))  # rank 3 is excluded because its rejection is 0
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


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("entries", "probs", "words"),
    [
        ([0, 0.6, 0.2, 0.05], PROBS, "leading 0 as padding"),
        ([0, 0.6, 0.2, 0.05, 0.15], PROBS, "rejection probability"),
        ([0, 1.0, 0.0], [1.0], "rejection probability"),
        ([0, 0, 0], [0, 0, 0], ""),
    ],
)
def test_layouts_of_the_reference_code_are_detected(entries, probs, words):
    tensor = torch.tensor(entries, dtype=torch.bfloat16, requires_grad=True)
    vector = AcceptanceVector.loads(torch_bytes(tensor), "acceptance.pt")
    np.testing.assert_allclose(vector.probs, probs, atol=2e-3)
    assert words in vector.note and bool(words) == bool(vector.note)


# Files that contain only numbers, in every format.
BARE = {
    "v.csv": lambda entries: "\n".join(map(str, entries)).encode(),
    "v.npy": lambda entries: npy_bytes(np.array(entries)),
    "old.json": lambda entries: json.dumps(
        {"format": "sequoia-acceptance", "version": 1, "probs": entries, "meta": {}}
    ).encode(),
}


@pytest.mark.parametrize("name", BARE)
def test_ambiguous_layouts_must_be_declared(name):
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
    for meaning, said in (("rest-first", "a sum of 1"), ("padded", "a leading 0")):
        with pytest.raises(ValueError, match=said):
            AcceptanceVector.loads(BARE[name](PROBS), name, meaning)


BARE_LISTS = BARE | {
    "v.pt": lambda entries: torch_bytes(torch.tensor(entries)),
    "v.safetensors": lambda entries: save_safetensors({"probs": torch.tensor(entries)}),
    "list.json": lambda entries: json.dumps(entries).encode(),
    "ranked.csv": lambda entries: "\n".join(f"{rank},{entry}" for rank, entry in enumerate(entries, 1)).encode(),
}


@pytest.mark.sample(len(BARE_LISTS))
@pytest.mark.parametrize("name", BARE_LISTS)
def test_bare_percentages_are_converted_only_on_request(name):
    read = partial(AcceptanceVector.loads, name=name)
    for entries in ([72], [72.5, 11], [60.0, 20.0, 20.05], [1.5, 0.25], [100.0]):
        data = BARE_LISTS[name](entries)
        said = f"^{name}: found values up to {max(entries):g}, expected probabilities from 0 to 1: divide .* % signs$"
        with pytest.raises(PercentageError, match=said):
            read(data)
        vector = read(data, entries="ranks", percent=True)
        np.testing.assert_allclose(vector.probs, np.array(entries) / max(100, sum(entries)), rtol=1e-6)
        assert vector.note == f"{entries[0]:g} → {entries[0] / 100:g}, read as percentages."


@pytest.mark.sample(len(BARE_LISTS))
@pytest.mark.parametrize("name", BARE_LISTS)
def test_no_vector_is_converted_twice(name):
    once = AcceptanceVector.loads(BARE_LISTS[name]([72.0, 11.0]), name, percent=True)
    for entries in (once.probs.tolist(), [1.0005], [0.9, 0.9]):
        with pytest.raises(ValueError, match=f"^{name}: found no percentages, expected values that exceed 1"):
            AcceptanceVector.loads(BARE_LISTS[name](entries), name, percent=True)
    for entries in ([100.05], [60.0, 50.0], [72.0, -1.0], [np.inf], [72.0, np.nan]):
        for percent in (False, True):
            with pytest.raises(ValueError) as caught:
                AcceptanceVector.loads(BARE_LISTS[name](entries), name, percent=percent)
            assert not isinstance(caught.value, PercentageError)
    with pytest.raises(ValueError, match="found no percentages"):
        AcceptanceVector.loads(once.to_bytes(), "saved.json", percent=True)
    assert AcceptanceVector.loads(once.to_bytes(), "saved.json") == once


def test_percent_signs_are_converted_once_and_noted():
    said = "The values have % signs and were read as percentages."
    for percent in (False, True):
        vector = AcceptanceVector.loads(b"72,5 %\n11,3 %", "v.csv", percent=percent)
        np.testing.assert_allclose(vector.probs, [0.725, 0.113])
        assert vector.note.endswith(said)
        with pytest.raises(ValueError, match="rank 1: found 1.5, expected a probability") as caught:
            AcceptanceVector.loads(b"150%", "v.csv", percent=percent)
        assert not isinstance(caught.value, PercentageError)
    counted = AcceptanceVector.loads(b"0,72%\n1,11%", "v.csv")
    assert counted.note == f"{said} Ranks in the file start at 0; they were shifted to start at 1."


def test_layouts_of_percentages_are_detected():
    read = partial(AcceptanceVector.loads, name="v.csv")
    padded = read(b"0\n60\n20\n20", percent=True)
    assert padded.probs.tolist() == [0.6, 0.2]
    assert padded.note.startswith("60 → 0.6, read as percentages. Read 4 entries: the leading 0")
    signed = read(b"0%\n60%\n20%\n20%")
    assert signed.probs.tolist() == [0.6, 0.2] and "% signs and were read as percentages. Read 4" in signed.note
    with pytest.raises(ValueError, match="sum to 1"):
        read(b"60\n20\n20", percent=True)
    assert read(b"60\n20\n20", entries="rest-last", percent=True).probs.tolist() == [0.6, 0.2]
    with pytest.raises(ValueError, match="found 0 entries"):
        read(b"100", entries="rest-last", percent=True)


def test_an_empty_file_contains_no_numbers():
    refusal(b" \n", "v.csv", "found no numbers, expected one column")


def test_measured_or_ranked_entries_are_unambiguous():
    for vector in (AcceptanceVector(np.array([0.0, 1.0])), AcceptanceVector(np.array([0.75, 0.25]), trials=4)):
        assert AcceptanceVector.loads(vector.to_bytes(), "v.json") == vector
    assert AcceptanceVector.loads(b"rank,prob\n1,0.75\n2,0.25", "v.csv").probs.tolist() == [0.75, 0.25]


def test_csv_files_written_by_pandas_are_read():
    frame = AcceptanceVector(np.array(PROBS), trials=90).to_frame()
    for text in (frame.to_csv(), frame.to_csv(index=False)):
        np.testing.assert_allclose(AcceptanceVector.loads(text.encode(), "v.csv").probs, PROBS)


def test_tensors_saved_on_cuda_load_on_the_cpu():
    data = torch_bytes(torch.tensor([0, *PROBS]))
    cuda = rewritten_archive(data, lambda name, content: content.replace(b"\x03\0\0\0cpu", b"\x06\0\0\0cuda:0"))
    assert cuda != data
    np.testing.assert_allclose(AcceptanceVector.loads(cuda, "v.pt").probs, PROBS, rtol=1e-6)


def test_arrays_of_any_float_dtype_are_read():
    for dtype in (np.float16, ">f8"):
        vector = AcceptanceVector.loads(npy_bytes(np.array(PROBS, dtype=dtype)), "v.npy")
        np.testing.assert_allclose(vector.probs, PROBS, rtol=1e-3)
    percentages = AcceptanceVector.loads(npy_bytes(np.array([72, 11], dtype=np.float16)), "v.npy", percent=True)
    assert percentages.probs.tolist() == [0.72, 0.11]
    tensor = torch.tensor(PROBS, dtype=torch.bfloat16)
    for named in ({"anything": tensor}, {"probs": tensor, "other": torch.zeros(2, 2)}):
        vector = AcceptanceVector.loads(save_safetensors(named), "v.safetensors")
        np.testing.assert_allclose(vector.probs, PROBS, rtol=1e-2)


def test_large_files_are_refused_and_failed_saves_keep_the_old_file(tmp_path):
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
