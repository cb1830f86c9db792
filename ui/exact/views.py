"""How the evidence page draws a result, whether it was measured here or recorded."""

from collections import Counter

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ui import controls
from ui.cards import Card, cards
from ui.exact import charts, current_result, wording
from ui.exact.wording import Row
from ui.markdown import escaped
from ui.phrases import ONE_PROMPT, between, interval
from ui.verifier_names import NAMES


def show_comparison(record: Row) -> None:
    """Draw what a comparison found, at one setting and over temperatures."""
    runs, ratios = record["runs"], record["ratios"]
    settings = {wording.sampling_label(row): row for row in runs}
    left, right = st.columns([1, 2])
    greedy = any(row["temperature"] == 0 for row in runs)
    names = list(settings)
    shown = left.selectbox(
        "Setting on show",
        names,
        names.index("T = 1") if "T = 1" in settings else len(names) - 1,
        key="robustness_shown",
        bind="query-params",
        help="For the figure beside it and the curves."
        + (" At T = 0 all verifiers are one and the same: they take the target's most likely token." * greedy),
    )
    here = settings[shown]
    run = next(row for row in wording.at_setting(runs, here) if row["verifier"] in ("sequoia", "greedy"))
    count = Counter(map(wording.outcome, ratios))
    with right:
        cards(
            Card(
                "Tokens per step",
                f"{run['tokens_per_step']:.2f}",
                between(run["ci_low"], run["ci_high"]),
                help=f"Sequoia's, by real decoding at {shown}; without a draft a step yields one token.",
            ),
            Card(
                "Won, over all settings",
                f"{count['wins']} of {count.total()}",
                f"{count['ties'] + count['unknown']} level, {count['loses']} lost",
                help="Settings × rivals. Level: the interval includes 1, so neither is shown to be better.",
            ),
        )
    if ratios:
        labels = list(dict.fromkeys(map(wording.sampling_label, ratios)))
        st.plotly_chart(
            charts.outcomes_figure(ratios, shown if shown in labels else None),
            width="stretch",
            key="robustness_outcomes",
            on_select=lambda: _look_at(labels),
            selection_mode="points",
            alt=f"Sequoia's tokens per step ÷ each other's at each setting: {count['wins']} of {count.total()} won",
        )
        st.caption(
            "Sequoia's tokens per step ÷ the other's, on the same prompts. ▲ Sequoia wins, ▼ it loses, by a 95% "
            "interval that leaves 1 out; grey: level. Click a cell for its curves."
        )
    else:
        st.info("Nothing to compare at temperature 0 alone.", icon=":material/info:")
    if not record["settings"].get("first_cut") and any(row["top_p"] < 1 for row in runs):
        st.caption("Recorded before top-p also cut first children: below top-p 1 verifiers that draw accept more now.")
    if (rules := wording.specinfer_sentence(runs, record["settings"])) is not None:
        st.caption(rules)
    if (lacking := wording.lacking_beside(runs, record["settings"])) is not None:
        st.caption(f":material/info: {lacking}")
    if st.toggle("Curves and all numbers", key="robustness_curves", bind="query-params"):
        left, right = st.columns(2)
        _along(left, "temperature", record, run)
        if len({row["top_p"] for row in wording.along("top_p", runs, run)}) > 1:
            _along(right, "top_p", record, run)
        else:
            whose = "This recording" if "recorded" in record["settings"] else "This comparison"
            right.caption(f":material/info: {whose} has no two values of top-p: run one on your pair with several.")
        _at_setting(record, here)
    st.caption(
        f":material/timer: Sequoia at {shown}: {wording.speed_sentence(run)} Intervals are 95% each by itself: of "
        "twenty level ones one would pass for a win or a loss by chance."
    )
    tables = {"Tokens per step": runs, "Ratios": ratios, "Rejection": record["rejection"]}
    current_result.downloads("comparison", record, tables)


def _look_at(labels: list[str]) -> None:
    """Show the setting of the cell that was clicked, with its curves."""
    if (place := controls.clicked("robustness_outcomes")) is not None:
        st.session_state["robustness_shown"] = labels[int(place[1])]
        st.session_state["robustness_curves"] = True


def _along(place: DeltaGenerator, axis: str, record: Row, here: Row) -> None:
    """Draw tokens per step over temperature or top-p, with the setting of the row `here` on show."""
    runs = wording.along(axis, record["runs"], here)
    name = charts.AXES[axis][0]
    held = f"T = {runs[-1]['temperature']:g}" if axis == "top_p" else f"top-p {runs[-1]['top_p']:g}"
    place.subheader(f"Tokens per step over {name}, {held}")
    place.plotly_chart(
        charts.tokens_figure(runs, axis),
        width="stretch",
        key="robustness_tokens" if axis == "temperature" else f"robustness_tokens_{axis}",
        alt=f"Tokens per step over {name} at {held} by verifier; Sequoia {here['tokens_per_step']:.2f} at "
        f"{wording.sampling_label(here)}",
    )


def _at_setting(record: Row, here: Row) -> None:
    """Draw the rejection curves of the setting on show, one of whose rows is `here`, beside the numbers of all."""
    shown = wording.sampling_label(here)
    left, right = st.columns(2)
    left.subheader(f"Rejection by rank, {shown}")
    curves = wording.at_setting(record["rejection"], here)
    if curves:
        left.plotly_chart(
            charts.verifier_rejection_figure(curves),
            width="stretch",
            key="robustness_rejection",
            alt=f"Probability that the first k children are all rejected at {shown}, by verifier, on log-log axes",
        )
        left.caption("Lower is better. A straight line is a power law." + wording.optimum_sentence(curves))
    else:
        left.info("Not measured: the run was stopped before.", icon=":material/info:")
    right.subheader("All numbers")
    right.dataframe(
        [wording.run_line(row) for row in record["runs"]],
        hide_index=True,
        height=340,
        alt="Tokens per step of every run",
    )


def show_losslessness(record: Row) -> None:
    """Draw a check's verdict, its numbers and the counts behind them."""
    settings, statistic = record["settings"], record["statistic"]
    cards(
        Card(
            "Losslessness",
            "Passed" if record["passed"] else "Failed",
            f"{record['samples']:,} samples, {NAMES[settings['verifier']]}",
            help="Passed: nothing was seen that contradicts it.",
        ),
        Card(
            "Statistic G",
            "∞" if statistic is None else f"{statistic:.1f}",
            f"{record['degrees_of_freedom']} degrees of freedom",
            help="2 Σ observed · ln(observed ÷ expected), corrected for small counts. By chance it is about its "
            "degrees of freedom, the cells compared less one. Infinite where the target cannot have written what was "
            "seen.",
        ),
        Card(
            "p-value",
            f"{record['p_value']:.2g}",
            f"fails below {record['threshold']:.0e}",
            help="How often an exactly lossless decoder would deviate at least this much by chance.",
        ),
        Card(
            "False alarms",
            f"≤ {record['false_alarm']:.0e}",
            "for a correct verifier",
            help="How often this check fails although nothing is wrong, at most.",
        ),
    )
    st.markdown(wording.losslessness_sentence(record))
    if record["impossible"]:
        st.error(
            f"{record['impossible']:,} continuations have no probability at all under the target."
            + (f" The first of them: {escaped(odd)}." if (odd := record["settings"].get("difference")) else ""),
            icon=":material/error:",
        )
    st.subheader("Observed and expected")
    st.plotly_chart(
        charts.counts_figure(record["cells"]),
        width="stretch",
        key="robustness_counts",
        alt=f"Observed and expected counts of {len(record['cells'])} continuations, most likely first",
    )
    rows = wording.cell_rows(record["cells"])
    with st.expander(f"The prompt, and all {len(rows)} cells", icon=":material/table:"):
        st.code(settings["prompt"], language=None, wrap_lines=True)
        st.dataframe(rows, hide_index=True, alt="Observed and expected counts of every cell")
    current_result.downloads("losslessness", record, {"Counts": rows})


def show_assumption(record: Row) -> None:
    """Draw predictions beside what decoding measured, and acceptance by depth and by confidence."""
    found = {row["quantity"]: row for row in record["estimates"]}
    half = record["settings"]["fit_prompts"]
    fit = (
        ("static", "Predicted by the vector", f"F of the tree under one vector, measured on {half} prompts."),
        ("by_depth", "Predicted by depth", f"F under P[level, k], counted in tree decoding of the same {half}."),
        (
            "measured",
            "Measured, tokens per step",
            "Tokens per step of real decoding, on the prompts that nothing was fitted on.",
        ),
    )
    cards(
        *(
            Card(
                label,
                f"{row['value']:.2f}",
                interval(row["low"], row["high"], none=ONE_PROMPT),
                help=help,
            )
            for name, label, help in fit
            for row in [found[name]]
        )
    )
    st.markdown(wording.assumption_sentence(found))
    left, right = st.columns(2)
    left.subheader("Acceptance by depth and rank")
    left.plotly_chart(
        charts.level_acceptance_figure(record["acceptance"]),
        width="stretch",
        key="robustness_levels",
        alt="Share of children accepted by depth and rank, with how many were counted",
    )
    left.caption(
        "Each cell: share accepted, and below how many accepted parents. Were one vector true for all levels, "
        "every column would have one colour."
    )
    right.subheader("Acceptance by draft confidence")
    if record["confidence"]:
        right.plotly_chart(
            charts.confidence_figure(record["confidence"]),
            width="stretch",
            key="robustness_confidence",
            alt="Share of offered children accepted over the draft's probability of their token, and the diagonal",
        )
        right.caption(
            "Where it rises, the draft knows when it is right: a tree that followed its confidence could gain over any "
            "fixed one. 95% intervals."
        )
    else:
        right.info("Not counted: the run was stopped before.", icon=":material/info:")
    tables = {"Estimates": record["estimates"], "By depth": record["acceptance"], "By confidence": record["confidence"]}
    current_result.downloads("assumption", record, tables)
