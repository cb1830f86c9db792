"""Which vectors, profiles and runs apply to the pair in use, and the state of a session."""

from __future__ import annotations

from dataclasses import replace

import pytest
import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import predict
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.plain import chain_tree
from tests.app.conftest import DEMO_NAMES, OTHER_DRAFT, ROOT, metrics, open_page, profile, vector
from ui.runs import run_store
from ui.session import core_cache, predictions, session, shipped, tree_choice, tree_in_use, tree_kinds
from ui.session.state import Chosen, SessionState, state

RUN = {"target": DEMO_NAMES[0], "draft": DEMO_NAMES[1], "dtype": "float32", "offload": None}
DEMO_VECTOR = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-t0.6.json")


@pytest.mark.parametrize(
    ("run", "own"),
    [
        (RUN, True),
        ({"target": DEMO_NAMES[0], "draft": DEMO_NAMES[1]}, True),  # the record has no dtype
        (RUN | {"draft": "demo draft-large"}, False),
        (RUN | {"dtype": "bfloat16"}, False),
        (RUN | {"offload": "disk"}, False),
    ],
)
def test_runs_are_matched_to_the_pair_in_use(run: dict, own: bool, assets) -> None:
    assert predictions.matches_pair_in_use(run) is own


def test_cache_keys_cover_every_field_of_a_vector() -> None:
    whole = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-head-t0.json")
    deeper, reverse, digest = whole.by_depth, slice(None, None, -1), core_cache._digest.__wrapped__
    changes = [
        {}, {"note": "other"}, {"meta": {}}, {"holds_for": None}, {"calibration": None}, {"by_depth": None},
        {"prompt_ranks": tuple(ranks[reverse] for ranks in whole.prompt_ranks)},
        {"prompt_matched": tuple(ranks[reverse] for ranks in whole.prompt_matched)},
        {"by_depth": replace(deeper, prompt_ranks=tuple(ranks[:, reverse] for ranks in deeper.prompt_ranks))},
    ]  # fmt: skip
    assert len({digest(replace(whole, **change)) for change in changes}) == len(changes)


@pytest.mark.parametrize("offload", ["disk", "host"])
def test_runs_without_an_offload_record_had_weights_in_memory(offload: str, assets, monkeypatch) -> None:
    monkeypatch.setattr(session, "pair_spec", lambda: PairSpec(offload=offload))
    assert not predictions.matches_pair_in_use({**RUN, "offload": None})
    assert not predictions.matches_pair_in_use({name: value for name, value in RUN.items() if name != "offload"})
    assert predictions.matches_pair_in_use(RUN | {"offload": offload})


def test_predictions_end_at_the_largest_profiled_size(assets) -> None:
    assert (
        predictions.prediction(chain_tree(63), DEMO_VECTOR)
        and predictions.prediction(chain_tree(64), DEMO_VECTOR) is None
    )
    assert predictions.planned_prediction(chain_tree(63)) and predictions.planned_prediction(chain_tree(64)) is None


def test_predictions_for_one_prompt_have_wider_intervals(assets) -> None:
    known = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-t0.json")
    alone, many = (predictions.prediction(chain_tree(3), known, prompts=count).speedup for count in (1, None))
    assert alone.low < many.low < many.value < many.high < alone.high


@pytest.mark.parametrize(("role", "name"), [("target", "owner/big"), ("draft", "owner/small")])
def test_vectors_of_another_pair_are_rejected(role: str, name: str, assets, monkeypatch) -> None:
    other = replace(DEMO_VECTOR, holds_for=replace(DEMO_VECTOR.holds_for, **{role: name}))
    monkeypatch.setattr(session, "acceptance", lambda: other)
    assert predictions.vector_is_for_another_pair() and not predictions.prediction_basis().predicts
    assert predictions.vector_for(predictions.conditions(0.6)) is not other


def test_vectors_without_conditions_are_assumed_to_be_of_the_models_planned_for(assets, monkeypatch) -> None:
    bare = replace(DEMO_VECTOR, holds_for=None)
    monkeypatch.setattr(session, "acceptance", lambda: bare)
    assert predictions.prediction_basis().assumed == "demo target ← demo draft"
    assert predictions.planned_prediction(chain_tree(63)) and predictions.planned_prediction(chain_tree(64)) is None


def test_traversal_uses_the_vector_of_sequoia(assets, monkeypatch) -> None:
    monkeypatch.setattr(session, "acceptance", lambda: DEMO_VECTOR)
    wanted = predictions.conditions(0.6, verifier="traversal")
    assert wanted.verifier == "sequoia"
    assert predictions.vector_for(wanted) is DEMO_VECTOR


@pytest.mark.slow
def test_all_pages_show_the_same_expected_tokens() -> None:
    """The shipped vector stores texts, whose tokens per step are below F."""
    shown = metrics(open_page("tree")) | metrics(open_page("machine"))
    vector, profile = session.acceptance(), session.profile()
    tree = plan_tree(vector, profile)
    found = predict(tree, vector, profile)
    tokens = f"{found.tokens_per_step.value:.2f}"
    assert abs(found.tokens_per_step.value - expected_tokens(tree, vector)) > 0.1
    assert shown["Expected tokens per step"][0] == tokens
    assert shown["Best shape"] == (f"n = {tree.size}, d = {tree.depth}", f"{tokens} tokens per step")
    assert f"{found.speedup.value:.2f}×" == shown["Best static tree"][0]
    page = open_page("tree")
    said = [each.value for kind in ("markdown", "caption") for each in page.get(kind)]
    independent = [words for words in said if f"{expected_tokens(tree, vector):.2f}" in words]
    assert all("independent" in words or "sum of" in words for words in independent) and independent
    assert any(
        f"expected {tokens} tokens per step" in each.value for each in open_page("decode", source="best").caption
    )


@pytest.fixture
def kept(assets, monkeypatch) -> SessionState:
    """The state of a new session."""
    monkeypatch.setattr(st, "session_state", {})
    return state()


def shown(session: SessionState) -> bool:
    """Return whether the tree page was asked to move its sliders since the last call."""
    shown, session.shape_to_show = session.shape_to_show, False
    return shown


def test_vectors_can_be_stored_varied_declared_and_restored(kept) -> None:
    one, two = vector(0.5), vector(0.52)
    assert not session.has_chosen_acceptance() and session.acceptance() == shipped.vectors()["demo-t0"]
    session.set_acceptance(one, "measured", "mine")
    assert shown(kept) and session.has_chosen_acceptance() and session.acceptance() is one
    session.set_acceptance(two, "measured again", "mine")
    session.set_acceptance(one, "from a file", "mine")  # the same vector keeps its name and comes first
    session.set_acceptance(two, "sent", "other")  # same name as a shipped vector
    assert list(session.vectors()) == ["other (2)", "mine", "mine (2)", *shipped.asset_files("acceptance")]
    assert [session.vector_title(name) for name in ("mine", "mine (2)")] == [
        "mine: from a file",
        "mine (2): measured again",
    ]
    assert session.vector_title("other").startswith("other: big ← small, temperature 0")
    for times in (3, 4):
        session.smooth_acceptance(vector(times / 10))
    assert session.is_varied() and session.acceptance_source() == "smoothed, from: sent"
    assert session.original_acceptance() is two and session.acceptance_name() is None
    wanted = Conditions("a", "b", 0.6)
    for _ in range(2):
        session.declare_conditions(wanted)
        assert (
            session.acceptance() == replace(vector(0.4), holds_for=wanted) and session.acceptance_name() == "declared"
        )
        assert session.acceptance_source() == f"smoothed, from: sent; declared for a ← b, {wanted.sampling}"
    session.restore_acceptance()
    assert session.acceptance() is two and session.acceptance_source() == "sent" and not session.is_varied()
    shown(kept)
    session.restore_acceptance()
    assert not shown(kept)
    session.smooth_acceptance(one)
    session.use_vector("mine")
    assert (session.acceptance_source(), session.acceptance_name(), session.is_varied()) == (
        "from a file",
        "mine",
        False,
    )
    session.use_vector("other")
    assert session.acceptance_source() == shipped.acceptance_origin(shipped.vectors()["other"])
    for number in range(session.MAX_OWN):
        session.set_acceptance(vector(0.1 + number / 100), str(number), "new")
    own = [f"new ({number})" for number in range(session.MAX_OWN, 1, -1)] + ["new"]
    assert list(kept.own_vectors) == own


def test_profiles_are_listed_and_chosen_by_name(kept) -> None:
    own, lent = profile(0.03), replace(profile(0.04), device="far away")
    kept.shape = (8, 3)
    session.set_profile(own, "mine", "mine")
    assert not shown(kept), "a chosen shape stays"
    kept.shape = None
    session.set_profile(lent, "sent", "mine")
    assert shown(kept) and list(session.profiles())[:2] == ["mine (2)", "mine"]
    assert session.profile() is lent and session.profile_source() == "sent" and session.profile_name() == "mine (2)"
    session.use_profile("mine")
    assert shown(kept) and session.profile() is own
    session.use_profile("cpu-2core")
    assert session.profile_source() == shipped.profile_origin(session.profile())
    assert session.profile() is shipped.profiles()["cpu-2core"] and session.profile_name() == "cpu-2core"
    session.use_profile(None)
    assert session.profile() is lent, "the newest one that this installation measured on the pair"
    kept.contradiction = ("key", "words")
    session.set_measured_profile(own, "again")
    assert kept.contradiction is None and kept.profile is None and session.profile() is own
    kept.pair = OTHER_DRAFT
    assert session.profile() is own and predictions.lacks_measurement()  # times of other models are no default


def test_measured_vectors_apply_to_what_they_were_measured_for(kept) -> None:
    session.set_measured_acceptance(vector(0.5), "measured", "mine")
    assert kept.acceptance is None and session.acceptance() == vector(0.5)
    assert session.acceptance_source() == "measured" and session.acceptance_name() == "mine"
    other = replace(vector(0.3), holds_for=replace(vector().holds_for, temperature=0.6))
    session.set_measured_acceptance(other, "measured warm", "warm")
    assert kept.acceptance is not None and session.acceptance() is other
    session.use_vector(None)
    assert session.acceptance() == vector(0.5)
    session.set_sampling(0.6, 1.0)
    assert session.acceptance() is other


def test_sliders_move_only_if_sampling_changes(kept) -> None:
    session.set_sampling(0.0, 1.0)
    assert not shown(kept) and session.sampling() == (0.0, 1.0)
    session.set_sampling(0.6, 0.9)
    assert shown(kept) and session.sampling() == (0.6, 0.9)
    assert not session.claim_sampling_controls() and not session.claim_sampling_controls()
    kept.sampling_page = "another"
    assert session.claim_sampling_controls() and not session.claim_sampling_controls()


def test_runs_are_stored_newest_first_within_limits(kept, monkeypatch) -> None:
    def run(number: int, nodes: int = 2) -> dict:
        return {"id": f"{number:012x}", "prompt": "", "steps": [{"tokens": ["a"] * nodes}, {"tokens": ["b"]}]}

    def numbers() -> list[int]:
        return [int(name, 16) for name in kept.runs]

    monkeypatch.setattr(run_store, "MAX_RUNS", 5)
    for number in range(8):
        run_store.add_run(run(number), f"origin {number}")
    run_store.add_run(run(5), "again")
    assert numbers() == [5, 7, 6, 4, 3]
    assert [each.origin for each in kept.runs.values()][:3] == ["again", "origin 7", "origin 6"]
    run_store.rename_run(f"{6:012x}", "mine")
    run_store.delete_run(f"{7:012x}")
    assert numbers() == [5, 6, 4, 3] and kept.runs[f"{6:012x}"].origin == "mine"
    monkeypatch.setattr(run_store, "MAX_NODES", 12)
    run_store.add_run(run(8, 5), "here")
    assert numbers() == [8, 5, 6]
    run_store.add_run(run(9, 12), "here")
    assert numbers() == [9] and kept.last_run is None
    run_store.set_last_run(run(10))
    assert kept.last_run == run(10) and [each.origin for each in kept.runs.values()] == ["decoded here"]


@pytest.mark.parametrize("shape", [None, (8, 3)])
@pytest.mark.parametrize("own", [None, chain_tree(2)])
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("foreign", [True, False])
@pytest.mark.sample(16)
def test_tree_in_use_and_its_source(shape, own, timed, foreign, kept, assets) -> None:
    if not timed:
        (assets / "profiles" / "cpu-2core.json").unlink()
    if foreign:
        foreign_vector = replace(vector(), holds_for=Conditions("x/big", "y/small", 0.0))
        kept.acceptance = Chosen(foreign_vector, "")
    if own is not None:
        tree_in_use.use_tree(own, "a file")
    if shape is not None:
        kept.shape = shape
    best = tree_in_use.best_shape()
    assert (best is not None) == timed
    size_and_depth = shape or ((best.size, best.depth) if timed else (16, 5))
    assert tree_in_use.designed_shape() == size_and_depth
    tree = tree_in_use.current_tree()
    assert tree is own if own is not None else tree.size == size_and_depth[0] and tree.depth <= size_and_depth[1]
    assert tree_in_use.is_imported() == (own is not None)
    free = own is None and shape is None
    assert tree_in_use.follows_profile() == (free and timed) and tree_in_use.is_guessed() == (free and foreign)
    words = {
        (True, True): "tree planned with the acceptance of big ← small and for hardware",
        (True, False): "best tree for this acceptance and hardware",
    }
    chosen = (
        "tree of the chosen shape, planned with the acceptance of big ← small"
        if foreign
        else "best tree of the chosen shape"
    )
    source = (
        "a file"
        if own is not None
        else chosen
        if shape
        else words.get((timed, foreign), "best tree of a default shape")
    )
    assert tree_in_use.describe_source() == source
    guessed = free and foreign
    assert tree_kinds.resolve_tree(None) == ((chain_tree(3), tree_kinds.GUESSED_TREE) if guessed else (tree, source))
    choice = tree_choice.best_tree_for(session.acceptance())
    assert (choice.source, choice.tree is not None) == ("best", timed)
    assert not timed or choice.tree.size == best.size
    assert tree_choice.best_tree_for(None).tree is None
    for way, needs in (("tree", True), ("best", True), ("chain", False)):
        assert tree_choice.needs_measurement(tree_choice.TreeChoice(way, None, ""), None) == needs
    settled = tree_choice.resolve_choice(tree_choice.TreeChoice("tree", None, ""), session.acceptance())
    assert (settled.tree, settled.origin) == tree_kinds.resolve_tree(session.acceptance())
    drawn = tree_choice.TreeChoice("chain", chain_tree(1), "")
    assert tree_choice.resolve_choice(drawn, None) is drawn
    tree_in_use.set_size_and_depth(5, 0)
    assert tree_in_use.designed_shape() == (5, 1) and not tree_in_use.is_imported()
    assert tree_in_use.pop_size_and_depth_to_show() and not tree_in_use.pop_size_and_depth_to_show()
    tree_in_use.set_size_and_depth(None, show=False)
    assert tree_in_use.designed_shape() == ((best.size, best.depth) if timed else (16, 5))
    assert not tree_in_use.pop_size_and_depth_to_show()
