"""The whole chain on the overview: starting it, its stages while it runs, what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.models.prompting import Prompting
from ui import controls
from ui.cards import Card, cards
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.measuring import acceptance as measurement
from ui.overview import chain_job, tour
from ui.phrases import between, count
from ui.runs import kept_runs, runs
from ui.session import session, shipped

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector

FALLBACK_PROMPTS = [
    "import os\n\n\ndef list_files(folder):\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        ",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    ",
    "with open(path) as handle:\n    for line in handle:\n        ",
    "import json\n\n\ndef load_config(path):\n    ",
]
DECODED = range(8, 16)  # the shipped prompts that are decoded; the others are measured on


def _prompts() -> tuple[list[str], list[str]]:
    """Return the prompts to measure on, and the others, to decode."""
    prompts = shipped.prompts() or FALLBACK_PROMPTS
    decoded = range(min(DECODED.start, len(prompts) - 1), min(DECODED.stop, len(prompts)))
    return prompts[: decoded.start] + prompts[decoded.stop :], prompts[decoded.start : decoded.stop]


def start() -> None:
    """Submit the whole chain on the chosen pair."""
    work = chain_job.chain_work(*_prompts(), models=session.pair_spec())
    job_panel.start("chain", "Whole chain", work, info=session.pair_name())


def draw_stage(was_active: bool) -> None:
    """Draw the two ways or the chain's film, with its progress; runs the page again once `was_active` has changed."""
    job, kept = session_jobs.job("chain"), "What was measured until then is in use."
    with st.container():  # always there, so that the stage below stays the same element
        if job is not None and job.active:
            job_panel.progress_and_cancel("chain", job)
        elif job is not None and job.state == "failed":
            st.error(f"The chain failed: {escaped(job.error or '')}. {kept}", icon=":material/error:")
        elif job is not None and job.state == "cancelled":
            st.warning(f"Stopped. {kept}", icon=":material/stop_circle:")
    tour.draw(job)
    if was_active and (job is None or not job.active):
        st.rerun()


def draw_result(found: chain_job.ChainResult) -> None:
    """Draw what the chain found, each number beside what it compares with, and where to see how."""
    summary, prompts = found.summary, count(len(found.runs), "prompt")
    if summary.speedup is not None:
        cards(
            Card(
                "Measured speedup",
                f"{summary.speedup:.2f}×",
                f"over {prompts}, {count(summary.tokens, 'token')}",
                help="Tokens per second with the tree ÷ without it, same model, cache, sampler and length.",
            ),
            Card(
                "Predicted speedup",
                f"{summary.predicted_speedup:.2f}×",
                f"{between(*found.interval, unit='×')} for {prompts}"
                if found.interval
                else "by what was just measured",
                help="Tokens per step × seconds of a plain token ÷ seconds of a step, from the acceptance and the "
                "profile just measured. The range is where so many prompts are expected in 95 of 100 cases.",
            ),
            Card(
                "Tokens per step",
                f"{summary.tokens_per_step:.2f}",
                f"expected {summary.expected_tokens:.2f}",
                help="Committed tokens ÷ target passes. Expected: F of the planned tree.",
            ),
        )
    kept_runs.say_made_with(found.runs[0])
    words = runs.explain(summary)
    if found.is_wide:
        words = words.replace(runs.OUTCOMES["held"], "The range is too wide to say that the prediction held")
    st.markdown(words)
    _offer_more(found.acceptance)
    controls.page_link(st.container(), "decode", "Watch this run step by step", ":material/play_circle:")


def _offer_more(vector: AcceptanceVector | None) -> None:
    """Offer to measure acceptance on the prompts that are left, of the pair that the chain ran on."""
    known, texts = vector and vector.prompt_trials, _prompts()[0]
    left = 0 if known is None or session.original_acceptance() is not vector else len(texts) - len(known)
    if left > 0 and st.button(
        f"Go on measuring: {count(left, 'prompt')} left",
        icon=":material/speed:",
        key="chain_go_on",
        disabled=job_panel.is_active("measure"),
        help="Acceptance was measured until the plan was settled or its time was over. The vector in use becomes "
        "surer; you can stop at any time and keep what it has.",
    ):
        sampling = 0.0, 1.0, "sequoia", measurement.WIDTH, chain_job.PROMPT_TOKENS
        measurement.start(measurement.Request(tuple(texts), *sampling, False, vector, Prompting()))
    job_panel.draw("measure")
