"""The Machine page: the cost of drafting and verification here, and the fastest tree shape."""

import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.files.extras import has
from sequoia_core.models.device import describe_gpu
from sequoia_core.planning.break_even import step_limit
from sequoia_core.planning.plan import BestShape
from sequoia_core.planning.profile_files import describe_odd_times
from ui import controls, menu, page_setup
from ui.cards import Card, cards
from ui.machine import costs, reported, sentences, surface, why
from ui.markdown import escaped
from ui.measuring import profile as profile_measurement
from ui.phrases import shape, times
from ui.session import core_cache, machine, predictions, session


def draw_profile_in_use(profile: HardwareProfile) -> None:
    """Show the current profile's source, facts about this machine, and published results for the profile."""
    st.markdown(f":material/label: **Current:** {escaped(session.profile_source())}")
    if profile.meta.get("passes_by"):
        st.caption(escaped(f"Target passes in {profile.dtype}, run by {str(profile.meta['passes_by'])[:120]}."))
    if gpu := describe_gpu(profile.meta.get("gpu")):
        st.caption(escaped(f"Measured with {gpu}."))
    if (fall := describe_odd_times(profile.sizes, profile.verify_sec)) is not None:
        st.warning(fall, icon=":material/warning:")
    if has("hardware_models"):
        reported.draw_reported_results()
    controls.download_button(
        "Download profile",
        profile.to_bytes(),
        "profile.json",
        key="hardware_download",
        help="Sizes, times, raw samples and the conditions of the measurement.",
    )
    st.caption(f":material/memory: This machine: {escaped(' · '.join(machine.facts()))}")


def predictions_section(vector: AcceptanceVector, profile: HardwareProfile, best: BestShape) -> None:
    """Draw the best static tree, the speedup of all shapes, and what limits it."""
    cost = step_limit(best, profile)
    cards(
        Card(
            "Best static tree",
            times(best.predicted_speedup),
            "vs 1.00× for plain decoding",
            help="Tokens per step × seconds per plain token ÷ seconds per step; the maximum over all shapes.",
        ),
        Card(
            "Best shape",
            shape(best.size, best.depth),
            f"{best.expected_tokens:.2f} tokens per step",
            help="Tree size and depth at the optimum. The paper counts levels, D = d + 1.",
        ),
    )
    surface.surface_section(vector, profile)
    st.markdown(sentences.limit_sentence(best, cost))
    surface.draw_take_button(best.size, best.depth, key="hardware_use", label="Use the best shape")
    if has("dynamic_trees"):
        controls.page_link(st, "tree", "Trees that adapt may be faster", ":material/account_tree:")
    st.subheader("When does it pay, and what would help?")
    st.dataframe(sentences.break_even_rows(core_cache.break_even(vector, profile), max(best.size, 2)))
    st.markdown(sentences.gains_sentence(core_cache.gains(vector, profile)))
    foreign = predictions.prediction_basis().name not in (predictions.MEASURED, predictions.DISTURBED)
    why.time_section(vector, profile, foreign=foreign)


page_setup.setup_page("Machine")
st.title("Machine")
st.caption("What do drafting and verification cost on this machine, and which tree shape is fastest?")
left, right = st.columns([2, 1])
with right, st.expander("Measure this machine", icon=":material/speed:", key="hardware_form"):
    profile_measurement.profile_section()
profile = session.profile()
vector = session.acceptance()
if profile is None:
    left.info(
        "No hardware profile yet. Choose Measure to time the model pair here (one minute on a laptop), or upload one.",
        icon=":material/timer:",
    )
    menu.draw_next_link("Machine")
    st.stop()
basis = predictions.prediction_basis()
table, best, _ = core_cache.plan(vector, profile)

with left:
    if basis.predicts:
        predictions_section(vector, profile, best)
    else:
        st.info(escaped(basis.why) + " Until then, nothing is predicted.", icon=":material/info:")
with right:
    draw_profile_in_use(profile)
    if table.max_size < min(profile.max_size, core_cache.DEFAULT_TABLE_SIZE):
        st.caption(f":material/info: {controls.SEARCH_LIMIT_NOTE}")
    costs.costs_section(profile, best)
menu.draw_next_link("Machine")
