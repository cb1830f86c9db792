"""The table of runs, in which runs can be selected, and the actions on the selected runs."""

import io
import zipfile
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from sequoia_core.models.other_load import load_sentence
from ui import controls
from ui.cards import number
from ui.markdown import escaped, visible
from ui.phrases import ONE_PASS_DIGITS, clock_time, count, times
from ui.runs import available_runs, run_files, run_store, runs
from ui.runs.run_comparison import BADGES, NAMES, SHADES
from ui.session.state import state
from ui.token_tree import standalone

MAX_CHARS = 60  # of a prompt, a method and a name
METHOD_PX = 200  # shows the first columns on a phone; wider screens stretch it
NAME_PX = 110
FORMATS: Any = {
    "T": "{:g}",
    "tokens/step": "{:.2f}",
    "tokens/s": "{:,.0f}",
    "×": partial(times, digits=ONE_PASS_DIGITS),
}


def draw_run_list(known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Draw the table of runs and its actions; return the selected runs, initially the newest two."""
    key = f"runs_table_{len(known)}"
    newest: Any = {"selection": {"rows": [0, 1][: len(known)]}}
    picked = st.session_state.get(key, newest)["selection"]["rows"]
    named = dict(zip(picked, NAMES, strict=True)) if len(picked) == len(NAMES) else {}
    table = pd.DataFrame([_run_row(run, named.get(row, "")) for row, run in enumerate(known.values())])
    column = st.column_config
    st.dataframe(
        table.style.format(FORMATS, na_rep="–").map(
            lambda name: f"background-color: {SHADES.get(name, '')}", subset=["run"]
        ),
        hide_index=True,
        key=key,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default=newest,
        placeholder="–",
        column_config={
            "run": column.TextColumn("", width=44),
            "method": column.TextColumn(width=METHOD_PX),
            "T": column.NumberColumn(width=44),
            "steps": column.NumberColumn(width=60, help="Target passes."),
            "tokens/step": column.NumberColumn(help="Committed tokens ÷ target passes."),
            "tokens/s": column.NumberColumn(help="Tokens ÷ seconds spent in steps."),
            "×": column.NumberColumn(help="Tokens per second ÷ those of plain decoding."),
            "name": column.TextColumn(width=NAME_PX),
        },
    )
    chosen = [list(known.values())[row] for row in picked]
    for run, name in zip(chosen, NAMES if named else ("",) * (len(chosen) == 1), strict=False):
        st.markdown(f"{BADGES.get(name, '')} :small[{escaped(_describe_run(run))}]")
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall"):
        if chosen:
            _draw_actions(chosen[0], BADGES["A"] if named else "")
        _download_all(known)
    return chosen


def _draw_actions(run: dict[str, Any], badge: str) -> None:
    """Draw the actions for one run, after its badge."""
    if badge:
        st.markdown(badge, width="content")
    controls.page_link(
        st.container(width="content"), "decode", "Watch it step by step", ":material/play_circle:", run=run["id"]
    )
    draw_downloads(run, key="runs_save")
    if run["id"] not in state().runs:
        return
    with st.popover("Rename", icon=":material/edit:"):
        name = st.text_input("Name", key=f"runs_name_{run['id']}", max_chars=MAX_CHARS)
        if st.button("Rename it", key="runs_rename", disabled=not name.strip()):
            run_store.rename_run(run["id"], name.strip())
            st.rerun()
    if st.button("Delete", icon=":material/delete:", key="runs_delete"):
        run_store.delete_run(run["id"])
        st.rerun()


def _download_all(known: dict[str, dict[str, Any]]) -> None:
    """Draw a button that saves all runs in one archive, if there are several."""

    def make_archive() -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for run in known.values():
                archive.writestr(f"run-{run['id']}.jsonl", run_files.run_to_bytes(run))
        return content.getvalue()

    if len(known) > 1:
        controls.download_button(
            "Save all",
            make_archive,
            "runs.zip",
            key="runs_save_all",
            icon=":material/folder_zip:",
        )


def draw_downloads(run: dict[str, Any], *, key: str) -> None:
    """Draw the buttons that save a run as data and as a web page."""
    title = available_runs.run_title(run)  # not in the function below, which runs outside of the session
    controls.download_button(
        "Save the run",
        lambda: run_files.run_to_bytes(run),
        f"run-{run['id']}.jsonl",
        key=key,
        help="All steps with their tokens, probabilities, decisions and timings, as JSON Lines.",
    )
    controls.download_button(
        "Save as a page",
        lambda: standalone.run_to_html(run, title=title, figures=_figures(run), settings=visible(_describe_run(run))),
        f"run-{run['id']}.html",
        key=f"{key}_html",
        icon=":material/web:",
        help="An HTML file with this run's figures that plays it in any browser, without this app or a network "
        "connection.",
    )


def _figures(run: dict[str, Any]) -> dict[str, str]:
    """Return the figures that a saved page shows, by label."""
    summary = runs.summarize(run)
    return {
        "Tokens per step": number(summary.tokens_per_step),
        "Tokens per second": number(summary.tokens_per_sec, "{:,.0f}"),
        "× over plain decoding": "–" if summary.speedup is None else times(summary.speedup, ONE_PASS_DIGITS),
        "Predicted ×": "–" if summary.predicted_speedup is None else times(summary.predicted_speedup),
    }


def _describe_run(run: dict[str, Any]) -> str:
    """Describe a run's method, pair, settings and prompt; the text is not escaped."""
    prompt = " ".join(run["prompt"].split())
    method = run["tree_source"] or "a tree"
    shapes = available_runs.describe_shapes(run)
    words = [
        method,
        "" if shapes in method else shapes,
        runs.describe_settings(run),
        f"up to {count(run['max_new_tokens'], 'token')}",
        f"prompt: {prompt[:MAX_CHARS]}{'…' if len(prompt) > MAX_CHARS else ''}",
        load_sentence(run.get("load")) or "",
    ]
    return " · ".join(filter(None, words))


def _run_row(run: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a run's table row, whose text is shown literally; `name` is A or B if the run is compared."""
    summary = runs.summarize(run)
    return {
        "run": name,
        "method": visible((run["tree_source"] or "a tree")[:MAX_CHARS]),
        "T": run["temperature"],
        "steps": len(run["steps"]),
        "tokens/step": summary.tokens_per_step,
        "tokens/s": summary.tokens_per_sec,
        "×": summary.speedup,
        "when": clock_time(stored.time) if (stored := state().runs.get(run["id"])) else "",
        "name": visible(available_runs.run_origin(run)[:MAX_CHARS]),
    }
