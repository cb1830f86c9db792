"""What holds for the pair in use: vectors, profiles and runs, each asked in one place."""

from __future__ import annotations

import pytest

from sequoia_core import AcceptanceVector
from sequoia_core.design.plain_trees import chain_tree
from tests.app.conftest import DEMO_NAMES, OTHER_DRAFT, ROOT
from ui import predictions, session
from ui.model_pairs import PairSpec

RUN = {"target": DEMO_NAMES[0], "draft": DEMO_NAMES[1], "dtype": "float32", "offload": None}


@pytest.mark.parametrize(
    ("run", "own"),
    [
        (RUN, True),
        ({"target": DEMO_NAMES[0], "draft": DEMO_NAMES[1]}, True),  # a record that says nothing of the dtype
        (RUN | {"draft": "demo draft-large"}, False),
        (RUN | {"target": "owner/big"}, False),
        (RUN | {"dtype": "bfloat16"}, False),
        (RUN | {"offload": "disk"}, False),
    ],
)
def test_a_run_is_of_the_pair_in_use_where_all_that_it_records_agrees(run: dict, own: bool, assets) -> None:
    assert predictions.is_of_pair_in_use(run) is own


@pytest.mark.parametrize(
    "spec", [OTHER_DRAFT, PairSpec("owner/big", "owner/small"), PairSpec(dtype="bfloat16"), PairSpec(offload="disk")]
)
def test_another_pair_is_given_neither_the_run_nor_the_profile(spec: PairSpec, assets, monkeypatch) -> None:
    assert predictions.profile_faults() == []
    monkeypatch.setattr(session, "pair_spec", lambda: spec)
    assert not predictions.is_of_pair_in_use(RUN) and predictions.profile_faults()


def test_one_prompt_is_less_sure_than_the_average_of_many(assets) -> None:
    known = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-t0.json")  # with a calibration by prompt
    alone, many = (predictions.prediction(chain_tree(3), known, prompts=count).speedup for count in (1, None))
    assert alone.low < many.low < many.value < many.high < alone.high
