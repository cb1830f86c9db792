"""The My models page: from a pair of one's own to a measured plan and a live run, in four steps."""

import streamlit as st

from ui import controls, menu, page_setup
from ui.jobs import job_panel
from ui.markdown import escaped
from ui.measuring import missing
from ui.phrases import duration, in_parentheses, shape, times
from ui.plan import models, pair_checks
from ui.session import model_pairs, predictions, session, tree_in_use

STEPS = ("Models", "Measure", "Plan", "Watch")
BADGES = {"done": "green", "now": "yellow", "next": "gray"}
QUICK_SEC = 60.0  # a quick measurement of a pair whose target has `QUICK_BYTES`, on two cores
QUICK_BYTES = 6e8


def draw_step(number: int, current: int, time: str) -> None:
    """Draw a step's title, its state and its expected time."""
    state = "done" if number < current else "now" if number == current else "next"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(f"{number} {STEPS[number - 1]}", anchor=False, width="content")
        st.markdown(f":{BADGES[state]}-badge[{state}]", width="content")
        st.caption(time, width="content")


def models_step(checked: pair_checks.PairChecks, *, ready: bool) -> None:
    """Draw the chosen pair with its checks, and the controls that change it."""
    spec = session.pair_spec()
    if not spec.is_demo:
        st.markdown(f"**{models.pair_title()}**")
        pair_checks.draw_checks(checked, spec)
    with st.expander("Choose the models", icon=":material/hub:", expanded=not ready):
        if models.pair_picker("own"):
            # The offered model is known to fit, so that one click suffices.
            if session.pair_spec() == model_pairs.gemma_pair():
                missing.measure_missing()
            st.rerun()


def measure_step(*, ready: bool, measured: bool) -> None:
    """Draw the measurement: its button, its progress, or what was measured."""
    if session.pair_spec().is_alone:
        st.caption("Nothing to measure without a draft: lookup trees follow the text.")
        return
    running = any(job_panel.is_active(name) for name in missing.JOBS)
    for name in missing.JOBS:
        job_panel.draw_job(name)
    if measured:
        st.caption(
            f"Pass times: {escaped(session.profile_source())}. Acceptance: {escaped(session.acceptance_source())}."
        )
    if not running and measured:
        st.button(
            "Measure more thoroughly",
            key="measure_more",
            icon=":material/speed:",
            on_click=missing.measure_thoroughly,
            help="More prompts, sizes and rounds, which narrows the intervals. It takes several minutes in the "
            "background; other pages can be used meanwhile.",
        )
    elif not running and ready:
        missing.measure_button()
    elif not ready:
        st.caption("How long the passes take here, and how often the draft is right.")


def plan_step(*, measured: bool) -> None:
    """Draw the planned tree, its prediction, and whether it pays."""
    tree = tree_in_use.current_tree()
    prediction = predictions.planned_prediction(tree) if measured else None
    if prediction is None:
        st.caption("The tree that suits this pair on this machine, and whether it pays.")
        return
    value, low, high = prediction.speedup
    speedup = f"{times(value)}{in_parentheses(low, high, unit='×')} the speed of decoding without a draft"
    if value <= 1:
        verdict = f":red[**It does not pay here:**] {speedup}. Use a smaller draft or one that is right more often."
    elif low is not None and low <= 1:
        verdict = f"**It may pay:** {speedup}. The interval includes 1×: measure more thoroughly."
    else:
        verdict = f":green[**It pays:**] {speedup}."
    tokens = prediction.tokens_per_step.value
    st.markdown(f"{shape(tree.size, tree.depth)}: {tokens:.2f} tokens per step, 1.00 without a draft. {verdict}")


page_setup.setup_page("My models", follows="profile")
st.title("My models")
st.caption("From your own models to a plan for this machine, in four steps.")
spec = session.pair_spec()
checked = pair_checks.check_pair(spec)
ready = checked.passed and not spec.is_demo
measured = not predictions.lacks_measurement() and predictions.prediction_basis().predicts
current = 1
if ready:
    current = 4 if measured or spec.is_alone else 2
expected = "about 10 s" if spec.is_demo else duration(QUICK_SEC * max(1.0, checked.target_bytes / QUICK_BYTES))
with st.container(border=True, key="step_models"):
    draw_step(1, current, "checked in seconds")
    models_step(checked, ready=ready)
with st.container(border=True, key="step_measure"):
    draw_step(2, current, f"{expected}, after loading")
    measure_step(ready=ready, measured=measured and ready)
with st.container(border=True, key="step_plan"):
    draw_step(3, current, "at once")
    plan_step(measured=measured and ready)
with st.container(border=True, key="step_watch"):
    draw_step(4, current, "a minute or less")
    controls.page_link(st.container(), "decode", "Watch a run", ":material/play_circle:")
menu.draw_next_link("My models")
