"""A head that is fed otherwise than it was trained is found out, by what fits better or by its first position."""

import json

import pytest
import torch

from sequoia_core.command_line.main import main
from sequoia_core.decoding.loop import autoregressive
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.studies.head_wiring import _changed, better_wiring
from tests import head_folders
from tests.conftest import pair_of, tiny_llama, tokens_of
from tests.head_folders import head_fields, head_tensors, random_head, states_along, teach, write_head

READS = (1, 2, 4)


@pytest.fixture(scope="module")
def target():
    return tiny_llama(4, layers=5, scale=1.0)


@pytest.fixture(scope="module")
def texts(target):
    pair, sampling = pair_of(target), SamplingConfig(0.7)
    return [
        [first, *tokens_of(autoregressive([first], pair, sampling=sampling, max_new_tokens=30,
                                          generator=torch.Generator().manual_seed(first)))]
        for first in range(16)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def head(target, texts):
    return teach(random_head(target, reads=READS), texts, steps=60)


def test_a_head_wired_as_it_was_trained_is_left_alone(head, texts, target):
    pair = pair_of(target, head)
    assert better_wiring(texts, pair) is None
    assert better_wiring(texts, pair_of(target, target)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "fits"), [((2, 3, 5), "the states below, 1, 2, 4"), ((0, 1, 3), "the states above, 1, 2, 4")]
)
def test_layer_ids_shifted_by_one(read, fits, head, texts, target, monkeypatch):
    monkeypatch.setattr(head, "reads", read)
    found = better_wiring(texts, pair_of(target, head))
    assert found.what == fits and found.nats < 1 < found.as_filed and fits in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "fits"), [(1, "one token later"), (-1, "one token earlier")])
def test_features_one_position_off(shift, fits, texts, target, monkeypatch):
    """Trained on states of the token before, as a program that seeds a head one position late gives them."""
    monkeypatch.setattr(head_folders, "states_along", lambda *given: states_along(*given).roll(shift, 1))
    other = teach(random_head(target, reads=READS), texts, steps=60)
    found = better_wiring(texts, pair_of(target, other))
    assert found.what == f"each token's states given {fits}" and found.nats < found.as_filed


@pytest.mark.slow
@pytest.mark.parametrize("norms", ["norm_before_residual", "norm_output"])
def test_a_wrong_norm(norms, head, texts, target, monkeypatch):
    monkeypatch.setattr(head, "head", _changed(head.head, **{norms: True}))
    assert better_wiring(texts, pair_of(target, head)).what == f"the other {norms}"


@pytest.mark.slow
def test_what_no_other_wiring_mends_is_named_by_the_first_position(tmp_path, demo_pair, capsys):
    """And the shipped head is wired right."""
    fields = head_fields(demo_pair.target.model, draft_vocab=1_000)
    random = write_head(tmp_path / "head", fields, head_tensors(fields))
    told = {}
    for folder in (random, DEMO_PAIR / "head"):
        options = ["--target", str(DEMO_PAIR / "target"), "--draft", str(folder), "--prompt-count", "8"]
        assert main(["measure", "--max-new-tokens", "16", *options, "--json"]) == 0
        told[folder] = json.loads(capsys.readouterr().out)["wiring"]
    assert told[random].startswith("Wired wrong: first position accepted: 0.") and told[DEMO_PAIR / "head"] is None
