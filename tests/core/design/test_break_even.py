"""Break-even: at the factor found the best tree neither pays nor costs, beyond it the other way; a step's limit."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.break_even import (
    LONGEST_CHAIN,
    break_even,
    chain_pays,
    gains,
    idle_arithmetic,
    larger_tree,
    step_limit,
)
from sequoia_core.design.planning import BestShape, SpeedupSurface, best_shape, speedup_surface
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
    assert {point.factor for point in break_even(AcceptanceVector(np.zeros(3)), profile()).values()} == {None}


@pytest.mark.parametrize(("largest", "length"), [(4, 3), (64, LONGEST_CHAIN)])
def test_a_chain_on_a_guess_is_as_long_as_was_profiled_or_may_be(largest, length):
    free = HardwareProfile([1, largest], [1.0, 1.0], 1e-6)
    assert chain_pays(0.99, free).length == length


def test_gains_name_what_helps():
    dear = gains(VECTOR, profile(verify_sec=(1.0, 1.02, 1.05), draft_sec=0.3))
    steep = gains(VECTOR, profile(verify_sec=(1.0, 1.6, 9.0), draft_sec=0.01))
    assert dear.drafting > dear.verifying >= 1.0 and steep.verifying > steep.drafting >= 1.0
    assert dear.acceptance > 1.0


def test_what_the_texts_correct_is_corrected_before_and_after():
    measured = AcceptanceVector.load(ASSETS / "acceptance" / "demo-t0.json")
    assert measured.prompt_ranks is not None
    assert gains(measured, profile(), share=0.0) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("verify", "draft", "tokens", "limit"),
    [
        (1.0, 0.01, 1.02, "nothing pays"),
        (1.1, 0.01, 3.0, "acceptance"),
        (1.2, 0.5, 3.0, "drafting"),
        (2.0, 0.1, 3.0, "verifying"),
    ],
)
def test_the_larger_part_of_a_step_is_its_limit(verify, draft, tokens, limit):
    timed = HardwareProfile(np.array([1, 8]), np.array([1.0, verify]), draft)
    cost = verify + draft
    found = step_limit(BestShape(8, 1, tokens / cost, tokens), timed)
    assert found.limit == limit
    assert (found.total, found.verify, found.draft) == pytest.approx((cost, verify, draft))


def test_limits_of_no_speculation_and_of_drafting_that_hides_behind_reading():
    assert step_limit(BestShape(1, 0, 1.0, 1.0), profile()).limit == "nothing pays"
    meta = {"streaming": {"layers": 4, "buffers": 2, "layer_read_sec": 0.5}}
    streamed = HardwareProfile([1, 8, 32], [1.9, 2.0, 2.0], 0.1, meta=meta)
    cost = step_limit(BestShape(8, 3, 3.5, 3.5), streamed)  # a step takes as long as one token, t(8) is 1.05
    assert (cost.verify, cost.draft, cost.limit) == (1.0, 0.0, "acceptance")


@pytest.mark.parametrize(
    ("sizes", "times", "free", "further_cost"),
    [
        ([1, 64, 128], [1.0, 1.02, 1.05], 128, 0.0),
        ([1, 8, 16, 32], [1.0, 1.0, 1.8, 3.4], 9, (3.4 - 1.1) / (32 - 9)),  # t(9) = 1.1
        ([1, 2, 4], [1.0, 2.0, 4.0], 1, 1.0),
    ],
)
def test_tokens_that_a_pass_verifies_for_free_and_the_price_of_the_others(sizes, times, free, further_cost):
    found = idle_arithmetic(HardwareProfile(np.array(sizes), 0.01 * np.array(times), 0.001))
    assert found == (free, pytest.approx(further_cost))


def test_a_larger_tree_yields_more_tokens_in_more_time():
    tokens, speedup = np.full((2, 6, 2), np.nan)
    tokens[[1, 2, 4, 5], [0, 1, 1, 1]] = 1.0, 2.0, 2.4, 2.5
    speedup[[1, 2, 4, 5], [0, 1, 1, 1]] = 1.0, 1.6, 1.2, 1.1  # a step of two nodes takes 1.25, one of four 2.0
    best = best_shape(SpeedupSurface(tokens, speedup))
    assert larger_tree(SpeedupSurface(tokens, speedup), best) == pytest.approx((4, 0.2, 0.6))
    assert larger_tree(SpeedupSurface(tokens[:3], speedup[:3]), best) is None
