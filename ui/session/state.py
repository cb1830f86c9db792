"""Values that one browser session keeps, under names that no widget has."""

from typing import Any

import streamlit as st


def get(name: str, default: Any = None) -> Any:
    """Return a value of this session."""
    return st.session_state.get(f"studio_{name}", default)


def put(name: str, value: Any) -> None:
    """Keep a value in this session."""
    st.session_state[f"studio_{name}"] = value
