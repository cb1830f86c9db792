"""Acceptance: how often does the target accept the draft's first, second, … choice?"""

import streamlit as st

from sequoia_core.construction import chain_limit
from ui import charts, controls, session

FILE_TYPES = ("json", "csv", "tsv", "txt", "npy", "safetensors", "pt", "pth")


def choose_shipped() -> None:
    """Use the shipped vector that was just picked."""
    name = st.session_state["acceptance_shipped"]
    if name is not None:
        session.use_shipped_acceptance(name)


def upload_vector() -> None:
    """Read an uploaded vector; a broken file leaves the one in use untouched."""
    from sequoia_core import AcceptanceVector

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
            session.set_acceptance(upload.value, f"your file {upload.name}")
        st.success(f"{upload.name}: {len(upload.value)} ranks in use.", icon=":material/check_circle:")


def measure_vector() -> None:
    """Offer the measurement on the model pair, show its progress, and adopt what it found."""
    shipped = session.shipped_prompts()
    job = session.job("measure")
    running = job is not None and job.active
    with st.form("acceptance_measure"):
        left, right = st.columns(2)
        temperature = left.slider(
            "Temperature",
            0.0,
            1.5,
            0.0,
            0.1,
            key="acceptance_temperature",
            bind="query-params",
            help="Of the target, as you will decode. 0 is greedy. Acceptance differs by temperature, so measure both.",
        )
        top_p = left.slider(
            "Top-p",
            0.1,
            1.0,
            1.0,
            0.05,
            key="acceptance_top_p",
            help="Nucleus kept of the target's distribution; 1.0 keeps everything. Ignored at temperature 0.",
        )
        width = right.slider(
            "Ranks",
            1,
            64,
            32,
            key="acceptance_width",
            help="How many children of a node to ask about. 32 covers the widest node of most optimal trees.",
        )
        count = right.slider(
            "Shipped prompts",
            0,
            max(len(shipped), 1),
            min(8, len(shipped)),
            key="acceptance_prompts",
            help="More prompts narrow the intervals; each takes one continuation of the target.",
        )
        own = st.text_area(
            "Your own prompts (optional, one per line)",
            key="acceptance_own",
            height=80,
            help="Used in addition. Text like what you will decode gives the vector that predicts it.",
        )
        tokens = st.select_slider(
            "New tokens per prompt",
            [32, 64, 128, 256],
            64,
            key="acceptance_tokens",
            help="Positions measured per prompt, on text that the target itself writes.",
        )
        if st.form_submit_button(
            "Measure on the demo pair" if session.pair_spec() == (None, None) else "Measure on your pair",
            icon=":material/speed:",
            type="primary",
            disabled=running,
        ):
            texts = shipped[:count] + [line for line in own.splitlines() if line.strip()]
            if texts:
                start_measurement(texts, temperature, top_p, width, tokens)
            else:
                st.error("No prompts: choose at least one shipped prompt or write your own.")
    controls.job_panel("measure")


def start_measurement(texts: list[str], temperature: float, top_p: float, width: int, tokens: int) -> None:
    """Queue the measurement; everything the worker needs is bound here, it never looks at the session."""
    from ui.jobs import JobContext, shared_pair

    spec = session.pair_spec()

    def work(job: JobContext):
        from sequoia_core import SamplingConfig, measure_acceptance

        pair = shared_pair(*spec)
        return measure_acceptance(
            [pair.tokenizer.encode(text) for text in texts],
            target=pair.target,
            draft=pair.draft,
            sampling=SamplingConfig(temperature=temperature, top_p=top_p),
            width=width,
            max_new_tokens=tokens,
            progress=job.progress,
            cancel=job.cancel,
        )

    source = f"measured here on the {session.pair_name()} at temperature {temperature:g}, top-p {top_p:g}"
    controls.start_job("measure", "Measuring acceptance", work, info=source)


session.setup_page("Acceptance")
st.title("Acceptance")
st.caption(
    "How often does the target accept the draft's first, second, … choice? This vector shapes everything after it."
)

names = list(session.shipped("acceptance"))
way = st.segmented_control(
    "Where the vector comes from",
    ["Shipped", "Upload", "Measure"],
    default="Shipped",
    required=True,
    key="acceptance_way",
    bind="query-params",
    label_visibility="collapsed",
)
if way == "Upload":
    upload_vector()
elif way == "Measure":
    measure_vector()
else:
    st.selectbox(
        "Shipped vector",
        names,
        index=names.index(session.acceptance_name()) if session.acceptance_name() else None,
        key="acceptance_shipped",
        format_func=session.acceptance_title,
        on_change=choose_shipped,
        placeholder="Your own vector is in use; pick one to replace it",
        help="Each was measured on the pair and text that its source names.",
    )

vector = session.acceptance()
st.markdown(f":material/label: **In use:** {session.acceptance_source()}")
notes = [str(text).rstrip(".") for text in (vector.note, vector.meta.get("source")) if text]
if notes:
    st.caption(":material/info: " + " ".join(f"{note[0].upper()}{note[1:]}." for note in notes))

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
        placeholder="Overlay other shipped vectors",
        persist_state="session",
    )
    log = st.toggle("Log scale", key="acceptance_log", persist_state="session", help="Shows the small ranks apart.")
shown = {session.acceptance_name() or "in use": vector} | {name: session.shipped_acceptance(name) for name in compare}
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
