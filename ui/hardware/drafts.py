"""Which draft? Those measured for the target in use, each with its own best tree, on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.draft_choice import DraftPlan
from sequoia_core.design.planning import pair_mismatches
from ui import core_cache, session, shipped
from ui.literal import plain

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile


def section(vector: AcceptanceVector, profile: HardwareProfile) -> None:
    """Compare the drafts for one target; nothing where only one has been measured."""
    found = _candidates(vector, profile)
    if len(found) < 2:
        return
    st.subheader("Which draft?")
    plans = core_cache.drafts(tuple(found), tuple(found.values()))
    st.dataframe([_row(plan) for plan in plans], hide_index=True, width="stretch")
    best, other = plans[:2]
    gain = best.prediction.speedup.value / other.prediction.speedup.value - 1
    words = f"{plain(best.name)} is predicted to be {gain:.0%} faster than {plain(other.name)}"
    st.caption(f"{words}, each with its best tree.")


def _candidates(
    vector: AcceptanceVector, profile: HardwareProfile
) -> dict[str, tuple[AcceptanceVector, HardwareProfile]]:
    """Return draft -> vector and profile, of the same target, sampling, device and format as those in use."""
    if vector.holds_for is None or pair_mismatches(vector, profile):
        return {}
    found = {vector.holds_for.draft: (vector, profile)}
    profiles = [profile, *(shipped.profile(name) for name in shipped.files("profiles"))]
    for other in session.vectors().values():
        holds = other.holds_for
        if holds is None or holds.draft in found or (holds.target, holds.sampling) != _subject(vector):
            continue
        times = next((p for p in profiles if not pair_mismatches(other, p) and _comparable(p, profile)), None)
        if times is not None:
            found[holds.draft] = (other, times)
    return found


def _subject(vector: AcceptanceVector) -> tuple[str, str]:
    return vector.holds_for.target, vector.holds_for.sampling


def _comparable(one: HardwareProfile, other: HardwareProfile) -> bool:
    facts = [(p.device, p.dtype, p.context, p.offload) for p in (one, other)]
    return facts[0] == facts[1]


def _row(plan: DraftPlan) -> dict[str, str]:
    speedup = plan.prediction.speedup
    sure = "" if speedup.low is None else f" ({speedup.low:.2f} to {speedup.high:.2f})"
    return {
        "draft": plan.name,
        "speedup": f"{speedup.value:.2f}×{sure}",
        "best tree": f"n = {plan.shape.size}, d = {plan.shape.depth}",
        "p₁": f"{plan.first_guess:.1%}",
        "c": f"{plan.draft_cost:.3f}",
    }
