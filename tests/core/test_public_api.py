"""The public names, and the example in README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sequoia_core

ROOT = Path(__file__).resolve().parents[2]
NAMES = """
    load_pair ModelPair decode autoregressive DecodeStep SamplingConfig TokenTree optimal_tree plan_tree speedup_surface
    predicted_speedup AcceptanceVector measure_acceptance HardwareProfile measure_profile AdaptiveTree HybridTree
    LookupTree
""".split()


def test_there_are_eighteen_and_they_resolve():
    assert sorted(NAMES) == sequoia_core.__all__ and len(NAMES) == 18
    assert all(getattr(sequoia_core, name).__name__ == name for name in NAMES)
    with pytest.raises(AttributeError):
        _ = sequoia_core.nothing


def test_importing_the_package_changes_no_environment():
    code = "import os; before = dict(os.environ); import sequoia_core; assert before == os.environ"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=dict(os.environ))


@pytest.mark.slow
def test_the_example_of_the_readme_runs(capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(example, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 100
