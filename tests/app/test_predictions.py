"""What holds for the pair in use: vectors, profiles and runs, each asked in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sequoia_core import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import predict
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import DEMO_NAMES, ROOT, metrics, open_page
from ui.session import predictions, session

RUN = {"target": DEMO_NAMES[0], "draft": DEMO_NAMES[1], "dtype": "float32", "offload": None}
DEMO_VECTOR = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-t0.6.json")


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


@pytest.mark.parametrize("offload", ["disk", "host"])
def test_a_run_that_names_no_place_of_weights_had_them_in_memory(offload: str, assets, monkeypatch) -> None:
    monkeypatch.setattr(session, "pair_spec", lambda: PairSpec(offload=offload))
    assert not predictions.is_of_pair_in_use({**RUN, "offload": None})
    assert not predictions.is_of_pair_in_use({name: value for name, value in RUN.items() if name != "offload"})
    assert predictions.is_of_pair_in_use(RUN | {"offload": offload})


def test_a_profile_predicts_up_to_its_largest_size(assets) -> None:
    assert predictions.no_prediction(chain_tree(63)) is None  # 64 nodes
    assert predictions.no_prediction(chain_tree(64)) == "the profile ends at n = 64"


def test_one_prompt_is_less_sure_than_the_average_of_many(assets) -> None:
    known = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-t0.json")  # with a calibration by prompt
    alone, many = (predictions.prediction(chain_tree(3), known, prompts=count).speedup for count in (1, None))
    assert alone.low < many.low < many.value < many.high < alone.high


@pytest.mark.parametrize(("role", "name"), [("target", "owner/big"), ("draft", "owner/small")])
def test_a_vector_of_another_pair_is_told_by_the_model_that_differs(role: str, name: str, assets, monkeypatch) -> None:
    other = replace(DEMO_VECTOR, holds_for=replace(DEMO_VECTOR.holds_for, **{role: name}))
    monkeypatch.setattr(session, "acceptance", lambda: other)
    [fault] = predictions.vector_faults()
    assert fault.startswith(f"{role} {name}, not ")
    assert predictions.no_prediction(chain_tree(3)) == fault
    assert predictions.vector_for(predictions.conditions(0.6)) is not other


def test_a_vector_that_says_nothing_of_its_pair_predicts_nothing(assets, monkeypatch) -> None:
    bare = replace(DEMO_VECTOR, holds_for=None)
    monkeypatch.setattr(session, "acceptance", lambda: bare)
    assert predictions.vector_faults() and predictions.predicted(chain_tree(3)) is None


def test_traversal_is_predicted_by_the_vector_of_sequoia(assets, monkeypatch) -> None:
    monkeypatch.setattr(session, "acceptance", lambda: DEMO_VECTOR)
    wanted = predictions.conditions(0.6, verifier="traversal")
    assert wanted.verifier == "sequoia"
    assert predictions.vector_for(wanted) is DEMO_VECTOR


@pytest.mark.slow
def test_every_page_expects_the_tokens_that_the_speedup_is_made_of() -> None:
    """The shipped vector keeps its texts, along which a step yields less than F promises."""
    shown = metrics(open_page("tree")) | metrics(open_page("machine"))
    vector, profile = session.acceptance(), session.profile()
    tree = plan_tree(vector, profile)
    found = predict(tree, vector, profile)
    tokens = f"{found.tokens_per_step.value:.2f}"
    assert abs(found.tokens_per_step.value - expected_tokens(tree, vector)) > 0.1
    assert shown["Expected tokens per step"][0] == tokens
    assert shown["Best shape"] == (f"n = {tree.size}, d = {tree.depth}", f"{tokens} tokens per step")
    assert f"{found.speedup.value:.2f}×" == shown["Best predicted speedup"][0]
    page = open_page("tree", tree_section="Compare", against="Best first")
    assert metrics(page)["Tree in use"][0] == tokens
    said = [each.value for kind in ("markdown", "caption") for each in page.get(kind)]
    independent = [words for words in said if f"{expected_tokens(tree, vector):.2f}" in words]
    assert all("independent" in words or "adds up to" in words for words in independent) and independent
    assert any(
        f"expected {tokens} tokens per step" in each.value for each in open_page("decode", source="best").caption
    )
