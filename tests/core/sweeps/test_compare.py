"""Cells are what vectors, replays and decodes say when they are computed alone; regret is that of the shared tree."""

import numpy as np
import pytest

from sequoia_core import AcceptanceVector
from sequoia_core.design.bootstrap import ratio_estimate
from sequoia_core.design.optimal_trees import optimal_tree
from sequoia_core.design.replay import replay
from sequoia_core.design.tree_comparison import regret_matrix
from sequoia_core.sweeps.compare import ALL, Setting, compare
from sequoia_core.sweeps.results import vector_of

from .hand_made import decoded, measured, table

EASY = [1, 1, 1, 1, 2, 1, 1, 0] * 4
HARD = [0, 2, 0, 1, 3, 0, 4, 2] * 4


def sweep(**more):
    """Two kinds of text, of which a draft is good at one; lookup and both decoded the other."""
    return table(
        measured("a", EASY, **more), measured("b", EASY[:24], **more), measured("c", HARD, domain="edits", **more),
        measured("d", HARD[3:], domain="edits", **more), decoded("c", [4, 4, 8], domain="edits", **more),
        decoded("d", [1, 1, 2], domain="edits", **more), decoded("a", [5, 3], both=True, **more),
    )  # fmt: skip


def by_name(comparison):
    return {drafter.name: drafter for drafter in comparison.drafters}


def test_cells_of_a_draft_are_those_of_its_vector():
    rows = sweep()
    comparison = compare(rows)
    drafter = by_name(comparison)["small"]
    assert comparison.max_size == 8 and not comparison.notes
    for domain in ("code", "edits", ALL):
        own = rows[(rows["kind"] == "model") & ((rows["domain"] == domain) | (domain == ALL))]
        cell, vector = comparison.cells[drafter, Setting(0.0, 1.0, domain)], vector_of(own)
        assert cell.vector == vector and cell.first_guess == vector.probs[0]
        texts = replay(optimal_tree(vector, size=8), vector)
        assert cell.tokens_per_step.value == texts.tokens_per_step
        assert cell.tokens_per_step == ratio_estimate(texts.tokens, texts.steps, few=True)
        assert cell.prompts["steps"].tolist() == texts.steps.tolist()
        assert cell.prompts["tokens"].tolist() == own["positions"].tolist()
        assert [prompt for _, prompt in cell.prompts.index] == own["prompt_hash"].tolist()


def test_cells_of_decodes_are_tokens_per_step():
    comparison = compare(sweep())
    names = by_name(comparison)
    assert list(names) == ["small", "lookup", "small + lookup"]
    lookup = comparison.cells[names["lookup"], Setting(0.0, 1.0, "edits")]
    assert lookup.tokens_per_step.value == 20 / 6 and lookup.vector is lookup.tree is lookup.first_guess is None
    both = comparison.cells[names["small + lookup"], Setting(0.0, 1.0, "code")]
    assert both.tokens_per_step == (4.0, None, None)  # a single prompt has no interval
    # What was not decoded on every kind of text has no cell for all of them: it would be compared with other texts.
    assert {setting.domain for drafter, setting in comparison.cells if drafter.kind != "model"} == {"code", "edits"}


def test_regret_is_what_the_shared_tree_loses():
    rows = sweep()
    comparison = compare(rows)
    drafter = by_name(comparison)["small"]
    model = rows[rows["kind"] == "model"]
    for domain in ("code", "edits"):
        cell = comparison.cells[drafter, Setting(0.0, 1.0, domain)]
        lost = regret_matrix([vector_of(model), cell.vector], size=8, depth=7).share[0, 1]
        assert cell.texts_regret == pytest.approx(lost) and cell.temperatures_regret is None
    assert comparison.cells[drafter, Setting(0.0, 1.0, "code")].texts_regret > 0.01
    assert comparison.cells[drafter, Setting(0.0, 1.0)].texts_regret is None


def test_the_tree_for_all_temperatures_is_that_of_their_pooled_counts():
    comparison = compare(table(measured("a", EASY), measured("a", HARD, temperature=0.6)))
    pooled = AcceptanceVector(np.bincount(EASY + HARD, minlength=5)[1:] / len(EASY + HARD))
    assert [str(setting) for _, setting in comparison.cells] == ["T = 0, code", "T = 0.6, code"]
    for cell in comparison.cells.values():
        lost = regret_matrix([pooled, cell.vector], size=8, depth=7).share[0, 1]
        assert cell.temperatures_regret == pytest.approx(lost)


def test_lookup_belongs_to_the_target_and_equal_names_are_told_apart():
    rows = table(
        decoded("a", [4]), decoded("b", [2], pair="large"), decoded("b", [2], pair="large", threads=2),
        measured("a", EASY), measured("a", HARD, draft_hash="trained again"),
    )  # fmt: skip
    comparison = compare(rows)
    assert [drafter.name for drafter in comparison.drafters] == ["small (small)", "small (trained )", "lookup"]
    cell = comparison.cells[comparison.drafters[2], Setting(0.0, 1.0, "code")]
    assert len(cell.prompts) == 2 and cell.tokens_per_step.value == 3.0  # one measured twice counts once


def test_models_are_told_apart_by_their_files_and_not_by_their_folders_or_the_pairs_name():
    moved = {"target": "/new/big", "draft": "/new/small", "pair": "renamed"}
    rows = table(measured("a", EASY), measured("b", EASY), measured("c", HARD) | moved, decoded("a", [4]),
                 decoded("b", [2]) | {"target": "/new/big"})  # fmt: skip
    comparison = compare(rows)
    assert [drafter.name for drafter in comparison.drafters] == ["small", "lookup"]
    assert [len(cell.prompts) for cell in comparison.cells.values()] == [3, 2] and not comparison.notes
    (note,) = compare(table(measured("a", EASY), measured("b", EASY), measured("b", EASY) | moved)).notes
    assert note.startswith("1 rows of prompts measured in another way too")


def test_every_size_that_has_all_prompts_is_kept():
    rows = table(
        *(decoded(p, [4, 4], max_size=size) for p in "ab" for size in (4, 8)), decoded("a", [9], max_size=16)
    )  # fmt: skip
    comparison = compare(rows)
    (cell,) = comparison.cells.values()
    assert comparison.notes == ("1 rows of sizes that were decoded on other prompts than most are left out",)
    assert list(cell.sizes) == [4, 8] and [len(rows) for rows in cell.sizes.values()] == [2, 2]
    assert set(cell.rows["max_size"]) == {8} and cell.tokens_per_step.value == 4.0


def test_first_children_of_uncut_rows_are_not_mixed_with_those_of_cut_ones():
    """Rows at top-p 1 are the same in both versions."""
    nucleus = {"temperature": 1.0, "top_p": 0.9}
    old, new, plain = measured("a", EASY, **nucleus), measured("b", HARD, **nucleus, version=2), measured("c", EASY)
    comparison = compare(table(old, new, plain))
    assert comparison.notes == ("1 rows with another version than 1 are left out",)
    vectors = {setting.top_p: cell.vector for (_, setting), cell in comparison.cells.items()}
    assert vectors[0.9] == vector_of(table(new)) and vectors[0.9].holds_for.first_cut
    assert vectors[1.0] == vector_of(table(plain)) and not vector_of(table(old)).holds_for.first_cut
    with pytest.raises(ValueError, match="version: found"):
        vector_of(table(old, new))


def test_rows_that_contradict_themselves_are_refused():
    for good, broken, said in (
        (decoded("a", [4, 4]), {"steps": 3.0}, "expected nodes of each step"),
        (decoded("a", [4, 4]), {"nodes": None}, "nodes: found rows without it"),
        (decoded("a", [4, 4]), {"kind": "race"}, "found no prompt that was measured"),
        (measured("a", EASY), {"sums": [40.0] * 4}, None),
        (measured("a", EASY), {"calibration": "{"}, None),
    ):
        with pytest.raises(ValueError, match=said):
            compare(table(good | broken))


def test_prompts_that_ended_otherwise_are_not_mixed():
    on, off = ({"prompt_ending": f"chat, thinking {way}", "template_arguments": "{}"} for way in ("on", "off"))
    found = compare(table(measured("a", [1, 1], **on), measured("b", [1, 0], **on), measured("c", [0, 0], **off)))
    assert found.notes == (
        "1 rows with another prompt_ending than most of their texts, 'chat, thinking off', are left out",
    )
    (cell,) = found.cells.values()
    assert len(cell.rows) == 2


def test_all_kinds_of_text_are_a_setting_of_their_own_where_there_are_several():
    assert compare(sweep()).settings == tuple(Setting(0.0, 1.0, kind) for kind in (ALL, "code", "edits"))
    assert compare(table(measured("a", EASY), measured("b", HARD))).settings == (Setting(0.0, 1.0, "code"),)


@pytest.mark.parametrize("sums", [[], [0.5] * 5])
def test_sums_that_are_no_whole_depths_are_refused(sums):
    with pytest.raises(ValueError, match="sums: found lists of another length, expected 4 ranks for each depth"):
        vector_of(table(measured("a", EASY), measured("b", EASY) | {"sums": sums}))
