"""Results on the evidence page: their origin, the views of each kind, and their downloads.

Each section (`evidence.EVIDENCE_PARTS`) shows this session's latest measurement or, without one, the recorded result.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from sequoia_core import TokenTree
from ui import controls
from ui.cards import Card, cards
from ui.charts.style import BLUE, FAINT, GREY, error_bars, marker_trace, new_figure
from ui.exact import wording
from ui.exact.wording import Row
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped, for_chart
from ui.phrases import count, sampling, shape
from ui.session import evidence, session
from ui.verifier_names import VERIFIER_NAMES

OUTCOME_STYLES = {  # by the last character of a cell
    "▲": "background-color: #0F7059; color: white",
    "▼": "background-color: #A8481A; color: white",
}

ZERO_COUNT = 0.5  # position of a zero count on a log axis
MAX_CELLS = 18  # maximum number of cells shown per losslessness check; with more, the labels overlap


def show_comparison(record: Row) -> None:
    """Draw which verifier wins at each setting, and all figures on request."""
    ratios = record["ratios"]
    counts = Counter(map(wording.outcome, ratios))
    st.markdown(
        f"Sequoia yields more tokens per step in **{counts['wins']} of {counts.total()}** comparisons, fewer in "
        f"{counts['loses']}; {counts['ties']} are tied."
    )
    table = pd.DataFrame(wording.outcome_rows(ratios))
    st.dataframe(
        table.style.map(lambda text: OUTCOME_STYLES.get(str(text)[-1:], "")),
        hide_index=True,
        height="content",
        placeholder="",
        column_config={"Setting": st.column_config.TextColumn(pinned=True)},
    )
    st.caption(
        "Sequoia's tokens per step ÷ the rival's, on the same prompts. ▲: Sequoia wins, ▼: Sequoia loses, both with a "
        "95% interval that excludes 1. Each interval is computed separately: by chance, one tie in twenty looks like "
        "a win or a loss. At T = 0, all verifiers take the target's most likely token."
    )
    runs = record["runs"]
    if not record["settings"].get("first_cut") and any(row["top_p"] < 1 for row in runs):
        st.caption("Recorded before top-p also applied to first children; acceptance below top-p 1 is higher now.")
    st.caption(wording.specinfer_sentence(record["settings"]))
    with st.expander("All numbers", icon=":material/table:"):
        st.dataframe([wording.run_line(row) for row in runs], alt="Tokens per step for each run")
    _download_button("comparison", record)


def show_losslessness(record: Row) -> None:
    """Draw a check's verdict, its statistics, and the underlying counts."""
    settings = record["settings"]
    statistic = record["statistic"]
    cards(
        Card(
            "Losslessness",
            "Passed" if record["passed"] else "Failed",
            f"{record['samples']:,} samples, {VERIFIER_NAMES[settings['verifier']]}",
            help="Passed means that the samples do not contradict losslessness.",
        ),
        Card(
            "Statistic G",
            "∞" if statistic is None else f"{statistic:.1f}",
            f"{record['degrees_of_freedom']} degrees of freedom",
            help="2 Σ observed · ln(observed ÷ expected), corrected for small counts. For a lossless decoder, it is "
            "close to the number of degrees of freedom, which is one less than the number of cells compared. It is "
            "infinite if a continuation is impossible under the target.",
        ),
        Card(
            "p-value",
            f"{record['p_value']:.2g}",
            f"fails below {record['threshold']:.0e}",
            help="Probability that a lossless decoder deviates at least this much by chance.",
        ),
        Card(
            "False alarms",
            f"≤ {record['false_alarm']:.0e}",
            "for a correct verifier",
            help="Upper bound on the probability that this check fails although nothing is wrong.",
        ),
    )
    st.markdown(wording.losslessness_sentence(record))
    if record["impossible"]:
        first = f" The first one: {escaped(settings['difference'])}." if "difference" in settings else ""
        st.error(
            f"{record['impossible']:,} continuations have zero probability under the target.{first}",
            icon=":material/error:",
        )
    st.subheader("Observed and expected")
    st.plotly_chart(
        _counts_figure(record["cells"]),
        key="robustness_counts",
        alt=f"Observed and expected counts of {len(record['cells'])} continuations, most likely first",
    )
    rows = [cell | {"text": wording.cell_name(cell)} for cell in record["cells"]]
    with st.expander(f"The prompt and all {len(rows)} cells", icon=":material/table:"):
        st.code(settings["prompt"], language=None, wrap_lines=True)
        st.dataframe(rows, alt="Observed and expected counts for every cell")
    _download_button("losslessness", record)


def _counts_figure(cells: Sequence[Row]) -> go.Figure:
    """Plot the observed and expected count of each continuation, most likely first.

    The texts are untrusted: they are quoted and escaped because Plotly renders markup.
    """
    shown = cells[:MAX_CELLS]
    position = np.arange(len(shown))
    names = [for_chart(wording.cell_name(cell)) for cell in shown]
    keys = ("expected", "expected_low", "expected_high", "observed")
    expected, low, high, observed = np.array([[cell[key] for key in keys] for cell in shown], dtype=float).T
    return new_figure(
        marker_trace(
            expected,
            position,
            "expected, with its 95% range",
            GREY,
            size=15,
            symbol="line-ns-open",
            hover="%{customdata}<br>expected %{x:.1f}",
            customdata=names,
            error_x=error_bars(expected, np.maximum(low, ZERO_COUNT), high, color=FAINT, thickness=7, width=0),
        ),
        marker_trace(
            np.maximum(observed, ZERO_COUNT),
            position,
            "observed",
            BLUE,
            hover="%{customdata[0]}<br>observed %{customdata[1]}",
            customdata=[[name, int(count)] for name, count in zip(names, observed, strict=True)],
        ),
        x="number of samples (log scale)",
        y="",
        height=int(130 + 26 * len(shown)),
        xaxis={"type": "log", "dtick": 1},
        yaxis={"tickvals": position, "ticktext": names, "range": [len(shown) - 0.4, -0.6], "showgrid": False},
    )


def show_result(part: str) -> Row | None:
    """Draw a section's job progress and the origin of its result; return the result, or None without one."""
    job_panel.draw_job(part)
    job = session_jobs.find_job(part)
    record: Row | None = None if job is None else job.result
    if record is None:
        try:
            record = evidence.latest_evidence(part)
        except ValueError as error:
            st.warning(f"{escaped(str(error))}. Restore the file from the repository.", icon=":material/warning:")
    if record is None:
        st.info("No results have been recorded yet.", icon=":material/info:")
        return None
    settings = record["settings"]
    origin = f"recorded on {settings['recorded']} on the" if "recorded" in settings else "measured here on the"
    st.markdown(f":material/label: **Shown:** {origin} {escaped(settings['pair'])}, {escaped(_conditions(settings))}")
    if job is not None and job.state == "cancelled":
        kept = "no samples were completed" if job.result is None else "the completed samples are shown"
        st.caption(f":material/stop_circle: Cancelled: {kept}.")
    if settings["pair"] != session.pair_name():
        st.warning(f"These figures are for a different pair: the current pair is the {session.pair_name()}.")
    return record


def _conditions(settings: Mapping) -> str:
    tree = TokenTree(np.array(settings["tree"], dtype=np.int32))
    parts = []
    if "prompts" in settings:
        parts.append(f"{count(settings['prompts'], 'prompt')} × {settings['max_new_tokens']} tokens")
    if "temperature" in settings:
        parts.append(sampling(settings["temperature"], settings["top_p"]))
    return ", ".join([*parts, f"tree {shape(tree.size, tree.depth)} ({settings['tree_source']})"])


def _download_button(part: str, record: Row) -> None:
    controls.download_button(
        "Download JSON",
        evidence.to_json(part, record),
        f"{part}.json",
        key=f"robustness_{part}_json",
        help="All figures shown, with the settings they were measured at.",
    )
