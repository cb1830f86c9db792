"""Controls to enter an acceptance vector as a file or as pasted numbers."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.vector_files import ENTRY_LAYOUTS, PercentageError
from ui import uploads
from ui.markdown import escaped
from ui.phrases import count
from ui.session import session

VECTOR_FILE_TYPES = ("json", "csv", "tsv", "txt", "npy", "safetensors", "pt", "pth")
MAX_NOTE = 300  # maximum length of a displayed note, in characters
PASTED_KEY = "acceptance_pasted"  # the last text that was used, its layout, and the upload read from it
USED_KEY = "acceptance_used"  # the last `VectorInput` that became the current vector


class VectorInput(NamedTuple):
    """A vector that the user entered, and an error if its values are valid only as percentages; otherwise empty."""

    vector: AcceptanceVector
    error: str


def vector_input() -> None:
    """Draw a file uploader and a field for numbers; invalid input does not replace the current vector."""
    entries = st.selectbox(
        "Layout of the file's entries",
        [None, *ENTRY_LAYOUTS],
        key="acceptance_entries",
        format_func=lambda name: "detect automatically" if name is None else name,
        help="ranks: one entry per rank. padded: a 0 precedes rank 1. rest-first, rest-last: the first or last "
        "entry is the probability that no rank is accepted. padded-rest-last: both, as written by the reference "
        "implementation.",
    )
    upload = uploads.file_upload(
        "Acceptance vector",
        VECTOR_FILE_TYPES,
        lambda data, name: _read(data, name, entries),
        key="acceptance_file",
        read_as=entries,
        help="CSV (one column is enough), JSON, .npy, .safetensors, or a .pt file of the reference implementation. The "
        "sum of the entries must be at most 1.",
    )
    if upload is not None and upload.is_new:
        st.session_state.pop(PASTED_KEY, None)
    pasted = _pasted_numbers(entries)
    if pasted is not None:
        _use_or_refuse(pasted, "your pasted numbers")
    elif upload is not None:
        _use_or_refuse(upload, f"your file {upload.name}")
    else:
        st.caption("A CSV file has one line per rank with its acceptance, starting at rank 1: 1, 0.72 and 2, 0.11.")


def _read(data: bytes, name: str, entries: str | None) -> VectorInput:
    try:
        return VectorInput(AcceptanceVector.loads(data, name, entries), "")
    except PercentageError as error:
        return VectorInput(AcceptanceVector.loads(data, name, entries, percent=True), escaped(str(error)))


def _pasted_numbers(entries: str | None) -> uploads.Upload[VectorInput] | None:
    """Draw a field for numbers; return what was read from it, or None if its text has changed since."""
    text = st.text_area(
        "Paste numbers",
        key="acceptance_paste",
        height=90,
        placeholder="72%, 11%, 5%",
        help="Acceptance by rank, separated by commas, semicolons, spaces or lines; ranks and a header are optional.",
    )
    pressed = st.button("Use these numbers", key="acceptance_paste_use", icon=":material/check:")
    known_text, known_entries, upload = st.session_state.get(PASTED_KEY, (None, None, None))
    is_new = pressed or (known_text == text and known_entries != entries)
    if is_new:
        upload = uploads.new_upload("Pasted text", lambda: _read(text.encode(), "Pasted text", entries))
        st.session_state[PASTED_KEY] = (text, entries, upload)
    elif known_text != text:
        return None
    return replace(upload, is_new=is_new)


def _use_or_refuse(upload: uploads.Upload[VectorInput], source: str) -> None:
    """Use a new vector and confirm it, or show the error and offer to read the values as percentages."""
    entered = upload.value
    is_used = entered is not None and st.session_state.get(USED_KEY) is entered
    error = upload.error if entered is None else entered.error
    use = upload.is_new
    if error and not is_used:
        st.error(f"{error}. The previous vector stays in use.", icon=":material/error:")
        use = entered is not None and st.button(
            "Read as percentages", key="acceptance_percent", icon=":material/percent:"
        )
    if entered is None:
        return
    if use:
        st.session_state[USED_KEY] = entered
        session.set_acceptance(entered.vector, source, upload.name)
        st.rerun()  # the bar was drawn before
    vector = entered.vector
    if is_used and np.array_equal(vector.probs, session.original_acceptance().probs):
        note = f" {escaped(vector.note[:MAX_NOTE])}" if vector.note else ""
        st.success(
            f"{upload.name} is now the current vector ({count(len(vector), 'rank')}).{note}",
            icon=":material/check_circle:",
        )
