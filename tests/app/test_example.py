"""The example notebook runs: it decodes the target's text and draws a tree."""

import ast
import json

import plotly.graph_objects as go
import pytest

from tests.app.conftest import ROOT


@pytest.mark.slow
def test_the_notebook_runs(capsys):
    names: dict = {}
    cells = json.loads((ROOT / "examples" / "decode.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = [_run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert names["text"] == names["alone"] and names["speedup"] >= 1.0
    assert [type(value) for value in shown if value is not None] == [go.Figure]
    assert "tokens in" in capsys.readouterr().out


def _run(source: str, names: dict) -> object:
    """Run a cell as Jupyter does and return the value of its last line."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
