"""The Race and runs page: decoding methods compared on one prompt, and this session's runs."""

import streamlit as st

from sequoia_core.models.prompting import Prompting
from sequoia_core.trees.plain import chain_tree
from ui import controls, menu, page_setup, prompts
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.race import entrants, finish, race_job
from ui.runs import saved_runs
from ui.runs.runs import DecodeRequest
from ui.session import predictions, session, tree_in_use

PROMPT_CHARS = 14  # maximum length of the prompt on its button, in characters


def race_controls() -> None:
    """Draw the prompt, the settings and the start button, or the stop button of a running race."""
    words = prompts.initialize_prompt("race_prompt", first=None)
    with st.popover(f"Prompt: {escaped(words, PROMPT_CHARS)}", icon=":material/edit_note:"):
        prompt = prompts.prompt_control("race_prompt")
        prompting = prompts.template_arguments_control()
    with st.popover("Settings", icon=":material/tune:"):
        common = _settings(prompt, prompting)
        methods = st.pills(
            "Methods besides plain decoding",
            entrants.method_titles(),
            selection_mode="multi",
            default=entrants.method_titles(),
            key="race_methods",
            help="In each of three rounds, all decode the same prompt with the same seed. SpecInfer's tree is 5 chains "
            "of 8 tokens. Adaptive and hybrid trees need a vector with a calibration.",
        )
    job = session_jobs.find_job("race")
    if job is not None and job.active:
        if st.button("Stop", icon=":material/stop:", key="race_stop", disabled=job.cancel_event.is_set()):
            job.cancel()
        return
    draw = st.button if predictions.lacks_measurement() else controls.primary_button
    start = draw("Start the race", icon=":material/flag:", key="race_start", disabled=common is None)
    if start and common is not None:
        if problem := prompts.prompt_problem(prompt):
            st.error(problem, icon=":material/error:")
            return
        runners = entrants.race_entrants(common, methods)
        job_panel.start_job("race", "Race", race_job.race_work(runners), info=common)


def _settings(prompt: str, prompting: Prompting | None) -> DecodeRequest | None:
    """Draw and return the settings that all methods share; None if the template arguments are invalid."""
    first, second = st.columns(2)
    temperature, top_p = session.sampling()
    tokens = first.slider(
        "New tokens",
        16,
        256,
        128,
        16,
        key="race_tokens",
        bind="query-params",
        help="All methods generate this many tokens and ignore end of text; otherwise, a short text would win.",
    )
    seed = controls.seed_control(
        second,
        help="The same for every method; no effect at temperature 0. Above 0, texts differ because each method "
        "draws different random numbers, but their distribution is the same.",
    )
    if tree_in_use.is_guessed() and not session.pair_spec().is_alone:
        st.caption("Nothing was measured for this pair, so no tree is planned and the chain's length is a guess.")
    if prompting is None:
        return None
    return DecodeRequest(
        prompt,
        chain_tree(1),  # placeholder, replaced by each method's tree
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=tokens,
        seed=seed,
        models=session.pair_spec(),
        prompting=prompting,
    )


def race_section() -> None:
    """Draw the lanes of this session's race or the recorded one, and the results."""
    polling = job_panel.is_active("race")
    st.fragment(finish.draw_race, run_every=finish.POLL_SEC if polling else None)(polling)


in_runs = controls.open_tab("race_section") == "Runs"
page_setup.setup_page("Race and runs", follows="" if in_runs else "race")
with st.container(horizontal=True, vertical_alignment="center", key="race_controls"):
    st.title("Race and runs", width="content")
    if not in_runs:
        race_controls()
controls.draw_tabs({"Race": race_section, "Runs": saved_runs.saved_runs_section}, key="race_section")
menu.draw_next_link("Race and runs")
