"""Texts from outside the app, written so that markdown and charts show them as they are; no Streamlit.

Nothing that came from outside is ever markdown: elements that read markdown get `escaped` text, charts `for_chart`;
names of files and folders pass `safe_name` once, when they come in. Select boxes, tables, code and text areas show text
as it is.
"""

import html
import re

from sequoia_core.files.safe_files import visible

UNSEEN = "\u2060"  # a joiner without width: breaks patterns that the client looks for in unescaped text
MARKUP = re.compile(r"([\\`*_\[\]<>$~#|!&])")
LIST_MARK = re.compile(r"^(\s*)([-+=]|\d+(?=[.)]))")
# The client finds links, addresses, emoji and icons in the text that is left when escapes are gone, and turns arrows.
FOUND_LATER = re.compile(r"(?<=:)(?=\S)|(?<=@)(?=\S)|(?<=www)(?=\.)|(?<=-)(?=\\?>)|(?<=-)(?=-)|(?<=[<>])(?=[-=])", re.I)
# The ASCII characters that mean something in markdown, charts or spreadsheets.
NAME_MARKUP = re.compile(r"[!-&*/:<>?@\[\\\]^`{|}~]")
MAX_CHARS = 1000
MAX_NAME = 120


def escaped(text: str, limit: int = MAX_CHARS) -> str:
    """Escape markdown in one line of at most `limit` characters: nothing is fetched, linked, styled or replaced."""
    shown = visible(text[: limit + 1])
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    escaped = LIST_MARK.sub(r"\1\\\2" if not shown.lstrip()[:1].isdigit() else r"\1\2\\", MARKUP.sub(r"\\\1", shown))
    return FOUND_LATER.sub(UNSEEN, escaped)


def safe_name(name: str) -> str:
    """Return a file's or folder's name without what means something in markdown, in a chart, or in a spreadsheet."""
    shown = NAME_MARKUP.sub("-", visible(name[:MAX_NAME])).replace("\ufffd", "-")
    shown = re.sub(r"(?<![^\W_])_|_(?![^\W_])", "-", shown)  # one inside a word styles nothing
    shown = re.sub(r"(?i)www\.", "www-", shown)
    return shown.strip(" -+=") or "unnamed"


def for_chart(text: str, limit: int = 80) -> str:
    """Escape what means something in a chart's labels: tags, entities, formulas, and the fields of a hover text."""
    shown = visible(text[: limit + 1])
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    return html.escape(shown, quote=False).replace("%{", f"%{UNSEEN}{{").replace("$", f"${UNSEEN}")


def quoted(text: str, limit: int = 60) -> str:
    """Write text in quotes with control characters spelled out, for places that show text as it is."""
    quoted = repr(text)
    return quoted if len(quoted) <= limit else f"{quoted[: limit - 1]}…"
