"""The whole chain on the overview: starting it, its stages while it runs, what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from sequoia_core.models.prompting import Prompting
from ui import controls
from ui.cards import Card, cards
from ui.jobs import job_panel, session_jobs
from ui.jobs.jobs import Job
from ui.markdown import escaped
from ui.measuring import acceptance as measurement
from ui.overview import chain_job
from ui.phrases import between, count
from ui.runs import runs
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
DECODED = 8  # the shipped prompt that is decoded; the others are measured on
STAGE_ICONS = {
    "done": ":green[:material/check_circle:]",
    "now": ":blue[:material/pending:]",
    "open": ":gray[:material/radio_button_unchecked:]",
    "stopped": ":red[:material/stop_circle:]",
}


def _prompts() -> tuple[list[str], str]:
    """Return the prompts to measure on, and one more to decode."""
    prompts = shipped.prompts() or FALLBACK_PROMPTS
    decoded = min(DECODED, len(prompts) - 1)
    return prompts[:decoded] + prompts[decoded + 1 :], prompts[decoded]


def start() -> None:
    """Submit the whole chain on the chosen pair."""
    others, decoded = _prompts()
    work = chain_job.chain_work([*others, decoded], models=session.pair_spec())
    job_panel.start("chain", "Whole chain", work, info=session.pair_name())


def draw_progress(was_active: bool) -> None:
    """Draw the chain's stages and progress; runs the whole page again once `was_active` has changed."""
    job = session_jobs.job("chain")
    if job is None:
        return
    active = job.active
    if active:
        job_panel.progress_and_cancel("chain", job)
    elif job.state == "failed":
        st.error(f"The chain failed: {escaped(job.error or '')}", icon=":material/error:")
    elif job.state == "cancelled":
        st.warning("Stopped. What was finished before is in use.", icon=":material/stop_circle:")
    _draw_stages(job, active=active)
    if was_active and not active:
        st.rerun()


def _draw_stages(job: Job, *, active: bool) -> None:
    """Draw the named stages with their state."""
    over = job.state == "done"
    for place, stage in zip(st.columns(len(chain_job.STAGES)), chain_job.STAGES, strict=True):
        if over or job.fraction >= stage.high:
            state = "done"
        elif job.fraction >= stage.low and job.state != "queued":
            state = "now" if active else "stopped"
        else:
            state = "open"
        place.markdown(f"{STAGE_ICONS[state]} {stage.name}")


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


def _sureness(summary: RunSummary) -> str:
    """Say between which bounds one prompt was expected, or how near the measured speedup came."""
    if summary.predicted_interval is not None:
        return f"{between(*summary.predicted_interval, unit='×')} for one prompt"
    assert summary.speedup is not None and summary.predicted_speedup is not None, "the chain measures and predicts"
    return f"measured is {summary.speedup / summary.predicted_speedup:.0%} of it"


def draw_result(run: dict[str, Any]) -> None:
    """Draw what the chain found, each number beside what it compares with, and where to see how."""
    summary = runs.summary_of(run)
    row = []
    if summary.speedup is not None:
        row += [
            Card(
                "Measured speedup",
                f"{summary.speedup:.2f}×",
                f"{summary.speedup - 1:+.2f}× vs autoregressive",
                signed=True,
                help="Tokens per second with the tree ÷ without it, same model, cache, sampler and length.",
            ),
            Card(
                "Predicted speedup",
                f"{summary.predicted_speedup:.2f}×",
                _sureness(summary),
                help="Tokens per step × seconds of a plain token ÷ seconds of a step, from the acceptance and the "
                "profile just measured. The range is where a single prompt is expected in 95 of 100 cases.",
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
    st.markdown(runs.explain(summary))
    _draw_calibration()
    controls.page_link(st.container(), "decode", "Watch this run step by step", ":material/play_circle:")
