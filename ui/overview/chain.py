"""The whole chain on the overview: starting it, its stages while it runs, what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.models.prompting import Prompting
from ui import controls
from ui.cards import Card, cards
from ui.jobs import acceptance_measurement as measurement
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.overview import chain_job, tour
from ui.phrases import between, count
from ui.runs import kept_runs, runs
from ui.session import core_cache, session, shipped

if TYPE_CHECKING:
    from sequoia_core.studies.run_summary import RunSummary

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
    job, place = session_jobs.job("chain"), st.container()
    if job is not None and job.active:
        with place:
            job_panel.progress_and_cancel("chain", job)
    elif job is not None and job.state == "failed":
        place.error(
            f"The chain failed: {escaped(job.error or '')}. What was finished before is in use.",
            icon=":material/error:",
        )
    elif job is not None and job.state == "cancelled":
        place.warning("Stopped. What was measured until then is in use.", icon=":material/stop_circle:")
    tour.draw(job)
    if was_active and (job is None or not job.active):
        st.rerun()


def _draw_calibration() -> None:
    """Say on how many prompts acceptance was measured and how many more would help; offer to go on with the rest."""
    job = session_jobs.job("chain")
    found = None if job is None else job.result
    if not isinstance(found, chain_job.ChainResult) or found.acceptance is None or found.tree is None:
        return
    known, wanted = found.acceptance.prompt_trials, core_cache.prompts_for(found.acceptance, found.tree)
    if known is None:
        return
    words = (
        f"Acceptance was measured on {count(len(known), 'prompt')}, until the plan was settled or its time was over."
    )
    if wanted is not None and wanted > len(known):
        words += f" Tokens per step within 5% would take about {wanted}."
    st.caption(words)
    others, _ = _prompts()
    # of the pair that the chain ran on, unless another vector took the place of its own
    if session.original_acceptance() is not found.acceptance or len(others) <= len(known):
        job_panel.draw("measure")
        return
    if st.button(
        f"Go on measuring: {count(len(others) - len(known), 'prompt')} left",
        icon=":material/speed:",
        key="chain_go_on",
        disabled=job_panel.is_active("measure"),
        help="Measures acceptance on the other shipped prompts too. The vector in use becomes surer; you can stop at "
        "any time and keep what it has.",
    ):
        measurement.start(
            measurement.Request(
                tuple(others),
                0.0,
                1.0,
                "sequoia",
                measurement.WIDTH,
                chain_job.PROMPT_TOKENS,
                False,
                found.acceptance,
                Prompting(),
            )
        )
    job_panel.draw("measure")


def _sureness(summary: RunSummary, prompts: int) -> str:
    """Say between which bounds these prompts were expected, or how near the measured speedup came."""
    if summary.predicted_interval is not None:
        over = "one prompt" if prompts == 1 else count(prompts, "prompt")
        return f"{between(*summary.predicted_interval, unit='×')} for {over}"
    assert summary.speedup is not None and summary.predicted_speedup is not None, "the chain measures and predicts"
    return f"measured is {summary.speedup / summary.predicted_speedup:.0%} of it"


def draw_result(found: chain_job.ChainResult) -> None:
    """Draw what the chain found, each number beside what it compares with, and where to see how."""
    summary, prompts = found.summary, len(found.runs)
    row = []
    if summary.speedup is not None:
        row += [
            Card(
                "Measured speedup",
                f"{summary.speedup:.2f}×",
                f"over {count(prompts, 'prompt')}, {count(summary.tokens, 'token')}",
                help="Tokens per second with the tree ÷ without it, same model, cache, sampler and length.",
            ),
            Card(
                "Predicted speedup",
                f"{summary.predicted_speedup:.2f}×",
                _sureness(summary, prompts),
                help="Tokens per step × seconds of a plain token ÷ seconds of a step, from the acceptance and the "
                "profile just measured. The range is where so many prompts are expected in 95 of 100 cases.",
            ),
        ]
    if summary.tokens_per_step is not None:
        row.append(
            Card(
                "Tokens per step",
                f"{summary.tokens_per_step:.2f}",
                f"expected {summary.expected_tokens:.2f}",
                help="Committed tokens ÷ target passes. Expected: F of the planned tree.",
            )
        )
    if row:
        cards(*row)
    kept_runs.say_made_with(found.runs[0])
    words = runs.explain(summary)
    if found.is_wide:
        words = words.replace(runs.OUTCOMES["held"], "The range is too wide to say that the prediction held")
    st.markdown(words)
    _draw_calibration()
    controls.page_link(st.container(), "decode", "Watch this run step by step", ":material/play_circle:")
