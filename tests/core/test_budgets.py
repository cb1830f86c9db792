"""What may grow no further without a decision: lines, files, docstrings, words of documents.

A limit is lowered as soon as it can be. Public names and their parameters are limited in `test_public_api.py`, the
parameters of all other functions by ruff.
"""

import ast
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = {"sequoia_core": 30_716, "ui": 12_697, "pages": 866, "tests": 24_416}
FILE_LINES = 350  # of the engine and the app
WORDS = 14_500


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize(("folder", "limit"), LINES.items())
def test_lines_of_a_folder(folder, limit):
    assert sum(map(length, (ROOT / folder).rglob("*.py"))) <= limit


def test_lines_of_a_file():
    files = [path for folder in ("sequoia_core", "ui", "pages") for path in (ROOT / folder).rglob("*.py")]
    assert {str(path.relative_to(ROOT)): length(path) for path in files if length(path) > FILE_LINES} == {}


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
