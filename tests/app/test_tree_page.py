"""The tree page: shapes by slider, link and hardware; import, export and comparison; growth."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import AcceptanceVector, TokenTree, optimal_tree, speedup_surface
from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.planning.plan import best_shape
from sequoia_core.planning.prediction import best_chain, predict
from sequoia_core.trees.optimal import expected_tokens, node_scores
from sequoia_core.trees.plain import chain_tree, medusa_tree
from tests.app.conftest import (
    ROOT,
    methods_table,
    metrics,
    open_page,
    profile,
    settled,
    studio,
    use_method,
    vector,
    wait_for,
)
from tests.conftest import calibration_of
from ui.session import tree_kinds

pytestmark = pytest.mark.usefixtures("assets")
PAGE = "tree"
FILES = {"tree_section": "Import and export"}


def in_use(page) -> str:
    return next(element.value for element in page.markdown if "Current:" in element.value)


def best():
    return best_shape(speedup_surface(vector(), profile()))


def sliders(page) -> tuple[int, int]:
    return page.number_input(key="n").value, page.slider(key="depth").value


def drawn(page) -> dict:
    """Return what the picture was sent."""
    return next(sent for each in page.get("bidi_component") if "sizes" in (sent := json.loads(each.proto.json or "{}")))


def test_the_default_is_the_best_shape_for_the_hardware() -> None:
    page = open_page(PAGE)
    assert sliders(page) == (best().size, best().depth)
    tree = optimal_tree(vector(), size=best().size, depth=best().depth)
    shown = metrics(page)
    assert shown["Expected tokens per step"][0] == f"{expected_tokens(tree, vector()):.2f}"
    assert shown["Chain of the same depth"][0] == f"{expected_tokens(chain_tree(tree.depth), vector()):.2f}"
    assert shown["Predicted speedup"][0] == f"{best().predicted_speedup:.2f}×"


def test_link_and_sliders_set_the_shape() -> None:
    page = open_page(PAGE, n="48", depth="7")
    assert sliders(page) == (48, 7) and studio(page).shape == (48, 7)
    settled(page.select_slider(key="n_slider").set_value(128).run())
    assert studio(page).shape == (128, 7)
    page.number_input(key="n").set_value(40)
    settled(page.slider(key="depth").set_value(6).run())
    assert studio(page).shape == (40, 6)
    assert "n = 40, d = 6" in in_use(page)


def test_an_impossible_shape_is_rejected_and_the_last_tree_stays() -> None:
    page = open_page(PAGE)
    page.number_input(key="n").set_value(64)
    settled(page.slider(key="depth").set_value(1).run())
    assert "No tree has 64 nodes within depth 1" in page.warning[0].value
    assert studio(page).shape is None


def upload(page, name: str, content: bytes):
    page.file_uploader(key="tree_file").upload(name, content)
    return settled(page.run())


def native(tree: TokenTree) -> bytes:
    return json.dumps({"format": "sequoia-tree", "version": 1, "parents": tree.parents.tolist()}).encode()


def test_an_imported_tree_is_a_row_and_used_until_a_slider_moves() -> None:
    page = upload(open_page(PAGE, **FILES), "chain.json", native(chain_tree(7)))
    assert rows(page)["Your file chain.json"]["tokens per step"] == pytest.approx(tokens(chain_tree(7)))
    assert studio(page).tree is None  # only listed so far
    settled(page.button(key="tree_use_import").click().run())
    assert studio(page).tree.value == chain_tree(7)
    assert "your file chain.json, n = 8, d = 7" in in_use(page)
    settled(page.number_input(key="n").set_value(12).run())
    assert studio(page).tree is None and "n = 12" in in_use(page)


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"format": "sequoia-tree", "version": 1, "parents": [-1, 5]}'])
def test_an_invalid_tree_file_changes_nothing(content: bytes) -> None:
    page = upload(open_page(PAGE, **FILES), "bad.json", content)
    assert "bad.json" in page.error[0].value and studio(page).tree is None


def test_trees_are_exported_in_formats_of_other_tools() -> None:
    page = open_page(PAGE, n="20", depth="5", **FILES)
    assert "--speculative-num-steps" in page.code[0].value
    for label, holds in (("Reference growmap (.pt)", True), ("vLLM speculative_token_tree", False)):
        settled(page.selectbox(key="tree_format").select(label).run())
        assert ("tree_download" in [button.key for button in page.get("download_button")]) == holds


def test_the_picture_knows_words_the_next_node_and_the_trees_of_the_slider(assets) -> None:
    (assets / "runs").mkdir(exist_ok=True)
    shutil.copy(ROOT / "assets" / "runs" / "example-tokens.json", assets / "runs")
    page = open_page(PAGE, n="20", depth="5")
    sent = drawn(page)
    tree, larger = (optimal_tree(vector(), size=size, depth=5) for size in (20, 21))
    assert sent["tree"]["parents"] == tree.parents.tolist() and sent["words"]["1"] == " number"
    assert sent["tree"]["scores"] == pytest.approx(node_scores(tree, vector()), rel=5e-3)
    gained = expected_tokens(larger, vector()) - expected_tokens(tree, vector())
    assert sent["next"]["gain"] == pytest.approx(gained)
    assert metrics(page)["The next node adds"][0] == f"{gained:.3f}"
    ahead = {len(each["parents"]): each for each in sent["sizes"]}
    assert {16, 32, 64} <= ahead.keys() and max(ahead) <= 512
    for size in (16, 64):
        assert ahead[size]["parents"] == optimal_tree(vector(), size=size, depth=5).parents.tolist()


def growth_spec(page) -> dict:
    return json.loads(page.get("plotly_chart")[0].proto.spec)


def recorded_growth(folder) -> None:
    """Write a growth record like `benchmarks/dynamic.py --growth`."""
    points = [
        {"kind": kind, "size": n, "predicted": None, "tokens_per_step": value, "low": 1.0, "high": 9.0, "steps": 5}
        for kind, n, value in (("static", 8, 2.5), ("static", 1024, 6.25), ("chains", 8, 2.25))
    ]
    settings = {"conditions": vector().holds_for.to_json(), "prompts": 32, "max_new_tokens": 64, "max_depth": 24}
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "growth.json").write_text(
        json.dumps({"studies": [{"settings": settings, "points": points}], "settings": {"date": "2026-11-23"}})
    )


def test_growth_has_four_lines_with_the_current_tree_on_its_own(assets) -> None:
    recorded_growth(assets)
    page = open_page(PAGE, n="20", depth="5")
    traces = {trace["name"]: trace for trace in growth_spec(page)["data"] if trace.get("showlegend", True)}
    assert list(traces) == ["best tree, d ≤ 5", "k chains, d ≤ 5", "one chain", "measured", "this tree"]
    assert traces["this tree"]["y"] == [pytest.approx(tokens(optimal_tree(vector(), size=20, depth=5)))]
    assert any("recorded on 2026-11-23 on the demo pair, temperature 0" in each.value for each in page.caption)
    (assets / "runs" / "growth.json").write_text('{"studies": [{}], "settings": {"date": "x"}}')
    assert not any("recorded on" in each.value for each in open_page(PAGE).caption)


@pytest.mark.slow
def test_a_vector_with_many_ranks_is_searched_up_to_a_smaller_size(assets, monkeypatch) -> None:
    """A thousand ranks that are not monotone exceed the search limit."""
    monkeypatch.setattr("sequoia_core.trees.optimal.MAX_PROGRAM_STEPS", 1_000_000_000)  # a tenth, to fail sooner
    probs = np.full(1000, 1e-6)
    probs[[0, 1, 500]] = 0.3, 0.69, 2e-6
    (assets / "acceptance" / "other.json").unlink()
    AcceptanceVector(probs).save(assets / "acceptance" / "demo-t0.json")
    profile = json.loads((assets / "profiles" / "cpu-2core.json").read_text())
    profile |= {"sizes": [1, 512], "verify_sec": [0.01, 0.012], "verify_samples": []}
    (assets / "profiles" / "cpu-2core.json").write_text(json.dumps(profile))
    for page in (open_page("tree", n="600", depth="9"), open_page("machine")):
        told = " ".join(element.value for element in [*page.warning, *page.caption])
        assert "up to n = 256" in told and "smooth" in told.lower()


def rows(page) -> dict[str, dict]:
    """Return the rows of the table of methods by name."""
    return {row["method"].removeprefix("★ "): row for row in methods_table(page).value.to_dict("records")}


def tokens(tree: TokenTree) -> float:
    return expected_tokens(tree, vector())


def searched(page):
    """Return the page after all of its table's predictions were computed."""
    wait_for(lambda: "being predicted" not in str([each.value for each in settled(page.run()).caption]))
    return page


def test_the_table_has_the_predictions_of_the_core_and_selects_trees(assets) -> None:
    page = searched(open_page(PAGE))
    shown = rows(page)
    chain = best_chain(vector(), profile())
    for name, tree in ((f"Chain of {chain.depth}", chain), ("Medusa's 64 nodes", medusa_tree())):
        found = predict(tree, vector(), profile())
        assert shown[name]["×"] == pytest.approx(found.speedup.value) and shown[name]["nodes"] == f"{tree.size}"
        assert shown[name]["tokens per step"] == pytest.approx(found.tokens_per_step.value)
        assert shown[name]["ms per step"] == pytest.approx(1e3 * found.step.total_sec)
        assert shown[name]["95%"] == f"{found.speedup.low:.2f} to {found.speedup.high:.2f}×"
    best = shown["Best static tree"]
    assert next(iter(shown.values())) is best and best["method"].startswith("★") and best["use"].endswith("In use")
    use_method(page, "Medusa's 64 nodes")
    assert rows(page)["Medusa's 64 nodes"]["use"].endswith("In use") and "Medusa's 64 nodes, n = 64" in in_use(page)
    live = open_page("decode", {"tree": studio(page).tree}, source="tree")
    assert any("Medusa's 64 nodes: n = 64, d = 4" in each.value for each in live.caption)
    use_method(page, "Lookup")
    assert studio(page).tree_kind == "lookup" and rows(page)["Lookup"]["use"].endswith("In use")
    use_method(page, "Best static tree")
    assert studio(page).tree is None and studio(page).tree_kind == "static"


def test_without_times_or_calibration_the_table_says_why(assets) -> None:
    page = open_page(PAGE)
    assert "SpecExec, Adaptive: predicted only with a calibration" in str([each.value for each in page.caption])
    (assets / "profiles" / "cpu-2core.json").unlink()
    page = open_page(PAGE)
    shown = rows(page)
    assert all(row["×"] is None or np.isnan(row["×"]) for row in shown.values()), shown
    eagle = optimal_tree(vector(), size=61, depth=6)
    assert shown["EAGLE-2's 60 tokens"]["tokens per step"] == pytest.approx(tokens(eagle))
    assert any("There are no pass times" in each.value for each in page.caption)


@pytest.mark.slow
def test_trees_that_vary_are_predicted_in_the_background(assets) -> None:
    calibrated = replace(vector(), calibration=calibration_of(0.7, prompts=12))
    calibrated.save(assets / "acceptance" / "demo-t0.json")
    page = searched(open_page(PAGE, n="16", depth="4", tree_kind="SpecExec"))
    assert studio(page).tree_kind == "specexec" and rows(page)["SpecExec"]["×"] > 1.0
    bounds = {"max_size": 61, "max_depth": 6, "beam": 10, "branch": 10}
    eagle = TREE_KINDS["specexec"].make(**bounds).predict(calibrated, profile())
    adaptive = TREE_KINDS["adaptive"].make(calibrated, profile()).predict(calibrated, profile())
    for name, found in (("EAGLE-2's 60 tokens", eagle), ("Adaptive", adaptive)):
        assert rows(page)[name]["×"] == pytest.approx(found.speedup.value)
    use_method(page, "EAGLE-2's 60 tokens")
    policy, _ = tree_kinds.make_policy(studio(page).tree_kind, calibrated)
    assert {name: getattr(policy, name) for name in bounds} == bounds
