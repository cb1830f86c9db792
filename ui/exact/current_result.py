"""Which result of a part of the evidence page is on show, where it comes from, and its files.

Each part (`evidence.PARTS`) shows what this session measured last, else what was recorded beforehand.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import streamlit as st

from sequoia_core import TokenTree
from ui import controls, record_files
from ui.exact import wording
from ui.exact.wording import Row
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.phrases import count, shape
from ui.session import evidence, session
from ui.session.evidence import job_name


def latest(part: str) -> Row | None:
    """Return this session's newest result of a part, else the recorded one; None without either."""
    job = session_jobs.job(job_name(part))
    if job is not None and job.result is not None:
        return job.result  # which may be partial: what it has kept so far
    try:
        return evidence.latest(part)
    except ValueError as error:
        st.warning(f"{escaped(str(error))}. Restore the file from the repository.", icon=":material/warning:")
        return None


def result(part: str) -> Row | None:
    """Draw a part's progress or failure and where the result on show comes from -> that result."""
    job_panel.draw(job_name(part))
    record, job = latest(part), session_jobs.job(job_name(part))
    if record is None:
        st.info("Nothing measured yet: start it above. The defaults take a minute or two.", icon=":material/info:")
        return None
    settings = record["settings"]
    how = f"recorded on {settings['recorded']} on the" if "recorded" in settings else "measured here on the"
    st.markdown(f":material/label: **Shown:** {how} {escaped(settings['pair'])}, {escaped(_conditions(settings))}")
    if job is not None and job.state == "cancelled":
        kept = "nothing was complete by then" if job.result is None else "what was complete by then is on show"
        st.caption(f":material/stop_circle: Cancelled: {kept}.")
    if settings["pair"] != session.pair_name():
        st.warning(f"The pair in use is the {session.pair_name()}: start it above for its own figures.")
    return record


def _conditions(settings: Mapping) -> str:
    tree = TokenTree(np.array(settings["tree"], dtype=np.int32))
    prompts = settings.get("prompts", settings.get("fit_prompts", 0) + settings.get("held_out_prompts", 0))
    parts = [f"{count(prompts, 'prompt')} × {settings['max_new_tokens']} tokens"] if prompts else []
    parts += [wording.sampling_label(settings)] if "temperature" in settings else []
    return ", ".join([*parts, f"tree {shape(tree.size, tree.depth)} ({settings['tree_source']})"])


def downloads(part: str, record: Row, tables: Mapping[str, Sequence[Row]]) -> None:
    """Offer a result as JSON and its tables as CSV, each with the settings."""
    with st.container(horizontal=True):
        controls.download(
            "Download JSON",
            record_files.to_json(part, record),
            f"{part}.json",
            key=f"robustness_{part}_json",
            help="Everything on show with its settings.",
        )
        for name, rows in tables.items():
            if rows:
                controls.download(
                    f"{name} as CSV",
                    record_files.to_csv(rows, record["settings"]),
                    f"{part}-{name.lower().replace(' ', '-')}.csv",
                    key=f"robustness_{part}_csv_{name.lower().replace(' ', '_')}",
                    icon=":material/table:",
                    help="One row per value, with the settings in further columns.",
                )
