"""Documents name only existing files, identifiers, links, headings, make targets, commands and options."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.exceptions import TyperException
from typer.main import get_command

from sequoia_core.command_line.main import app
from sequoia_core.files.extras import installed
from sequoia_extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((ROOT / "sequoia_extras").rglob("*.md"))
FOLDERS = "sequoia_core sequoia_extras ui pages tests benchmarks scripts".split()
PATH = re.compile(rf"(?<![\w/.@-])(?:assets|docs|{'|'.join(FOLDERS)})/[\w./-]*\w")  # also in code blocks
FILE = re.compile(r"\w[\w-]*/[\w./-]+|[\w-]+\.(?:py|c|h|js|md|json|toml|txt)")  # a whole code span
NAME = re.compile(r"\b(?:[A-Z]\w{3,}|\w*_\w+)\b")  # a class, a constant, a function of several words


@cache
def words() -> frozenset[str]:
    """Return every word of the code."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".c", ".h")]
    files += [ROOT / "app.py", ROOT / "Makefile", ROOT / ".streamlit" / "config.toml"]
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


def anchors(document: Path) -> set[str]:
    """Return the headings of a document as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def faults(document: Path) -> list[str]:
    text = document.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", prose)
    python = "".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    files = [*PATH.findall(text), *filter(FILE.fullmatch, spans)]
    found = [file for file in files if not (ROOT / file).exists()]
    found += [name for name in NAME.findall(python) if name not in words()]
    for span in spans:
        dotted = re.match(r"\w+(?:\.\w+)+(?=\(|$)", span) if not FILE.fullmatch(span) else None
        names = dotted.group().split(".") if dotted else NAME.findall(re.sub(r"\S*[/.]\S*", "", span))
        found += [name for name in names if name not in words()]
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        file = document.parent / path if path else document
        if not link.startswith(("http:", "https:")) and (not file.exists() or (anchor and anchor not in anchors(file))):
            found.append(link)
    makefile = (ROOT / "Makefile").read_text()
    found += [call for call in re.findall(r"(?:`|^)make (\w+)", text, re.MULTILINE) if f"\n{call}:" not in makefile]
    calls = re.findall(r"(?:python -m sequoia_core|(?:`|^)sequoia) ([a-z][^`\n]*)", text, re.MULTILINE)
    return found + [f"sequoia {call}: {fault}" for call in calls if (fault := call_fault(call))]


def call_fault(call: str) -> str:
    """Return why a command line is invalid; a command without options is only checked by name."""
    command = get_command(app).commands.get(call.split()[0])
    if command is None or "--" not in call:
        return "" if command else "no such command"
    try:
        given, _, _ = command.make_parser(typer.Context(command)).parse_args(shlex.split(call, comments=True)[1:])
    except TyperException as error:
        return error.format_message()
    return ", ".join(f"lacks {one.name}" for one in command.params if one.required and given.get(one.name) is None)


@pytest.mark.skipif(len(installed()) < len(EXTRAS), reason="documents describe all optional packages")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_documents_name_only_existing_things(document):
    assert faults(document) == []
