"""What may grow no further without a decision: code tokens, lines of a file, docstrings, words of documents.

Tokens are counted because packing two statements into one line saves none. Public names and their parameters are
limited in `test_public_api.py`, the parameters of all other functions by ruff.
"""

import ast
import io
import statistics
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE_TOKENS = {("sequoia_core",): 238_700, ("ui", "pages"): 90_500, ("tests",): 273_000}
SLACK = 1.02  # so that a fix fits without a decision
FILE_LINES = 350  # of the engine and the app
WORDS = 14_500
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(source: str) -> set[int]:
    holders = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    strings = [node.body[0] for node in holders if ast.get_docstring(node, clean=False) is not None]
    return {line for string in strings for line in range(string.lineno, string.end_lineno + 1)}


def code_tokens(source: str) -> int:
    """Count the tokens that are no comment, layout or part of a docstring."""
    described = docstring_lines(source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT and token.start[0] not in described for token in tokens)


def test_code_tokens_leave_out_comments_and_docstrings():
    source = '"""A docstring\nof two lines."""\n\n\ndef f(x):  # a comment\n    """Return x."""\n    return x\n'
    assert code_tokens(source) == len("def f ( x ) : return x".split())


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize(("folders", "limit"), CODE_TOKENS.items())
def test_code_tokens_of_a_part(folders, limit):
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert sum(code_tokens(path.read_text()) for path in files) <= SLACK * limit


def test_lines_of_a_file():
    files = [path for folder in ("sequoia_core", "ui", "pages") for path in (ROOT / folder).rglob("*.py")]
    assert {str(path.relative_to(ROOT)): length(path) for path in files if length(path) > FILE_LINES} == {}


def test_a_docstring_is_one_line_as_a_rule():
    texts = [
        ast.get_docstring(node)
        for path in (ROOT / "sequoia_core").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, DOCUMENTED)
    ]
    assert statistics.median(len(text.splitlines()) for text in texts if text) == 1


def test_words_of_documents():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "assets" / "demo" / "README.md"]
    assert sum(len(path.read_text().split()) for path in documents) <= WORDS
