"""Texts that nobody vouches for, written so that markdown shows them as they are. No Streamlit here."""

from __future__ import annotations

import re

MARKUP = re.compile(r"([\\`*_\[\]<>$~#|!])")
NAME_MARKUP = re.compile(r"[\\`*\[\]<>$~#|!:\n\r]")


def plain(text: str) -> str:
    """Escape what means something in markdown: no image is fetched, nothing is styled."""
    return MARKUP.sub(r"\\\1", text)


def safe_name(name: str) -> str:
    """Return a file's or folder's name without the characters that mean something in markdown."""
    return NAME_MARKUP.sub("_", name)
