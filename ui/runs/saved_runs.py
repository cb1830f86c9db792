"""This session's runs: a table of all, and two of them side by side."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from sequoia_core.planning.near_ties import describe_gap
from ui import uploads
from ui.charts.style import BLUE, OCHRE, new_figure
from ui.markdown import escaped, quoted
from ui.phrases import count
from ui.runs import available_runs, run_comparison, run_files, run_list, run_store
from ui.runs.run_comparison import BADGES, NAMES, Divergence
from ui.token_tree.run_timeline import run_timeline

MEDIUM = {name: st.column_config.TextColumn(width="medium") for name in ("A", "B", "text A", "text B")}


def saved_runs_section() -> None:
    """Draw this session's runs, and two of them side by side."""
    opened = uploads.file_upload(
        "Open a run",
        ("jsonl", "json"),
        run_files.run_from_bytes,
        key="runs_file",
        help="A file saved on this page or the live page. It is validated, and nothing in it is executed.",
    )
    if opened is not None:
        if opened.value is None:
            st.error(f"{opened.name} was not opened: {opened.error}", icon=":material/error:")
        elif opened.is_new:
            run_store.add_run(opened.value, opened.name)
    known = available_runs.all_runs()
    if not known:
        st.info("There are no runs yet. Decode one, or open a file above.", icon=":material/play_circle:")
        return

    chosen = run_list.draw_run_list(known)
    if len(known) < 2:
        st.info("Decode another run, or open one above, to compare two.", icon=":material/compare_arrows:")
        return
    st.subheader("Two side by side")
    if len(chosen) != 2:
        st.info("Select two rows of the table to compare them.", icon=":material/compare_arrows:")
        return
    left, right = chosen
    _draw_text_divergence(left, right)
    run_timeline(left, right, key="runs_timeline")
    st.plotly_chart(
        _runs_figure({"A": left["steps"], "B": right["steps"]}),
        key="runs_chart",
        alt="Committed tokens by elapsed step time in seconds, for the runs A and B",
    )
    only = st.toggle("Only differences", value=True, key="runs_only", bind="query-params")
    parts = {
        "settings": (run_comparison.setting_table, "Both runs have the same settings."),
        "steps": (run_comparison.step_table, "All steps have the same tree and the same text."),
    }
    for part, (make_table, same) in parts.items():
        table = make_table(left, right, only_differences=only)
        if len(table):
            shaded = run_comparison.shade_runs(table)
            hide = part == "settings"
            st.dataframe(shaded, hide_index=hide, key=f"runs_{part}", placeholder="", column_config=MEDIUM)
        else:
            st.markdown(same)


RUN_LINES = {"A": {"color": BLUE}, "B": {"color": OCHRE, "dash": "dash"}}


def _runs_figure(runs: Mapping[str, Sequence[dict[str, Any]]]) -> go.Figure:
    """Draw the committed tokens over the cumulative step time of the runs A and B, given as their step records."""
    return new_figure(
        *(
            go.Scatter(
                x=[0.0, *accumulate(sum(step["seconds"]) for step in steps)],
                y=[0, *accumulate(len(step["pieces"]) for step in steps)],
                name=name,
                mode="lines",
                line={"shape": "hv", "width": 2} | RUN_LINES[name],
                hovertemplate=f"{name}: %{{y}} tokens after %{{x:.3f}} s<extra></extra>",
            )
            for name, steps in runs.items()
        ),
        x="seconds spent in steps",
        y="tokens committed",
        height=320,
    )


CONTEXT_CHARS = 240  # number of characters shown before and after the divergence


def _draw_text_divergence(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Show where the texts diverge, and both texts around that position."""
    if left["prompt"] != right["prompt"]:
        st.warning("These runs have different prompts, so their texts cannot be compared.", icon=":material/warning:")
        return
    divergence = run_comparison.find_divergence(left, right)
    if divergence is None:
        st.success("Both runs produced the same text.", icon=":material/check_circle:")
        return
    st.markdown(describe_divergence(divergence) + _token_words(left, right))
    for column, run, name in zip(st.columns(2), (left, right), NAMES, strict=True):
        text = run_comparison.full_text(run)
        column.markdown(f"{BADGES[name]} :small[around that place]")
        same = divergence.same
        before = text[max(same - CONTEXT_CHARS, 0) : same]
        after = text[same : same + CONTEXT_CHARS]
        column.code(f"{before}▸{after}", language=None, wrap_lines=True)


def describe_divergence(divergence: Divergence) -> str:
    """Describe for how long the texts of A and B are the same, and the steps in which they part."""
    same = f"The texts are the same for {count(divergence.same, 'character')}."
    first, second = (None if step is None else step + 1 for step in divergence.steps)
    if first is None or second is None:
        ended, other, step = ("A", "B", second) if first is None else ("B", "A", first)
        return f"{same} There {ended} ends, and {other} continues in its step {step}."
    where = f"{first} of both" if first == second else f"{first} of A and step {second} of B"
    return f"{same} They part in step {where}."


def _token_words(left: dict[str, Any], right: dict[str, Any]) -> str:
    """Describe the first token in which two greedy runs of one target differ, and whether rounding explains it."""
    if not left["temperature"] == right["temperature"] == 0 or left["target"] != right["target"]:
        return ""
    different = run_comparison.first_different_token(left, right)
    if different is None:
        return ""
    one, other = (escaped(quoted(text)) for text in different.texts)
    words = f" Token {different.position + 1} is {one} in A and {other} in B"
    if different.gap is None:
        return f"{words}; the runs do not record both logits, so it is unknown whether this is a near-tie."
    exact = left["dtype"] == right["dtype"] == "float32"
    return f"{words}: {describe_gap(different.gap, exact=exact)}."
