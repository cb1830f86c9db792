"""Published results for the pair and the machine planned for. Requires the optional package `hardware_models`."""

import streamlit as st

from ui.markdown import escaped
from ui.phrases import shape
from ui.session import core_cache, session, shipped


def draw_reported_results() -> None:
    """Describe the shipped pair and machine that plans are for, and compare predictions with published results."""
    scenario = shipped.scenario_of(session.profile())
    if scenario is None:
        return
    st.caption(f"{escaped(scenario.sentence)} Acceptance {scenario.vector}, times {scenario.times}.")
    vector, profile = shipped.load_scenario(scenario)
    for reported in scenario.reported:
        expected = core_cache.prediction(vector, profile, core_cache.best_tree(vector, reported.size, reported.depth))
        speedup, off = reported.distance(expected.speedup.value, expected.tokens_per_step.value)
        st.caption(
            f":material/fact_check: Reported: {reported.speedup:.2f}× with "
            f"{shape(reported.size, reported.depth)} and {reported.tokens_per_step:.2f} tokens per step "
            f"({escaped(reported.source)}); this vector expects {expected.tokens_per_step.value:.2f} tokens per step. "
            f"With the reported tokens per step, these times predict {speedup:.2f}×, {abs(off):.0%} "
            f"{'more' if off > 0 else 'less'}."
        )
