"""Comparison of two runs: divergence of texts, and tables of differences."""

import numpy as np
import pytest

from sequoia_core.trees.tree import TokenTree
from tests.app.test_decode_page import make_record
from ui.runs.run_comparison import (
    Divergence,
    find_divergence,
    first_different_token,
    setting_table,
    step_table,
)
from ui.runs.runs import DecodeRequest
from ui.runs.saved_runs import describe_divergence


def a_run(pieces: list[list[str]], parents: tuple[int, ...] = (-1, 0, 0), **asked) -> dict:
    tree = TokenTree(np.array(parents))
    steps = [make_record(index, tree) | {"pieces": texts} for index, texts in enumerate(pieces)]
    return DecodeRequest("p", tree, **asked).header() | {"shapes": [list(parents)], "steps": steps}


def test_divergence_has_the_steps_of_the_first_different_character() -> None:
    left, right = a_run([["ab", "c"], ["de"]]), a_run([["a"], ["b"], ["cd"], ["x"]])
    found = find_divergence(left, right)
    assert (found.same, found.steps) == (4, (1, 3))
    assert find_divergence(left, a_run([["a", "bc", "de"]])) is None
    assert find_divergence(left, a_run([["abc"]])).steps == (1, None)
    assert find_divergence(a_run([["x"]]), a_run([["y"]])).same == 0


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((6, 5), "They part in step 7 of A and step 6 of B."),
        ((0, 0), "They part in step 1 of both."),
        ((None, 3), "There A ends, and B continues in its step 4."),
        ((3, None), "There B ends, and A continues in its step 4."),
    ],
)
def test_a_divergence_names_the_step_of_each_run(steps, words: str) -> None:
    assert describe_divergence(Divergence(120, steps)) == f"The texts are the same for 120 characters. {words}"


def test_only_differences_omits_equal_rows() -> None:
    left, right = a_run([["a"], ["b"]], seed=1), a_run([["a"], ["c"], ["d"]], temperature=0.6, seed=1)
    asked = setting_table(left, right, only_differences=True)
    assert asked.to_dict("records") == [{"setting": "Temperature", "A": "0.0", "B": "0.6"}]
    rows = step_table(left, right, only_differences=True)
    assert rows.index.name == "step" and list(rows.index) == [2, 3]
    assert rows.loc[2, ["text A", "text B"]].tolist() == ["b", "c"]
    assert rows.loc[3, ["text A", "nodes A", "ms A"]].isna().all() and rows.loc[3, "text B"] == "d"


def recorded(words: list[str], probs: dict[str, float]) -> dict:
    """Return a run of two tokens per step, an accepted and a bonus token, with equal rows."""
    row = {"texts": list(probs), "probs": list(probs.values())}
    nothing = {"texts": [], "probs": []}
    run = a_run([words[place : place + 2] for place in range(0, len(words), 2)], parents=(-1, 0))
    for step in run["steps"]:
        accepted, bonus = step["pieces"]
        step |= {"tokens": ["root", accepted], "path": [0, 1], "bonus": bonus}
        step["rows"] = [{"node": node, "target": row, "draft": nothing, "residuals": []} for node in (0, 1)]
    return run


def test_the_first_different_token_has_its_logit_gap() -> None:
    probs = {"a": 0.4, "b": 0.3999, "c": 0.1}
    left = recorded(["a", "a", "a", "a"], probs)
    for other, gap in (("b", np.log(0.4 / 0.3999)), ("c", np.log(4)), ("d", None)):
        found = first_different_token(left, recorded(["a", "a", "a", other], probs))
        assert (found.position, found.texts) == (3, ("a", other))
        assert found.gap is None if gap is None else np.isclose(found.gap, gap)
    assert first_different_token(left, recorded(["a", "a"], probs)) is None
    assert first_different_token(left, a_run([["b"]])) is not None
    assert first_different_token(a_run([["b"]]), left).gap is None
