"""Files that a user brings: read once, with the cause in one line where one cannot be used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Generic, TypeVar

import streamlit as st

from sequoia_core.design.tree import TokenTree
from ui.markdown import escaped, safe_name
from ui.tree_layout import MAX_DRAWN

T = TypeVar("T")
TREE_TYPES = ("json", "pt", "txt")


@dataclass(frozen=True, slots=True)
class Upload(Generic[T]):
    """One uploaded file: its value or the one-line cause why not, and whether this run is the first to see it.

    Name and cause are safe to write into markdown.
    """

    name: str
    value: T | None
    error: str | None
    is_new: bool


def file_upload(
    label: str, types: Sequence[str], loads: Callable[[bytes, str], T], *, key: str, help: str, read_as: object = None
) -> Upload[T] | None:
    """Draw an uploader and read its file once; None while nothing is uploaded.

    The browser is not told the types: it would refuse a file by itself and leave what is said about the one before.

    Args:
        types: extensions accepted, without dots.
        loads: reads (content, name); raises ValueError for a file it cannot use.
        read_as: what the reader said of the file; with another the file is read again.
    """
    file = st.file_uploader(label, key=key, help=help)
    if file is None:
        st.session_state.pop(f"{key}_read", None)
        return None
    seen = st.session_state.get(f"{key}_read")
    if seen is not None and seen[0] == (file.file_id, read_as):
        _, name, value, error = seen
        return Upload(name, value, error, is_new=False)
    value, error = None, None
    try:
        if (ending := PurePath(file.name).suffix.lower()) not in [f".{each}" for each in types]:
            raise ValueError(
                f"{file.name}: found the ending {ending or 'none'!r}, expected one of .{', .'.join(types)}"
            )
        value = loads(file.getvalue(), file.name)
    except ValueError as caught:
        error = escaped(" ".join(str(caught).split()))
    name = safe_name(file.name)
    st.session_state[f"{key}_read"] = ((file.file_id, read_as), name, value, error)
    return Upload(name, value, error, is_new=True)


def tree_upload(*, key: str) -> Upload[TokenTree] | None:
    """Draw an uploader for a tree file of any known format that is small enough to be drawn and decoded with."""
    return file_upload(
        "Tree file",
        TREE_TYPES,
        _read_tree,
        key=key,
        help="Sequoia JSON, a reference growmap (.pt), UMbreLLa JSON, a list of paths (Medusa, EAGLE), or a vLLM tree.",
    )


def _read_tree(data: bytes, name: str) -> TokenTree:
    from sequoia_core.design.tree_files import tree_from_bytes

    tree = tree_from_bytes(data, name)
    if tree.size > MAX_DRAWN:
        raise ValueError(f"{name}: found {tree.size:,} nodes, expected at most {MAX_DRAWN:,} to draw and decode with")
    return tree
