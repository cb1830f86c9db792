"""Public names, and the example in the README."""

import re

import pytest

import sequoia_core
from sequoia_core.files.model_names import ASSETS
from tests.commands import without

NAMES = """
    load_pair ModelPair decode autoregressive DecodeStep SamplingConfig TokenTree optimal_tree plan_tree speedup_surface
    predicted_speedup AcceptanceVector measure_acceptance HardwareProfile measure_profile
""".split()


def test_the_fifteen_public_names_resolve():
    assert sorted(NAMES) == sequoia_core.__all__ and len(NAMES) == 15
    assert all(getattr(sequoia_core, name).__name__ == name for name in NAMES)
    with pytest.raises(AttributeError):
        _ = sequoia_core.nothing
    with pytest.raises(ImportError, match=r"from sequoia_extras\.dynamic_trees import LookupTree"):
        from sequoia_core import LookupTree  # noqa: F401


def test_importing_the_package_leaves_the_environment_unchanged():
    without([], "import os; before = dict(os.environ); import sequoia_core; assert before == os.environ")


@pytest.mark.slow
def test_the_readme_example_runs(capsys):
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (ASSETS.parent / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    exec(compile(example, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 100
