"""The machine page: profile shipped, uploaded, measured or missing; the optimum goes to the tree."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile, speedup_surface
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.planning.plan import best_shape
from tests.app.conftest import DEMO_NAMES, metrics, open_page, profile, run_job, settled, state_of, studio, vector
from ui.session import core_cache, machine
from ui.session.state import Chosen

pytestmark = pytest.mark.usefixtures("assets")
PAGE = "machine"


def chart(page, key: str) -> str:
    """Return the specification of the chart with that key."""
    return next(element.proto.spec for element in page.get("plotly_chart") if element.proto.id.endswith(f"-{key}"))


def draft_cost(page) -> str:
    return page.dataframe[0].value["now"][1]


def text(page) -> str:
    return " ".join(markdown.value for markdown in page.markdown)


def test_the_default_profile_is_shown_with_its_source() -> None:
    page = open_page(PAGE)
    best = best_shape(speedup_surface(vector(), profile()))
    shown = metrics(page)
    assert shown["Best static tree"][0] == f"{best.predicted_speedup:.2f}×"
    assert shown["Best shape"] == (f"n = {best.size}, d = {best.depth}", f"{best.expected_tokens:.2f} tokens per step")
    assert draft_cost(page) == f"{profile().c:.3g}"
    assert f"shipped with the app, measured on {machine.device_name()} in float32" in text(page)
    captions = " ".join(caption.value for caption in page.caption)
    assert "Up to 6 tokens are nearly free (at most 10% of a pass). Each further token costs 0.02 passes." in captions


def test_the_papers_formula_and_the_best_shape_can_be_chosen(assets) -> None:
    page = open_page(PAGE)
    ours = chart(page, "hardware_surface")
    settled(page.toggle(key="hardware_paper").set_value(True).run())
    assert chart(page, "hardware_surface") != ours
    settled(page.button(key="hardware_use").click().run())
    best = best_shape(speedup_surface(vector(), profile()))
    assert studio(page).shape == (best.size, best.depth)


def test_a_streamed_target_is_drawn_with_its_reading_time(assets) -> None:
    own = profile(0.02)
    streaming = {"layers": 10, "buffers": 3, "layer_read_sec": 0.0015}
    replace(own, meta=own.meta | {"offload": "disk", "streaming": streaming}).save(
        assets / "profiles" / "cpu-2core.json"
    )
    page = open_page(PAGE)
    spec = next(c.proto.spec for c in page.get("plotly_chart") if c.proto.id.endswith("-hardware_times"))
    # 10 ms (1 + 0.02 n) stays within 10 % of 15 ms up to n = 32
    assert "weights arrive in 15 ms" in spec and "beyond n = 32, computing takes longer" in spec


def test_the_last_run_is_explained(assets) -> None:
    tree = core_cache.best_tree(vector(), 4, 3)
    run = {
        "id": "0" * 12, "target": "demo target", "draft": "demo draft", "shapes": [tree.parents.tolist()],
        "baseline": {"tokens": 10, "seconds": 0.1},
        "steps": [{"seconds": [0.004, 0.5, 0.0, 0.0], "pieces": ["a", "b"]}],
    }  # fmt: skip
    page = open_page(PAGE)
    studio(page).last_run = run
    settled(page.run())
    assert "Verifying: -9" in text(page) and "Measure the machine again" in text(page)
    studio(page).last_run = run | {"steps": [{"seconds": [0.0004, 0.0005, 0.0, 0.0], "pieces": ["a", "b"]}]}
    settled(page.run())
    assert "Verifying: " in text(page) and "the expected speedup" in text(page)
    studio(page).last_run = run | {"offload": "disk"}
    settled(page.run())
    assert "Verifying: -9" not in text(page)
    pieces = ["a", "b", "a", "b"] * 10
    run |= {"prompt_tokens": 300, "steps": [run["steps"][0] | {"pieces": pieces}]}
    grown = replace(profile(), verify_growth_sec=np.full(7, 1e-4))
    studio(page).last_run = run
    studio(page).profile = Chosen(grown, "a test")
    settled(page.run())
    assert "320 cached tokens" in text(page)
    assert "occurred before: it loops" in " ".join(caption.value for caption in page.caption)


def test_a_profile_taken_on_a_busy_machine_is_marked(assets) -> None:
    known = {"load": {"share": 0.3, "processes": 1}, "gpu": {"driver": "570.133.20"}}
    busy = replace(profile(), meta=profile().meta | known)
    page = open_page(PAGE, {"profile": Chosen(busy, "a test")})
    assert "yellow-badge[measured on a busy machine]" in state_of(page).value
    captions = [each.value.replace("\\", "") for each in page.caption]
    assert any("Another process used 30% of the machine" in each for each in captions)
    assert "Measured with driver 570.133.20." in captions
    assert "measured here" in state_of(open_page(PAGE, {"profile": Chosen(profile(), "a test")})).value


def test_the_page_says_if_speculation_does_not_pay(assets) -> None:
    AcceptanceVector(np.zeros(3), holds_for=Conditions(*DEMO_NAMES, temperature=0.0)).save(
        assets / "acceptance" / "demo-t0.json"
    )
    page = open_page(PAGE)
    assert metrics(page)["Best static tree"][0] == "1.00×" and "does not pay" in text(page)
    settled(page.button(key="hardware_use").click().run())
    assert studio(page).shape == (1, 1)


def upload(page, name: str, content: bytes):
    page.file_uploader(key="hardware_file").upload(name, content)
    return settled(page.run())


def test_an_uploaded_profile_is_used() -> None:
    page = upload(open_page(PAGE), "gpu.json", json.dumps(profile(0.001).to_json()).encode())
    assert "your file gpu.json" in text(page)
    assert studio(page).profile.value.t(64) < profile().t(64)


def test_a_broken_profile_does_not_replace_the_one_in_use() -> None:
    page = upload(open_page(PAGE), "bad.json", b'{"format": "sequoia-profile", "version": 1, "sizes": [1]}')
    assert "bad.json" in page.error[0].value and studio(page).profile is None
    assert draft_cost(page) == f"{profile().c:.3g}"


def test_a_measured_profile_is_put_in_use(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, given = {}, {}

    def measure(pair, *, sizes, context, repeats, progress, cancel, **rest) -> HardwareProfile:
        seen.update(sizes=sizes, context=context, repeats=repeats)
        return profile(0.05)

    monkeypatch.setattr("sequoia_core.measure_profile", measure)
    monkeypatch.setattr(st, "download_button", lambda label, data, *rest, **options: given.update({label: data}))
    page = run_job(open_page(PAGE), "profile", "Measure this machine")
    assert seen == {"sizes": [1, 2, 4, 8, 16, 32, 64], "context": 128, "repeats": 9}
    assert "measured here on the demo pair" in text(page)
    assert draft_cost(page) == f"{profile(0.05).c:.3g}"
    assert given["Download profile"] == profile(0.05).to_bytes()  # the file that the command line writes
