"""What may grow no further without a decision: lines, files, public names, parameters, docstrings, words of documents.

A limit is lowered as soon as it can be.
"""

import ast
import inspect
import statistics
from pathlib import Path

import pytest

import sequoia_core

ROOT = Path(__file__).resolve().parents[2]
LINES = {"sequoia_core": 30_800, "ui": 12_000, "pages": 1_350, "tests": 34_400}
FILE_LINES = 350  # of the engine and the app
PUBLIC_NAMES = 18
PARAMETERS = 10
WORDS = 15_500


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize(("folder", "limit"), LINES.items())
def test_lines_of_a_folder(folder, limit):
    assert sum(map(length, (ROOT / folder).rglob("*.py"))) <= limit


def test_lines_of_a_file():
    files = [path for folder in ("sequoia_core", "ui", "pages") for path in (ROOT / folder).rglob("*.py")]
    assert {str(path.relative_to(ROOT)): length(path) for path in files if length(path) > FILE_LINES} == {}


def test_public_names_and_their_parameters():
    assert len(sequoia_core.__all__) <= PUBLIC_NAMES
    public = [getattr(sequoia_core, name) for name in sequoia_core.__all__]
    counts = {each.__name__: len(inspect.signature(each).parameters) for each in public if inspect.isfunction(each)}
    assert "decode" in counts and {name: count for name, count in counts.items() if count > PARAMETERS} == {}


def test_a_docstring_is_one_line_as_a_rule():
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [
        ast.get_docstring(node)
        for path in (ROOT / "sequoia_core").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, holders)
    ]
    assert statistics.median(len(text.splitlines()) for text in texts if text) == 1


def test_words_of_documents():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "assets" / "demo" / "README.md"]
    assert sum(len(path.read_text().split()) for path in documents) <= WORDS
