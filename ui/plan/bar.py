"""The plan bar at the top of every page: four independent choices, the planned tree, and what is wrong with them."""

import streamlit as st

from sequoia_core import TokenTree
from sequoia_core.planning.prediction import Prediction
from ui import controls
from ui.cards import draw_slower
from ui.jobs import job_panel
from ui.markdown import escaped
from ui.measuring import declaration, missing
from ui.phrases import sampling, shape, times
from ui.plan import acceptance, link, machine, models
from ui.session import predictions, session, tree_in_use
from ui.session.predictions import (
    CONTRADICTED,
    DISTURBED,
    ELSEWHERE,
    MEASURED,
    MISSING,
    MODELLED,
    OTHER_SETTINGS,
    SHIPPED,
    UNMEASURED,
    PredictionBasis,
)
from ui.session.state import state

WARNINGS = (CONTRADICTED, DISTURBED, OTHER_SETTINGS, UNMEASURED, MISSING)


def draw_plan_bar(*, measures: bool = True) -> None:
    """Draw the four choices, what they predict and, on a second line, what does not belong together.

    `measures`: whether to offer to measure; False if the page has its own button.
    """
    temperature, top_p = session.sampling()
    setting = sampling(temperature, top_p)
    with st.container(key="plan_bar", horizontal=True, vertical_alignment="center", gap="xsmall"):
        for name, title, icon, draw in (
            ("Models", models.pair_title(), ":material/hub:", models.models_control),
            ("Acceptance", acceptance.acceptance_title(), ":material/checklist:", acceptance.acceptance_control),
            ("Machine", machine.machine_title(), ":material/memory:", machine.machine_control),
            ("Sampling", setting, ":material/thermostat:", _sampling_control),
        ):
            key = f"plan_{name.lower()}_open"
            with st.popover(escaped(title), type="tertiary", icon=icon, help=name, key=key, wrap=True):
                draw()
        if session.sampling() != (temperature, top_p):
            st.rerun()  # the parts drawn so far depend on it
        basis = predictions.prediction_basis()
        tree = tree_in_use.current_tree()
        prediction = predictions.planned_prediction(tree, basis)
        _draw_result(basis, tree, prediction)
    _draw_problem(basis, prediction, measures=measures)
    planned = shape(tree.size, tree.depth) + (f", {times(prediction.speedup.value)}" if prediction else "")
    parts = (models.pair_title(), acceptance.acceptance_title(), machine.machine_title(), setting)
    link.write_link(" · ".join(parts), planned)


def _sampling_control() -> None:
    controls.sampling_controls(st.container(), st.container())


def _draw_result(basis: PredictionBasis, tree: TokenTree, prediction: Prediction | None) -> None:
    """Draw the planned tree, its predicted speedup, and what the prediction is based on."""
    planless = basis.name == UNMEASURED or session.pair_spec().is_alone
    words = "→" if planless else f"→ {shape(tree.size, tree.depth)}"
    label, help = _describe_basis(basis)
    badge = "green" if basis.name == MEASURED else "gray"
    if prediction is not None:
        speedup = prediction.speedup.value
        colour = "red" if speedup < 1 else badge
        words += f", **:{colour}[{times(speedup)}]**"
    elif basis.predicts:
        label = "the tree is larger than any that was timed"
    st.markdown(f"{words} :{'yellow' if basis.name in WARNINGS else badge}-badge[{label}]", width="content", help=help)


def _describe_basis(basis: PredictionBasis) -> tuple[str, str]:
    """Return the label of a basis, and what it means."""
    hardware = session.profile()
    device = "" if hardware is None else escaped(hardware.device)
    labels = {MODELLED: f"modelled for {device}", ELSEWHERE: f"measured on {device}"}
    label = labels.get(basis.name, basis.name)
    if job_panel.is_active("check") and hardware is not None and predictions.is_for_this_machine(hardware):
        label = "checking this machine"
    if basis.assumed:
        label += f", if the acceptance was measured for {basis.assumed}"
    return label, (
        f"Times: {escaped(session.profile_source())}. Acceptance: {escaped(session.acceptance_source())}. The speedup "
        "is that of the tree over plain decoding with the same model."
    )


def _draw_problem(basis: PredictionBasis, prediction: Prediction | None, *, measures: bool) -> None:
    """Draw one sentence on what does not belong together, with the ways to fix it."""
    slow = prediction is not None and prediction.speedup.value < 1
    why = "" if basis.name == SHIPPED and not measures else basis.why  # the page's own button says it
    other = session.planned_models() != session.pair_spec().names
    # Drawn even if it stays empty. Otherwise, a problem found later would move the page's elements, and restart them.
    with st.container(key="plan_problem", horizontal=True, vertical_alignment="center", gap="small"):
        if prediction is not None and slow:
            draw_slower(prediction.speedup.value, "")
            if state().shape is not None:
                st.button(
                    "Use the best static tree", key="plan_best", on_click=tree_in_use.set_size_and_depth, args=(None,)
                )
        if why:
            st.caption(f":material/info: {escaped(why)}", width="content")
            _draw_fixes(basis, measures=measures)
        if basis.assumed:
            with st.popover("What was it measured on?", icon=":material/edit_note:", key="declare_here"):
                st.markdown("The current acceptance vector does not record its conditions. Confirm or change them:")
                declaration.declaration_form()
        if other and not why:
            st.caption(
                f"This plan is for {session.short_names(*session.planned_models())}; live runs and races use the "
                f"{escaped(session.pair_name())}."
            )


def _set_sampling(temperature: float, top_p: float) -> None:
    st.session_state["temperature"] = temperature
    st.session_state["top_p"] = top_p
    session.set_sampling(temperature, top_p)


def _draw_fixes(basis: PredictionBasis, *, measures: bool) -> None:
    """Draw the buttons that make the choices fit each other."""
    held = session.acceptance().holds_for
    planned_here = session.planned_models() == session.pair_spec().names
    if basis.name == MISSING and session.has_chosen_acceptance():
        st.button("Use an acceptance that fits", key="plan_fit", on_click=session.use_vector, args=(None,))
    if basis.name == MISSING and held is not None and not predictions.lacks_measurement():
        settings = (held.temperature, held.top_p)
        st.button(f"Set T = {held.temperature:g}", key="plan_set_t", on_click=_set_sampling, args=settings)
    if measures and planned_here and not session.pair_spec().is_alone:
        missing.measure_button()
