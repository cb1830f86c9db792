"""Break-even factors, gains, guessed chains, and the limit of a step."""

import numpy as np
import pytest

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.files.model_names import ASSETS
from sequoia_core.planning.break_even import (
    MAX_CHAIN,
    best_guessed_chain,
    break_even,
    gains,
    idle_arithmetic,
    larger_tree,
    step_limit,
)
from sequoia_core.planning.plan import BestShape, SpeedupSurface, best_shape, speedup_surface
from sequoia_core.planning.profile import HardwareProfile

VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))


def profile(verify_sec=(1.0, 1.4, 3.0), draft_sec=0.2) -> HardwareProfile:
    return HardwareProfile(sizes=[1, 4, 16], verify_sec=verify_sec, draft_sec=draft_sec)


def best(vector, timed) -> float:
    return float(np.nanmax(speedup_surface(vector, timed, max_depth=12).speedup[2:]))


def best_after(name: str, timed: HardwareProfile, by: float) -> float:
    """Return the best speedup with one quantity scaled, computed independently."""
    if name == "p_1":
        return best(AcceptanceVector(VECTOR.probs * by / max(1.0, VECTOR.probs.sum() * by)), timed)
    if name == "c":
        return best(VECTOR, profile(tuple(timed.verify_sec), timed.draft_sec * by))
    return best(VECTOR, profile(tuple(1 + (sec - 1) * by for sec in timed.verify_sec), timed.draft_sec))


@pytest.mark.parametrize("timed", [profile(), profile(draft_sec=1.5)])  # speculation pays, and does not pay
def test_speedup_is_1_at_break_even(timed):
    found = break_even(VECTOR, timed)
    pays = best(VECTOR, timed) > 1
    for name, point in found.items():
        if point.factor is None:
            assert best_after(name, timed, 1e-3) < 1 or pays
            continue
        assert best_after(name, timed, point.factor) == pytest.approx(1.0, abs=1e-3)
        assert (point.factor < 1) == ((name == "p_1") == pays)
    assert found["c"].value == pytest.approx(found["c"].factor * timed.c)


def test_a_draft_without_acceptance_never_breaks_even():
    assert {point.factor for point in break_even(AcceptanceVector(np.zeros(3)), profile()).values()} == {None}


@pytest.mark.parametrize(("largest", "length"), [(4, 3), (64, MAX_CHAIN)])
def test_guessed_chains_are_limited_by_the_profile(largest, length):
    free = HardwareProfile([1, largest], [1.0, 1.0], 1e-6)
    assert best_guessed_chain(0.99, free).length == length


def test_gains_are_largest_for_the_bottleneck():
    dear = gains(VECTOR, profile(verify_sec=(1.0, 1.02, 1.05), draft_sec=0.3))
    steep = gains(VECTOR, profile(verify_sec=(1.0, 1.6, 9.0), draft_sec=0.01))
    assert dear.drafting > dear.verifying >= 1.0 and steep.verifying > steep.drafting >= 1.0
    assert dear.acceptance > 1.0


def test_gains_of_no_change_are_1():
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
def test_step_limit_is_the_larger_part(verify, draft, tokens, limit):
    timed = HardwareProfile(np.array([1, 8]), np.array([1.0, verify]), draft)
    cost = verify + draft
    found = step_limit(BestShape(8, 1, tokens / cost, tokens), timed)
    assert found.limit == limit
    assert (found.total, found.verify, found.draft) == pytest.approx((cost, verify, draft))


def test_step_limit_without_speculation_and_with_hidden_drafting():
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
    ],
)
def test_idle_arithmetic_counts_free_tokens(sizes, times, free, further_cost):
    found = idle_arithmetic(HardwareProfile(np.array(sizes), 0.01 * np.array(times), 0.001))
    assert found == (free, pytest.approx(further_cost))


def test_larger_tree_compares_tokens_and_time():
    tokens, speedup = np.full((2, 6, 2), np.nan)
    tokens[[1, 2, 4, 5], [0, 1, 1, 1]] = 1.0, 2.0, 2.4, 2.5
    speedup[[1, 2, 4, 5], [0, 1, 1, 1]] = 1.0, 1.6, 1.2, 1.1  # a step of two nodes takes 1.25, one of four 2.0
    best = best_shape(SpeedupSurface(tokens, speedup))
    assert larger_tree(SpeedupSurface(tokens, speedup), best) == pytest.approx((4, 0.2, 0.6))
    assert larger_tree(SpeedupSurface(tokens[:3], speedup[:3]), best) is None
