"""Two runs beside each other: where they part, and the rows that say how."""

from __future__ import annotations

import numpy as np

from sequoia_core.design.tree import TokenTree
from tests.app.test_decode_page import a_record
from ui.run_comparison import parting, setting_rows, step_rows
from ui.runs import DecodeRequest


def a_run(pieces: list[list[str]], parents: tuple[int, ...] = (-1, 0, 0), **asked) -> dict:
    tree = TokenTree(np.array(parents))
    steps = [a_record(index, tree) | {"pieces": texts} for index, texts in enumerate(pieces)]
    return DecodeRequest("p", tree, **asked).header() | {"shapes": [list(parents)], "steps": steps}


def test_equal_texts_do_not_part_however_they_came() -> None:
    assert parting(a_run([["a", "b"], ["c"]]), a_run([["a"], ["b"], ["c"]])) is None


def test_the_step_that_wrote_the_first_other_character_is_named() -> None:
    left, right = a_run([["ab", "c"], ["de"]]), a_run([["a"], ["b"], ["cd"], ["x"]])
    found = parting(left, right)
    assert (found.same, found.steps) == (4, (1, 3))
    assert parting(left, a_run([["abc"]])).steps == (1, None)  # the other ends there
    assert parting(a_run([["x"]]), a_run([["y"]])).same == 0


def test_only_differences_leaves_out_what_is_alike() -> None:
    left, right = a_run([["a"], ["b"]], seed=1), a_run([["a"], ["c"], ["d"]], temperature=0.6, seed=1)
    asked = setting_rows(left, right, only_differences=True)
    assert asked == [{"setting": "Temperature", "left": "0.0", "right": "0.6"}]
    assert len(setting_rows(left, right, only_differences=False)) > 5
    rows = step_rows(left, right, only_differences=True)
    assert [row["step"] for row in rows] == [2, 3]
    assert (rows[0]["text 1"], rows[0]["text 2"], rows[1]["text 1"], rows[1]["nodes 1"]) == ("b", "c", None, None)
    assert [row["step"] for row in step_rows(left, right, only_differences=False)] == [1, 2, 3]


def test_another_tree_is_a_difference_though_the_text_is_equal() -> None:
    left, right = a_run([["a"], ["b"]]), a_run([["a"], ["b"]], parents=(-1, 0))
    assert [(row["nodes 1"], row["nodes 2"]) for row in step_rows(left, right, only_differences=True)] == [(3, 2)] * 2
