"""Escaping of untrusted text for markdown and charts. No Streamlit.

Elements that render markdown get text from `escaped`, and charts get text from `for_chart`. File and folder names
pass through `safe_name` once, on input. Select boxes, tables, code and text areas show text literally.
"""

import html
import re

from sequoia_core.files.safe_files import visible

WORD_JOINER = "\u2060"  # zero-width; breaks patterns for which the client searches in unescaped text
MARKUP = re.compile(r"([\\`*_\[\]<>$~#|!&])")
LIST_MARK = re.compile(r"^(\s*)([-+=]|\d+(?=[.)]))")
# After unescaping, the client replaces links, addresses, emoji, icons and arrows in the text.
CLIENT_PATTERNS = re.compile(
    r"(?<=:)(?=\S)|(?<=@)(?=\S)|(?<=www)(?=\.)|(?<=-)(?=\\?>)|(?<=-)(?=-)|(?<=[<>])(?=[-=])", re.I
)
# ASCII characters with a special meaning in markdown, charts or spreadsheets.
NAME_MARKUP = re.compile(r"[!-&*/:<>?@\[\\\]^`{|}~]")
MAX_CHARS = 1000
MAX_NAME = 120


def escaped(text: str, limit: int = MAX_CHARS) -> str:
    """Return the text as one line of at most `limit` characters, escaped so that markdown shows it literally."""
    shown = _cut(text, limit)
    escaped = LIST_MARK.sub(r"\1\\\2" if not shown.lstrip()[:1].isdigit() else r"\1\2\\", MARKUP.sub(r"\\\1", shown))
    return CLIENT_PATTERNS.sub(WORD_JOINER, escaped)


def _cut(text: str, limit: int) -> str:
    shown = visible(text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def safe_name(name: str) -> str:
    """Return a file or folder name without characters that are special in markdown, charts or spreadsheets."""
    shown = NAME_MARKUP.sub("-", visible(name[:MAX_NAME])).replace("\ufffd", "-")
    shown = re.sub(r"(?<![^\W_])_|_(?![^\W_])", "-", shown)  # an underscore inside a word has no effect
    shown = re.sub(r"(?i)www\.", "www-", shown)
    return shown.strip(" -+=") or "unnamed"


def for_chart(text: str, limit: int = 80) -> str:
    """Escape the tags, entities, formulas and hover fields of a chart's labels."""
    shown = _cut(text, limit)
    return html.escape(shown, quote=False).replace("%{", f"%{WORD_JOINER}{{").replace("$", f"${WORD_JOINER}")


def quoted(text: str, limit: int = 60) -> str:
    """Return text in quotes, with control characters escaped, for elements that show text literally."""
    quoted = repr(text)
    return quoted if len(quoted) <= limit else f"{quoted[: limit - 1]}…"
