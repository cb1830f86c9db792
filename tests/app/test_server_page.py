"""The server page: the example, readings, records, costs, settings to copy; what cannot be planned; hostile files."""

import json
import re
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core.acceptance.matrix_files import matrix_bytes
from sequoia_extras.servers.chain_acceptance import chain_acceptance
from sequoia_extras.servers.costs import assumed_costs
from sequoia_extras.servers.flags import flags_by_batch
from sequoia_extras.servers.plan import plan_server
from sequoia_extras.servers.readings import ReadOptions, read_counts
from tests.app.conftest import ROOT, metrics, open_page, settled
from tests.extras.hardware_models.test_bench_profile import ROWS
from tests.extras.servers.samples import (
    AFTER,
    BEFORE,
    LLAMA_PMIN,
    NGRAM,
    SGLANG_TEXT,
    llama_text,
    vllm_text,
)
from tests.extras.servers.test_public_inputs import REPORT, window
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


def test_the_example_matches_the_plan_of_the_core(with_example) -> None:
    page = open_page("server")
    chains = chain_acceptance(read_counts(with_example.read_bytes(), with_example.name))
    plan = plan_server(chains, assumed_costs())
    shown, best = metrics(page), plan.batches[0]
    assert shown["Tokens per step"] == (f"{chains.tokens(8).value:.2f}", "K = 8, vs 1.00 without")
    assert shown["Guessed right"][0] == f"{chains.guess_accuracy:.1%}" == "76.3%"
    assert best.best_range == "2 to 8 or more"
    assert [code.value for code in page.code[:-1]] == list(flags_by_batch("vllm", plan.best).values())
    assert plan.sentence(8) in words(page) and "assumed to cost 2 to 20%" in words(page)
    for method, setting in (("ngram", '"method": "ngram", "prompt_lookup_min"'), ("mtp", '"method": "mtp", "num_spec')):
        page = settled(page.selectbox(key="server_method").select(method).run())
        assert any(setting in code.value for code in page.code)


def test_published_rates_are_an_example(assets) -> None:
    (assets / "servers").mkdir()
    shutil.copy(EXAMPLE.parent / "qwen3-8b-peagle.json", assets / "servers")
    page = open_page("server")
    assert metrics(page)["Tokens per step"] == ("3.50", "K = 7, vs 1.00 without")
    said = words(page)
    assert "Published rates, without an interval" in said and "releases/tag/v0.6.0, 2026-06-16" in said
    assert "95%" not in said


def pasted(after: str, before: str = "") -> AppTest:
    page = open_page("server", server_way="Paste")
    assert "Read your server's metrics" in page.info[0].value
    page.text_area(key="server_text_after").set_value(after.strip())
    page.text_area(key="server_text_before").set_value(before.strip())
    return settled(page.run())


def test_two_readings_give_a_range_that_costs_narrow(assets) -> None:
    page = pasted(vllm_text(*AFTER), vllm_text(*BEFORE))
    assert metrics(page)["Tokens per step"] == ("2.99", "K = 4, vs 1.00 without")
    assert "Best K: 4 or more for one" in words(page) and "assumed to be independent" in words(page)
    assert "1.6 to 2.9× the speed" in words(page)
    settled(page.slider(key="server_draft_cost").set_value((5, 5)).run())
    assert "2.4 to 2.6× the speed" in words(page) and "assumed to cost 5%" in words(page)
    page.button_group(key="server_costs").set_value(costs.MEASURED)
    settled(page.run())
    assert "Until there are times, the assumed cost is used" in words(page)
    assert "1.6 to 2.9× the speed" in words(page)
    assert own_row(page)["speedup"] is None
    speeds = [{"tokens per second": 400}, {"K": 2, "tokens per second": 600}, {"K": 4, "tokens per second": 640}]
    edited = {str(row): values for row, values in enumerate(speeds)}
    page.session_state["server_timed"] = {"edited_rows": edited, "added_rows": [], "deleted_rows": []}
    settled(page.run())
    assert "Use K = 4 for one request at a time (1.60× the speed" in words(page)
    assert own_row(page)["speedup"] == pytest.approx(1.6) and own_row(page)["batch"] == 1
    assert '"num_speculative_tokens": 4' in page.code[0].value and "Batch size 4, 16" in words(page)
    assert "With half as many rejections, one request at a time: " in words(page)
    del page.session_state["server_timed"]
    uploader = next(each for each in page.get("file_uploader") if each.key == "server_bench")
    uploader.upload("bench.json", json.dumps(ROWS).encode(), "application/json")
    settled(page.run())
    assert "share of the best speed" in page.dataframe[-2].value  # vLLM's times may differ from llama-bench's
    assert "not the server's own times" in words(page)


def own_row(page: AppTest) -> dict:
    row = page.dataframe[-1].value.iloc[0].to_dict()
    return {name: None if value != value else value for name, value in row.items()}


def test_the_row_can_be_completed_and_is_compared_with_others(with_example) -> None:
    rows = (EXAMPLE.parent / "rows.jsonl").read_text().splitlines()
    shutil.copy(EXAMPLE.parent / "rows.jsonl", with_example.parent)
    page = open_page("server")
    page.text_input(key="server_cell_hardware").set_value(" 2 H100 ")
    settled(page.run())
    table = page.dataframe[-1].value
    assert len(table) == 1 + len(rows) and table[""].tolist() == ["this server"] + [""] * len(rows)
    found = own_row(page)
    assert (found["model"], found["k"], found["hardware"], found["version"]) == ("demo target", 8, "2 H100", None)
    assert "| 2 H100 |" in page.code[-1].value and "server_cell_model" not in {each.key for each in page.text_input}


LLAMA_LOG = (
    "prompt eval time = 20.00 ms / 40 tokens\n       eval time = 420.00 ms / 508 tokens\n"
    "draft acceptance = 0.39437 ( 308 accepted / 781 generated), mean len = 2.54\n"
)
WIRED = (8000, 24_000, 295, (290, 5, 0), 8305, 10)


def test_the_verdict_is_shown_with_its_evidence(assets) -> None:
    page = pasted(vllm_text(*WIRED))
    said = words(page)
    assert "Wired wrong" in said and "first position accepted: 3.6% (3.2% to 4.1%) of 8,000" in said
    assert "If fixed (assuming 70% acceptance at every position): about 2.5 tokens per step instead of 1.0" in said
    page.text_area(key="server_text_after").set_value(vllm_text(*AFTER).strip())
    settled(page.run())
    assert "Healthy" in words(page) and "Wired wrong" not in words(page)


def test_a_log_is_drawn_over_time_and_a_pasted_report_is_planned(assets) -> None:
    falls = window(600, 1000, 0.75, 0.45) + window(8, 1000, 0.016, 0.0) + window(0, 700, 0.0, 0.0)
    page = pasted(falls)
    charts = {chart.proto.id.split("-")[-1]: json.loads(chart.proto.spec) for chart in page.get("plotly_chart")}
    (line,) = charts["server_periods"]["data"]
    assert line["customdata"] == [2, 2, 2] and line["y"] == pytest.approx([2.2, 1 + 8 / 500, 1.0])
    assert "Acceptance collapses" in words(page) and metrics(page)["Tokens per step"][0] == "2.20"
    page = pasted(REPORT)
    assert metrics(page)["Tokens per step"] == ("3.10", "K = 3, vs 1.00 without")
    assert len(page.get("plotly_chart")) == 2 and '"num_speculative_tokens": 3' in page.code[0].value


def test_another_period_is_compared(assets) -> None:
    drafts, draft_tokens, _, positions, tokens, requests = AFTER
    fewer = tuple(count * 6 // 10 for count in positions)
    now = vllm_text(drafts, draft_tokens, sum(fewer), fewer, tokens, requests)
    worse = "Worse than before"
    assert worse in words(with_files(now, earlier=vllm_text(*AFTER))) and worse not in words(with_files(now))
    page = with_files(now, earlier=b"no metrics")
    assert len(page.error) == 1 and page.error[0].value.startswith("earlier.prom: ") and not page.metric


def test_the_type_of_rates_can_be_changed(assets) -> None:
    page = pasted("0.8\n0.5\n0.3")
    assert metrics(page)["Tokens per step"][0] == "2.60" and "read as survival" in words(page)
    settled(page.selectbox(key="server_rates").select("conditional").run())
    assert metrics(page)["Tokens per step"][0] == "2.32" and "conditional on the position before" in words(page)
    page = with_files(vllm_text(*NGRAM))
    assert "Only 26% of steps have a draft" in words(page)
    assert metrics(page)["Tokens per step"][1] == "in steps with a draft"


def test_an_address_is_read_twice_and_other_hosts_are_refused(assets, monkeypatch) -> None:
    texts = iter((vllm_text(*BEFORE), vllm_text(*AFTER)))
    monkeypatch.setattr(reading, "read_metrics", lambda address, allowed: next(texts).encode())
    page = open_page("server", server_way="Connect", server_address="http://127.0.0.1:1/metrics")
    assert page.text_input(key="server_address").value == "http://127.0.0.1:8000/metrics"  # none comes from a link
    settled(page.button(key="server_read_first").click().run())
    assert "First reading stored" in words(page)
    settled(page.button(key="server_read_last").click().run())
    assert metrics(page)["Tokens per step"][0] == "2.99"
    monkeypatch.undo()
    page.text_input(key="server_address").set_value("http://example.org/metrics")
    settled(page.button(key="server_read_last").click().run())
    assert "expected an address of this machine" in page.error[0].value


@pytest.mark.parametrize(
    ("text", "tokens", "best", "note"),
    [
        (llama_text(*LLAMA_PMIN), "1.93", "3 to 4 or more", "many end early"),
        (LLAMA_LOG, "2.54", "2 to 4 or more", "fitted to the totals"),
    ],
)
def test_totals_are_planned_from_a_fitted_rate(text, tokens, best, note, assets) -> None:
    page = pasted(text)
    shown = metrics(page)
    assert shown["Tokens per step"] == (tokens, "now, vs 1.00 without") and f"Best K: {best} for one" in words(page)
    assert shown["Guessed right"][1] == "fitted to the totals" and note in words(page)
    assert len(page.get("plotly_chart")) == 2 and len(page.code) > 1 and len(page.get("download_button")) == 1


def test_averages_need_the_draft_length(assets) -> None:
    page = with_files(SGLANG_TEXT)
    assert page.warning[0].value.startswith("No plan can be made: found only averages from sglang")
    assert metrics(page)["Tokens per step"][0] == "2.65" and len(page.code) == 1 and not page.get("plotly_chart")
    settled(page.number_input(key="server_draft_length").set_value(3).run())
    assert "Best K: 3 or more for one" in words(page) and not page.warning


def test_a_modelled_device_gives_a_range(assets) -> None:
    page = open_page("server", server_way="Paste", server_costs=costs.MODELLED)
    page.text_area(key="server_text_after").set_value(vllm_text(*AFTER))
    page = settled(page.run())
    said = words(page)
    assert "modelled times of meta-llama/Llama-2-7b-hf ← JackFram/llama-68m on NVIDIA" in said.replace("\\", "")
    assert " to " in page.dataframe[0].value["speedup"].iloc[0]


HOSTILE = vllm_text(*AFTER, model="<img src=x onerror=alert(1)>**b**")


@pytest.mark.parametrize(
    "text",
    [
        '{"num_spec_steps": 1e400}',
        HOSTILE + vllm_text(*NGRAM),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_hostile_files_give_one_error_line(text, assets) -> None:
    page = with_files(text)
    assert len(page.error) == 1 and "\n" not in page.error[0].value
    assert not re.search(r"(?<!\\)<img", page.error[0].value)
    assert not page.metric and not page.code and not page.get("plotly_chart")


def test_saved_counts_can_be_read_again(assets) -> None:
    page = with_files(vllm_text(*AFTER))
    source = reading.Reading((vllm_text(*AFTER).encode(), "a"), None)
    chains = chain_acceptance(reading.cached_counts(source, ReadOptions(vectors=False)))
    saved = matrix_bytes(chains.to_matrix())
    assert b'"version": 3' in saved
    assert metrics(with_files(saved))["Tokens per step"] == metrics(page)["Tokens per step"]
