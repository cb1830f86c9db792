"""Which draft? Those measured for the target in use, each with its own best tree, on one device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.draft_choice import DraftPlan
from sequoia_core.design.planning import pair_mismatches
from sequoia_core.design.profile import PLACES
from ui.jobs import replays
from ui.markdown import escaped
from ui.phrases import beside, shape
from ui.session import core_cache, session, shipped

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile

    Measured = tuple[AcceptanceVector, HardwareProfile]


def section(vector: AcceptanceVector, profile: HardwareProfile) -> None:
    """Compare the drafts for one target, wherever its weights live; nothing where only one has been measured."""
    found = _candidates(vector, profile)
    if not found:
        return
    st.subheader("Which draft?")
    plans = {place: core_cache.drafts(tuple(drafts), tuple(drafts.values())) for place, drafts in found.items()}
    rows = [_row(place, plan) for place, compared in plans.items() for plan in compared]
    st.dataframe(rows, hide_index=True, width="stretch")
    said = [_sentence(place, *compared[:2]) for place, compared in plans.items()]
    st.caption(" ".join(filter(None, [*said, _without_draft(vector, profile)])))


def _without_draft(vector: AcceptanceVector, profile: HardwareProfile) -> str:
    """Say what lookup trees do without a draft, on the log replayed here or the demo target's; empty without one."""
    found = replays.of_target(vector.holds_for)
    if found is None:
        return ""
    best = found.report.own.best_size(profile)
    tokens, speed = found.report.own.tokens_per_step(best), found.report.own.predicted_speedup(best, profile)
    sure = beside(tokens.low, tokens.high)
    return (
        f"None (lookup): trees of text already seen, at most n = {best}, yield {tokens.value:.2f}{sure} "
        f"tokens per step in {found.name}, predicted {speed:.2f}× with the target's weights {PLACES[profile.offload]}."
    )


def _candidates(vector: AcceptanceVector, profile: HardwareProfile) -> dict[str | None, dict[str, Measured]]:
    """Return where weights live -> draft -> vector and profile, for two drafts or more, the place in use first."""
    if vector.holds_for is None or pair_mismatches(vector, profile):
        return {}
    vectors = [v for v in (vector, *session.vectors().values()) if v.holds_for and _subject(v) == _subject(vector)]
    found: dict[str | None, dict[str, Measured]] = {}
    for times in (profile, *_shipped_profiles()):
        if (times.device, times.dtype) != (profile.device, profile.dtype):
            continue
        drafts = found.setdefault(times.offload, {})
        fitting = next((v for v in vectors if not pair_mismatches(v, times)), None)
        same_context = all(times.context == other.context for _, other in drafts.values())
        if fitting is not None and fitting.holds_for.draft not in drafts and same_context:
            drafts[fitting.holds_for.draft] = (fitting, times)
    return {place: drafts for place, drafts in found.items() if len(drafts) > 1}


def _shipped_profiles() -> Iterator[HardwareProfile]:
    """Yield the measured profiles that ship, those of scenarios too."""
    for kind in ("profiles", "scenarios/profiles"):
        for path in shipped.files(kind).values():
            found = core_cache.load_profile(str(path), path.stat().st_mtime_ns)
            if not found.modelled:
                yield found


def _subject(vector: AcceptanceVector) -> tuple[str, str]:
    return vector.holds_for.target, vector.holds_for.sampling


def _row(place: str | None, plan: DraftPlan) -> dict[str, str]:
    speedup = plan.prediction.speedup
    sure = beside(speedup.low, speedup.high, unit="×")
    return {
        "target's weights": PLACES[place],
        "draft": plan.name,
        "speedup": f"{speedup.value:.2f}×{sure}",
        "tokens/s": f"{plan.tokens_per_sec:,.0f}",
        "best tree": shape(plan.tree.size, plan.tree.depth),
        "p₁": f"{plan.first_guess:.1%}",
        "c": f"{plan.draft_cost:.3f}",
    }


def _sentence(place: str | None, best: DraftPlan, other: DraftPlan) -> str:
    gain = best.prediction.speedup.value / other.prediction.speedup.value - 1
    return (
        f"With the target's weights {PLACES[place]}, {escaped(best.name)} is predicted to be {gain:.0%} faster than "
        f"{escaped(other.name)}, each with its best tree."
    )
