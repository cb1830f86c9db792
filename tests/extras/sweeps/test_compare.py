"""Cells agree with vectors, replays and decodes computed separately; regret is that of the shared tree."""

import numpy as np
import pytest

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.bootstrap import ratio_estimate
from sequoia_core.trees.comparison import regret_matrix
from sequoia_core.trees.optimal import optimal_tree
from sequoia_core.trees.replay import replay
from sequoia_extras.sweeps.compare import ALL_DOMAINS, Setting, compare_sweep
from sequoia_extras.sweeps.results import build_vector
from tests.extras.sweeps.hand_made import decoded, measured, table

EASY = [1, 1, 1, 1, 2, 1, 1, 0] * 4
HARD = [0, 2, 0, 1, 3, 0, 4, 2] * 4


def sweep(**more):
    """Return two domains: the draft is good at one; lookup and both decoded the other."""
    return table(
        measured("a", EASY, **more),
        measured("b", EASY[:24], **more),
        measured("c", HARD, domain="edits", **more),
        measured("d", HARD[3:], domain="edits", **more),
        decoded("c", [4, 4, 8], domain="edits", **more),
        decoded("d", [1, 1, 2], domain="edits", **more),
        decoded("a", [5, 3], both=True, **more),
    )


def by_name(comparison):
    return {drafter.name: drafter for drafter in comparison.drafters}


def test_the_cells_of_a_draft_agree_with_its_vector():
    rows = sweep()
    comparison = compare_sweep(rows)
    drafter = by_name(comparison)["small"]
    assert comparison.max_size == 8 and not comparison.notes
    for domain in ("code", "edits", ALL_DOMAINS):
        chosen = rows[(rows["kind"] == "model") & ((rows["domain"] == domain) | (domain == ALL_DOMAINS))]
        cell = comparison.cells[drafter, Setting(0.0, 1.0, domain)]
        vector = build_vector(chosen)
        assert cell.vector == vector and cell.first_guess == vector.probs[0]
        texts = replay(optimal_tree(vector, size=8), vector)
        assert cell.tokens_per_step.value == texts.tokens_per_step
        assert cell.tokens_per_step == ratio_estimate(texts.tokens, texts.steps, few=True)
        assert cell.prompts["steps"].tolist() == texts.steps.tolist()
        assert cell.prompts["tokens"].tolist() == chosen["positions"].tolist()
        assert [prompt for _, prompt in cell.prompts.index] == chosen["prompt_hash"].tolist()


def test_the_cells_of_decodes_have_tokens_per_step():
    comparison = compare_sweep(sweep())
    names = by_name(comparison)
    assert list(names) == ["small", "lookup", "small + lookup"]
    lookup = comparison.cells[names["lookup"], Setting(0.0, 1.0, "edits")]
    assert lookup.tokens_per_step.value == 20 / 6 and lookup.vector is lookup.tree is lookup.first_guess is None
    both = comparison.cells[names["small + lookup"], Setting(0.0, 1.0, "code")]
    assert both.tokens_per_step == (4.0, None, None)  # a single prompt has no interval
    # Without a decode on every domain there is no cell for all of them.
    assert {setting.domain for drafter, setting in comparison.cells if drafter.kind != "model"} == {"code", "edits"}


def test_regret_is_the_loss_of_the_shared_tree():
    rows = sweep()
    comparison = compare_sweep(rows)
    drafter = by_name(comparison)["small"]
    model = rows[rows["kind"] == "model"]
    for domain in ("code", "edits"):
        cell = comparison.cells[drafter, Setting(0.0, 1.0, domain)]
        lost = regret_matrix([build_vector(model), cell.vector], size=8, depth=7).share[0, 1]
        assert cell.texts_regret == pytest.approx(lost) and cell.temperatures_regret is None
    assert comparison.cells[drafter, Setting(0.0, 1.0, "code")].texts_regret > 0.01
    assert comparison.cells[drafter, Setting(0.0, 1.0)].texts_regret is None


def test_the_tree_for_all_temperatures_comes_from_pooled_counts():
    comparison = compare_sweep(table(measured("a", EASY), measured("a", HARD, temperature=0.6)))
    pooled = AcceptanceVector(np.bincount(EASY + HARD, minlength=5)[1:] / len(EASY + HARD))
    assert [str(setting) for _, setting in comparison.cells] == ["T = 0, code", "T = 0.6, code"]
    for cell in comparison.cells.values():
        lost = regret_matrix([pooled, cell.vector], size=8, depth=7).share[0, 1]
        assert cell.temperatures_regret == pytest.approx(lost)


def test_lookup_belongs_to_the_target_and_equal_names_are_disambiguated():
    rows = table(
        decoded("a", [4]),
        decoded("b", [2], pair="large"),
        decoded("b", [2], pair="large", threads=2),
        measured("a", EASY),
        measured("a", HARD, draft_hash="trained again"),
    )
    comparison = compare_sweep(rows)
    assert [drafter.name for drafter in comparison.drafters] == ["small (small)", "small (trained )", "lookup"]
    cell = comparison.cells[comparison.drafters[2], Setting(0.0, 1.0, "code")]
    assert len(cell.prompts) == 2 and cell.tokens_per_step.value == 3.0  # a prompt measured twice counts once


def test_models_are_identified_by_their_files():
    moved = {"target": "/new/big", "draft": "/new/small", "pair": "renamed"}
    rows = table(
        measured("a", EASY),
        measured("b", EASY),
        measured("c", HARD) | moved,
        decoded("a", [4]),
        decoded("b", [2]) | {"target": "/new/big"},
    )
    comparison = compare_sweep(rows)
    assert [drafter.name for drafter in comparison.drafters] == ["small", "lookup"]
    assert [len(cell.prompts) for cell in comparison.cells.values()] == [3, 2] and not comparison.notes
    (note,) = compare_sweep(table(measured("a", EASY), measured("b", EASY), measured("b", EASY) | moved)).notes
    assert note.startswith("1 rows are left out: their prompts were also measured")


def test_sizes_without_all_prompts_are_left_out():
    rows = table(*(decoded(p, [4, 4], max_size=size) for p in "ab" for size in (4, 8)), decoded("a", [9], max_size=16))
    comparison = compare_sweep(rows)
    (cell,) = comparison.cells.values()
    assert comparison.notes == ("1 rows are left out: most tree sizes were decoded on different prompts",)
    assert list(cell.sizes) == [4, 8] and [len(rows) for rows in cell.sizes.values()] == [2, 2]
    assert set(cell.rows["max_size"]) == {8} and cell.tokens_per_step.value == 4.0


def test_rows_with_cut_and_uncut_first_children_are_not_mixed():
    """Rows with top-p 1 are the same in both versions."""
    nucleus = {"temperature": 1.0, "top_p": 0.9}
    old = measured("a", EASY, **nucleus)
    new = measured("b", HARD, **nucleus, version=2)
    plain = measured("c", EASY)
    comparison = compare_sweep(table(old, new, plain))
    assert comparison.notes == ("1 rows are left out: their version is not 1",)
    vectors = {setting.top_p: cell.vector for (_, setting), cell in comparison.cells.items()}
    assert vectors[0.9] == build_vector(table(new)) and vectors[0.9].holds_for.first_cut
    assert vectors[1.0] == build_vector(table(plain)) and not build_vector(table(old)).holds_for.first_cut
    with pytest.raises(ValueError, match="version: found"):
        build_vector(table(old, new))


def test_contradictory_rows_are_refused():
    for good, broken, said in (
        (decoded("a", [4, 4]), {"steps": 3.0}, "expected node counts for each step"),
        (decoded("a", [4, 4]), {"nodes": None}, "nodes: found rows without a value"),
        (decoded("a", [4, 4]), {"kind": "race"}, "found no measured prompts"),
        (measured("a", EASY), {"sums": [40.0] * 4}, None),
        (measured("a", EASY), {"calibration": "{"}, None),
    ):
        with pytest.raises(ValueError, match=said):
            compare_sweep(table(good | broken))


def test_prompts_with_other_endings_are_left_out():
    on, off = ({"prompt_ending": f"chat, thinking {way}", "template_arguments": "{}"} for way in ("on", "off"))
    found = compare_sweep(table(measured("a", [1, 1], **on), measured("b", [1, 0], **on), measured("c", [0, 0], **off)))
    assert found.notes == ("1 rows are left out: their prompt_ending is unusual ('chat, thinking off')",)
    (cell,) = found.cells.values()
    assert len(cell.rows) == 2


def test_several_domains_add_a_setting_for_all_of_them():
    assert compare_sweep(sweep()).settings == tuple(Setting(0.0, 1.0, kind) for kind in (ALL_DOMAINS, "code", "edits"))
    assert compare_sweep(table(measured("a", EASY), measured("b", HARD))).settings == (Setting(0.0, 1.0, "code"),)


@pytest.mark.parametrize("sums", [[], [0.5] * 5])
def test_sums_of_partial_depths_are_refused(sums):
    with pytest.raises(ValueError, match="sums: found lists of the wrong length, expected multiples of 4"):
        build_vector(table(measured("a", EASY), measured("b", EASY) | {"sums": sums}))
