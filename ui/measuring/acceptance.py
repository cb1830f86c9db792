"""The form and the job for measuring an acceptance vector on the model pair."""

from dataclasses import dataclass

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.files.prompt_files import check_text
from sequoia_core.files.prompt_rows import Prompt
from sequoia_core.models.prompting import Prompting, encode_prompt
from ui import controls, prompts
from ui.cards import draw_error
from ui.jobs import job_panel
from ui.jobs.jobs import JobContext
from ui.phrases import sampling
from ui.prompts import session_prompting
from ui.session import predictions, session, shipped

DEFAULT_RANKS = 32  # enough for the widest node of most optimal trees


@dataclass(frozen=True, slots=True)
class AcceptanceRequest:
    """The settings of a measurement.

    Attributes:
        texts: prompts, or texts to read as they are.
        width: number of ranks to measure.
        tokens: number of new tokens per prompt.
        own_text: whether to read the texts as they are, without generating.
        resume: interrupted measurement with the same settings to continue; None to start a new one.
        prompting: conversion of texts into prompts; None if the template arguments are invalid.
    """

    texts: tuple[Prompt, ...]
    temperature: float
    top_p: float
    verifier: str
    width: int
    tokens: int
    own_text: bool
    resume: AcceptanceVector | None
    prompting: Prompting | None


def measurement_section() -> None:
    """Draw the measurement form and its progress."""
    uploaded = prompts.prompt_file_control()
    with st.form("acceptance_measure"):
        request = request_controls(uploaded)
        whose = "the demo" if session.pair_spec().is_demo else "your"
        blocked = controls.warn_without_draft("Measuring acceptance") or job_panel.is_active("measure")
        if controls.primary_button(
            f"Measure on {whose} pair", draw=st.form_submit_button, icon=":material/speed:", disabled=blocked
        ):
            try:
                if request.prompting is None:
                    raise ValueError("Template arguments: found invalid ones, expected name=value pairs")
                if not request.texts:
                    raise ValueError("Prompts: found none, expected a shipped one, your own, or a file")
                for text in request.texts:
                    check_text(text)
            except ValueError as error:
                draw_error(error)
            else:
                start_measurement(request)
    job_panel.draw_job("measure")


def request_controls(uploaded: list[Prompt]) -> AcceptanceRequest:
    """Draw the form's controls and return the selected settings."""
    from sequoia_core.measuring.measure_acceptance import is_partial

    left, right = st.columns(2)
    temperature, top_p = session.sampling()
    verifier = controls.verifier_control(
        left,
        key="acceptance_verifier",
        help="Determines how children are drawn and accepted. At temperature 0, all three behave the same.",
    )
    width = right.slider(
        "Ranks",
        1,
        64,
        DEFAULT_RANKS,
        key="acceptance_width",
        help="Number of children per node to measure. 32 suffices for the widest node of most optimal trees.",
    )
    chosen = [*prompts.prompts_control(right, usual=0 if uploaded else 8), *uploaded]
    left, right = st.columns(2, vertical_alignment="center")
    tokens = left.select_slider(
        "New tokens per prompt",
        (32, 64, 128, 256),
        64,
        key="acceptance_tokens",
        persist_state="session",
        help="Number of tokens that the target generates after each prompt; fewer if its text ends.",
    )
    own_text = right.toggle(
        "Read these texts instead of generating",
        key="acceptance_own_text",
        help="Both models read your texts without generating. This underestimates tokens per step if the target would "
        "have written something different; the result notes this.",
    )
    partial = session.original_acceptance()
    resume = is_partial(partial) and st.checkbox(
        f"Continue the current measurement: {partial.meta['prompts']} of {partial.meta['prompts_wanted']} prompts done",
        value=True,
        key="acceptance_resume",
        help="With the same settings and prompts, the result is identical to that of an uninterrupted measurement.",
    )
    how = prompts.template_arguments_control()
    if own_text:
        how = Prompting(False)
    resumed = partial if resume else None
    return AcceptanceRequest(tuple(chosen), temperature, top_p, verifier, width, tokens, own_text, resumed, how)


def measure_for(wanted: Conditions, *, prompts: int, tokens: int, ranks: int = DEFAULT_RANKS) -> None:
    """Queue a measurement under the given conditions, on the first `prompts` shipped prompts."""
    how = session_prompting()
    texts = tuple(shipped.prompts()[:prompts])
    if how is not None:
        start_measurement(
            AcceptanceRequest(texts, wanted.temperature, wanted.top_p, wanted.verifier, ranks, tokens, False, None, how)
        )


def start_measurement(request: AcceptanceRequest) -> None:
    """Queue the measurement, collecting its inputs here because a worker cannot access the session."""
    spec = session.pair_spec()

    def work(job: JobContext) -> AcceptanceVector:
        from sequoia_core import SamplingConfig, measure_acceptance
        from sequoia_core.measuring.measure_acceptance import Checkpoints

        assert request.prompting is not None, "checked before starting"
        pair = job.pair(spec)
        return measure_acceptance(
            [encode_prompt(pair, text, request.prompting) for text in request.texts],
            pair,
            sampling=SamplingConfig(temperature=request.temperature, top_p=request.top_p),
            verifier=request.verifier,
            width=request.width,
            max_new_tokens=None if request.own_text else request.tokens,
            checkpoints=Checkpoints(request.resume, job.store_partial, request.prompting.record(pair.tokenizer)),
            progress=job.subprogress(0.0, 1.0, "Measuring acceptance"),
            cancel=job.cancel,
        )

    how = predictions.conditions(request.temperature, request.top_p, request.verifier).sampling
    how += ", own text" if request.own_text else ""
    name = f"measured, {sampling(request.temperature, request.top_p)}"
    name += f", {request.verifier}" if request.temperature and request.verifier != "sequoia" else ""
    source = f"measured here on the {session.pair_name()} at {how}"
    job_panel.start_job("measure", "Measuring acceptance", work, info=(source, name))
