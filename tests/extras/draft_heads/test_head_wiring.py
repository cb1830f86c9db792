"""A head whose inputs differ from those in training is detected by a wiring that fits better."""

from dataclasses import replace

import pytest
import torch

from sequoia_core.decoding.loop import autoregressive
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_extras.draft_heads.head_wiring import find_better_wiring, with_settings
from tests import head_folders
from tests.conftest import pair_of, tiny_llama, tokens_of
from tests.head_folders import DFLASH, SPECULATORS, random_head, states_along, teach, teach_blocks

READS = (1, 2, 4)


@pytest.fixture(scope="module")
def target():
    return tiny_llama(4, layers=5, scale=1.0)


@pytest.fixture(scope="module")
def texts(target):
    pair = pair_of(target)
    sampling = SamplingConfig(0.7)
    return [
        [
            first,
            *tokens_of(
                autoregressive(
                    [first], pair, sampling=sampling, max_new_tokens=30, generator=torch.Generator().manual_seed(first)
                )
            ),
        ]
        for first in range(16)
    ]


@pytest.fixture(scope="module")
def head(target, texts):
    return teach(random_head(target, reads=READS), texts, steps=60)


def test_correct_wiring_gives_no_remark(head, texts, target):
    pair = pair_of(target, head)
    assert find_better_wiring(texts, pair) is None
    assert find_better_wiring(texts, pair_of(target, target)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "fits"),
    [((2, 3, 5), "the states one layer below (1, 2, 4)"), ((0, 1, 3), "the states one layer above (1, 2, 4)")],
)
def test_shifted_layer_ids_are_detected(read, fits, head, texts, target, monkeypatch):
    monkeypatch.setattr(head, "state_indices", read)
    found = find_better_wiring(texts, pair_of(target, head))
    assert found.wiring == fits and found.nats < 1 < found.as_filed and fits in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "fits"), [(1, "one token later"), (-1, "one token earlier")])
def test_shifted_features_are_detected(shift, fits, texts, target, monkeypatch):
    """Train on states shifted by one token, as by a program that starts a head one position late."""
    monkeypatch.setattr(head_folders, "states_along", lambda *given: states_along(*given).roll(shift, 1))
    other = teach(random_head(target, reads=READS), texts, steps=60)
    found = find_better_wiring(texts, pair_of(target, other))
    assert found.wiring == f"each token's states given {fits}" and found.nats < found.as_filed


@pytest.mark.slow
@pytest.mark.parametrize("norms", ["norm_before_residual", "norm_output"])
def test_wrong_norm_is_detected(norms, head, texts, target, monkeypatch):
    monkeypatch.setattr(head, "head", with_settings(head.head, **{norms: True}))
    assert find_better_wiring(texts, pair_of(target, head)).wiring == f"the opposite {norms}"


BLOCKS = {"form": DFLASH, "reads": READS, "layers": 1}
FROM_ANCHOR = {
    "form": SPECULATORS, "speculators_model_type": "dflash", "reads": READS, "sample_from_anchor": True,
}  # fmt: skip


@pytest.mark.slow
def test_wrong_wirings_of_blocks_are_detected(texts, target, monkeypatch):
    def found(head):
        better = find_better_wiring(texts, pair_of(target, head))
        return better and better.wiring

    head = teach_blocks(random_head(target, **BLOCKS), texts)
    assert found(head) is None
    monkeypatch.setattr(head, "state_indices", (2, 3, 5))
    assert found(head) == "the states one layer below (1, 2, 4)"
    for shift, where in ((-1, "earlier"), (1, "later")):
        seeded = teach_blocks(random_head(target, **BLOCKS), texts, shift=shift)
        assert found(seeded) == f"each block one position {where}"
    anchored = teach_blocks(random_head(target, **FROM_ANCHOR), texts)
    assert found(anchored) is None
    block = replace(anchored.head.settings.block, first_row=1)
    monkeypatch.setattr(anchored, "head", with_settings(anchored.head, block=block))
    assert found(anchored) == "the opposite sample_from_anchor"
    parallel = teach(random_head(target, reads=READS, speculators_model_type="peagle"), texts, steps=60)
    assert found(parallel) is None
    monkeypatch.setattr(parallel, "state_indices", (2, 3, 5))
    assert found(parallel) == "the states one layer below (1, 2, 4)"
