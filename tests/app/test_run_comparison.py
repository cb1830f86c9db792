"""Two runs beside each other: where they part, and the rows that say how."""

import numpy as np

from sequoia_core.design.tree import TokenTree
from tests.app.test_decode_page import a_record
from ui.runs.run_comparison import divergence, first_token, setting_table, step_table, to_frame
from ui.runs.runs import DecodeRequest


def a_run(pieces: list[list[str]], parents: tuple[int, ...] = (-1, 0, 0), **asked) -> dict:
    tree = TokenTree(np.array(parents))
    steps = [a_record(index, tree) | {"pieces": texts} for index, texts in enumerate(pieces)]
    return DecodeRequest("p", tree, **asked).header() | {"shapes": [list(parents)], "steps": steps}


def test_equal_texts_do_not_part_however_they_came() -> None:
    assert divergence(a_run([["a", "b"], ["c"]]), a_run([["a"], ["b"], ["c"]])) is None


def test_the_step_that_wrote_the_first_other_character_is_named() -> None:
    left, right = a_run([["ab", "c"], ["de"]]), a_run([["a"], ["b"], ["cd"], ["x"]])
    found = divergence(left, right)
    assert (found.same, found.steps) == (4, (1, 3))
    assert divergence(left, a_run([["abc"]])).steps == (1, None)  # the other ends there
    assert divergence(a_run([["x"]]), a_run([["y"]])).same == 0


def test_only_differences_leaves_out_what_is_alike() -> None:
    left, right = a_run([["a"], ["b"]], seed=1), a_run([["a"], ["c"], ["d"]], temperature=0.6, seed=1)
    asked = setting_table(left, right, only_differences=True)
    assert asked.to_dict("records") == [{"setting": "Temperature", "left": "0.0", "right": "0.6"}]
    assert len(setting_table(left, right, only_differences=False)) > 5
    rows = step_table(left, right, only_differences=True)
    assert rows.index.name == "step" and list(rows.index) == [2, 3]
    assert rows.loc[2, ["text 1", "text 2"]].tolist() == ["b", "c"]
    assert rows.loc[3, ["text 1", "nodes 1", "ms 1"]].isna().all() and rows.loc[3, "text 2"] == "d"
    assert list(step_table(left, right, only_differences=False).index) == [1, 2, 3]
    assert to_frame(left)["ms"].tolist() == [1000 * sum(step["seconds"]) for step in left["steps"]]


def recorded(words: list[str], probs: dict[str, float]) -> dict:
    """Return a run of two tokens a step, one drafted and accepted, one bonus, with the same row for each."""
    row = {"texts": list(probs), "probs": list(probs.values())}
    nothing = {"texts": [], "probs": []}
    run = a_run([words[place : place + 2] for place in range(0, len(words), 2)], parents=(-1, 0))
    for step in run["steps"]:
        accepted, bonus = step["pieces"]
        step |= {"tokens": ["root", accepted], "path": [0, 1], "bonus": bonus}
        step["rows"] = [{"node": node, "target": row, "draft": nothing, "residuals": []} for node in (0, 1)]
    return run


def test_the_first_token_that_differs_comes_with_the_gap_of_its_logits() -> None:
    probs = {"a": 0.4, "b": 0.3999, "c": 0.1}
    left = recorded(["a", "a", "a", "a"], probs)
    for other, gap in (("b", np.log(0.4 / 0.3999)), ("c", np.log(4)), ("d", None)):
        found = first_token(left, recorded(["a", "a", "a", other], probs))
        assert (found.place, found.texts) == (3, ("a", other))
        assert found.gap is None if gap is None else np.isclose(found.gap, gap)
    assert first_token(left, recorded(["a", "a"], probs)) is None
    assert first_token(left, a_run([["b"]])) is not None and first_token(a_run([["b"]]), left).gap is None
