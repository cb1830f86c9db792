"""Size limits: code tokens per part, lines per file, docstring length, and words of documents.

Code tokens are counted instead of lines because packing two statements into one line does not save any. The number of
public names and their parameters is limited in `test_public_api.py`; ruff limits the parameters of all other functions.
"""

import ast
import io
import statistics
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE_TOKENS = {("sequoia_core",): 105_500, ("sequoia_extras",): 136_000, ("ui", "pages"): 84_000, ("tests",): 281_000}
SLACK = 1.02  # leaves room for bug fixes
FILE_LINES = 350
FUNCTION_LINES = 60
PACKED_SHARE = 0.005  # assignments of the form a, b = x, y, as a share of all statements
UNFORMATTED = 30  # `# fmt: skip` comments
WORDS = 13_000
SOURCES = ("sequoia_core", "sequoia_extras", "ui", "pages")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(source: str) -> set[int]:
    holders = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    strings = [node.body[0] for node in holders if ast.get_docstring(node, clean=False) is not None]
    return {line for string in strings for line in range(string.lineno, string.end_lineno + 1)}


def code_tokens(source: str) -> int:
    """Count tokens other than comments, layout and docstrings."""
    described = docstring_lines(source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT and token.start[0] not in described for token in tokens)


def test_code_tokens_leave_out_comments_and_docstrings():
    source = '"""A docstring\nof two lines."""\n\n\ndef f(x):  # a comment\n    """Return x."""\n    return x\n'
    assert code_tokens(source) == len("def f ( x ) : return x".split())


@cache
def parsed(*folders: str) -> dict[str, ast.Module]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


@pytest.mark.parametrize(("folders", "limit"), CODE_TOKENS.items())
def test_code_tokens_per_part(folders, limit):
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert sum(code_tokens(path.read_text()) for path in files) <= SLACK * limit


def test_lines_per_file():
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in parsed(*SOURCES)}
    assert {path: length for path, length in lengths.items() if length > FILE_LINES} == {}


def test_lines_per_function():
    functions = [
        (f"{path}: {node.name}", node.end_lineno - node.lineno + 1)
        for path, tree in parsed(*SOURCES).items()
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED[2:])
    ]
    assert [name for name, length in functions if length > FUNCTION_LINES] == []


def test_lines_are_not_packed():
    statements = [node for tree in parsed(*SOURCES).values() for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    packed = [
        node
        for node in statements
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ]
    assert len(packed) <= PACKED_SHARE * len(statements)
    assert sum((ROOT / path).read_text().count("# fmt: skip") for path in parsed(*SOURCES)) <= UNFORMATTED


def test_public_class_names_are_unique():
    trees = parsed(*SOURCES).values()
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def test_the_median_docstring_is_one_line():
    trees = parsed("sequoia_core", "sequoia_extras").values()
    texts = [ast.get_docstring(node) for tree in trees for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    assert statistics.median(len(text.splitlines()) for text in texts if text) == 1


def test_words_of_documents():
    documents = [*ROOT.glob("*.md"), ROOT / "assets" / "demo" / "README.md"]
    documents += [path for folder in ("docs", "sequoia_extras") for path in (ROOT / folder).rglob("*.md")]
    words = [word for path in documents for word in path.read_text().split() if any(map(str.isalnum, word))]
    assert len(words) <= SLACK * WORDS
