"""What holds for the pair in use: vectors, profiles and runs, each asked in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sequoia_core import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.optimal_trees import expected_tokens
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.design.planning import plan_tree
from sequoia_core.design.prediction import predict
from sequoia_core.models.pair_spec import PairSpec
from tests.app.conftest import DEMO_NAMES, ROOT, metrics, open_page, profile, vector
from ui.session import core_cache, predictions, session, shipped, sweeps, tree_choice, tree_in_use, tree_kinds

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


def test_caches_tell_vectors_apart_by_all_that_they_hold() -> None:
    whole = AcceptanceVector.load(ROOT / "assets" / "acceptance" / "demo-head-t0.json")
    deeper, reverse, digest = whole.by_depth, slice(None, None, -1), core_cache._measured.__wrapped__
    changes = [
        {}, {"note": "other"}, {"meta": {}}, {"holds_for": None}, {"calibration": None}, {"by_depth": None},
        {"prompt_ranks": tuple(ranks[reverse] for ranks in whole.prompt_ranks)},
        {"prompt_matched": tuple(ranks[reverse] for ranks in whole.prompt_matched)},
        {"by_depth": replace(deeper, prompt_ranks=tuple(ranks[:, reverse] for ranks in deeper.prompt_ranks))},
    ]  # fmt: skip
    assert len({digest(replace(whole, **change)) for change in changes}) == len(changes)


@pytest.mark.parametrize("offload", ["disk", "host"])
def test_a_run_that_names_no_place_of_weights_had_them_in_memory(offload: str, assets, monkeypatch) -> None:
    monkeypatch.setattr(session, "pair_spec", lambda: PairSpec(offload=offload))
    assert not predictions.is_of_pair_in_use({**RUN, "offload": None})
    assert not predictions.is_of_pair_in_use({name: value for name, value in RUN.items() if name != "offload"})
    assert predictions.is_of_pair_in_use(RUN | {"offload": offload})


def test_a_profile_predicts_up_to_its_largest_size(assets) -> None:
    assert predictions.no_prediction(chain_tree(63)) is None  # 64 nodes
    assert predictions.no_prediction(chain_tree(64)) == "the profile ends at n = 64"
    assert predictions.supposed(chain_tree(63)) and predictions.supposed(chain_tree(64)) is None


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
    assert predictions.if_of_pair(chain_tree(63)) and predictions.if_of_pair(chain_tree(64)) is None


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


@pytest.fixture
def kept(assets, monkeypatch) -> dict:
    """What the session keeps, in a plain dict."""
    values: dict = {}
    for module in (session, sweeps, tree_in_use, tree_kinds):
        monkeypatch.setattr(module, "get", values.get)
        monkeypatch.setattr(module, "put", values.__setitem__)
    return values


def shown(values: dict) -> bool:
    """Say whether the tree page was asked to move its sliders since the last call."""
    return bool(values.pop("shape_to_show", False))


def test_vectors_are_used_kept_varied_declared_and_restored(kept) -> None:
    one, two = vector(0.5), vector(0.52)
    assert not session.has_own_acceptance() and session.acceptance() == shipped.acceptance("demo-t0")
    session.set_acceptance(one, "measured", "mine")
    assert shown(kept) and session.has_own_acceptance() and session.acceptance() is one
    session.set_acceptance(two, "measured again", "mine")
    session.set_acceptance(one, "from a file", "mine")  # the same vector keeps its name and comes first
    session.set_acceptance(two, "sent", "other")  # the name of a shipped one
    assert list(session.vectors()) == ["other (2)", "mine", "mine (2)", *shipped.files("acceptance")]
    assert [session.vector_title(name) for name in ("mine", "mine (2)")] == [
        "mine: from a file",
        "mine (2): measured again",
    ]
    assert session.vector_title("other").startswith("other: big ← small, temperature 0")
    for times in (3, 4):
        session.vary_acceptance(vector(times / 10), f"times {times}")
    assert session.is_varied() and session.acceptance_source() == "times 4, from: sent"
    assert session.original_acceptance() is two and session.acceptance_name() is None
    wanted = Conditions("a", "b", 0.6)
    for _ in range(2):
        session.declare(wanted)
        assert (
            session.acceptance() == replace(vector(0.4), holds_for=wanted) and session.acceptance_name() == "declared"
        )
        assert session.acceptance_source() == f"times 4, from: sent; declared for a ← b, {wanted.sampling}"
    session.restore_acceptance()
    assert session.acceptance() is two and session.acceptance_source() == "sent" and not session.is_varied()
    shown(kept)
    session.restore_acceptance()
    assert not shown(kept)
    session.vary_acceptance(one, "less")
    session.use_vector("mine")
    assert (session.acceptance_source(), session.acceptance_name(), session.is_varied()) == (
        "from a file",
        "mine",
        False,
    )
    session.use_vector("other")
    assert session.acceptance_source() == shipped.acceptance_origin(shipped.acceptance("other"))
    for number in range(session.MAX_OWN):
        session.set_acceptance(vector(0.1 + number / 100), str(number), "new")
    own = [f"new ({number})" for number in range(session.MAX_OWN, 1, -1)] + ["new"]
    assert list(kept["own_vectors"]) == list(kept["own_sources"]) == own


def test_a_scenario_lends_its_vector_and_profile_until_it_is_left(kept) -> None:
    own, lent = profile(), replace(profile(), device="far away")
    kept["shape"] = (8, 3)
    session.set_profile(own, "mine")
    session.vary_acceptance(vector(0.3), "less")
    before = {name: kept[name] for name in session.SCENARIO_SETS}
    assert not shown(kept), "a chosen shape stays"
    kept["shape"] = None
    for name in ("first", "second"):
        session.use_scenario(name, vector(0.5), lent, "paper")
        assert session.scenario() == name and session.profile() is lent and not session.is_varied() and shown(kept)
        assert session.profile_source() == "paper: far away in float32" and session.acceptance_source() == "paper"
    session.leave_scenario()
    assert session.scenario() is None and {name: kept[name] for name in session.SCENARIO_SETS} == before and shown(kept)
    session.leave_scenario()
    assert not shown(kept)
    for use in (
        lambda: session.set_profile(own, "x"),
        lambda: session.use_vector("other"),
        lambda: session.set_acceptance(vector(0.2), "x", "x"),
        lambda: session.use_shipped_profile("cpu-2core"),
        lambda: session.set_measured_profile(own, "x"),
    ):
        session.use_scenario("first", vector(0.5), lent, "paper")
        kept["timed_run"] = {}
        use()
        assert session.scenario() is None and session.profile() is not lent and shown(kept)
    assert session.timed_run() is None and session.profile_source() == "x" and session.profile_name() is None
    session.use_shipped_profile("cpu-2core")
    assert session.profile_name() == "cpu-2core" and session.profile_source() == shipped.profile_origin(profile())


def test_sampling_moves_the_sliders_only_where_it_changes(kept) -> None:
    session.set_sampling(0.0, 1.0)
    assert not shown(kept) and session.sampling() == (0.0, 1.0)
    session.set_sampling(0.6, 0.9)
    assert shown(kept) and session.sampling() == (0.6, 0.9)
    assert not session.sampling_of_another_page() and not session.sampling_of_another_page()
    kept["sampling_page"] = "another"
    assert session.sampling_of_another_page() and not session.sampling_of_another_page()


def test_a_sweep_is_shown_once(kept) -> None:
    sweeps.show("folder")
    assert [sweeps.pop_folder_to_show() for _ in range(2)] == ["folder", None]


def test_runs_are_kept_newest_first_up_to_their_bounds(kept, monkeypatch) -> None:
    def run(name: str, nodes: int = 2) -> dict:
        return {"id": name, "steps": [{"tokens": ["a"] * nodes}, {"tokens": ["b"]}]}

    for number in range(session.MAX_RUNS + 2):
        session.keep_run(run(str(number)), f"origin {number}")
    session.keep_run(run("5"), "again")
    wanted = ["5", "17", "16", *map(str, range(15, 5, -1)), "4", "3", "2"]
    assert list(session.runs()) == list(session.run_origins()) == list(session.run_times()) == wanted
    assert session.run_origins()["5"] == "again" and session.run_origins()["6"] == "origin 6"
    session.rename_run("6", "mine")
    session.forget_run("17")
    assert session.run_origins()["6"] == "mine" and list(session.runs()) == [name for name in wanted if name != "17"]
    monkeypatch.setattr(session, "MAX_NODES", 12)
    session.keep_run(run("big", 5), "here")  # 6 nodes, and twice 3
    assert list(session.runs()) == ["big", "5", "16"]
    session.keep_run(run("huge", 12), "here")
    assert list(session.runs()) == ["huge"] and session.last_run() is None
    session.set_last_run(run("last"))
    assert session.last_run() is session.timed_run() and session.run_origins() == {"last": "decoded here"}


@pytest.mark.parametrize("shape", [None, (8, 3)])
@pytest.mark.parametrize("own", [None, chain_tree(2)])
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("foreign", [True, False])
@pytest.mark.sample(16)
def test_which_tree_is_in_use_and_where_it_comes_from(shape, own, timed, foreign, kept, assets) -> None:
    if not timed:
        (assets / "profiles" / "cpu-2core.json").unlink()
    if foreign:
        kept["acceptance"] = replace(vector(), holds_for=Conditions("x/big", "y/small", 0.0))
    if own is not None:
        tree_in_use.use(own, "a file")
    if shape is not None:
        kept["shape"] = shape
    best = tree_in_use.best()
    assert (best is not None) == timed
    size_and_depth = shape or ((best.size, best.depth) if timed else (16, 5))
    assert tree_in_use.shape() == size_and_depth
    tree = tree_in_use.current()
    assert tree is own if own is not None else tree.size == size_and_depth[0] and tree.depth <= size_and_depth[1]
    assert tree_in_use.is_own() == (own is not None)
    free = own is None and shape is None
    assert tree_in_use.follows_profile() == (free and timed) and tree_in_use.is_guessed() == (free and foreign)
    words = {
        (True, True): "tree planned by the acceptance of big ← small and for hardware",
        (True, False): "best tree for this acceptance and hardware",
    }
    chosen = (
        "tree of the chosen shape, by the acceptance of big ← small" if foreign else "best tree of the chosen shape"
    )
    source = (
        "a file"
        if own is not None
        else chosen
        if shape
        else words.get((timed, foreign), "best tree of a default shape")
    )
    assert tree_in_use.source() == source
    guessed = free and foreign
    assert tree_kinds.decoded(None) == ((chain_tree(4), tree_kinds.GUESS) if guessed else (tree, source))
    choice = tree_choice.best_for(session.acceptance())
    assert (choice.source, choice.tree is not None) == ("best", timed)
    assert not timed or choice.tree.size == best.size
    assert tree_choice.best_for(None).tree is None
    for way, needs in (("tree", True), ("best", True), ("chain", False)):
        assert tree_choice.needs_vector(tree_choice.TreeChoice(way, None, ""), None) == needs
    settled = tree_choice.settled(tree_choice.TreeChoice("tree", None, ""), session.acceptance())
    assert (settled.tree, settled.origin) == tree_kinds.decoded(session.acceptance())
    drawn = tree_choice.TreeChoice("chain", chain_tree(1), "")
    assert tree_choice.settled(drawn, None) is drawn
    tree_in_use.set_size_and_depth(5, 0)
    assert tree_in_use.shape() == (5, 1) and not tree_in_use.is_own()
    assert tree_in_use.pop_size_and_depth_to_show() and not tree_in_use.pop_size_and_depth_to_show()
    tree_in_use.set_size_and_depth(None, show=False)
    assert tree_in_use.shape() == ((best.size, best.depth) if timed else (16, 5))
    assert not tree_in_use.pop_size_and_depth_to_show()
