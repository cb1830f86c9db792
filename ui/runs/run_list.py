"""The list of runs, and for a chosen one its files and the way to watch it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import controls
from ui.runs import kept_runs, run_files, runs
from ui.token_tree import standalone


def draw(known: dict[str, dict[str, Any]]) -> None:
    """Draw every run as a row, and below the actions for the selected one."""
    rows = [_row(run) for run in known.values()]
    picked = st.dataframe(
        rows,
        width="stretch",
        hide_index=True,
        key="runs_table",
        on_select="rerun",
        selection_mode="single-row-required",
        column_config={
            "tokens per step": st.column_config.NumberColumn(format="%.2f"),
            "tokens per second": st.column_config.NumberColumn(format="%.0f"),
            "speedup": st.column_config.NumberColumn(format="%.2f×"),
        },
    )
    chosen = picked.selection.rows
    run = list(known.values())[chosen[0] if chosen and chosen[0] < len(known) else 0]
    with st.container(horizontal=True, vertical_alignment="center"):
        controls.page_link(
            st.container(width="content"), "decode", "Watch it step by step", ":material/play_circle:", run=run["id"]
        )
        downloads(run, key="runs_save")


def downloads(run: dict[str, Any], *, key: str) -> None:
    """Draw the buttons that save a run: as data, and as a page that plays it."""
    st.download_button(
        "Save the run",
        lambda: run_files.run_to_bytes(run),
        f"run-{run['id']}.jsonl",
        key=key,
        icon=":material/download:",
        on_click="ignore",
        help="Every step with its tokens, probabilities, decisions and timings, as JSON lines.",
    )
    st.download_button(
        "Save as a page",
        lambda: standalone.run_to_html(run, title=kept_runs.title(run)),
        f"run-{run['id']}.html",
        "text/html",
        key=f"{key}_html",
        icon=":material/web:",
        on_click="ignore",
        help="One HTML file that plays this run in any browser, without this app and without a network.",
    )


def _row(run: dict[str, Any]) -> dict[str, Any]:
    summary = runs.summary_of(run)
    return {
        "run": kept_runs.title(run),
        "trees": kept_runs.shapes_in_words(run),
        "tokens": summary.tokens,
        "steps": summary.steps,
        "tokens per step": summary.tokens_per_step,
        "tokens per second": summary.tokens_per_sec,
        "speedup": summary.speedup,
    }
