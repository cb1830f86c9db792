"""Break-even: at the factor found the best tree neither pays nor costs, just beyond it the other way."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.break_even import break_even, gains
from sequoia_core.design.planning import speedup_surface
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.scenarios import ASSETS

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))


def profile(verify_sec=(1.0, 1.4, 3.0), draft_sec=0.2) -> HardwareProfile:
    return HardwareProfile(sizes=[1, 4, 16], verify_sec=verify_sec, draft_sec=draft_sec)


def best(vector, timed) -> float:
    return float(np.nanmax(speedup_surface(vector, timed, max_depth=12).speedup[2:]))


def best_after(name: str, timed: HardwareProfile, by: float) -> float:
    """Return the best speedup with one thing multiplied, worked out anew."""
    if name == "p_1":
        return best(AcceptanceVector(VECTOR.probs * by / max(1.0, VECTOR.probs.sum() * by)), timed)
    if name == "c":
        return best(VECTOR, profile(tuple(timed.verify_sec), timed.draft_sec * by))
    return best(VECTOR, profile(tuple(1 + (sec - 1) * by for sec in timed.verify_sec), timed.draft_sec))


@pytest.mark.parametrize("timed", [profile(), profile(draft_sec=1.5)])  # one that pays, one that does not
def test_at_break_even_the_best_tree_gains_nothing(timed):
    found = break_even(VECTOR, timed)
    assert found["p_1"].now == 0.6 and found["c"].now == pytest.approx(timed.c)
    pays = best(VECTOR, timed) > 1
    for name, point in found.items():
        if point.factor is None:
            assert best_after(name, timed, 1e-3) < 1 or pays
            continue
        assert best_after(name, timed, point.factor) == pytest.approx(1.0, abs=1e-3)
        assert (point.factor < 1) == ((name == "p_1") == pays)
    assert found["c"].value == pytest.approx(found["c"].factor * timed.c)


def test_a_useless_draft_never_breaks_even_by_being_cheaper():
    found = break_even(AcceptanceVector(np.zeros(3)), profile())
    assert [found[name].factor for name in ("p_1", "c", "t")] == [None, None, None]


def test_gains_name_what_helps():
    dear = gains(VECTOR, profile(verify_sec=(1.0, 1.02, 1.05), draft_sec=0.3))
    steep = gains(VECTOR, profile(verify_sec=(1.0, 1.6, 9.0), draft_sec=0.01))
    assert dear.drafting > dear.verifying >= 1.0 and steep.verifying > steep.drafting >= 1.0
    assert dear.acceptance > 1.0


def test_what_the_texts_correct_is_corrected_before_and_after():
    measured = AcceptanceVector.load(ASSETS / "acceptance" / "demo-t0.json")
    assert measured.prompt_ranks is not None
    assert gains(measured, profile(), share=0.0) == pytest.approx((1.0, 1.0, 1.0))
