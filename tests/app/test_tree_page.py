"""The tree page: shape by slider, by link and by hardware; import and export; shapes that do not exist."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import AcceptanceVector, TokenTree, optimal_tree, speedup_surface
from sequoia_core.design.growth import theorem_bound
from sequoia_core.design.optimal_trees import expected_tokens, node_scores
from sequoia_core.design.plain_trees import chain_tree, chains_limit, k_ary_limit
from sequoia_core.design.planning import best_shape
from tests.app.conftest import ROOT, growing_never_pays, metrics, open_page, profile, run_job, settled, vector
from tests.conftest import calibration_of
from ui.tree.comparison import plain_shape

pytestmark = pytest.mark.usefixtures("assets")
PAGE = "tree"
COMPARE = {"tree_section": "Compare"}
EXPORT = {"tree_section": "Export"}


def in_use(page) -> str:
    return next(element.value for element in page.markdown if "Current:" in element.value)


def best():
    return best_shape(speedup_surface(vector(), profile()))


def sliders(page) -> tuple[int, int]:
    return page.number_input(key="n").value, page.slider(key="depth").value


def drawn(page) -> dict:
    """Return the nodes of the picture."""
    figure = json.loads(page.get("plotly_chart")[0].proto.spec)
    return next(trace for trace in figure["data"] if trace["name"] == "nodes")


def test_the_default_is_the_best_shape_for_the_hardware() -> None:
    page = open_page(PAGE)
    assert sliders(page) == (best().size, best().depth)
    tree = optimal_tree(vector(), size=best().size, depth=best().depth)
    shown = metrics(page)
    assert shown["Expected tokens per step"][0] == f"{expected_tokens(tree, vector()):.2f}"
    assert shown["Chain of the same depth"][0] == f"{expected_tokens(chain_tree(tree.depth), vector()):.2f}"
    assert shown["Predicted speedup"][0] == f"{best().predicted_speedup:.2f}×"
    assert shown["Draft passes per step"] == (f"{tree.depth}", f"the paper's D = {tree.depth + 1} levels")


def test_sliders_design_the_tree_and_the_button_goes_back() -> None:
    page = open_page(PAGE)
    page.number_input(key="n").set_value(40)
    settled(page.slider(key="depth").set_value(6).run())
    assert page.session_state["studio_shape"] == (40, 6)
    assert "n = 40, d = 6" in in_use(page)
    settled(page.button(key="tree_best").click().run())
    assert page.session_state["studio_shape"] is None and sliders(page) == (best().size, best().depth)


def test_a_link_reproduces_the_view() -> None:
    page = open_page(PAGE, n="48", depth="7")
    assert sliders(page) == (48, 7) and page.session_state["studio_shape"] == (48, 7)
    settled(page.select_slider(key="n_slider").set_value(128).run())
    assert sliders(page) == (128, 7) and page.session_state["studio_shape"] == (128, 7)


@pytest.mark.slow
def test_any_shape_is_drawn_and_past_the_profile_no_speedup_is_invented() -> None:
    for n in (1, 2048):
        page = open_page(PAGE, n=str(n), depth="9")
        assert f"n = {n:,}, " in in_use(page)
    assert metrics(page)["Predicted speedup"] == ("–", "times end at n = 64")
    assert metrics(page)["The next node adds"][0] != "–"


def test_a_shape_that_cannot_exist_is_refused_and_the_last_tree_stays() -> None:
    page = open_page(PAGE)
    page.number_input(key="n").set_value(64)
    settled(page.slider(key="depth").set_value(1).run())
    assert "No tree has 64 nodes within depth 1" in page.warning[0].value
    assert page.session_state.get("studio_shape") is None


def test_a_new_vector_reshapes_a_tree_that_follows_the_hardware() -> None:
    page = open_page(PAGE)
    before = sliders(page)
    page.session_state["studio_acceptance"] = AcceptanceVector(np.array([0.97]))
    page.session_state["studio_acceptance_source"] = "your file x"
    page.session_state["studio_shape_to_show"] = True
    assert sliders(settled(page.run())) != before and page.session_state.get("studio_shape") is None


def bring(page, name: str, content: bytes):
    page.file_uploader(key="tree_file").upload(name, content)
    return settled(page.run())


def native(tree: TokenTree) -> bytes:
    return json.dumps({"format": "sequoia-tree", "version": 1, "parents": tree.parents.tolist()}).encode()


def test_an_imported_tree_is_compared_and_used_until_a_slider_moves() -> None:
    page = bring(open_page(PAGE, **COMPARE), "chain.json", native(chain_tree(5)))
    shown = metrics(page)
    assert shown["Imported tree"] == (f"{expected_tokens(chain_tree(5), vector()):.2f}", "tokens/step, n = 6, d = 5")
    more = expected_tokens(optimal_tree(vector(), size=6, depth=5), vector()) / expected_tokens(chain_tree(5), vector())
    assert shown["Best of that size and depth"][0] == f"{more - 1:+.1%}"
    assert "studio_tree" not in page.session_state  # looking is not using
    settled(page.button(key="tree_use_import").click().run())
    assert page.session_state["studio_tree"] == chain_tree(5)
    assert "your file chain.json, n = 6, d = 5" in in_use(page)
    settled(page.number_input(key="n").set_value(12).run())
    assert page.session_state["studio_tree"] is None and "n = 12" in in_use(page)


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"format": "sequoia-tree", "version": 1, "parents": [-1, 5]}'])
def test_a_broken_tree_file_leaves_the_tree(content: bytes) -> None:
    page = bring(open_page(PAGE, **COMPARE), "bad.json", content)
    assert "bad.json" in page.error[0].value and "studio_tree" not in page.session_state


def test_trees_leave_in_formats_of_other_tools_and_as_their_numbers() -> None:
    page = open_page(PAGE, n="20", depth="5", **EXPORT)
    assert "speculative_num_steps = 5" in page.code[0].value
    for label, holds in (("Reference growmap (.pt)", True), ("vLLM speculative_token_tree", False)):
        settled(page.selectbox(key="tree_format").select(label).run())
        assert ("tree_download" in [button.key for button in page.get("download_button")]) == holds


def compared(page, with_what: str):
    return settled(page.selectbox(key="against").select(with_what).run())


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("shape", ["One chain", "Independent chains", "Beam", "Two children everywhere", "Best first"])
def test_the_tree_is_set_beside_plain_shapes(shape: str) -> None:
    page = compared(open_page(PAGE, n="20", depth="5", **COMPARE), shape)
    tree, other = (
        optimal_tree(vector(), size=20, depth=5),
        plain_shape(shape, optimal_tree(vector(), size=20, depth=5), vector()),
    )
    shown = metrics(page)
    assert other.size <= 20 and shown["The other tree"][0] == f"{expected_tokens(other, vector()):.2f}"
    adds = sum(other.shared_with(tree) < 0)
    assert shown["It adds"][0] == f"{adds} nodes" and shown["It drops"][0] == f"{20 - other.size + adds} nodes"


def test_another_shape_and_another_vector_can_be_compared() -> None:
    page = compared(open_page(PAGE, n="20", depth="5", **COMPARE), "Best tree of another shape")
    settled(page.number_input(key="against_n").set_value(40).run())
    assert metrics(page)["The other tree"][1].endswith("n = 40, d = 5")
    page = compared(page, "Best tree for another vector")
    assert page.selectbox(key="against_vector").value == "other" and metrics(page)["The other tree"][0] != "–"


def test_a_node_can_be_looked_at_and_folded() -> None:
    page = open_page(PAGE, n="20", depth="5")
    settled(page.number_input(key="tree_node").set_value(1).run())
    tree = optimal_tree(vector(), size=20, depth=5)
    below = sum(1 in tree.path_to(node) for node in range(20)) - 1
    text = next(element.value for element in page.markdown if "Node 1" in element.value)
    assert "root → 1" in text and f"f(v) = {vector().probs[0]:.4g}" in text and f"{below} nodes below" in text
    settled(page.button(key="tree_fold").click().run())
    assert f"+{below}" in drawn(page)["text"] and len(drawn(page)["customdata"]) == 20 - below
    settled(page.number_input(key="n").set_value(2).run())  # another tree: the fold and the node's number are gone
    assert page.number_input(key="tree_node").value in (0, 1) and len(drawn(page)["customdata"]) == 2


def test_the_picture_has_the_likely_nodes_the_texts_of_an_example_and_the_next_node(assets) -> None:
    (assets / "runs").mkdir(exist_ok=True)
    shutil.copy(ROOT / "assets" / "runs" / "example-tokens.json", assets / "runs")
    scores = node_scores(optimal_tree(vector(), size=60, depth=5), vector())
    hidden = drawn(open_page(PAGE, n="60", depth="5", tree_hide="f(v) ≥ 0.01"))
    assert len(hidden["customdata"]) == int((scores >= 0.01).sum()) < 60
    page = open_page(PAGE, n="20", depth="5")
    figure = json.loads(page.get("plotly_chart")[0].proto.spec)
    texts = [each["text"] for each in figure["layout"]["annotations"]]
    assert len(texts) == 20 and texts[:2] == ["·the", "·number"]
    larger, tree = (optimal_tree(vector(), size=size, depth=5) for size in (21, 20))
    gain = expected_tokens(larger, vector()) - expected_tokens(tree, vector())
    candidate = next(trace for trace in figure["data"] if trace["name"] == "next node")
    assert float(candidate["text"][0]) == pytest.approx(gain, rel=1e-2)
    assert metrics(page)["The next node adds"][0] == f"{gain:.3f}"


def test_the_sample_behind_the_vector_gives_intervals(assets) -> None:
    page = open_page(PAGE, n="20", depth="5")
    assert any("95%, from the sample" in caption.value for caption in page.caption)
    assert '"95% interval"' in page.get("plotly_chart")[1].proto.spec
    AcceptanceVector(np.array([0.0, 0.0])).save(assets / "acceptance" / "demo-t0.json")
    page = open_page(PAGE, n="6", depth="5")
    assert any("no interval" in caption.value for caption in page.caption)
    assert float(metrics(page)["Expected tokens per step"][0]) == 1.0


def growth_spec(page) -> dict:
    return json.loads(page.get("plotly_chart")[1].proto.spec)


def recorded_growth(folder, temperature: float = 0.0) -> None:
    """Leave a record of growth as `benchmarks/dynamic.py --growth` does."""
    points = [
        {"kind": kind, "size": n, "predicted": None, "tokens_per_step": value, "low": 1.0, "high": 9.0, "steps": 5}
        for kind, n, value in (("static", 8, 2.5), ("static", 1024, 6.25), ("chains", 8, 2.25))
    ]
    conditions = vector().holds_for.to_json() | {"temperature": temperature}
    settings = {"conditions": conditions, "prompts": 32, "max_new_tokens": 64, "max_depth": 24}
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "growth.json").write_text(
        json.dumps({"studies": [{"settings": settings, "points": points}], "settings": {"date": "2026-11-23"}})
    )


def test_measured_growth_stands_on_the_curve_of_its_vector_alone(assets) -> None:
    recorded_growth(assets)
    page = open_page(PAGE)
    names = [trace["name"] for trace in growth_spec(page)["data"]]
    assert [name for name in names if "measured" in name] == ["best tree, measured", "k chains, measured"]
    text = " ".join(each.value for each in [*page.markdown, *page.caption])
    assert "the best tree 2.50 → 6.25 (n = 8 → 1,024); k chains 2.25 → 2.25" in text
    assert "recorded on 2026-11-23 on the demo pair, temperature 0, 32 prompts × 64 tokens, d ≤ 24" in text
    recorded_growth(assets, temperature=0.6)
    assert not any("measured" in trace["name"] for trace in growth_spec(open_page(PAGE))["data"])
    (assets / "runs" / "growth.json").write_text('{"studies": [{}], "settings": {"date": "x"}}')
    assert any("best tree" in trace["name"] for trace in growth_spec(open_page(PAGE))["data"])


def test_growth_has_its_limits_and_the_theorems_bound() -> None:
    page = open_page(PAGE, n="20", depth="5")
    layout = growth_spec(page)["layout"]
    said = " ".join(note["text"] for note in layout["annotations"])
    assert f"limit of independent chains: {chains_limit(vector()):.2f}" in said and "limit of one chain" in said
    assert f"limit of binary trees: {k_ary_limit(vector(), 2):.2f}" in said
    b, (_, tokens) = theorem_bound(vector(), max_size=1024, depth=5)
    bound = next(trace for trace in growth_spec(page)["data"] if trace["name"] == f"theorem's lower bound, b = {b:.2f}")
    assert np.frombuffer(b64decode(bound["y"]["bdata"])).max() == tokens.max()  # no deeper than the curve above it


@pytest.mark.slow
def test_growth_is_measured_on_the_pair_in_use(tiny_pair, assets) -> None:
    page = open_page(PAGE)
    page.select_slider(key="growth_largest").set_value(64)
    page.select_slider(key="growth_tokens").set_value(16)
    page = run_job(page, "growth")
    record = page.session_state["studio_evidence_growth"]
    assert {point["kind"] for point in record["points"]} == {"static", "chains", "specexec", "specinfer"}
    assert max(point["size"] for point in record["points"]) == 64 and record["settings"]["prompts"] == 3
    assert any("measured here on the demo pair, temperature 0, 3 prompts × 16" in each.value for each in page.caption)


@pytest.mark.slow
def test_a_vector_too_long_to_search_for_large_trees_is_searched_for_smaller_ones(assets, monkeypatch) -> None:
    """A thousand ranks that rise and fall, and gain with every level: the search gives up, the pages do not."""
    monkeypatch.setattr("sequoia_core.design.tree_search.MAX_STEPS", 1_000_000_000)  # a tenth: gives up sooner
    probs = np.full(1000, 1e-6)
    probs[[0, 1, 500]] = 0.3, 0.69, 2e-6
    AcceptanceVector(probs).save(assets / "acceptance" / "demo-t0.json")
    profile = json.loads((assets / "profiles" / "cpu-2core.json").read_text())
    profile |= {"sizes": [1, 512], "verify_sec": [0.01, 0.012], "verify_samples": []}
    (assets / "profiles" / "cpu-2core.json").write_text(json.dumps(profile))
    for page in (open_page("tree", n="600", depth="9"), open_page("machine")):
        told = " ".join(element.value for element in [*page.warning, *page.caption])
        assert "up to n = 256" in told and "smooth" in told.lower()


def calibrated(folder) -> AcceptanceVector:
    """Put a vector with a calibration in the place of the shipped one."""
    known = replace(vector(), calibration=calibration_of(0.7, prompts=12))
    known.save(folder / "acceptance" / "demo-t0.json")
    return known


@pytest.mark.slow
def test_dynamic_trees_say_what_they_promise_or_lack(assets) -> None:
    page = open_page(PAGE, n="16", depth="4", tree_kind="Adaptive")
    assert "Adaptive trees need a vector with a calibration" in page.info[0].value
    calibrated(assets)
    page = open_page(PAGE, n="16", depth="4")
    settled(page.segmented_control(key="tree_kind").set_value("SpecExec").run())
    assert page.session_state["studio_tree_kind"] == "specexec"
    value, against = metrics(page)["Dynamic: tokens per step"]
    low, high = (float(part) for part in against.removeprefix("95%: ").split(" to "))
    assert low < float(value) < high
    settled(page.segmented_control(key="tree_kind").set_value("Adaptive").run())
    assert float(metrics(page)["Dynamic: predicted speedup"][0][:-1]) > 1.0
    settled(page.segmented_control(key="tree_kind").set_value("Hybrid").run())
    assert "Dynamic: tokens per step" not in metrics(page)  # nothing is predicted without the text
    growing_never_pays(assets)
    page = open_page(PAGE, n="16", depth="4", tree_kind="Adaptive")
    assert any("expects a static tree to be faster" in text.value for text in page.markdown)
