"""The server page: the example, readings, records, costs, settings to copy; what cannot be planned; hostile files."""

import json
import re
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.design.matrix_files import matrix_bytes
from sequoia_core.servers.chain_acceptance import chain_acceptance
from sequoia_core.servers.costs import costs_of
from sequoia_core.servers.flags import flags_by_batch
from sequoia_core.servers.plan import plan_server
from sequoia_core.servers.readings import read_counts
from tests.app.conftest import ROOT, metrics, open_page, profile, settled
from tests.core.design.test_bench_profile import ROWS
from tests.core.servers.samples import (
    AFTER,
    BEFORE,
    LLAMA_PMIN,
    NGRAM,
    SGLANG_TEXT,
    llama_text,
    step_records,
    vllm_text,
)
from ui import scenarios
from ui.server import costs, reading

EXAMPLE = ROOT / "assets" / "servers" / "vllm-demo-pair.jsonl"


@pytest.fixture
def with_example(assets) -> Path:
    (assets / "servers").mkdir()
    return shutil.copy(EXAMPLE, assets / "servers" / EXAMPLE.name)


def words(page: AppTest) -> str:
    titles = [each.label for each in page.get("expander")]
    said = [each.value for kind in ("markdown", "caption", "info", "warning") for each in page.get(kind)]
    return " ".join([*titles, *said])


def with_files(after: str | bytes, before: str | None = None, *, earlier: str | bytes | None = None) -> AppTest:
    """Return the page after files were dropped on it."""
    page = open_page("server", server_way="Files")
    uploaders = {each.key: each for each in page.get("file_uploader")}
    for name, content in (("after", after), ("before", before), ("earlier", earlier)):
        if content is not None:
            data = content.encode() if isinstance(content, str) else content
            uploaders[f"server_{name}"].upload(f"{name}.prom", data, "text/plain")
    return settled(page.run())


def test_the_example_is_shown_as_the_core_plans_it(with_example) -> None:
    page = open_page("server")
    chains = chain_acceptance(read_counts(with_example.read_bytes(), with_example.name))
    plan = plan_server(chains, costs_of(profile()), [1, 4, 16])
    shown, best = metrics(page), plan.batches[0]
    assert shown["Tokens per step"] == (f"{chains.tokens(8).value:.2f}", "K = 8, vs 1.00 without")
    assert shown["Guessed right"][0] == f"{chains.guessed:.1%}" == "76.3%"
    assert shown["Best K, 1 request"][0] == f"{best.best}"
    assert shown["Speed at it"][0] == f"{best.speedup[best.best].value:.2f}×"
    assert [code.value for code in page.code] == list(flags_by_batch("vllm", plan.best).values())
    table = page.dataframe[0].value
    assert list(table["at once"]) == [f"{each.batch}" for each in plan.batches]
    assert list(table["best K"]) == [f"{each.best}" if each.best else "off" for each in plan.batches]
    assert f"Set K = {best.best} for one request at a time" in words(page)
    for method, setting in (("ngram", '"method": "ngram", "prompt_lookup_min"'), ("mtp", '"method": "mtp", "num_spec')):
        page = settled(page.selectbox(key="server_method").select(method).run())
        assert any(setting in code.value for code in page.code)


def test_published_rates_of_a_head_are_an_example_too(assets) -> None:
    (assets / "servers").mkdir()
    shutil.copy(EXAMPLE.parent / "qwen3-8b-peagle.json", assets / "servers")
    page = open_page("server")
    assert metrics(page)["Tokens per step"] == ("3.50", "K = 7, vs 1.00 without")
    said = words(page)
    assert "Published, without an interval" in said and "releases/tag/v0.6.0, 2026-06-16" in said
    assert "95%" not in said


def pasted(after: str, before: str = "") -> AppTest:
    page = open_page("server", server_way="Paste")
    assert "Bring a reading" in page.info[0].value
    page.text_area(key="server_text_after").set_value(after.strip())
    page.text_area(key="server_text_before").set_value(before.strip())
    return settled(page.run())


def test_two_readings_wait_for_costs_then_name_the_best(assets) -> None:
    page = pasted(vllm_text(*AFTER), vllm_text(*BEFORE))
    assert metrics(page)["Tokens per step"] == ("2.99", "K = 4, vs 1.00 without")
    assert metrics(page)["Best K"] == metrics(page)["Speed at it"] == ("–", "no costs yet")
    assert not page.code and "No costs yet" in words(page) and "taken as independent" in words(page)
    speeds = [{"tokens per second": 400}, {"K": 2, "tokens per second": 600}, {"K": 4, "tokens per second": 640}]
    edited = {str(row): values for row, values in enumerate(speeds)}
    page.session_state["server_timed"] = {"edited_rows": edited, "added_rows": [], "deleted_rows": []}
    settled(page.run())
    assert metrics(page)["Best K, 1 request"][0] == "4" and metrics(page)["Speed at it"][0] == "1.60×"
    assert '"num_speculative_tokens": 4' in page.code[0].value and "Batch size 4, 16" in words(page)
    page.button_group(key="server_costs").set_value("llama-bench or a profile")
    settled(page.run())
    uploader = next(each for each in page.get("file_uploader") if each.key == "server_bench")
    uploader.upload("bench.json", json.dumps(ROWS).encode(), "application/json")
    settled(page.run())
    assert metrics(page)["Best K, 1 request"][0] != "–"


def test_records_tell_intervals_over_requests(assets) -> None:
    page = with_files(step_records())
    assert "95% over requests" in words(page) and "tokens past their ends count too" in words(page)
    page.number_input(key="server_new_tokens").set_value(128)
    settled(page.run())
    assert "tokens past their ends" not in words(page)


WIRED = (8000, 24_000, 295, (290, 5, 0), 8305, 10)


def test_the_verdict_stands_first_with_its_evidence(assets) -> None:
    page = pasted(vllm_text(*WIRED))
    said = words(page)
    assert "Wired wrong" in said and "first position accepted: 3.6% (3.2% to 4.1%) of 8,000" in said
    assert "If fixed (supposed: 70% at every position): about 2.5 tokens per step instead of 1.0" in said
    page.text_area(key="server_text_after").set_value(vllm_text(*AFTER).strip())
    settled(page.run())
    assert "Healthy" in words(page) and "Wired wrong" not in words(page)


def test_another_period_is_compared_with(assets) -> None:
    drafts, draft_tokens, _, positions, tokens, requests = AFTER
    fewer = tuple(count * 6 // 10 for count in positions)
    now = vllm_text(drafts, draft_tokens, sum(fewer), fewer, tokens, requests)
    worse = "Worse than before"
    assert worse in words(with_files(now, earlier=vllm_text(*AFTER))) and worse not in words(with_files(now))
    page = with_files(now, earlier=b"no metrics")
    assert len(page.error) == 1 and page.error[0].value.startswith("earlier.prom: ") and not page.metric


def test_a_server_that_never_drafted_has_a_verdict_and_nothing_else(assets) -> None:
    page = with_files("# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total 900\n")
    assert "Never drafted" in words(page) and not page.error and not page.metric and not page.get("plotly_chart")


def test_rates_alone_say_how_they_were_read_and_can_be_read_otherwise(assets) -> None:
    page = pasted("0.8\n0.5\n0.3")
    assert metrics(page)["Tokens per step"][0] == "2.60" and "read as survival" in words(page)
    settled(page.selectbox(key="server_rates").select("conditional").run())
    assert metrics(page)["Tokens per step"][0] == "2.32" and "given the position before" in words(page)
    assert "Only 26% of steps have a draft" in words(with_files(vllm_text(*NGRAM)))


def test_an_address_is_read_twice_and_another_host_is_refused(assets, monkeypatch) -> None:
    texts = iter((vllm_text(*BEFORE), vllm_text(*AFTER)))
    monkeypatch.setattr(reading, "read_metrics", lambda address, allowed: next(texts).encode())
    page = open_page("server", server_way="Connect", server_address="http://127.0.0.1:1/metrics")
    assert page.text_input(key="server_address").value == "http://127.0.0.1:8000/metrics"  # none comes from a link
    settled(page.button(key="server_read_first").click().run())
    assert "First reading kept" in words(page)
    settled(page.button(key="server_read_last").click().run())
    assert metrics(page)["Tokens per step"][0] == "2.99"
    monkeypatch.undo()
    page.text_input(key="server_address").set_value("http://example.org/metrics")
    settled(page.button(key="server_read_last").click().run())
    assert "expected an address of this machine" in page.error[0].value


@pytest.mark.parametrize(
    ("text", "said"),
    [(llama_text(*LLAMA_PMIN), "drafts filled to 56% of K = 4"), (SGLANG_TEXT, "averages of sglang alone")],
)
def test_what_cannot_be_planned_from_says_why_and_shows_nothing_as_known(text, said, assets) -> None:
    page = with_files(text)
    assert said in page.warning[0].value and not page.code and not page.get("plotly_chart")
    assert metrics(page)["Tokens per step"][0] == ("2.65" if text is SGLANG_TEXT else "1.93")  # as the doctor says


HOSTILE = vllm_text(*AFTER, model="<img src=x onerror=alert(1)>**b**")


@pytest.mark.parametrize(
    "text",
    [
        '{"num_spec_steps": 1e400}',
        HOSTILE + vllm_text(*NGRAM),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_broken_and_hostile_files_are_one_line_and_nothing_is_shown(text, assets) -> None:
    page = with_files(text)
    assert len(page.error) == 1 and "\n" not in page.error[0].value
    assert not re.search(r"(?<!\\)<img", page.error[0].value)
    assert not page.metric and not page.code and not page.get("plotly_chart")


def test_what_was_counted_can_be_saved_and_brought_back(assets) -> None:
    page = with_files(vllm_text(*AFTER))
    chains = chain_acceptance(reading.counts(reading.Reading((vllm_text(*AFTER).encode(), "a"), None), "auto", None))
    saved = matrix_bytes(chains.to_matrix())
    assert b'"version": 3' in saved
    assert metrics(with_files(saved))["Tokens per step"] == metrics(page)["Tokens per step"]


def test_counts_of_one_model_are_not_planned_with_the_times_of_another_unasked() -> None:
    page = open_page("server")
    title = next(title for title in scenarios.known() if title.startswith("Llama-2-70B with a 7B draft"))
    before = words(page)
    settled(next(box for box in page.selectbox if box.key.startswith("sidebar_scenario")).select(title).run())
    assert page.session_state["studio_profile"].device == "NVIDIA L40"
    assert "By times measured of demo target ← demo draft on Intel" in before and "NVIDIA" not in advice(page)
    settled(page.segmented_control(key="server_costs_example").set_value(costs.PROFILE).run())
    assert advice(page).startswith(
        "By modelled times of meta-llama/Llama-2-70b-hf ← meta-llama/Llama-2-7b-hf on NVIDIA"
    )


def advice(page: AppTest) -> str:
    (found,) = [each.value for each in page.markdown if "**Set K" in each.value]
    return found.removeprefix(":material/arrow_forward: ").replace("\\", "")
