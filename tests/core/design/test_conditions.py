"""What a vector and a profile hold for: compared setting by setting, kept in files, lost by what nobody measured."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import AcceptanceVector, HardwareProfile, measure_acceptance
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.planning import pair_mismatches
from sequoia_core.design.what_if import edited, isotonic, weaker
from sequoia_core.files.model_names import DEMO_PAIR, model_name
from sequoia_core.models.pair_spec import PairSpec
from tests.conftest import pair_of

WARM = Conditions("big", "small", temperature=0.6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "other"}, "target big, not other"),
        ({"draft": "other"}, "draft small, not other"),
        ({"temperature": 1.5}, "temperature 0.6, not 1.5"),
        ({"top_p": 0.9}, "top-p 1.0, not 0.9"),
        ({"top_k": 5}, "top-k 0, not 5"),
        ({"verifier": "topk"}, "verifier sequoia, not topk"),
    ],
)
def test_every_setting_that_differs_is_named(change, words):
    assert WARM.differences(replace(WARM, **change)) == [words]
    assert not WARM.differences(replace(WARM, declared=True))


def test_what_was_recorded_before_first_children_were_cut_says_so_and_is_not_mixed():
    """Where top-p or top-k cuts; files of this version say it, others do not."""
    for change in ({"top_p": 0.9}, {"top_k": 5}):
        now = replace(WARM, **change)
        old = Conditions.from_json({key: value for key, value in now.to_json().items() if key != "first_cut"})
        assert now.differences(old) == ["first child drawn cut, not uncut"] and not now.differences(now)
        assert (
            old.differences(now) == ["first child drawn uncut, not cut"] and "first child drawn uncut" in old.sampling
        )
        assert Conditions.from_json(old.to_json()) == old and "uncut" not in now.sampling
        assert not replace(old, verifier="topk").differences(replace(now, verifier="topk"))
    assert "first_cut" not in WARM.to_json() and Conditions.from_json(WARM.to_json()).first_cut


def test_at_temperature_zero_verifier_and_nucleus_do_not_matter():
    cold = replace(WARM, temperature=0.0)
    assert not cold.differences(replace(cold, top_p=0.5, top_k=3, verifier="topk"))
    assert cold.differences(replace(WARM, top_p=0.5))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"target": "a", "draft": "b"},
        {"target": "a", "draft": "b", "temperature": 0.0, "colour": 1},
        {"target": "", "draft": "b", "temperature": 0.0},
        {"target": ["a"], "draft": "b", "temperature": 0.0},
        {"target": "a" * 4_097, "draft": "b", "temperature": 0.0},
        {"target": "a", "draft": "b", "temperature": True},
        {"target": "a", "draft": "b", "temperature": "0"},
        {"target": "a", "draft": "b", "temperature": float("nan")},
        {"target": "a", "draft": "b", "temperature": 10**400},
        {"target": "a", "draft": "b", "temperature": -1},
        {"target": "a", "draft": "b", "temperature": 0.0, "top_p": 0.0},
        {"target": "a", "draft": "b", "temperature": 0.0, "top_p": 1.1},
        {"target": "a", "draft": "b", "temperature": 0.0, "top_k": 1.5},
        {"target": "a", "draft": "b", "temperature": 0.0, "verifier": "none"},
        {"target": "a", "draft": "b", "temperature": 0.0, "declared": "yes"},
    ],
)
def test_wrong_conditions_are_refused_by_name(fields):
    with pytest.raises(ValueError, match="found .* expected"):
        Conditions.from_json(fields)
    file = {"format": "sequoia-acceptance", "version": 2, "probs": [0.5], "holds_for": fields}
    if "nan" not in str(fields) and len(str(fields)) < 300:
        with pytest.raises(ValueError, match=r"v\.json: holds_for: found|v\.json: holds_for"):
            AcceptanceVector.loads(json.dumps(file).encode(), "v.json")


def test_a_file_keeps_what_it_holds_for(tmp_path):
    for holds_for in (None, WARM, replace(WARM, declared=True, top_p=0.9)):
        vector = AcceptanceVector(np.array([0.5, 0.2]), holds_for=holds_for)
        vector.save(tmp_path / "v.json")
        assert json.loads((tmp_path / "v.json").read_text())["version"] == 2
        assert AcceptanceVector.load(tmp_path / "v.json") == vector
        assert AcceptanceVector.load(tmp_path / "v.json").holds_for == holds_for


def test_a_measurement_of_version_1_says_it_in_its_meta_and_nothing_else_does():
    meta = {"target": "big", "draft": "small", "temperature": 0.6, "top_p": 1.0, "top_k": 0, "verifier": "sequoia"}

    def read(meta):
        file = {"format": "sequoia-acceptance", "version": 1, "probs": [0.5], "meta": meta}
        return AcceptanceVector.loads(json.dumps(file).encode(), "v.json").holds_for

    assert read(meta | {"width": 32, "source": "x"}) == WARM
    assert read(meta | {"edited": True}) is None and read(meta | {"share": 0.5}) is None
    assert read({key: meta[key] for key in ("target", "draft", "temperature")}) is None
    assert read(meta | {"temperature": "0.6"}) is None
    assert AcceptanceVector.loads(b"0.5\n0.2\n", "v.csv").holds_for is None


def test_what_nobody_measured_holds_for_nothing():
    vector = AcceptanceVector(np.array([0.5, 0.1, 0.2]), holds_for=WARM)
    assert isotonic(vector).holds_for == WARM  # the same measurement, smoothed
    assert weaker(vector, 0.5).holds_for is None
    assert edited(vector, np.array([0.6, 0.1])).holds_for is None
    assert edited(vector, np.array([0.6, 0.1])).differences(WARM)


def test_a_measurement_records_what_it_was_made_for(tiny_target, tiny_draft):
    vector = measure_acceptance(
        [[1, 2, 3]], pair_of(tiny_target, tiny_draft), sampling=SamplingConfig(0.7, 0.9, 7), width=4,
        max_new_tokens=4, verifier="topk",
    )  # fmt: skip
    assert vector.holds_for == Conditions(tiny_target.name, tiny_draft.name, 0.7, 0.9, "topk", top_k=7)


def test_a_profile_names_what_differs():
    profile = HardwareProfile(
        [1, 2], [1.0, 1.1], 0.1, device="A, 2 threads", dtype="float32", meta={"target": "big", "draft": "small"}
    )
    same = {"target": "big", "draft": "small", "dtype": "float32", "device": "A, 2 cores"}
    assert not profile.differences(**same)
    for key, value, words in (
        ("target", "x", "target big, not x"),
        ("draft", "x", "draft small, not x"),
        ("dtype", "bfloat16", "measured in float32, not bfloat16"),
        ("device", "B", "measured on A, 2 threads, not on B"),
        ("offload", "disk", "measured with the target's weights in memory, not on disk"),
    ):
        assert profile.differences(**same | {key: value}) == [words]
    streamed = replace(profile, meta=profile.meta | {"offload": "disk"})
    assert not streamed.differences(**same, offload="disk")
    assert streamed.differences(**same) == ["measured with the target's weights on disk, not in memory"]
    assert len(replace(profile, meta={}).differences(**same)) == 2
    tiled = replace(profile, meta=profile.meta | {"instructions": "AMX"})
    assert not tiled.differences(**same) and not tiled.differences(**same, instructions="AMX")
    assert not profile.differences(**same, instructions="AVX-512")  # of a file that does not tell
    assert tiled.differences(**same, instructions="AVX-512") == ["measured with AMX, not AVX-512"]
    modelled = replace(profile, meta=profile.meta | {"modelled": True})
    assert modelled.differences(**same) == ["the times are modelled, not measured"]


def test_a_vector_and_a_profile_of_two_pairs_are_a_mixture():
    profile = HardwareProfile([1, 2], [1.0, 1.1], 0.1, meta={"target": "big", "draft": "small"})
    vector = AcceptanceVector(np.array([0.5]), holds_for=WARM)
    assert not pair_mismatches(vector, profile)
    assert len(pair_mismatches(replace(vector, holds_for=replace(WARM, target="x", draft="y")), profile)) == 2
    assert "does not say" in pair_mismatches(replace(vector, holds_for=None), profile)[0]
    assert len(pair_mismatches(vector, replace(profile, meta={}))) == 2


def test_two_spellings_of_a_folder_are_one_model(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = {model_name(name) for name in ("model", "./model", "~/model", tmp_path / "model")}
    assert names == {str((tmp_path / "model").resolve())}
    assert model_name("owner/model") == "owner/model"
    spelled_out = PairSpec(DEMO_PAIR / "target", DEMO_PAIR / "draft")
    assert PairSpec().names == ("demo target", "demo draft") == spelled_out.names
