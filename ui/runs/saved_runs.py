"""What this session decoded or opened, kept as files, and two runs side by side."""

import streamlit as st

from ui import charts
from ui.markdown import escaped
from ui.runs import divergence, kept_runs, run_comparison, run_list


def section() -> None:
    """Draw the runs that this session has, and two of them side by side."""
    st.caption("Which run was better, and where do two differ? Open one that a colleague sent, or save your own.")
    opened = kept_runs.upload(key="runs_file")
    if opened is not None and opened.error is not None:
        st.error(f"{opened.name} was refused: {opened.error}", icon=":material/error:")
    known = kept_runs.every()
    if not known:
        st.info("No run yet. Decode one, or open a file above.", icon=":material/play_circle:")
        return

    chosen = run_list.draw(known)
    if len(known) < 2:
        st.info("Decode another run, or open one above, to compare two.", icon=":material/compare_arrows:")
        return
    st.subheader("Two side by side")
    if len(chosen) != 2:
        st.info("Select two rows of the table to compare them.", icon=":material/compare_arrows:")
        return
    left, right = chosen
    st.caption(f"First: {escaped(kept_runs.title(left))}. Second: {escaped(kept_runs.title(right))}.")
    divergence.draw_figures(left, right)
    divergence.draw_text(left, right)
    st.plotly_chart(
        charts.runs_figure([left["steps"], right["steps"]], ["first", "second"]),
        width="stretch",
        key="runs_chart",
        alt="Tokens that each run has committed over the seconds of its steps",
    )
    only = st.toggle("Only differences", value=True, key="runs_only", bind="query-params")
    settings = run_comparison.setting_table(left, right, only_differences=only)
    if len(settings):
        st.dataframe(settings, width="stretch", key="runs_settings", hide_index=True)
    else:
        st.markdown("Both were asked for the same.")
    steps = run_comparison.step_table(left, right, only_differences=only)
    if len(steps):
        st.dataframe(
            steps,
            width="stretch",
            key="runs_steps",
            column_config={name: st.column_config.NumberColumn(format="%.1f") for name in ("ms 1", "ms 2")},
        )
    else:
        st.markdown("Every step has the same tree and the same text.")
