"""The registry of kinds: what a line says of a kind is so of the policy that it makes."""

from dataclasses import replace

import pytest

from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.design.acceptance import AcceptanceVector
from tests.conftest import calibration_of


@pytest.mark.parametrize("name", TREE_KINDS)
def test_a_kind_is_what_its_line_says(name):
    kind, vector = TREE_KINDS[name], replace(AcceptanceVector([0.6, 0.2, 0.1]), calibration=calibration_of(0.6))
    policy = kind.make(vector, max_size=9, max_depth=3)
    assert (policy.max_size, policy.max_depth) == (9, 3)
    assert (policy.looks_up, policy.needs_draft) == (kind.looks_up, kind.drafted)
    if kind.calibrated:
        with pytest.raises(ValueError, match=f"{kind.title} trees: found no acceptance vector"):
            kind.make()
