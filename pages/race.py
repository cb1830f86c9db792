"""Race and runs: every way of decoding on one prompt, one after another; and what was decoded, side by side."""

import streamlit as st

from sequoia_core.design.plain_trees import chain_tree
from ui import controls, menu, page_setup, prompts
from ui.jobs import job_panel, session_jobs
from ui.measuring import state_chip
from ui.race import entrants, finish, race_job
from ui.runs import saved_runs
from ui.runs.runs import DecodeRequest
from ui.session import predictions, session, tree_in_use


def race_section() -> None:
    """Draw the choice of methods and the race."""
    st.caption(
        "Which way of decoding is fastest here? One prompt and one seed; each runs alone on the device, one after "
        "another."
    )
    left, right = st.columns([5, 4])
    with left:
        prompt = prompts.one("race_prompt")
        prompting = prompts.template_arguments()
    with right:
        first, second = st.columns(2)
        temperature, top_p = controls.sampling(first, second)
        tokens = first.slider(
            "New tokens",
            16,
            256,
            128,
            16,
            key="race_tokens",
            bind="query-params",
            help="Every method writes as many: end of text is switched off, or a short text would win.",
        )
        seed = controls.seed(
            second,
            help="The same for every method; without effect at temperature 0. Above it texts differ all the same: each "
            "way of decoding draws other numbers, from one distribution.",
        )
        if not session.pair_spec().is_alone:
            state_chip.draw()
            if tree_in_use.is_guessed():
                st.caption("Nothing was measured for this pair: no tree is planned, and the chain's length is a guess.")

    methods = st.pills(
        "Methods, besides plain decoding",
        entrants.kinds(),
        selection_mode="multi",
        default=entrants.kinds(),
        key="race_methods",
        help="SpecInfer's tree is 5 chains of 8 tokens. Adaptive and hybrid trees need a vector with a calibration.",
    )
    active = job_panel.is_active("race")
    draw = st.button if predictions.lacks_measurement() else controls.primary_button
    if draw(
        "Start the race",
        icon=":material/flag:",
        key="race_start",
        disabled=active or prompting is None,
    ):
        problem = prompts.problem(prompt)
        if problem is not None:
            st.error(problem, icon=":material/error:")
        elif prompting is not None:
            common = DecodeRequest(
                prompt,
                chain_tree(1),  # each method brings its own
                temperature=temperature,
                top_p=top_p,
                max_new_tokens=tokens,
                seed=seed,
                models=session.pair_spec(),
                prompting=prompting,
            )
            runners = entrants.entrants(common, methods)
            job_panel.start("race", "Race", race_job.race_work(runners), info=common)
    job_panel.draw("race")
    st.divider()

    job = session_jobs.job("race")
    if job is not None and active:
        st.fragment(finish.draw_running, run_every=job_panel.POLL_SEC)(job)
    elif job is None or job.result is None or not job.result.results:
        finish.draw_recorded()
    else:
        if job.state == "cancelled":
            st.warning("Stopped. The methods that had finished are below.", icon=":material/stop_circle:")
        finish.draw(job.result, job.info, epoch=job.id)


in_runs = controls.chosen_section("race_section") == "Runs"
page_setup.setup_page("Race and runs", follows="" if in_runs else "race")
st.title("Race and runs")
controls.sections({"Race": race_section, "Runs": saved_runs.section}, key="race_section")
menu.draw_next("Race and runs")
