"""Uploaded files and pasted texts: each is read only once, and errors fit on one line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Generic, TypeVar

import streamlit as st

from sequoia_core.trees.tree import TokenTree
from ui.markdown import escaped, safe_name
from ui.tree_layout import MAX_DRAWN

Value = TypeVar("Value")
TREE_TYPES = ("json", "pt", "txt")


@dataclass(frozen=True, slots=True)
class Upload(Generic[Value]):
    """An uploaded file or a pasted text: its value or a one-line error, and whether it is new in this script run.

    The name and error are safe to show as markdown.
    """

    name: str
    value: Value | None
    error: str | None
    is_new: bool


def file_upload(
    label: str,
    types: Sequence[str],
    loads: Callable[[bytes, str], Value],
    *,
    key: str,
    help: str,
    read_as: object = None,
) -> Upload[Value] | None:
    """Draw an uploader and read its file once; return None while nothing is uploaded.

    The types are not passed to the browser, because it would reject a file without clearing the last file's message.

    Args:
        types: accepted extensions, without dots.
        loads: function that reads (content, name) and raises ValueError if the file is invalid.
        read_as: options that `loads` uses; the file is read again when they change.
    """
    file = st.file_uploader(label, key=key, help=help)
    if file is None:
        st.session_state.pop(f"{key}_read", None)
        return None
    seen = st.session_state.get(f"{key}_read")
    if seen is not None and seen[0] == (file.file_id, read_as):
        return replace(seen[1], is_new=False)

    def read() -> Value:
        ending = PurePath(file.name).suffix.lower()
        if ending not in [f".{each}" for each in types]:
            raise ValueError(
                f"{file.name}: found the extension {ending or 'none'!r}, expected one of .{', '.join(types)}"
            )
        return loads(file.getvalue(), file.name)

    upload = new_upload(file.name, read)
    st.session_state[f"{key}_read"] = ((file.file_id, read_as), upload)
    return upload


def new_upload(name: str, read: Callable[[], Value]) -> Upload[Value]:
    """Return what `read` returns as a new upload, or the ValueError that it raises as a one-line error."""
    value = error = None
    try:
        value = read()
    except ValueError as caught:
        error = escaped(" ".join(str(caught).split()))
    return Upload(safe_name(name), value, error, is_new=True)


def tree_upload(*, key: str) -> Upload[TokenTree] | None:
    """Draw an uploader for tree files in all supported formats, up to the largest size that can be drawn."""
    return file_upload(
        "Tree file",
        TREE_TYPES,
        _read_tree,
        key=key,
        help="Sequoia JSON, a reference growmap (.pt), UMbreLLa JSON, a list of paths (Medusa, EAGLE), or a vLLM tree.",
    )


def _read_tree(data: bytes, name: str) -> TokenTree:
    from sequoia_core.trees.tree_files import tree_from_bytes

    tree = tree_from_bytes(data, name)
    if tree.size > MAX_DRAWN:
        raise ValueError(f"{name}: found {tree.size:,} nodes, expected at most {MAX_DRAWN:,} to draw and decode with")
    return tree
