"""Scenarios in the app: a pair and a machine, chosen once in the sidebar for every page, and labelled as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.planning import pair_mismatches
from sequoia_core.design.scenarios import Scenario, list_scenarios
from ui import controls
from ui.cards import Card
from ui.markdown import escaped
from ui.phrases import interval, shape
from ui.session import core_cache, predictions, session, shipped, tree_in_use

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree

OWN = "My own vector and profile"


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
    """Return the scenario whose vector and profile are in use; None where they are of no scenario."""
    here = (session.acceptance(), session.profile())
    return next((s for s in known().values() if all(a is b for a, b in zip(parts(s), here, strict=True))), None)


def control() -> None:
    """Let the reader choose a scenario; it sets the vector and the profile of all pages."""
    if not known():
        return
    current = in_use()
    titles = list(known())
    # A widget for each scenario: a browser that still shows the one before would else bring it back with its next click
    key = f"sidebar_scenario_{'own' if current is None else current.name}"
    st.session_state[key] = None if current is None else current.title
    st.selectbox(
        "Scenario",
        titles,
        index=None,
        key=key,
        on_change=_choose,
        args=(key,),
        placeholder=OWN,
        help="A pair and a machine to look at before anything is measured: an acceptance vector and a profile for "
        "every page. What is measured here replaces it.",
    )
    if current is not None and foreign():
        st.caption(f":material/travel_explore: {kind(current)}, not of this pair on this machine.")


def _choose(key: str) -> None:
    title = st.session_state[key]
    if title is not None:
        scenario = known()[title]
        session.use_scenario(*parts(scenario), f"scenario “{scenario.title}”")
        tree_in_use.set_size_and_depth(None)


def kind(scenario: Scenario) -> str:
    """Say where a scenario's numbers come from."""
    return f"Acceptance {scenario.vector}, times {scenario.times}"


def foreign() -> bool:
    """Whether the vector or the profile in use is of another pair or machine than those of this session."""
    return bool(predictions.faults())


def banner() -> None:
    """Say what the scenario in use is, and offer to measure here; nothing where no scenario is in use or it is here."""
    scenario = in_use()
    if scenario is None or not foreign():
        return
    with st.container(border=True):
        st.markdown(
            f":material/travel_explore: **{escaped(scenario.title)}.** {escaped(scenario.sentence)} "
            f"*{kind(scenario)}; a what-if for your pair on this machine.*"
        )
        controls.page_link(
            st.container(), "machine", "Measure this machine instead", ":material/speed:", hardware_way="Measure"
        )


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


def speedup_card(tree: TokenTree) -> Card | None:
    """Return the speedup of a tree for the pair and machine of the scenario in use; None where that is not told."""
    scenario = in_use()
    if scenario is None:
        return None
    vector, profile = parts(scenario)
    if tree.size > profile.max_size or (scenario.vector == "measured" and pair_mismatches(vector, profile)):
        return None
    found = core_cache.prediction(vector, profile, tree).speedup
    return Card(
        "Speedup in this scenario",
        f"{found.value:.2f}×",
        interval(found.low, found.high, unit="×", none=f"{found.value - 1:+.2f}× vs autoregressive"),
        help="For the scenario's pair on the scenario's machine, not for yours.",
    )
