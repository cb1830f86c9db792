"""No draft: what would trees of text already seen do for recorded answers? No model is loaded."""

from pathlib import Path

import streamlit as st

from sequoia_core.files.model_names import DEMO_PAIR, model_folder
from sequoia_core.files.response_logs import responses_from_bytes
from ui import controls, uploads
from ui.draft import replay_figures
from ui.jobs import job_panel, replays
from ui.jobs.replay_job import replay_work
from ui.phrases import count
from ui.session import session


def tokenizer() -> tuple[Path, str]:
    """Return the tokenizer of the target in use, or the demo pair's where its folder has none; and whose it is."""
    target = session.pair_spec().target
    folder = None if target is None else model_folder(target)
    if folder is not None and (Path(folder) / "tokenizer.json").is_file():
        return Path(folder), "the target in use"
    return DEMO_PAIR / "target", "the demo pair"


def section() -> None:
    """Draw which log to replay, and what it says."""
    st.caption(
        "How much would guessing from repeated text save, without a draft model? Recorded answers are followed through "
        "the trees that each step would have had; no model is loaded."
    )
    way = controls.source_picker("Which log", ["Shipped example", "Upload"], key="replay_log")
    if way == "Shipped example":
        found = replays.example()
        if found is None:
            st.info("The example is missing from this installation: upload a log.", icon=":material/upload_file:")
    else:
        upload = uploads.file_upload(
            "Recorded answers",
            ("jsonl", "json"),
            responses_from_bytes,
            key="replay_file",
            help="JSON lines or a JSON list, in the order in which requests came: prompt and response, prompt_ids and "
            "token_ids, messages with role and content, or requests and answers of an OpenAI-compatible server.",
        )
        active = job_panel.is_active("replay")
        if upload is not None and upload.error is not None:
            st.error(upload.error, icon=":material/error:")
        elif upload is not None and upload.value is not None:
            path, whose = tokenizer()
            is_text = any(request.is_text for request in upload.value)
            words = f"Replay {count(len(upload.value), 'request')}"
            if is_text:
                st.caption(f":material/translate: Text is encoded by the tokenizer of {whose}.")
            if controls.primary_button(
                words,
                icon=":material/replay:",
                key="replay_start",
                disabled=active,
            ):
                job_panel.start("replay", "Replay", replay_work(upload.value, upload.name, path))
        job_panel.draw("replay")
        found = replays.last()
        if found is None and not active:
            st.info(
                "Upload a log and replay it: what lookup trees would do for it appears here.", icon=":material/replay:"
            )
    if found is not None:
        replay_figures.draw(found)
