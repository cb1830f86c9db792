"""How often does the target accept the draft's first, second, … choice?"""

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.acceptance_files import ENTRIES
from sequoia_core.design.plain_trees import chain_limit
from ui import charts, controls, uploads
from ui.cards import Card, cards, number
from ui.draft import by_depth, changing, supposing, which_draft
from ui.markdown import escaped
from ui.measuring import acceptance as measurement
from ui.measuring import declaring, state_chip
from ui.phrases import between, count
from ui.session import session

FILE_TYPES = ("json", "csv", "tsv", "txt", "npy", "safetensors", "pt", "pth")
MAX_NOTE = 300  # characters of a file's note


def choose_vector() -> None:
    """Use the vector that was just picked."""
    name = st.session_state["acceptance_choice"]
    if name is not None:
        session.use_vector(name)


def upload_vector() -> None:
    """Read an uploaded vector; a broken file leaves the one in use untouched."""
    entries = st.selectbox(
        "What the file's entries are",
        [None, *ENTRIES],
        key="acceptance_entries",
        format_func=lambda name: "as the numbers show" if name is None else name,
        help="ranks: each is a rank's. padded: a 0 stands before rank 1. rest-first, rest-last: one is the chance that "
        "no rank is accepted. padded-rest-last: both, as the reference implementation writes.",
    )
    upload = uploads.file_upload(
        "Acceptance vector",
        FILE_TYPES,
        lambda data, name: AcceptanceVector.loads(data, name, entries),
        key="acceptance_file",
        read_as=entries,
        help="CSV (one column will do), JSON, .npy, .safetensors, or the .pt of the reference implementation. The "
        "entries sum to at most 1.",
    )
    if upload is None:
        st.caption("As CSV, a line for each rank and how often it is the accepted one, rank 1 first:")
        st.code("1, 0.72\n2, 0.11", language=None)
    elif upload.error:
        st.error(f"{upload.error}. The previous vector stays in use.", icon=":material/error:")
    elif upload.value is not None:
        if upload.is_new:
            session.set_acceptance(upload.value, f"your file {upload.name}", upload.name)
            st.rerun()  # the sidebar, drawn before, may name a scenario
        assumed = f" {escaped(upload.value.note[:MAX_NOTE])}" if upload.value.note else ""
        st.success(
            f"{upload.name}: {count(len(upload.value), 'rank')} in use.{assumed}", icon=":material/check_circle:"
        )


def precision(vector: AcceptanceVector) -> str | None:
    """Say how many more prompts would settle every rank to a hundredth; None when that is not known."""
    if vector.of_one_prompt:
        return "One prompt has no interval over texts; measure on two or more."
    more = vector.more_prompts(0.02)
    if more is None:
        return None
    if more == 0:
        return "Every rank is known to ±0.01 or better."
    return f"About {more:,} more prompts like these would bring every rank to ±0.01."


def section() -> None:
    """Draw where the vector comes from, what it says, and what can be changed."""
    st.caption(
        "How often does the target accept the draft's first, second, … choice? This vector shapes everything after it."
    )

    names = list(session.vectors())
    way = controls.source_picker(
        "Where the vector comes from", ["Choose", "Upload", "Measure", "What-if"], key="acceptance_way"
    )
    supposed: dict[str, AcceptanceVector] = {}
    if way == "Upload":
        upload_vector()
    elif way == "Measure":
        measurement.section()
    elif way == "What-if":
        supposed = dict([supposing.section()])
    else:
        st.session_state["acceptance_choice"] = session.acceptance_name()
        st.selectbox(
            "Vector",
            names,
            key="acceptance_choice",
            format_func={name: session.vector_title(name) for name in names}.__getitem__,
            on_change=choose_vector,
            placeholder="A smoothed vector is in use; pick one to replace it",
            help="Those that ship with the app, each measured on the pair and text it names, and this session's own.",
        )

    vector = session.acceptance()
    unsaid = st.container()
    accepted = 1.0 - vector.reject
    interval = vector.interval()
    sure = "one prompt: no interval" if vector.of_one_prompt else "no interval known"
    if interval is not None:
        sure = f"p₁ {between(interval[0][0], interval[1][0], '{:.1%}')}"
    cards(
        Card(
            "First choice accepted",
            f"{vector.probs[0]:.1%}",
            f"p₁ of {count(len(vector), 'rank')}",
            help="p₁: below an accepted token, the target takes the draft's most wanted token.",
        ),
        Card(
            "Any choice accepted",
            f"{accepted:.1%}",
            f"{100 * (accepted - vector.probs[0]):+.1f} points over p₁",
            help="Sum of the vector. The rest is the chance that every child is rejected and the step ends there.",
        ),
        Card(
            "Best possible chain",
            "unknown" if vector.of_one_prompt and vector.probs[0] == 1.0 else number(chain_limit(vector)),
            "one prompt does not tell" if vector.of_one_prompt else "tokens/step, vs 1.00",
            help="1 ÷ (1 − p₁), against 1.00 without a draft: no chain of guesses, however long, yields more. A tree "
            "can.",
        ),
        Card(
            "Positions measured",
            f"{vector.trials:,}" if vector.trials else "unknown",
            sure,
            help="Target positions behind the vector, and the 95% interval of p₁ over prompts, of which it takes two.",
        ),
    )

    left, right = st.columns([4, 1], vertical_alignment="bottom")
    compare = left.multiselect(
        "Compare with",
        [name for name in names if name != session.acceptance_name()],
        placeholder="No other vector",
        key="acceptance_compare",
        persist_state="session",
    )
    log = right.toggle("Log scale", key="acceptance_log", persist_state="session", help="Shows the small ranks apart.")
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

    by_depth.section(vector)
    st.markdown(f":material/label: **Current:** {escaped(session.acceptance_source())}")
    with unsaid if vector.holds_for is None else st.container():  # a vector that predicts nothing says so first
        state_chip.draw()
    ending = vector.meta.get("prompt_ending")
    said = vector.note, vector.meta.get("source"), precision(vector), ending and f"prompts end: {ending}"
    notes = [str(text)[:MAX_NOTE].strip(" .") for text in said if text]
    if any(notes):
        st.caption(":material/info: " + " ".join(f"{escaped(note[0].upper() + note[1:])}." for note in notes if note))
    st.markdown(
        f"The target takes the draft's first choice {vector.probs[0]:.0%} of the time and one of its {len(vector)} "
        f"choices {accepted:.0%} of the time: a chain can only use the first number, a tree uses all of them."
    )
    which_draft.section(vector)
    declaring.section(vector)
    changing.smoothing_controls()
    with st.expander("Edit the numbers", icon=":material/edit:", key="acceptance_edit"):
        changing.edit_table(vector)
    controls.download(
        "Download as JSON",
        vector.to_bytes,  # made when it is asked for: packing takes a quarter of a second
        "acceptance.json",
        key="acceptance_download",
        help="The app's own format, with trials and per-prompt sums.",
    )
