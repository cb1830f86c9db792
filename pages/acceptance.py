"""Acceptance: how often does the target accept the draft's first, second, … choice?"""

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.plain_trees import chain_limit
from sequoia_core.design.what_if import edited, isotonic, power_law, power_law_tail, weaker
from ui import charts, controls, page_setup, session
from ui.acceptance import measurement
from ui.literal import plain

FILE_TYPES = ("json", "csv", "tsv", "txt", "npy", "safetensors", "pt", "pth")
MAX_NOTE = 300  # characters of a file's note
SMOOTHINGS = ("None", "Isotonic", "Power-law tail")


def choose_vector() -> None:
    """Use the vector that was just picked."""
    name = st.session_state["acceptance_choice"]
    if name is not None:
        session.use_vector(name)


def upload_vector() -> None:
    """Read an uploaded vector; a broken file leaves the one in use untouched."""
    upload = controls.file_upload(
        "Acceptance vector",
        FILE_TYPES,
        AcceptanceVector.loads,
        key="acceptance_file",
        help="JSON, CSV (one column, or rank and probability), .npy, .safetensors, or the .pt of the reference "
        "implementation. Entry k: how likely the child of rank k is the accepted one, so they sum to at most 1.",
    )
    if upload is None:
        st.caption("Nothing uploaded yet. The first number of a file belongs to the draft's first choice, rank 1.")
    elif upload.error:
        st.error(f"{upload.error}. The previous vector stays in use.", icon=":material/error:")
    elif upload.value is not None:
        if upload.is_new:
            session.set_acceptance(upload.value, f"your file {upload.name}", upload.name)
        st.success(f"{upload.name}: {len(upload.value)} ranks in use.", icon=":material/check_circle:")


def suppose_vector() -> tuple[str, AcceptanceVector]:
    """Offer vectors nobody measured -> (short name, vector) of the one the controls describe, in use or not."""
    base = session.original_acceptance()
    kind = st.segmented_control(
        "Suppose",
        ["Power law", "Weaker draft"],
        default="Power law",
        required=True,
        key="acceptance_suppose",
        help="A power law: the chance that all of the first k children are rejected is (1 − p₁)·k^−b. "
        "A weaker draft: the vector in use, on a share of the positions only.",
    )
    if kind == "Power law":
        first, second, third = st.columns(3)
        p1 = first.slider("p₁", 0.0, 1.0, round(float(base.probs[0]), 2), 0.01, key="acceptance_p1", help="First rank.")
        b = second.slider(
            "b", 0.0, 3.0, 0.5, 0.05, key="acceptance_b", help="How fast more children help; 0: only the first does."
        )
        ranks = third.slider("Length", 1, 64, 32, key="acceptance_length", help="Ranks of the vector.")
        supposed = f"power law {p1:g}, {b:g}", power_law(p1, b, ranks)
    else:
        share = st.slider(
            "Positions where the draft is as good as now",
            0,
            100,
            50,
            5,
            format="%d%%",
            key="acceptance_share",
            help="On the other positions every child is rejected.",
        )
        supposed = f"weaker, {share}%", weaker(base, share / 100)
    if st.button("Use this vector", icon=":material/check:", key="acceptance_use_supposed", type="primary"):
        name, vector = supposed
        session.set_acceptance(vector, f"supposed, {name}", name)
        st.rerun()
    return supposed


def smooth() -> None:
    """Put the smoothing that the controls describe, or none, in place of what was measured."""
    kind = st.session_state["acceptance_smoothing"]
    original = session.original_acceptance()
    if kind == "Isotonic":
        session.vary_acceptance(isotonic(original), "smoothed")
    elif kind == "Power-law tail":
        start = min(st.session_state.get("acceptance_tail", 4), len(original))
        try:
            session.vary_acceptance(power_law_tail(original, start=start), "smoothed")
        except ValueError as error:
            session.restore_acceptance()
            st.session_state["acceptance_unsmooth"] = str(error)
    else:
        session.restore_acceptance()


def smoothing_controls() -> None:
    """Offer smoothing, never applied by itself; "None" brings the measured vector back."""
    original = session.original_acceptance()
    if not session.is_varied():
        st.session_state["acceptance_smoothing"] = "None"
    left, right = st.columns([1, 1], vertical_alignment="top")
    kind = left.segmented_control(
        "Smoothing",
        SMOOTHINGS,
        required=True,
        key="acceptance_smoothing",
        on_change=smooth,
        help="Isotonic: the closest vector whose ranks never increase. Power-law tail: later ranks follow a line "
        "fitted to log P(all rejected) over log k. Nothing is smoothed unless you say so, and None takes it back.",
    )
    problem = st.session_state.pop("acceptance_unsmooth", None)
    if problem:
        st.error(f"{plain(problem)}. Nothing is smoothed.", icon=":material/error:")
    if kind == "Power-law tail" and len(original) > 2:
        right.slider(
            "First rank replaced",
            2,
            len(original) - 1,
            min(4, len(original) - 1),
            key="acceptance_tail",
            on_change=smooth,
            help="Ranks before it stay as measured.",
        )
    if session.is_varied():
        st.caption(f":material/tune: {plain(session.acceptance().note.split('; ')[-1].capitalize())}.")


def edit_table(vector: AcceptanceVector) -> None:
    """Let the numbers be changed by hand; what results is a vector of its own."""
    rows = {"rank": list(range(1, len(vector) + 1)), "probability": vector.probs.tolist()}
    changed = st.data_editor(
        rows,
        key=f"acceptance_edit_{hash(vector)}",
        num_rows="dynamic",
        hide_index=True,
        height=260,
        column_config={
            "rank": st.column_config.NumberColumn("Rank", disabled=True),
            "probability": st.column_config.NumberColumn(
                "Probability", min_value=0.0, max_value=1.0, format="%.4f", step=0.0001
            ),
        },
    )
    values = [np.nan if value is None else float(value) for value in changed["probability"]]
    same = len(values) == len(vector) and bool(np.array_equal(values, vector.probs))
    st.caption(f"Sum {np.nansum(values):.4f} of at most 1. Rows are ranks in order; add or delete at the bottom.")
    if st.button("Use the edited values", icon=":material/check:", key="acceptance_use_edited", disabled=same):
        try:
            session.set_acceptance(
                edited(vector, np.array(values)), f"edited by hand, from: {session.acceptance_source()}", "edited"
            )
        except ValueError as error:
            st.error(f"Edited values: {plain(str(error))}. The previous vector stays in use.", icon=":material/error:")
            return
        st.rerun()


def holds_for(vector: AcceptanceVector) -> None:
    """Say what the vector holds for, and let its user say so where the file does not."""
    told = vector.holds_for
    if told is None:
        st.caption(":material/help: This vector does not say what it holds for, so it predicts nothing yet.")
    else:
        by = "as you declared" if told.declared else "as the measurement recorded"
        st.caption(
            f":material/rule: Holds for {plain(told.target)} ← {plain(told.draft)}, {plain(told.sampling)}, {by}."
        )
    title = "Say what it was measured for" if told is None else "Declare that it holds for something else"
    with st.expander(title, icon=":material/edit_note:", key="acceptance_declare"), st.form("acceptance_declared"):
        here = session.conditions()
        left, right = st.columns(2)
        target = left.text_input(
            "Target", here.target, key="acceptance_for_target", help="As the pair in the sidebar names it."
        )
        draft = right.text_input("Draft", here.draft, key="acceptance_for_draft", help="As the target.")
        temperature = left.number_input("Temperature", 0.0, 2.0, 0.0, 0.1, key="acceptance_for_temperature")
        top_p = right.number_input("Top-p", 0.05, 1.0, 1.0, 0.05, key="acceptance_for_top_p")
        verifier = left.selectbox(
            "Verifier", controls.VERIFIERS, key="acceptance_for_verifier", format_func=controls.VERIFIERS.get
        )
        if right.form_submit_button("Declare", icon=":material/check:", width="stretch"):
            try:
                session.declare(Conditions(target, draft, temperature, top_p, verifier, declared=True))
            except ValueError as error:
                st.error(plain(str(error)), icon=":material/error:")
                return
            st.rerun()


def precision(vector: AcceptanceVector) -> str | None:
    """Say how many more prompts would settle every rank to a hundredth; None when that is not known."""
    more = vector.more_prompts(0.02)
    if more is None:
        return None
    if more == 0:
        return "Every rank is known to ±0.01 or better."
    return f"About {more:,} more prompts like these would bring every rank to ±0.01."


page_setup.setup_page("Acceptance")
st.title("Acceptance")
st.caption(
    "How often does the target accept the draft's first, second, … choice? This vector shapes everything after it."
)

names = list(session.vectors())
way = st.segmented_control(
    "Where the vector comes from",
    ["Choose", "Upload", "Measure", "What-if"],
    default="Choose",
    required=True,
    key="acceptance_way",
    bind="query-params",
    label_visibility="collapsed",
)
supposed: dict[str, AcceptanceVector] = {}
if way == "Upload":
    upload_vector()
elif way == "Measure":
    measurement.section()
elif way == "What-if":
    supposed = dict([suppose_vector()])
else:
    st.session_state["acceptance_choice"] = session.acceptance_name()
    st.selectbox(
        "Vector",
        names,
        key="acceptance_choice",
        format_func={name: session.vector_title(name) for name in names}.get,
        on_change=choose_vector,
        placeholder="A smoothed vector is in use; pick one to replace it",
        help="Those that ship with the app, each measured on the pair and text it names, and this session's own.",
    )

vector = session.acceptance()
st.markdown(f":material/label: **In use:** {plain(session.acceptance_source())}")
notes = [
    str(text)[:MAX_NOTE].strip(" .") for text in (vector.note, vector.meta.get("source"), precision(vector)) if text
]
if any(notes):
    st.caption(":material/info: " + " ".join(f"{plain(note[0].upper() + note[1:])}." for note in notes if note))

holds_for(vector)

ceiling = chain_limit(vector)
accepted = 1.0 - vector.reject
first, total, chain, sample = st.columns(4)
controls.card(
    first,
    "First choice accepted",
    f"{vector.probs[0]:.1%}",
    f"p₁ of {len(vector)} ranks",
    help="p₁: below an accepted token, the target takes the draft's most wanted token.",
)
controls.card(
    total,
    "Any choice accepted",
    f"{accepted:.1%}",
    f"{100 * (accepted - vector.probs[0]):+.1f} points over p₁",
    help="Sum of the vector. The rest is the chance that every child is rejected and the step ends there.",
)
controls.card(
    chain,
    "Best possible chain",
    controls.number(ceiling),
    "tokens/step, vs 1.00",
    help="1 ÷ (1 − p₁), against 1.00 without a draft: no chain of guesses, however long, yields more. A tree can.",
)
interval = vector.interval()
controls.card(
    sample,
    "Positions measured",
    f"{vector.trials:,}" if vector.trials else "unknown",
    f"p₁ {interval[0][0]:.1%} to {interval[1][0]:.1%}" if interval is not None else "no interval known",
    help="Target positions behind the vector, and the 95% interval of p₁.",
)

with st.container(horizontal=True, vertical_alignment="bottom"):
    compare = st.multiselect(
        "Compare with",
        [name for name in names if name != session.acceptance_name()],
        key="acceptance_compare",
        placeholder="Overlay other vectors",
        persist_state="session",
    )
    log = st.toggle("Log scale", key="acceptance_log", persist_state="session", help="Shows the small ranks apart.")
shown = {session.acceptance_name() or "in use": vector}
if session.is_varied():
    shown["not smoothed"] = session.original_acceptance()
shown |= {name: session.vectors()[name] for name in compare} | {f"if {name}": v for name, v in supposed.items()}
left, right = st.columns(2)
left.subheader("Acceptance by rank")
left.plotly_chart(
    charts.acceptance_figure(shown, log=log),
    width="stretch",
    key="acceptance_ranks",
    alt=f"Acceptance probability by rank; rank 1 has {vector.probs[0]:.1%}",
)
right.subheader("Rejection by children tried")
right.plotly_chart(
    charts.rejection_figure(shown),
    width="stretch",
    key="acceptance_rejection",
    alt="Probability that the first k children are all rejected, falling with k on log-log axes",
)

st.markdown(
    f"The target takes the draft's first choice {vector.probs[0]:.0%} of the time and one of its {len(vector)} choices "
    f"{accepted:.0%} of the time: a chain can only use the first number, a tree uses all of them."
)
smoothing_controls()
with st.expander("Edit the numbers", icon=":material/edit:", key="acceptance_edit"):
    edit_table(vector)
st.download_button(
    "Download as JSON",
    vector.to_bytes(),
    "acceptance.json",
    "application/json",
    key="acceptance_download",
    icon=":material/download:",
    on_click="ignore",
    help="The app's own format, with trials and per-prompt sums.",
)
