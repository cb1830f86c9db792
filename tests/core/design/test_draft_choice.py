"""Drafts compared: the better guesser wins where passes are cheap, the cheaper one where they are dear."""

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.draft_choice import compare_drafts
from sequoia_core.design.profile import HardwareProfile


def candidate(draft, first, draft_sec, *, verify_sec=(1.0, 1.1, 1.3), **changes):
    vector = AcceptanceVector(np.array([first, 0.1]), holds_for=Conditions("T", draft, 0.0))
    options = {"device": "here", "dtype": "bfloat16", "meta": {"target": "T", "draft": draft}} | changes
    return vector, HardwareProfile(sizes=[1, 8, 32], verify_sec=verify_sec, draft_sec=draft_sec, **options)


def test_the_fastest_comes_first():
    small, large = candidate("small", 0.6, 0.02), candidate("large", 0.85, 0.3)
    found = compare_drafts({"large": large, "small": small})
    assert [plan.name for plan in found] == ["small", "large"]
    assert found[0].tokens_per_sec == pytest.approx(
        found[0].prediction.speedup.value / found[0].prediction.autoregressive_sec
    )
    assert (found[0].first_guess, found[0].draft_cost) == (0.6, pytest.approx(0.02))
    slow = {"verify_sec": (20.0, 20.1, 20.3)}  # as with weights on a disk: drafting costs next to nothing
    slowed = {name: candidate(name, p, c, **slow) for name, p, c in (("small", 0.6, 0.02), ("large", 0.85, 0.3))}
    assert compare_drafts(slowed)[0].name == "large"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (candidate("b", 0.5, 0.1, device="there"), "b: device: found there, expected here"),
        (candidate("b", 0.5, 0.1, meta={"target": "T", "draft": "c"}), "b: Acceptance was measured with the draft b"),
        (candidate("b", 0.5, 0.1, meta={"target": "T", "draft": "b", "offload": "disk"}), "b: offload: found disk"),
    ],
)
def test_what_cannot_be_compared_is_refused(other, message):
    with pytest.raises(ValueError, match=message):
        compare_drafts({"a": candidate("a", 0.6, 0.02), "b": other})
