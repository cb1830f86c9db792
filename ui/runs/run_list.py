"""The list of runs: what each was and did, which are chosen, and what can be done with those."""

import io
import zipfile
from typing import Any

import streamlit as st

from ui import controls
from ui.markdown import visible
from ui.runs import kept_runs, run_files, runs
from ui.session import session
from ui.token_tree import standalone

PROMPT_CHARS, METHOD_CHARS, NAME_CHARS = 40, 60, 60


def draw(known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Draw every run as a row, below them what can be done with the chosen ones -> these, the newest two at first."""
    pairs = {runs.pair_of(run) for run in known.values()}
    rows = [_row(run, with_pair=len(pairs) > 1) for run in known.values()]
    picked = st.dataframe(
        rows,
        width="stretch",
        hide_index=True,
        key=f"runs_table_{len(rows)}",
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [0, 1][: len(rows)]}},
        column_config={
            "T": st.column_config.NumberColumn(format="%g"),
            "tokens per step": st.column_config.NumberColumn(format="%.2f"),
            "tokens per second": st.column_config.NumberColumn(format="%.0f"),
            "speedup": st.column_config.NumberColumn(format="%.2f×"),
        },
    )
    if len(pairs) == 1:
        st.caption(f"All of {pairs.pop()}.")
    chosen = [list(known.values())[row] for row in picked.selection.rows if row < len(known)]
    with st.container(horizontal=True, vertical_alignment="center"):
        if chosen:
            _actions(chosen[0])
        _download_all(known)
    return chosen


def _actions(run: dict[str, Any]) -> None:
    """Draw what can be done with the run that was chosen first."""
    controls.page_link(
        st.container(width="content"), "decode", "Watch it step by step", ":material/play_circle:", run=run["id"]
    )
    downloads(run, key="runs_save")
    if run["id"] not in session.runs():
        return
    with st.popover("Rename", icon=":material/edit:"):
        name = st.text_input("Name", key=f"runs_name_{run['id']}", max_chars=NAME_CHARS)
        if st.button("Rename it", key="runs_rename", disabled=not name.strip()):
            session.rename_run(run["id"], name.strip())
            st.rerun()
    if st.button("Delete", icon=":material/delete:", key="runs_delete"):
        session.forget_run(run["id"])
        st.rerun()


def _download_all(known: dict[str, dict[str, Any]]) -> None:
    """Draw the button that saves all runs in one archive, where there are several."""

    def packed() -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for run in known.values():
                archive.writestr(f"run-{run['id']}.jsonl", run_files.run_to_bytes(run))
        return content.getvalue()

    if len(known) > 1:
        controls.download(
            "Save all",
            packed,
            "runs.zip",
            key="runs_save_all",
            icon=":material/folder_zip:",
        )


def downloads(run: dict[str, Any], *, key: str) -> None:
    """Draw the buttons that save a run: as data, and as a page that plays it."""
    controls.download(
        "Save the run",
        lambda: run_files.run_to_bytes(run),
        f"run-{run['id']}.jsonl",
        key=key,
        help="Every step with its tokens, probabilities, decisions and timings, as JSON lines.",
    )
    controls.download(
        "Save as a page",
        lambda: standalone.run_to_html(run, title=kept_runs.title(run)),
        f"run-{run['id']}.html",
        key=f"{key}_html",
        icon=":material/web:",
        help="One HTML file that plays this run in any browser, without this app and without a network.",
    )


def _row(run: dict[str, Any], *, with_pair: bool) -> dict[str, Any]:
    """Return what tells a run from the others; text as it is, which a table shows so."""
    summary = runs.summary_of(run)
    lines = run["prompt"].strip().splitlines()
    return {
        "name": visible(session.run_origins().get(run["id"], "recorded")[:NAME_CHARS]),
        **({"pair": runs.pair_of(run)} if with_pair else {}),
        "method": visible((run["tree_source"] or "a tree")[:METHOD_CHARS]),
        "T": run["temperature"],
        "prompt": visible((lines[-1] if lines else "")[:PROMPT_CHARS]),
        "tokens per step": summary.tokens_per_step,
        "tokens per second": summary.tokens_per_sec,
        "speedup": summary.speedup,
        "tokens": summary.tokens,
        "trees": kept_runs.shapes_in_words(run),
        "when": session.run_times().get(run["id"], ""),
    }
