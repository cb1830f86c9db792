"""A pair that nothing was measured for: measure first, or decode with a guess; never with the best tree of another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sequoia_core.design.conditions import Conditions
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from tests.app.conftest import OTHER_DRAFT, open_page, profile, state_of, vector
from ui.race import entrants
from ui.runs.runs import DecodeRequest
from ui.session import session, tree_choice, tree_kinds

pytestmark = pytest.mark.usefixtures("assets")
OWN_VECTOR = replace(vector(), holds_for=Conditions(*OTHER_DRAFT.names, temperature=0.0))
OWN_PROFILE = replace(profile(), meta=profile().meta | dict(zip(("target", "draft"), OTHER_DRAFT.names, strict=True)))


def said(page) -> str:
    return " ".join(element.value for element in [*page.markdown, *page.caption])


def labels(page) -> dict[str, str]:
    return {button.key: button.label for button in page.button}


@pytest.fixture
def held(monkeypatch):
    """A session with the pair of one's own, and what was measured for it."""

    def hold(**values) -> None:
        kept = {"pair": OTHER_DRAFT, **values}
        monkeypatch.setattr(session, "get", lambda name, default=None: kept.get(name, default))
        for module in (tree_kinds, tree_kinds.tree_in_use):
            monkeypatch.setattr(module, "get", lambda name, default=None: kept.get(name, default))

    return hold


def test_live_offers_to_measure_first_and_names_its_guess() -> None:
    page = open_page("decode", {"pair": OTHER_DRAFT})
    assert labels(page)["measure_here"] == ":orange[Measure first (10 s)]"
    assert labels(page)["decode_start"] == "Decode with a chain of 4"
    assert "chain of 4, a guess (nothing was measured for this pair): n = 5" in said(page)
    assert "measured for another pair" in state_of(page).value or "missing" in state_of(page).value
    assert "best tree" not in said(page)
    assert "Press Start" not in said(page)  # no button has that name here


def test_tree_and_race_offer_to_measure_first_too() -> None:
    tree, race = (open_page(name, {"pair": OTHER_DRAFT}) for name in ("tree", "race"))
    for page in (tree, race):
        assert labels(page)["measure_here"] == ":orange[Measure first (10 s)]"
        assert "measured for another pair" in state_of(page).value
    assert "tree planned by the acceptance of demo target ← demo draft" in said(tree)
    assert "best tree for" not in said(tree) and "Decode with a chain of 4" in said(tree)
    assert labels(race)["race_start"] == "Start the race"
    assert "no tree is planned" in said(race)


def test_the_machine_page_says_that_its_speeds_are_not_of_the_pair() -> None:
    other = open_page("machine", {"pair": OTHER_DRAFT})
    assert "nothing on this page is predicted for the demo pair with its" in said(other)
    assert "nothing on this page is predicted" not in said(open_page("machine"))


def test_a_race_has_no_planned_tree_and_the_guessed_chain(held) -> None:
    held()
    runners = entrants.entrants(DecodeRequest("x", chain_tree(1), models=OTHER_DRAFT), entrants.FIXED)
    assert list(runners) == ["Autoregressive", "Chain of 4", "SpecInfer"]


@pytest.mark.parametrize(
    ("values", "planned", "best"),
    [
        ({}, tree_kinds.GUESS, False),
        ({"profile": OWN_PROFILE}, tree_kinds.GUESS, False),
        ({"acceptance": OWN_VECTOR}, tree_kinds.GUESS, False),
        ({"acceptance": OWN_VECTOR, "profile": OWN_PROFILE}, "best tree for this acceptance and hardware", True),
        ({"shape": (8, 3)}, "tree of the chosen shape, by the acceptance of demo target ← demo draft", False),
        ({"tree": k_ary_tree(2, 2), "tree_source": "your file"}, "your file", False),
    ],
)
@pytest.mark.sample(6)
def test_only_a_tree_planned_by_measurements_of_the_pair_is_called_best(values, planned, best, held) -> None:
    held(**values)
    tree, origin = tree_kinds.decoded(None)
    assert origin == planned
    assert (origin == tree_kinds.GUESS) == (tree == chain_tree(4))
    assert (tree_choice.best_for(values.get("acceptance")).tree is not None) == best
