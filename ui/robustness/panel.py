"""Streamlit side of the robustness page's measurements: what is on show, what is asked of the pair, files out.

Each part (`records.PARTS`) has a job of its own name, a result of this session or a recorded one, and settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core import TokenTree
from sequoia_core.files.prompt_files import check_text, split_lines
from ui import controls, core_cache, session
from ui.literal import plain
from ui.robustness import records, wording
from ui.robustness.measurements import Subject, Work
from ui.robustness.wording import Row

LENGTHS = (16, 32, 48, 64, 128)
SHAPE = (32, 6)  # wide and deep enough for verifiers to differ; trees planned for a small CPU are not
SMALL_BRANCHING = (3, 2)
MAX_PROMPT_CHARS = 20_000  # far beyond any demo context; a pasted book is refused before it reaches the tokenizer
TREES = {
    "shape": f"Best of n = {SHAPE[0]}, d = {SHAPE[1]}",
    "small": f"Branching {' × '.join(map(str, SMALL_BRANCHING))}",
    "use": "The tree in use",
}

# ---- what is on show


@st.cache_data(show_spinner=False, max_entries=2)
def recorded(path: str, modified: int) -> dict[str, Row]:
    """Read the recorded evidence."""
    return records.load(path)


def latest(part: str) -> Row | None:
    """Return this session's newest result of a part, else the recorded one; None without either."""
    job = session.job(job_name(part))
    if job is not None and job.result is not None:
        st.session_state[f"studio_evidence_{part}"] = job.result  # outlives a later run that finds nothing
    found = st.session_state.get(f"studio_evidence_{part}")
    path = session.ASSETS / "runs" / "robustness.json"
    if found is None and path.is_file():
        try:
            found = recorded(str(path), path.stat().st_mtime_ns).get(part)
        except ValueError as error:
            st.warning(f"{plain(str(error))}. Restore the file from the repository.", icon=":material/warning:")
    return found


def on_show(part: str) -> Row | None:
    """Draw a part's progress or failure and where the result on show comes from; return that result."""
    controls.job_panel(job_name(part))
    record, job = latest(part), session.job(job_name(part))
    if record is None:
        st.info("Nothing measured yet: start it above. The defaults take a minute or two.", icon=":material/info:")
        return None
    settings = record["settings"]
    how = f"recorded on {settings['recorded']} on the" if "recorded" in settings else "measured here on the"
    st.markdown(f":material/label: **On show:** {how} {plain(settings['pair'])}, {plain(_conditions(settings))}")
    if job is not None and job.state == "cancelled":
        kept = "nothing was complete by then" if job.result is None else "what was complete by then is on show"
        st.caption(f":material/stop_circle: Cancelled: {kept}.")
    if settings["pair"] != session.pair_name():
        st.warning(f"The pair in use is the {session.pair_name()}: start it above for its own figures.")
    return record


def _conditions(settings: Mapping) -> str:
    tree = TokenTree(np.array(settings["tree"], dtype=np.int32))
    prompts = settings.get("prompts", settings.get("fit_prompts", 0) + settings.get("held_out_prompts", 0))
    parts = [f"{prompts} prompts × {settings['max_new_tokens']} tokens"] if prompts else []
    parts += [wording.sampling_label(settings)] if "temperature" in settings else []
    return ", ".join([*parts, f"tree n = {tree.size}, d = {tree.depth} ({settings['tree_source']})"])


def downloads(part: str, record: Row, tables: Mapping[str, Sequence[Row]]) -> None:
    """Offer a result as JSON and its tables as CSV, each with the settings."""
    with st.container(horizontal=True):
        st.download_button(
            "Download JSON",
            records.to_json(part, record),
            f"{part}.json",
            "application/json",
            key=f"robustness_{part}_json",
            icon=":material/download:",
            on_click="ignore",
            help="Everything on show with its settings.",
        )
        for name, rows in tables.items():
            if rows:
                st.download_button(
                    f"{name} as CSV",
                    records.to_csv(rows, record["settings"]),
                    f"{part}-{name.lower().replace(' ', '-')}.csv",
                    "text/csv",
                    key=f"robustness_{part}_csv_{name.lower().replace(' ', '_')}",
                    icon=":material/table:",
                    on_click="ignore",
                    help="One row per value, with the settings in further columns.",
                )


# ---- what is asked of the pair


def job_name(part: str) -> str:
    return f"robustness_{part}"


def folded(part: str, what: str) -> DeltaGenerator:
    """Open the folded settings of a part: the evidence comes first."""
    label = f"Run this {what} on the {session.pair_name()}"
    return st.expander(label, icon=":material/play_circle:", key=f"robustness_{part}_settings")


def start_button(part: str) -> bool:
    job = session.job(job_name(part))
    return st.form_submit_button(
        "Start",
        icon=":material/play_arrow:",
        type="primary",
        key=f"robustness_{part}_start",
        disabled=job is not None and job.active,
    )


def start(part: str, label: str, work: Work) -> None:
    controls.start_job(job_name(part), label, work)


def text_controls(part: str, usual: int) -> tuple[list[str], int]:
    """Draw how much text to decode -> (prompts, new tokens of each)."""
    shipped = session.shipped_prompts()
    left, right = st.columns(2)
    count = left.slider(
        "Shipped prompts",
        0,
        max(len(shipped), 1),
        min(usual, len(shipped)),
        key=f"robustness_{part}_prompts",
        persist_state="session",
        help="Intervals come from the spread between prompts: more prompts narrow them, and take longer.",
    )
    tokens = right.select_slider(
        "New tokens per prompt",
        LENGTHS,
        48,
        key=f"robustness_{part}_tokens",
        persist_state="session",
        help="Decoded from each prompt, fewer where the text ends.",
    )
    own = st.text_area(
        "Your own prompts (optional, one per line)",
        key=f"robustness_{part}_own",
        height=68,
        persist_state="session",
        help="Used in addition. Text like what you will decode gives the evidence that counts for you.",
    )
    return shipped[:count] + split_lines(own), tokens


def sampling_controls(part: str, temperature: float) -> tuple[float, float]:
    """Draw one way of sampling -> (temperature, top-p)."""
    left, right = st.columns(2)
    chosen = left.slider(
        "Temperature",
        0.0,
        2.0,
        temperature,
        0.1,
        key=f"robustness_{part}_temperature",
        bind="query-params",
        help="Of the target. 0 is greedy.",
    )
    top_p = right.slider(
        "Top-p",
        0.1,
        1.0,
        1.0,
        0.05,
        key=f"robustness_{part}_top_p",
        bind="query-params",
        help="Nucleus kept of the target's distribution; 1 keeps everything. Ignored at temperature 0.",
    )
    return chosen, top_p


def tree_control(part: str, kinds: Sequence[str]) -> str:
    """Draw the choice of a tree -> its kind, one of `TREES`."""
    return st.segmented_control(
        "Tree",
        kinds,
        default=kinds[0],
        required=True,
        key=f"robustness_{part}_tree",
        bind="query-params",
        format_func=TREES.get,
        help="The tree in use is that of the Tree page. Trees planned for a small CPU have few nodes, where verifiers "
        "hardly differ; the best tree of a fixed shape is planned for the acceptance vector in use.",
    )


def subject(kind: str, prompts: Sequence[str], tokens: int = 0, *, least: int = 1) -> Subject:
    """Collect everything that a job needs: it never looks at the session.

    Raises:
        ValueError: when there is no tree of that kind, or for too few or too long prompts.
    """
    if len(prompts) < least:
        raise ValueError(f"prompts: found {len(prompts)}, expected at least {least}")
    for prompt in prompts:
        check_text(prompt)
    length = sum(map(len, prompts))
    if length > MAX_PROMPT_CHARS:
        raise ValueError(f"prompts: found {length:,} characters, expected at most {MAX_PROMPT_CHARS:,}")
    if kind == "small":
        from sequoia_core.design.plain_trees import branching_tree

        tree, source = branching_tree(SMALL_BRANCHING), TREES["small"].lower()
    elif kind == "use":
        tree, source = session.tree(), session.tree_source()
    else:
        tree = core_cache.best_tree(session.acceptance(), *SHAPE)
        source = f"best of its shape for {session.acceptance_name() or 'the vector in use'}"
    return Subject(session.pair_name(), tree, source, tuple(prompts), tokens, session.pair_spec())
