"""The machine page: profile shipped, uploaded, measured or missing; the optimum goes to the tree."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile, speedup_surface
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.planning import best_shape
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.studies.lookup_replay import Request, replay_log
from tests.app.conftest import DEMO_NAMES, metrics, open_page, profile, run_job, settled, vector
from ui.jobs import replays
from ui.jobs.replay_job import Replayed
from ui.machine import surface
from ui.session import core_cache, machine, session

pytestmark = pytest.mark.usefixtures("assets")
PAGE = "machine"


def chart(page, key: str) -> str:
    """Return the specification of the chart with that key."""
    return next(element.proto.spec for element in page.get("plotly_chart") if element.proto.id.endswith(f"-{key}"))


def text(page) -> str:
    return " ".join(markdown.value for markdown in page.markdown)


def test_the_default_profile_predicts_and_says_where_it_comes_from() -> None:
    page = open_page(PAGE)
    best = best_shape(speedup_surface(vector(), profile()))
    shown = metrics(page)
    assert shown["Best predicted speedup"][0] == f"{best.predicted_speedup:.2f}×"
    assert shown["Best shape"] == (f"n = {best.size}, d = {best.depth}", f"{best.expected_tokens:.2f} tokens per step")
    assert shown["Draft cost c"][0] == f"{profile().c:.3f}"
    assert f"shipped with the app, measured on {machine.device_name()} in float32" in text(page)
    captions = " ".join(caption.value for caption in page.caption)
    assert "Up to 6 tokens are nearly free (10% of a pass). Each further one costs 0.02 pass." in captions


def test_the_surface_can_be_taken_by_the_papers_formula_and_its_best_shape_used(assets) -> None:
    page = open_page(PAGE)
    ours = chart(page, "hardware_surface")
    settled(page.toggle(key="hardware_paper").set_value(True).run())
    assert chart(page, "hardware_surface") != ours
    settled(page.button(key="hardware_use").click().run())
    best = best_shape(speedup_surface(vector(), profile()))
    assert page.session_state["studio_shape"] == (best.size, best.depth)


def test_memory_of_a_tree_is_that_of_its_rows(monkeypatch) -> None:
    monkeypatch.setattr(surface, "available_bytes", lambda: 2**20)
    demo, rows = PairSpec(), 4 * 2 * 4096
    found = int(surface.memory_sentence(demo, "float32", 8).rsplit("n = ")[-1].rstrip(".").replace(",", ""))
    assert 1 <= found < 2**20 / rows


def test_plans_and_tables_go_further_only_for_a_tree_that_does() -> None:
    falling, flat = vector(), HardwareProfile(np.array([1, 2048]), np.array([1.0, 1.0]), 1e-6)
    surface, best, _ = core_cache.planned(falling, flat)
    assert surface.max_size == 1024 and best.size == 1024
    large = core_cache.best_tree(falling, 2048, 9)
    assert core_cache.prediction(falling, flat, large).speedup.value > best.predicted_speedup * 0.9


def test_drafts_are_compared_in_memory_and_on_disk_and_with_none(assets, monkeypatch) -> None:
    larger = replace(vector().holds_for, draft="larger draft")
    replace(vector(0.57), holds_for=larger).save(assets / "acceptance" / "more.json")
    own, names = profile(0.03), (vector().holds_for.draft, "larger draft")
    slow = {"verify_sec": own.verify_sec * 20, "verify_samples": ()}
    for draft, cost in zip(names, (0.001, 0.004), strict=True):
        meta = own.meta | {"draft": draft}
        replace(own, draft_sec=cost, meta=meta).save(assets / "profiles" / f"memory-{cost}.json")
        streamed = replace(own, draft_sec=cost, **slow, meta=meta | {"offload": "disk"})
        streamed.save(assets / "profiles" / f"disk-{cost}.json")
    (assets / "profiles" / "cpu-2core.json").unlink()
    log = [Request([1, 2, 3], [1, 2, 3] * 20), Request([4, 5], [6, 7, 8, 9] * 9)]
    found = Replayed("some answers", replay_log(log), 2, 0, exact=True)
    monkeypatch.setattr(replays, "example", lambda: found)
    page = open_page(PAGE)
    rows = page.dataframe[1].value
    best = {place: part["draft"].iloc[0] for place, part in rows.groupby("target's weights")}
    assert best == {"in memory": names[0], "on disk": names[1]} and len(rows) == 4
    caption = " ".join(caption.value for caption in page.caption)
    assert "weights in memory, demo draft is" in caption and "weights on disk, larger draft is" in caption
    lookup, times = found.report.own, session.profile()
    size = lookup.best_size(times)
    said = next(each.value for each in page.caption if "None (lookup)" in each.value)
    assert f"at most n = {size}, yield {lookup.tokens_per_step(size).value:.2f} (" in said
    assert f"in some answers, predicted {lookup.predicted_speedup(size, times):.2f}×" in said


def test_a_streamed_target_is_drawn_with_the_time_of_reading(assets) -> None:
    own = profile(0.02)
    streaming = {"layers": 10, "buffers": 3, "layer_read_sec": 0.0015}
    replace(own, meta=own.meta | {"offload": "disk", "streaming": streaming}).save(
        assets / "profiles" / "cpu-2core.json"
    )
    page = open_page(PAGE)
    spec = next(c.proto.spec for c in page.get("plotly_chart") if c.proto.id.endswith("-hardware_times"))
    # 10 ms (1 + 0.02 n) stays within 10 % of 15 ms up to n = 32
    assert "weights arrive in 15 ms" in spec and "from n = 32 on computing takes longer" in spec


def test_the_last_run_is_taken_apart(assets) -> None:
    tree = core_cache.best_tree(vector(), 4, 3)
    run = {
        "target": "demo target", "draft": "demo draft", "shapes": [tree.parents.tolist()],
        "baseline": {"tokens": 10, "seconds": 0.1},
        "steps": [{"seconds": [0.004, 0.5, 0.0, 0.0], "pieces": ["a", "b"]}],
    }  # fmt: skip
    page = open_page(PAGE)
    page.session_state["studio_last_run"] = run
    settled(page.run())
    assert "Verifying: -9" in text(page) and "Measure the machine again" in text(page)
    page.session_state["studio_last_run"] = run | {"offload": "disk"}
    settled(page.run())
    assert "Verifying: -9" not in text(page)
    pieces = ["a", "b", "a", "b"] * 10
    run |= {"prompt_tokens": 300, "steps": [run["steps"][0] | {"pieces": pieces}]}
    grown = replace(profile(), verify_growth_sec=np.full(7, 1e-4))
    page.session_state["studio_last_run"], page.session_state["studio_profile"] = run, grown
    page.session_state["studio_profile_source"] = "a test"
    settled(page.run())
    assert "320 tokens in the cache" in text(page)
    assert "occurred before: it loops" in " ".join(caption.value for caption in page.caption)


def test_where_speculation_does_not_pay_the_page_says_so(assets) -> None:
    AcceptanceVector(np.zeros(3), holds_for=Conditions(*DEMO_NAMES, temperature=0.0)).save(
        assets / "acceptance" / "demo-t0.json"
    )
    page = open_page(PAGE)
    assert metrics(page)["Best predicted speedup"][0] == "1.00×" and "will not pay" in text(page)
    settled(page.button(key="hardware_use").click().run())
    assert page.session_state["studio_shape"] == (1, 1)


def upload(page, name: str, content: bytes):
    settled(page.segmented_control(key="hardware_way").set_value("Upload").run())
    page.file_uploader(key="hardware_file").upload(name, content)
    return settled(page.run())


def test_an_uploaded_profile_is_used() -> None:
    page = upload(open_page(PAGE), "gpu.json", json.dumps(profile(0.001).to_json()).encode())
    assert "your file gpu.json" in text(page)
    assert page.session_state["studio_profile"].t(64) < profile().t(64)


@pytest.mark.parametrize(
    "content",
    [
        b'{"format": "sequoia-profile", "version": 1, "sizes": [1]}',
        json.dumps(profile().to_json() | {"meta": {"bound_sec": ["x"] * len(profile().sizes)}}).encode(),
        json.dumps(profile().to_json()).replace('"meta": {', '"meta": {"a": ' + "[" * 400 + "]" * 400 + ", ").encode(),
    ],
)  # fmt: skip
def test_a_broken_profile_leaves_the_previous_one(content: bytes) -> None:
    page = upload(open_page(PAGE), "bad.json", content)
    assert "bad.json" in page.error[0].value and "studio_profile" not in page.session_state
    assert metrics(page)["Draft cost c"][0] == f"{profile().c:.3f}"


def test_measuring_queues_on_the_engine_and_is_adopted(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, given = {}, {}

    def measure(pair, *, sizes, context, repeats, progress, cancel, **rest) -> HardwareProfile:
        seen.update(sizes=sizes, context=context, repeats=repeats)
        return profile(0.05)

    monkeypatch.setattr("sequoia_core.measure_profile", measure)
    monkeypatch.setattr("sequoia_core.studies.measure_bounds.with_bound", lambda profile, target: profile)
    monkeypatch.setattr(st, "download_button", lambda label, data, *rest, **options: given.update({label: data}))
    page = settled(open_page(PAGE).segmented_control(key="hardware_way").set_value("Measure").run())
    page = run_job(page, "profile", "Measure this machine")
    assert seen == {"sizes": [1, 2, 4, 8, 16, 32, 64], "context": 128, "repeats": 9}
    assert "measured here on the demo pair" in text(page)
    assert metrics(page)["Draft cost c"][0] == f"{profile(0.05).c:.3f}"
    assert given["Download profile"] == profile(0.05).to_bytes()  # the file that the command line writes
