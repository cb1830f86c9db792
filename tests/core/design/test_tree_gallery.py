import numpy as np
import pytest

from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.design.tree import TokenTree
from sequoia_core.design.tree_comparison import gallery

STAR = TokenTree(np.array([-1, 0, 0, 0]))
TREES = [chain_tree(5), chain_tree(3), STAR, k_ary_tree(2, 2), chain_tree(9)]  # 6, 4, 4, 7 and 10 nodes


def test_the_typical_tree_is_the_most_frequent_of_median_size():
    found = gallery(TREES, [0, 1, 2, 2, 3])
    assert found.typical == STAR and found.deepest == chain_tree(5) and found.widest == k_ary_tree(2, 2)
    assert found.sizes.tolist() == [4, 6, 7] and found.steps.tolist() == [3, 1, 1]


def test_trees_that_no_step_had_do_not_count():
    assert gallery(TREES, [1]).deepest == chain_tree(3)


def test_a_run_without_steps_is_refused():
    with pytest.raises(ValueError, match="shown: found no steps"):
        gallery(TREES, [])
