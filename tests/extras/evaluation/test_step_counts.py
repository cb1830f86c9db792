import numpy as np
import pytest
import torch

from benchmarks.step_counts import (
    count_by_depth,
    matrix_from_counts,
)
from sequoia_core.decoding.loop import DecodeStep, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from sequoia_core.trees.tree import TokenTree
from tests.conftest import pair_of, tiny_llama

TREE = TokenTree(np.array([-1, 0, 0, 1, 1, 2]))  # ranks 1 2 | 1 2 | 1


def step(path, draft=None, new_tokens=(0, 0, 0)):
    """Return a step of TREE in which earlier siblings of accepted nodes are rejected."""
    outcomes = ["not reached"] * TREE.size
    for node in path:
        outcomes[node] = "accepted"
        for child in TREE.children(node):
            if child in path:
                break
            outcomes[child] = "rejected"
    return DecodeStep(
        index=0, tree=TREE, tokens=tuple(range(TREE.size)), outcomes=tuple(outcomes),
        draft_probs=tuple(draft or [1.0, 0.9, 0.1, 0.5, 0.25, 1.0]), target_probs=(1.0,) * TREE.size,
        accepted_path=tuple(path), bonus_token=0, new_tokens=list(new_tokens), trials=(), draft_sec=0.0, verify_sec=0.0,
        walk_sec=0.0, commit_sec=0.0,
    )  # fmt: skip


STEPS = [step([0, 1, 3]), step([0, 1]), step([0, 1, 4]), step([0, 2]), step([0])]


def test_counts_by_hand():
    accepted, reached = count_by_depth(STEPS, TREE)
    assert accepted.tolist() == [[3, 1], [1, 1]]
    assert reached.tolist() == [[5, 5], [4, 3]]  # node 2 was accepted once and has only one child
    np.testing.assert_allclose(matrix_from_counts(accepted, reached).probs, [[3 / 5, 1 / 5], [1 / 4, 1 / 3]])
    cut = step([0, 1], new_tokens=[7])  # the text ends with node 1, whose children were not tried
    assert [found.tolist() for found in count_by_depth([cut], TREE)] == [[[1, 0], [0, 0]], [[1, 1], [0, 0]]]


def test_empty_cells_borrow_from_their_rank():
    matrix = matrix_from_counts(np.array([[6, 2], [0, 0], [3, 0]]), np.array([[10, 10], [0, 0], [4, 0]]))
    np.testing.assert_allclose(matrix.probs, [[0.6, 0.2], [9 / 14, 0.2], [0.75, 0.2]])
    assert matrix.trials.tolist() == [[10, 10], [0, 0], [4, 0]]
    crowded = matrix_from_counts(np.array([[1, 8], [9, 0]]), np.array([[10, 10], [10, 0]]))
    np.testing.assert_allclose(crowded.probs[1], [0.9, 0.1])  # only the remaining probability
    chance = matrix_from_counts(np.array([[9, 3]]), np.array([[10, 3]]))
    np.testing.assert_allclose(chance.probs[0], [0.9 / 1.9, 1 / 1.9])


@pytest.mark.parametrize("tree", [chain_tree(4), k_ary_tree(5, 1)], ids=["chain", "star"])
def test_trees_with_one_node_per_cell_are_reproduced_exactly(tree, tiny_target, tiny_draft):
    steps = [
        step
        for prompt in ([1, 2], [3])
        for step in decode(
            prompt, pair_of(tiny_target, tiny_draft), tree=tree, sampling=SamplingConfig(2.0), max_new_tokens=40,
            generator=torch.Generator().manual_seed(0),
        )
    ]  # fmt: skip
    whole = [step for step in steps if step.bonus_token is not None]  # without those cut at the end of the text
    mean = np.mean([len(step.new_tokens) for step in whole])
    assert expected_tokens(tree, matrix_from_counts(*count_by_depth(whole, tree))) == pytest.approx(mean)


def test_steps_of_another_tree_are_refused():
    with pytest.raises(ValueError, match="a step with 6 nodes, expected 5 as in the tree"):
        count_by_depth(STEPS, chain_tree(4))


def test_steps_with_a_truncated_tree_are_ignored(tiny_target):
    draft = tiny_llama(2, layers=1, context=20)
    with pytest.warns(UserWarning, match="found a context of 20 tokens"):
        steps = list(decode([3, 1, 4], pair_of(tiny_target, draft), tree=TREE, max_new_tokens=40))
    whole = [one for one in steps if one.tree.size == TREE.size]
    assert {one.tree.depth for one in steps} == {0, 1, 2}
    assert count_by_depth(steps, TREE)[1].tolist() == count_by_depth(whole, TREE)[1].tolist()
