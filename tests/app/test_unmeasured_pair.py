"""A pair without measurements: measure first, or decode with a guess; never with the best tree of another pair."""

from __future__ import annotations

from dataclasses import replace

import pytest
import streamlit as st

from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from tests.app.conftest import OTHER_DRAFT, metrics, open_page, profile, state_of, vector
from ui.race import entrants
from ui.runs.runs import DecodeRequest
from ui.session import tree_choice, tree_kinds
from ui.session.state import KEY, Chosen, SessionState

pytestmark = pytest.mark.usefixtures("assets")
OWN_VECTOR = replace(vector(), holds_for=Conditions(*OTHER_DRAFT.names, temperature=0.0))
OWN_PROFILE = replace(profile(), meta=profile().meta | dict(zip(("target", "draft"), OTHER_DRAFT.names, strict=True)))


def said(page) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.caption])


def labels(page) -> dict[str, str]:
    return {button.key: button.label for button in page.button}


@pytest.fixture
def session_with(monkeypatch):
    """A session with another pair and what was measured for it."""

    def set_values(**values) -> None:
        monkeypatch.setattr(st, "session_state", {KEY: SessionState(pair=OTHER_DRAFT, **values)})

    return set_values


def test_the_decode_page_offers_to_measure_first_and_names_its_guess() -> None:
    page = open_page("decode", {"pair": OTHER_DRAFT})
    assert labels(page)["measure_here"] == ":orange[Measure first (10 s)]"
    assert labels(page)["decode_start"] == "Decode with a chain of 3"
    assert "chain of 3, a guess (nothing was measured for this pair): n = 4" in said(page)
    assert "Measure first" in state_of(page).value
    assert "best tree" not in said(page) and "measure_wanted" not in labels(page)


def test_the_tree_and_race_pages_offer_to_measure_first() -> None:
    tree, race = (open_page(name, {"pair": OTHER_DRAFT}) for name in ("tree", "race"))
    for page in (tree, race):
        assert labels(page)["measure_here"] == ":orange[Measure first (10 s)]"
        assert "Measure first" in state_of(page).value
    assert metrics(tree)["Expected tokens per step"][1] == "of other models, as an example"
    assert "tree planned with the acceptance of demo target ← demo draft" in said(tree)
    assert "best tree for" not in said(tree) and "Decode with a chain of 3" in said(tree)
    assert labels(race)["race_start"] == "Start the race"
    assert "no tree is planned" in said(race)


def test_the_machine_page_says_that_its_times_are_for_another_pair() -> None:
    other = open_page("machine", {"pair": OTHER_DRAFT})
    assert "Nothing was measured for the demo pair with its large draft" in other.info[0].value
    assert "Best static tree" not in metrics(other) and "Best static tree" in metrics(open_page("machine"))


def test_a_race_uses_the_guessed_chain_without_a_planned_tree(session_with) -> None:
    session_with()
    runners = entrants.race_entrants(DecodeRequest("x", chain_tree(1), models=OTHER_DRAFT), entrants.FIXED_TITLES)
    assert list(runners) == ["Autoregressive", "Chain of 3", "SpecInfer"]


@pytest.mark.parametrize(
    ("values", "planned", "best"),
    [
        ({}, tree_kinds.GUESSED_TREE, False),
        ({"profile": Chosen(OWN_PROFILE, "")}, tree_kinds.GUESSED_TREE, False),
        ({"acceptance": Chosen(OWN_VECTOR, "")}, tree_kinds.GUESSED_TREE, False),
        (
            {"acceptance": Chosen(OWN_VECTOR, ""), "profile": Chosen(OWN_PROFILE, "")},
            "best tree for this acceptance and hardware",
            True,
        ),
        ({"shape": (8, 3)}, "tree of the chosen shape, planned with the acceptance of demo target ← demo draft", False),
        ({"tree": Chosen(k_ary_tree(2, 2), "your file")}, "your file", False),
    ],
)
@pytest.mark.sample(6)
def test_only_a_tree_planned_by_measurements_of_the_pair_is_called_best(values, planned, best, session_with) -> None:
    session_with(**values)
    tree, origin = tree_kinds.resolve_tree(None)
    assert origin == planned
    assert (origin == tree_kinds.GUESSED_TREE) == (tree == chain_tree(3))
    assert (tree_choice.best_tree_for(OWN_VECTOR if "acceptance" in values else None).tree is not None) == best
