"""The whole chain on the start page: starting it, drawing its stages while it runs, and drawing its result."""

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.models.prompting import Prompting
from ui import controls
from ui.cards import draw_load_warning
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.measuring import acceptance as measurement
from ui.overview import chain_job, tour
from ui.phrases import ONE_PASS_DIGITS, count, in_parentheses, times
from ui.runs import available_runs, runs
from ui.session import session, shipped

FALLBACK_PROMPTS = [
    "import os\n\n\ndef list_files(folder):\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        ",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    ",
    "with open(path) as handle:\n    for line in handle:\n        ",
    "import json\n\n\ndef load_config(path):\n    ",
]
DECODED = range(8, 16)  # shipped prompts to decode; acceptance is measured on the others


def _prompts() -> tuple[list[str], list[str]]:
    """Return the prompts for measuring acceptance and the prompts to decode."""
    prompts = shipped.prompts() or FALLBACK_PROMPTS
    decoded = range(min(DECODED.start, len(prompts) - 1), min(DECODED.stop, len(prompts)))
    return prompts[: decoded.start] + prompts[decoded.stop :], prompts[decoded.start : decoded.stop]


def start_chain() -> None:
    """Submit the job that runs the whole chain on the current pair."""
    work = chain_job.chain_work(*_prompts(), models=session.pair_spec())
    job_panel.start_job("chain", "Whole chain", work, info=session.pair_name())


def draw_stage(was_active: bool) -> None:
    """Draw the comparison, or the chain's film and progress; rerun the page when the job ends."""
    job = session_jobs.find_job("chain")
    kept = "Everything measured so far is kept."
    with st.container():  # always drawn, so that the stage below remains the same element
        if job is not None and job.active:
            job_panel.draw_progress("chain", job)
        elif job is not None and job.state == "failed":
            st.error(f"The chain failed: {escaped(job.error or '')}. {kept}", icon=":material/error:")
        elif job is not None and job.state == "cancelled":
            st.warning(f"Stopped. {kept}", icon=":material/stop_circle:")
    tour.draw_tour(job)
    if was_active and (job is None or not job.active):
        st.rerun()


def draw_result(result: chain_job.ChainResult) -> None:
    """Draw the measured and the predicted speedup, their explanation, and a link to the run."""
    summary = result.summary
    prompts = count(len(result.runs), "prompt")
    if summary.speedup is not None and summary.predicted_speedup is not None:
        expected = in_parentheses(*result.interval, unit="×") if result.interval else ""
        st.markdown(
            f"**{times(summary.speedup, ONE_PASS_DIGITS)} measured** over {prompts}, {count(summary.tokens, 'token')}. "
            f"{times(summary.predicted_speedup)}{expected} predicted.",
            help="Tokens per second with the tree ÷ without it, with the same model, cache, sampler and length. The "
            "range covers the speedup on this number of prompts in 95 of 100 cases.",
        )
    draw_load_warning(*result.runs, {} if result.profile is None else result.profile.meta)
    available_runs.draw_settings(result.runs[0])
    words = runs.explain_speedup(summary)
    if result.is_wide:
        words = words.replace(runs.OUTCOME_TITLES["held"], "The range is too wide to tell whether the prediction held")
    st.markdown(words)
    _offer_more(result.acceptance)
    controls.page_link(st.container(), "decode", "Watch this run step by step", ":material/play_circle:")


def _offer_more(vector: AcceptanceVector | None) -> None:
    """Offer to measure acceptance on the remaining prompts with the chain's pair."""
    known = vector and vector.prompt_trials
    texts, _ = _prompts()
    left = 0 if known is None or session.original_acceptance() is not vector else len(texts) - len(known)
    if left > 0 and st.button(
        f"Continue measuring: {count(left, 'prompt')} left",
        icon=":material/speed:",
        key="chain_go_on",
        disabled=job_panel.is_active("measure"),
        help="Acceptance was measured until the plan was settled or the time limit was reached. More prompts make the "
        "current vector more precise; you can stop at any time without losing results.",
    ):
        sampling = 0.0, 1.0, "sequoia", measurement.DEFAULT_RANKS, chain_job.PROMPT_TOKENS
        measurement.start_measurement(
            measurement.AcceptanceRequest(tuple(texts), *sampling, False, vector, Prompting())
        )
    job_panel.draw_job("measure")
