"""Conditions of vectors and profiles: differences, files, and matching pairs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import AcceptanceVector, HardwareProfile, measure_acceptance
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.model_names import DEMO_PAIR, model_name
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.planning.plan import pair_mismatches
from tests.conftest import pair_of

WARM = Conditions("big", "small", temperature=0.6)


@pytest.mark.sample(6)
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
def test_differences_name_each_setting(change, words):
    assert WARM.differences(replace(WARM, **change)) == [words]
    assert not WARM.differences(replace(WARM, declared=True))
    cold = replace(WARM, temperature=0.0)
    matters = {"target", "draft", "temperature"} & set(change)
    assert bool(cold.differences(replace(cold, **change))) == bool(matters)


def test_vectors_measured_with_untruncated_first_children_are_distinguished():
    """Only current files record `first_cut`, and it matters only with top-p or top-k."""
    for change in ({"top_p": 0.9}, {"top_k": 5}):
        now = replace(WARM, **change)
        old = Conditions.from_json({key: value for key, value in now.to_json().items() if key != "first_cut"})
        assert now.differences(old) == ["first child drawn with truncation, not without"] and not now.differences(now)
        assert old.differences(now) == ["first child drawn without truncation, not with"]
        assert "drawn without truncation" in old.sampling
        assert Conditions.from_json(old.to_json()) == old and "truncation" not in now.sampling
        assert not replace(old, verifier="topk").differences(replace(now, verifier="topk"))
    assert "first_cut" not in WARM.to_json() and Conditions.from_json(WARM.to_json()).first_cut


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "changes",
    [{"colour": 1}, {"target": ""}, {"temperature": True}, {"top_p": 1.1}, {"verifier": "none"}],
)
def test_invalid_conditions_are_refused(changes):
    fields = {"target": "a", "draft": "b", "temperature": 0.0} | changes
    file = {"format": "sequoia-acceptance", "version": 2, "probs": [0.5], "holds_for": fields}
    with pytest.raises(ValueError, match=r"v\.json: holds_for: .*found .* expected"):
        AcceptanceVector.loads(json.dumps(file).encode(), "v.json")
    with pytest.raises(ValueError, match="found target, draft, expected target, draft and temperature"):
        Conditions.from_json({"target": "a", "draft": "b"})


def test_conditions_are_read_from_both_file_versions():
    meta = {"target": "big", "draft": "small", "temperature": 0.6, "top_p": 1.0, "top_k": 0, "verifier": "sequoia"}

    def read(meta):
        file = {"format": "sequoia-acceptance", "version": 1, "probs": [0.5], "meta": meta}
        return AcceptanceVector.loads(json.dumps(file).encode(), "v.json").holds_for

    for held in (WARM, replace(WARM, declared=True, top_p=0.9)):
        vector = AcceptanceVector(np.array([0.5, 0.2]), holds_for=held)
        assert AcceptanceVector.loads(vector.to_bytes(), "v.json").holds_for == held
    assert read(meta | {"width": 32, "source": "x"}) == WARM
    assert read(meta | {"edited": True}) is None and read(meta | {"share": 0.5}) is None
    assert read(meta | {"temperature": "0.6"}) is None
    assert AcceptanceVector.loads(b"0.5\n0.2\n", "v.csv").holds_for is None


def test_measured_vectors_record_their_conditions(tiny_target, tiny_draft):
    vector = measure_acceptance(
        [[1, 2, 3]], pair_of(tiny_target, tiny_draft), sampling=SamplingConfig(0.7, 0.9, 7), width=4,
        max_new_tokens=4, verifier="topk",
    )  # fmt: skip
    assert vector.holds_for == Conditions(tiny_target.name, tiny_draft.name, 0.7, 0.9, "topk", top_k=7)


SAME_NAME = "measured on a machine of the same name, perhaps not this one"
PROFILE = HardwareProfile(
    [1, 2], [1.0, 1.1], 0.1, device="A, 2 threads", dtype="float32", meta={"target": "big", "draft": "small"}
)


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("meta", "asked", "words"),
    [
        ({}, {}, []),
        ({}, {"draft": "x"}, ["draft small, not x"]),
        ({}, {"dtype": "bfloat16"}, ["measured in float32, not bfloat16"]),
        ({}, {"device": "B"}, ["measured on A, 2 threads, not on B"]),
        ({}, {"offload": "disk"}, ["measured with the target's weights in memory, not on disk"]),
        ({"offload": "disk"}, {"offload": "disk"}, []),
        ({}, {"instructions": "AVX-512"}, []),  # not recorded in the file
        ({"instructions": "AMX"}, {"instructions": "AVX-512"}, ["measured with AMX, not AVX-512"]),
        ({"modelled": True}, {"installation": "1"}, ["the times are modelled, not measured"]),
        ({"installation": "1"}, {"installation": "1"}, []),
        ({}, {"installation": "1"}, [SAME_NAME]),
        ({"target": None}, {}, ["the profile does not name its target"]),
    ],
)
def test_profile_differences_are_named(meta, asked, words):
    same = {"target": "big", "draft": "small", "dtype": "float32", "device": "A, 2 cores"}
    assert replace(PROFILE, meta=PROFILE.meta | meta).differences(**same | asked) == words


def test_vector_and_profile_of_different_pairs_mismatch():
    vector = AcceptanceVector(np.array([0.5]), holds_for=WARM)
    assert not pair_mismatches(vector, PROFILE)
    assert len(pair_mismatches(replace(vector, holds_for=replace(WARM, target="x", draft="y")), PROFILE)) == 2
    assert "does not say" in pair_mismatches(replace(vector, holds_for=None), PROFILE)[0]
    assert len(pair_mismatches(vector, replace(PROFILE, meta={}))) == 2


def test_all_paths_to_a_folder_name_the_same_model(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = {model_name(name) for name in ("model", "./model", "~/model", tmp_path / "model")}
    assert names == {str((tmp_path / "model").resolve())}
    assert model_name("owner/model") == "owner/model"
    spelled_out = PairSpec(DEMO_PAIR / "target", DEMO_PAIR / "draft")
    assert PairSpec().names == ("demo target", "demo draft") == spelled_out.names
