"""What is planned for: one's own pair, or a scenario; chosen once in the sidebar for every page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.scenarios import Scenario, list_scenarios
from ui.markdown import escaped
from ui.phrases import shape
from ui.session import core_cache, session, shipped, tree_in_use

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile


def known() -> dict[str, Scenario]:
    """Return the shipped scenarios by title, in their order."""
    return {scenario.title: scenario for scenario in _listed(shipped.ASSETS)}


_listed = st.cache_resource(show_spinner=False, max_entries=4)(list_scenarios)


def parts(scenario: Scenario) -> tuple[AcceptanceVector, HardwareProfile]:
    """Return a scenario's vector and profile."""
    vector, profile = shipped.ASSETS / scenario.acceptance, shipped.ASSETS / scenario.profile
    return (
        core_cache.load_acceptance(str(vector), vector.stat().st_mtime_ns),
        core_cache.load_profile(str(profile), profile.stat().st_mtime_ns),
    )


def in_use() -> Scenario | None:
    """Return the scenario that is planned for; None for one's own pair."""
    return next((scenario for scenario in known().values() if scenario.name == session.scenario()), None)


def control() -> None:
    """Let the reader choose what is planned for; it sets the vector and the profile of all pages."""
    if not known():
        return
    name = session.pair_name()
    own = name[0].upper() + name[1:]
    current = in_use()
    # A widget for each choice: a browser that still shows the one before would else bring it back with its next click
    key = f"sidebar_scenario_{'own' if current is None else current.name}"
    st.session_state[key] = own if current is None else current.title
    st.selectbox(
        "Planning for",
        [own, *known()],
        key=key,
        on_change=_choose,
        args=(key,),
        help="Whose acceptance and times every page plans with. Live runs and races always use the pair below.",
    )
    if current is not None:
        st.caption(f"{escaped(current.sentence)} Acceptance {current.vector}, times {current.times}.")


def _choose(key: str) -> None:
    scenario = known().get(st.session_state[key])
    if scenario is None:
        session.leave_scenario()
    else:
        session.use_scenario(scenario.name, *parts(scenario), f"scenario “{scenario.title}”")
        tree_in_use.set_size_and_depth(None)


def beside_reported() -> None:
    """Say how far the times of the scenario in use are off what others measured on such a machine."""
    scenario = in_use()
    if scenario is None:
        return
    vector, profile = parts(scenario)
    for told in scenario.reported:
        found = core_cache.prediction(vector, profile, core_cache.best_tree(vector, told.size, told.depth))
        speedup, off = told.distance(found.speedup.value, found.tokens_per_step.value)
        st.caption(
            f":material/fact_check: Measured there: {told.speedup:.2f}× with {shape(told.size, told.depth)} and "
            f"{told.tokens_per_step:.2f} tokens per step ({escaped(told.source)}); this vector expects "
            f"{found.tokens_per_step.value:.2f} tokens per step. With as many as reported these times predict "
            f"{speedup:.2f}×, {abs(off):.0%} {'more' if off > 0 else 'less'}."
        )
